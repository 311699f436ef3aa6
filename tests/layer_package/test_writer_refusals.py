"""Owns the proof that the writer says no early, with a kind, and leaves nothing behind.

Long because every refusal is a row of one table.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from packages.layer_package.errors import PackageError
from packages.layer_package.package_output import PackageOutput
from packages.layer_package.writer import write_package
from tests.cpu.gguf_cases import STRING, pair, text
from tests.layer_package.package_cases import (
    Model,
    Pair,
    gguf_bytes,
    made,
    number,
    projector_gguf,
    source_shards,
    tiny_model,
)
from tests.layer_package.writer_cases import local_options, tiny_source, tree


class Refused(NamedTuple):
    """Makes a source in a folder; the options; the kind."""

    name: str
    source: Callable[[Path], Path]
    options: dict[str, Any]
    kind: str


def tiny(**kinds: Any) -> Callable[[Path], Path]:
    return lambda folder: tiny_source(folder, **kinds)


def altered(change: Callable[[Model], Model], **kinds: Any) -> Callable[[Path], Path]:
    """The tiny model with a change."""

    def make(folder: Path) -> Path:
        path = folder / "source/x.gguf"
        path.parent.mkdir()
        path.write_bytes(gguf_bytes(*change(tiny_model(**kinds))))
        return path

    return make


def without(*keys: str) -> Callable[[Model], Model]:
    return lambda m: m._replace(pairs=[p for p in m.pairs if p.key not in keys])


def tensors(keep: Callable[[str], bool]) -> Callable[[Model], Model]:
    return lambda m: m._replace(tensors=[t for t in m.tensors if keep(t.name)])


def replaced(key: str, record: bytes) -> Callable[[Model], Model]:
    return lambda m: m._replace(pairs=[Pair(key, record) if p.key == key else p for p in m.pairs])


def shards(change: Callable[[list[Path]], Path]) -> Callable[[Path], Path]:
    return lambda folder: change(source_shards(folder / "source"))


def lost(paths: list[Path]) -> Path:
    paths[1].unlink()
    return paths[0]


def swapped(paths: list[Path]) -> Path:
    first, second = (path.read_bytes() for path in paths[1:])
    paths[1].write_bytes(second)
    paths[2].write_bytes(first)
    return paths[0]


def renumbered(paths: list[Path]) -> Path:
    return paths[0].rename(paths[0].with_name("TinyDemo-Q8_0-00004-of-00003.gguf"))


def foreign(pair_: Pair) -> Callable[[list[Path]], Path]:
    def change(paths: list[Path]) -> Path:
        paths[1].write_bytes(gguf_bytes([pair_], [made("blk.0.a.weight", (4,))]))
        return paths[0]

    return change


def repeated(paths: list[Path]) -> Path:
    paths[1].write_bytes(gguf_bytes([], [made("a", (4,))]))
    paths[2].write_bytes(gguf_bytes([], [made("a", (4,))]))
    paths[0].write_bytes(gguf_bytes([], []))
    return paths[0]


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "x.gguf")
    return folder / "x.gguf"


def u8_width(value: int) -> bytes:
    return pair(b"llama.embedding_length", 0, bytes([value]))


WIDTH = "llama.embedding_length"
MTP_TWICE = [number("llama.nextn_predict_layers", 1)]
REFUSED = [
    Refused("M97 without --model-id", tiny(), {"model_id": None}, "missing_source_identity"),
    Refused("M97 missing shard", shards(lost), {}, "missing_source_shard"),
    Refused("M97 gap in layers", altered(tensors(lambda n: not n.startswith("blk.1."))), {},
            "layer_without_tensors"),
    Refused("without --source-revision", tiny(), {"source_revision": None},
            "missing_source_identity"),
    Refused("without --source-file", tiny(), {"source_file": None}, "missing_source_identity"),
    Refused("model id no coordinate", tiny(), {"model_id": "tiny"}, "invalid_model_coordinate"),
    Refused("model id a path", tiny(), {"model_id": "a/x.gguf"}, "invalid_model_coordinate"),
    Refused("source file escapes", tiny(), {"source_file": "../x"}, "unsafe_source_file_path"),
    Refused("blank repository", tiny(), {"source_repo": " "}, "empty_source_identity"),
    Refused("no such file", lambda folder: folder / "none.gguf", {}, "missing_source"),
    Refused("source a FIFO", fifo, {}, "artifact_not_file"),
    Refused("source a folder", lambda folder: folder, {}, "artifact_not_file"),
    Refused("shards swapped", shards(swapped), {}, "source_shard_mismatch"),
    Refused("shard number too high", shards(renumbered), {}, "source_shard_mismatch"),
    Refused("tensor count differs", shards(foreign(number("split.tensors.count", 15))), {},
            "source_shard_mismatch"),
    Refused("file says another count", tiny(extra_pairs=[number("split.count", 2)]), {},
            "source_shard_mismatch"),
    Refused("other tensors than counted", shards(foreign(number("llama.block_count", 9))), {},
            "source_shard_mismatch"),
    Refused("tensor in two shards", shards(repeated), {}, "gguf_duplicate_tensor"),
    Refused("no layers", altered(tensors(lambda n: not n.startswith("blk."))), {},
            "no_layer_tensors"),
    Refused("layer 4 billion", altered(lambda m: m, extra_tensors=[
        made("blk.4294967295.a", (4,))]), {}, "layer_without_tensors"),
    Refused("layer name", tiny(extra_tensors=[made("blk.01.a", (4,))]), {}, "invalid_layer_name"),
    Refused("block count", altered(replaced(
        "llama.block_count", number("llama.block_count", 4).record)), {}, "layer_count_mismatch"),
    Refused("no architecture", altered(without("general.architecture")), {},
            "missing_architecture"),
    Refused("no width", altered(without(WIDTH)), {}, "missing_embedding_length"),
    Refused("width 0", altered(replaced(WIDTH, number(WIDTH, 0).record)), {},
            "invalid_embedding_length"),
    Refused("width a text", altered(replaced(WIDTH, pair(WIDTH.encode(), STRING, text(b"64")))),
            {}, "invalid_embedding_length"),
    Refused("prediction metadata", tiny(extra_pairs=MTP_TWICE), {}, "mtp_metadata_conflict"),
    Refused("prediction not last", tiny(
        extra_pairs=MTP_TWICE, extra_tensors=[made("blk.0.nextn.enorm.weight", (64,))]), {},
            "mtp_metadata_conflict"),
    Refused("no ABI version", tiny(), {"abi_version": None}, "missing_abi_version"),
    Refused("ABI version", tiny(), {"abi_version": "1"}, "invalid_abi_version"),
    Refused("engine native", tiny(), {"engine": "native"}, "native_writer_unavailable"),
    Refused("profile", tiny(), {"policy_profile": "fast"}, "unsupported_policy_profile"),
    Refused("profile contract", tiny(), {"policy_profile": "glm-dsa-v1"},
            "profile_contract_failed"),
    Refused("generation", tiny(), {"generation": {"metal": {}}}, "nonportable_generation_field"),
    Refused("hook text", tiny(), {"after_artifact": "'"}, "invalid_hook_command"),
    Refused("hook of no words", tiny(), {"after_artifact": []}, "invalid_hook_command"),
    Refused("truncated source", lambda folder: cut(tiny_source(folder)), {}, "gguf_truncated"),
]  # fmt: skip


def cut(path: Path) -> Path:
    os.truncate(path, path.stat().st_size - 200)
    return path


@pytest.mark.parametrize("case", REFUSED, ids=[case.name for case in REFUSED])
def test_a_source_is_refused_and_nothing_is_left(case: Refused, tmp_path: Path) -> None:
    source = case.source(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(PackageError) as caught:
        write_package(source, out, local_options(**case.options))
    assert caught.value.kind == case.kind, str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert not out.exists()


def test_a_flag_is_named_that_is_missing(tmp_path: Path) -> None:
    for name in ("model_id", "source_revision", "source_file"):
        with pytest.raises(PackageError, match="--" + name.replace("_", "-")):
            write_package(tiny_source(tmp_path), tmp_path / "out", local_options(**{name: None}))


def test_a_coordinate_has_its_own_identity(tmp_path: Path) -> None:
    with pytest.raises(PackageError) as caught:
        write_package("acme-lab/TinyDemo", tmp_path / "out", local_options())
    assert caught.value.kind == "unexpected_source_identity"
    with pytest.raises(PackageError, match="--source-file"):
        write_package("a/b", tmp_path, local_options(model_id=None, source_revision=None))


def test_shard_pairs_that_contradict(tmp_path: Path) -> None:
    paths = source_shards(tmp_path / "source")
    model = tiny_model()
    for extra in (number("llama.block_count", 4), number("new", 1)):
        split = [number("split.no", 1), number("split.count", 3)]
        half = gguf_bytes([extra, *split], model.tensors[:8])
        paths[1].write_bytes(half)
        with pytest.raises(PackageError) as caught:
            write_package(paths[0], tmp_path / "out", local_options())
        assert caught.value.kind == "source_shard_metadata_conflict"
        assert caught.value.issue.artifact == paths[1].name


@pytest.mark.parametrize("what", ["file", "folder", "dangling link"])
def test_m97_an_existing_manifest_is_not_overwritten(what: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    manifest = out / "model-package.json"
    {
        "file": lambda: manifest.write_bytes(b"mine"),
        "folder": manifest.mkdir,
        "dangling link": lambda: manifest.symlink_to("nowhere"),
    }[what]()
    with pytest.raises(PackageError) as caught:
        write_package(tiny_source(tmp_path), out, local_options())
    assert caught.value.kind == "output_exists"
    assert [path.name for path in out.iterdir()] == ["model-package.json"]
    if what == "folder":
        with pytest.raises(PackageError, match="write_failed"):
            write_package(tiny_source(tmp_path), out, local_options(force=True))
        return
    write_package(tiny_source(tmp_path), out, local_options(force=True))
    assert manifest.is_file()
    assert not manifest.is_symlink()


def test_projectors_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    good = projector_gguf(tmp_path / "a/eye.gguf")
    twin = projector_gguf(tmp_path / "b/EYE.gguf")
    text_file, empty, odd = (tmp_path / name for name in ("text", "empty", "con.gguf"))
    text_file.write_bytes(b"hello")
    empty.write_bytes(gguf_bytes([], []))
    odd.write_bytes(good.read_bytes())
    out = tmp_path / "out"
    for files, kind in (
        ([good, twin], "duplicate_projector_name"),
        ([good, text_file], "invalid_projector"),
        ([empty], "invalid_projector"),
        ([odd], "invalid_projector"),
        ([tmp_path], "invalid_projector"),
        ([tmp_path / "none"], "invalid_projector"),
    ):
        with pytest.raises(PackageError) as caught:
            write_package(tiny_source(tmp_path), out, local_options(projectors=files))
        assert caught.value.kind == kind
        assert not out.exists()


def test_an_unusual_projector_is_a_warning(tmp_path: Path) -> None:
    plain = tmp_path / "plain.gguf"
    plain.write_bytes(gguf_bytes([], [made("v", (4,))]))
    options = local_options(projectors=[plain])
    result = write_package(tiny_source(tmp_path), tmp_path / "out", options)
    assert result.report.kinds() == ["unusual_projector"]


def test_too_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tiny_source(tmp_path), tmp_path / "out"
    needed = write_package(source, out, local_options(dry_run=True)).needed_bytes
    monkeypatch.setattr(PackageOutput, "free_bytes", lambda self: needed - 1)
    with pytest.raises(PackageError) as caught:
        write_package(source, out, local_options())
    assert caught.value.kind == "insufficient_space"
    assert str(needed) in str(caught.value)
    assert not out.exists()
    monkeypatch.setattr(PackageOutput, "free_bytes", lambda self: needed)
    write_package(source, out, local_options())
    # what lies there already needs no more room
    monkeypatch.setattr(PackageOutput, "free_bytes", lambda self: needed // 2)
    write_package(source, out, local_options(force=True, resume=True))


def test_the_source_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "out/layers/layer-00001.gguf"
    target.parent.mkdir(parents=True)
    tiny_source(tmp_path).rename(target)
    before = tree(tmp_path)
    with pytest.raises(PackageError) as caught:
        write_package(target, tmp_path / "out", local_options())
    assert caught.value.kind == "output_is_source"
    assert tree(tmp_path) == before


def test_folders_of_the_package_are_not_links(tmp_path: Path) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir()
    out.mkdir()
    (out / "layers").symlink_to(elsewhere)
    with pytest.raises(PackageError) as caught:
        write_package(tiny_source(tmp_path), out, local_options())
    assert caught.value.kind == "write_failed"
    assert tree(elsewhere) == {}


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "9" * 21])
def test_source_date_epoch(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
    with pytest.raises(PackageError) as caught:
        write_package(tiny_source(tmp_path), tmp_path / "out", local_options())
    assert caught.value.kind == "invalid_source_date_epoch"


def test_a_width_of_one_byte_is_read(tmp_path: Path) -> None:
    source = altered(replaced(WIDTH, u8_width(64)))(tmp_path)
    result = write_package(source, tmp_path / "out", local_options())
    assert b'"activation_width": 64' in result.manifest
