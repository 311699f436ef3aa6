"""Materialised stages: their bytes, the key, hits, and that no failure leaves anything.

Long because all failures are held against one rule: whatever happens, no file is left.
"""

import json
import os
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts.content_digest import content_digest
from engine.artifacts.gguf import open_gguf
from packages.layer_package import compose, stage_cache
from packages.layer_package.errors import Cancelled, PackageError
from packages.layer_package.materialise import materialise, stage_key
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.stage_cache import locked, record_path
from tests.layer_package.package_cases import (
    fragment_pairs,
    gguf_bytes,
    made,
    replace_artifact,
    source_gguf,
    tiny_model,
)
from tests.layer_package.stage_cases import opened, select, tiny_package


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "stages"


@pytest.fixture
def package(tmp_path: Path) -> PackageDir:
    return tiny_package(tmp_path / "package")


def kind_of(package: PackageDir, cache: Path, start: int = 0, end: int | None = None,
            **options: Any) -> str:
    """Kind of the refusal; nothing of it may be left."""
    before = sorted(cache.rglob("*")) if cache.exists() else []
    with pytest.raises(PackageError) as caught:
        materialise(package, select(package, start, end), root=cache, **options)
    left = [p for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock"]
    assert left == [p for p in before if p.is_file() and p.suffix != ".lock"]
    assert str(cache) not in str(caught.value)
    return caught.value.kind


# Content


@pytest.mark.parametrize("kinds", [
    {}, {"tied": True}, {"mtp": True}, {"rope_table": True}, {"alignment": 256},
    {"per_layer_table": True}, {"every_type": True}, {"n_layers": 1},
    {"rope_table": True, "repeat_common": True},
], ids=lambda kinds: " ".join(kinds) or "plain")  # fmt: skip
def test_the_full_range_is_the_source(tmp_path: Path, cache: Path, kinds: dict[str, Any]) -> None:
    package = tiny_package(tmp_path / "package", **kinds)
    path = materialise(package, select(package), root=cache)
    kinds.pop("repeat_common", None)
    source_path = source_gguf(tmp_path / "source.gguf", **kinds)
    with open_gguf(path) as found, open_gguf(source_path) as source:
        assert content_digest(found) == content_digest(source)
        assert {t.name: bytes(t.raw()) for t in found.tensors} == {
            t.name: bytes(t.raw()) for t in source.tensors
        }
        assert found.alignment == source.alignment


def test_a_stage_holds_its_parts_and_says_so(package: PackageDir, cache: Path) -> None:
    selection = select(package, 1, 2)
    path = materialise(package, selection, root=cache, stage="node-a/0")
    with open_gguf(path) as file:
        names = [t.name for t in file.tensors]
        keys = {k.removeprefix("skippy."): file.get(k) for k in file.metadata if "skippy." in k}
    assert names == [t for t in names if t.startswith("blk.1.")]
    assert keys == {
        "slice.stage_index": 0, "slice.layer_start": 1, "slice.layer_end": 2,
        "slice.include_embeddings": False, "slice.include_output": False,
        "package.materialized": True, "package.part_count": 2,
    }  # fmt: skip
    assert re.fullmatch(
        r"acme-lab_TinyDemo-GGUF_Q8_0-node-a_0-1-2-[0-9a-f]{24}\.gguf", path.name
    )


@pytest.mark.parametrize(("layers", "ends"), [
    ((0, 1), (True, False)), ((2, 3), (False, True)), ((0, 3), (True, True)),
])  # fmt: skip
def test_a_stage_says_which_ends_it_has(
    package: PackageDir, cache: Path, layers: tuple[int, int], ends: tuple[bool, bool]
) -> None:
    with open_gguf(materialise(package, select(package, *layers), root=cache)) as file:
        said = [file.get(f"skippy.slice.include_{end}") for end in ("embeddings", "output")]
        names = {t.name for t in file.tensors}
    assert tuple(said) == ends
    assert ("token_embd.weight" in names, "output.weight" in names) == ends


def test_parts_are_in_load_order(package: PackageDir, cache: Path) -> None:
    with open_gguf(materialise(package, select(package), root=cache)) as file:
        names = [t.name for t in file.tensors]
    layers = [n.split(".")[1] for n in names if n.startswith("blk.")]
    assert names[0] == "token_embd.weight"
    assert layers == sorted(layers, key=int)
    assert names[-2:] == ["output_norm.weight", "output.weight"]


def test_two_runs_give_the_same_bytes(package: PackageDir, tmp_path: Path) -> None:
    paths = [materialise(package, select(package), root=tmp_path / n) for n in ("a", "b")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("differs", ["bytes", "shape", "type"])
def test_a_common_tensor_may_repeat_only_unchanged(
    tmp_path: Path, cache: Path, differs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose, "COPY_BYTES", 24)
    root = tmp_path / "package"
    tiny_package(root, rope_table=True, repeat_common=True)
    model = tiny_model(rope_table=True)
    dims, kind = ((4, 4) if differs == "shape" else (16,)), (1 if differs == "type" else 0)
    other = made("rope_freqs.weight", dims, kind)
    if differs == "bytes":
        other = other._replace(data=other.data[:-1] + bytes([other.data[-1] ^ 1]))
    layer = [other, *(t for t in model.tensors if t.name.startswith("blk.1."))]
    data = gguf_bytes(fragment_pairs(model, "1", 3), layer, model.alignment)
    replace_artifact(root, "layers/layer-00001.gguf", data, layer)
    package = opened(root)
    assert kind_of(package, cache) == "conflicting_tensor"
    materialise(package, select(package, 2, 3), root=cache)


def test_an_owned_tensor_in_a_foreign_part_is_refused(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "package"
    tiny_package(root)
    model = tiny_model()
    layer = [t for t in model.tensors if t.name.startswith(("blk.1.", "token_embd"))]
    data = gguf_bytes(fragment_pairs(model, "1", 3), layer, model.alignment)
    replace_artifact(root, "layers/layer-00001.gguf", data, layer)
    assert kind_of(opened(root), cache) == "misplaced_owned_tensor"


def test_another_architecture_is_refused(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "package"
    tiny_package(root)
    data = (root / "layers/layer-00002.gguf").read_bytes().replace(b"llama", b"mamba", 1)
    replace_artifact(root, "layers/layer-00002.gguf", data)
    assert kind_of(opened(root), cache) == "architecture_mismatch"


# Key and hits


def test_equal_content_is_shared_wherever_it_lies(tmp_path: Path, cache: Path) -> None:
    one, two = tiny_package(tmp_path / "one"), tiny_package(tmp_path / "two")
    first = materialise(one, select(one, 0, 2), root=cache, stage="a")
    assert materialise(two, select(two, 0, 2), root=cache, stage="b") == first


def test_the_key_changes_with_everything_that_the_bytes_depend_on(
    package: PackageDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_package(tmp_path / "other", n_layers=4)
    keys = {
        stage_key(p.manifest, select(p, start, end))
        for p in (package, other) for start, end in ((0, 1), (0, 2), (1, 2), (1, 3))
    }
    selection = select(package, 0, 1)
    for change in ({"include_embeddings": False}, {"include_output": True},
                   {"parts": selection.parts[:-1]}):
        keys.add(stage_key(package.manifest, replace(selection, **change)))
    monkeypatch.setattr("packages.layer_package.materialise.COMPOSER", "another")
    keys.add(stage_key(package.manifest, selection))
    assert len(keys) == 12


def test_a_hit_is_not_made_again(package: PackageDir, cache: Path) -> None:
    path = materialise(package, select(package), root=cache)
    before = path.stat()
    seen: list[tuple[int, int]] = []
    again = materialise(
        package, select(package), root=cache, progress=lambda *n: seen.append(n)
    )
    assert again == path
    assert (again.stat().st_ino, again.stat().st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    assert len(seen) == 1
    assert seen[0][0] == seen[0][1]


@pytest.mark.parametrize("change", [
    "a byte", "the length", "no record", "a foreign record", "a huge record", "replaced", "a link",
    "a link that was recorded", "forced",
])  # fmt: skip
def test_what_is_not_the_recorded_file_is_made_again(
    package: PackageDir, cache: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = materialise(package, select(package), root=cache)
    good = path.read_bytes()
    record = record_path(path)
    if change == "a byte":
        times = path.stat()
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([good[-1] ^ 1]))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "the length":
        os.truncate(path, len(good) - 1)
    elif change == "no record":
        record.unlink()
    elif change == "a foreign record":
        record.write_text(json.dumps({**json.loads(record.read_bytes()), "layer_end": 2}))
    elif change == "a huge record":
        record.write_bytes(record.read_bytes() + b" " * stage_cache.MAX_RECORD_BYTES)
    elif change == "replaced":
        copy = cache / "copy"
        copy.write_bytes(good)
        os.replace(copy, path)
    elif change.startswith("a link"):
        target = path.rename(cache / "elsewhere")
        if change.endswith("recorded"):
            facts = stage_cache.file_facts(target) or {}
            record.write_text(json.dumps({**json.loads(record.read_bytes()), **facts}))
        path.symlink_to(target)
    else:
        monkeypatch.setenv(stage_cache.FORCE_VARIABLE, "1")
    seen: list[int] = []
    again = materialise(
        package, select(package), root=cache, progress=lambda done, _: seen.append(done)
    )
    assert len(seen) > 1
    assert again == path
    assert not path.is_symlink()
    assert path.read_bytes() == good


def test_a_hit_that_does_not_open_is_made_again(package: PackageDir, cache: Path) -> None:
    path = materialise(package, select(package), root=cache)
    good = path.read_bytes()
    path.write_bytes(b"text" + good[4:])
    record = json.loads(record_path(path).read_bytes())
    record_path(path).write_text(json.dumps({**record, **(stage_cache.file_facts(path) or {})}))
    assert materialise(package, select(package), root=cache).read_bytes() == good


def test_a_record_names_no_path_of_the_machine(package: PackageDir, cache: Path) -> None:
    path = materialise(package, select(package), root=cache)
    text = record_path(path).read_text()
    assert str(cache) not in text
    assert str(package.root) not in text


# Failures


def test_parts_are_verified_also_of_a_local_package(package: PackageDir, cache: Path) -> None:
    part = package.root / "layers/layer-00001.gguf"
    raw = bytearray(part.read_bytes())
    raw[-1] ^= 1
    part.write_bytes(raw)
    assert kind_of(package, cache) == "artifact_sha256_mismatch"
    part.write_bytes(raw[:-1])
    assert kind_of(package, cache) == "artifact_size_mismatch"
    part.unlink()
    assert kind_of(package, cache) == "missing_artifact"
    os.mkfifo(part)
    assert kind_of(package, cache) == "artifact_not_file"
    materialise(package, select(package, 0, 1), root=cache)


def test_a_part_that_changes_while_it_is_copied(
    package: PackageDir, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compose.composed_tensors

    def touched(*args: Any) -> Any:
        part = package.root / "layers/layer-00000.gguf"
        part.write_bytes(part.read_bytes())
        return real(*args)

    monkeypatch.setattr("packages.layer_package.materialise.composed_tensors", touched)
    assert kind_of(package, cache) == "artifact_changed"


def test_a_cancelled_call_leaves_nothing(package: PackageDir, cache: Path) -> None:
    n_calls = 0

    def counted() -> bool:
        nonlocal n_calls
        n_calls += 1
        return False

    materialise(package, select(package), root=cache / "all", cancelled=counted)
    for at in range(0, n_calls, 5):
        asked = iter(range(n_calls))
        root = cache / str(at)
        with pytest.raises(Cancelled):
            materialise(
                package, select(package), root=root, cancelled=lambda a=asked, n=at: next(a) >= n
            )
        assert [p.suffix for p in root.rglob("*") if p.is_file()] in ([], [".lock"])


def test_a_full_or_closed_disk_is_said(
    package: PackageDir, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("packages.layer_package.materialise.stream_gguf", full)
    assert kind_of(package, cache) == "insufficient_space"
    (cache.parent / "file").write_text("")
    with pytest.raises(PackageError) as caught:
        materialise(package, select(package), root=cache.parent / "file" / "below")
    assert caught.value.kind == "cache_not_writable"


def test_the_wait_for_another_process_ends(package: PackageDir, cache: Path) -> None:
    stage_cache.prepare(cache)
    key = stage_key(package.manifest, select(package))
    with locked(cache, key):
        assert kind_of(package, cache, lock_seconds=0.1) == "materialize_lock_timeout"


def test_many_at_once_make_it_once(package: PackageDir, cache: Path) -> None:
    found: list[tuple[Path, int]] = []

    def run() -> None:
        path = materialise(package, select(package), root=cache)
        found.append((path, path.stat().st_ino))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1


def test_progress_counts_up_to_its_total(package: PackageDir, cache: Path) -> None:
    seen: list[tuple[int, int]] = []
    materialise(package, select(package), root=cache, progress=lambda *n: seen.append(n))
    done = [n for n, _ in seen]
    assert done == sorted(done)
    assert {total for _, total in seen} == {done[-1]}
