"""Owns the proof that a loader gets the files that were checked: pins, races, descriptors.

Long because every moment of a change is tried with every kind of change.
"""

import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package import checks, examine, load_stage
from packages.layer_package.errors import ArtifactError, PackageError, Report
from packages.layer_package.load_stage import StageFiles
from packages.layer_package.verification import VERIFY_VARIABLE
from tests.layer_package.check_cases import errors, flip, hub, local, stage, tiny
from tests.layer_package.package_cases import projector_gguf

LAYER = "layers/layer-00001.gguf"
Swap = Callable[[Path], None]


@pytest.fixture(autouse=True)
def no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VERIFY_VARIABLE, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tiny(tmp_path / "package", projector=True, tied=True).root


def n_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def replaced(path: Path) -> None:
    """Another file of the same bytes, times and name: only its inode and ctime tell."""
    found = path.stat()
    other = path.with_suffix(".new")
    shutil.copy(path, other)
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(path)


def written(path: Path) -> None:
    """One byte in place, the modification time put back."""
    flip(path, keep_times=True)


def linked(path: Path) -> None:
    """Its place taken by a link to the very same file."""
    other = path.with_name("moved.gguf")
    path.rename(other)
    path.symlink_to(other)


def gone(path: Path) -> None:
    path.unlink()


def waiting(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SWAPS = {s.__name__: s for s in (replaced, written, linked, gone, waiting)}


def test_a_loader_gets_paths_in_load_order_and_the_two_flags(root: Path) -> None:
    before = n_open()

    def loader(files: StageFiles) -> str:
        names = [path.relative_to(root).as_posix() for path in files.paths]
        assert names == ["shared/metadata.gguf", "shared/embeddings.gguf",
                         "layers/layer-00002.gguf", "shared/output.gguf"]  # fmt: skip
        assert (files.selection.include_embeddings, files.selection.include_output) == (True, True)
        assert files.projector is None
        assert n_open() == before + len(names)
        return "model"

    assert load_stage.load_stage(local(root), stage(2, 3), loader) == "model"
    assert n_open() == before


def test_a_first_stage_gets_its_projector(root: Path, tmp_path: Path) -> None:
    request = stage(0, 1, multimodal=True)
    path = load_stage.load_stage(local(root), request, lambda files: files.projector)
    assert path == root / "projectors/mmproj-TinyDemo.gguf"
    outside = projector_gguf(tmp_path / "vision.gguf")
    request = stage(0, 1, multimodal=True, projector_path=outside)
    assert load_stage.load_stage(local(root), request, lambda files: files.projector) == outside


def test_relative_packages_give_absolute_paths(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    package = local(Path("package"))
    for path in load_stage.load_stage(package, stage(1, 2), lambda files: files.paths):
        assert path.is_absolute()
        assert path.is_file()


def test_what_fails_is_never_loaded(root: Path) -> None:
    before = n_open()
    flip(root / LAYER)
    report = Report()
    with pytest.raises(ArtifactError) as caught:
        load_stage.load_stage(local(root), stage(1, 3), pytest.fail, verify=True, report=report)
    assert caught.value.kind == "artifact_sha256_mismatch"
    with pytest.raises(PackageError):
        load_stage.load_stage(local(root), stage(3, 3), pytest.fail)
    with pytest.raises(PackageError):
        load_stage.load_stage(local(root), stage(1, 2), pytest.fail,
                              expected_manifest_sha256="00" * 32)  # fmt: skip
    assert n_open() == before


def test_a_loader_that_fails_leaves_no_descriptor(root: Path) -> None:
    before = n_open()

    def loader(_: StageFiles) -> None:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError):
        load_stage.load_stage(local(root), stage(0, 3), loader)
    assert n_open() == before


def after(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], None]) -> None:
    """Let `act` run once, right after the first call of a function."""
    real, left = getattr(module, name), [act]

    def wrapped(*args: Any, **kinds: Any) -> Any:
        result = real(*args, **kinds)
        if left:
            left.pop()()
        return result

    monkeypatch.setattr(module, name, wrapped)


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS.keys())
def test_a_change_between_the_checks_and_the_load(
    root: Path, monkeypatch: pytest.MonkeyPatch, swap: Swap
) -> None:
    before = n_open()
    after(monkeypatch, checks, "check_native_mtp", lambda: swap(root / LAYER))
    with pytest.raises(ArtifactError) as caught:
        load_stage.load_stage(local(root), stage(1, 2), pytest.fail)
    assert (caught.value.kind, caught.value.issue.artifact) == ("artifact_changed", LAYER)
    assert n_open() == before


def test_without_a_pin_nothing_is_held_or_compared_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = n_open()
    after(monkeypatch, checks, "check_native_mtp", lambda: written(root / LAYER))
    load_stage.load_stage(local(root), stage(1, 2), lambda _: n_open(), pin=False)
    assert load_stage.load_stage(local(root), stage(1, 2), lambda _: n_open(), pin=False) == before


def test_a_projector_from_outside_is_pinned_too(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = projector_gguf(tmp_path / "vision.gguf")
    after(monkeypatch, checks, "check_native_mtp", lambda: replaced(outside))
    with pytest.raises(ArtifactError) as caught:
        load_stage.load_stage(local(root), stage(0, 1, projector_path=outside), pytest.fail)
    assert (caught.value.kind, caught.value.issue.artifact) == ("artifact_changed", "vision.gguf")


def test_a_snapshot_whose_link_is_moved(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = hub(tmp_path / "cache", root)
    link = package.root / LAYER

    def move() -> None:
        blob = link.resolve()
        other = blob.with_name("other")
        shutil.copy(blob, other)
        link.unlink()
        link.symlink_to(os.path.relpath(other, link.parent))

    after(monkeypatch, checks, "check_native_mtp", move)
    with pytest.raises(ArtifactError) as caught:
        load_stage.load_stage(package, stage(1, 2), pytest.fail)
    assert caught.value.kind == "artifact_changed"


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS.keys())
@pytest.mark.parametrize("moment", ["located", "hashed", "read"])
def test_a_change_while_a_file_is_checked(
    root: Path, monkeypatch: pytest.MonkeyPatch, moment: str, swap: Swap
) -> None:
    """With the changed file itself as the next one to be looked at."""
    path = root / LAYER
    if moment == "located":
        after(monkeypatch, examine.Examiner, "locate", lambda: swap(path))
    elif moment == "hashed":
        after(monkeypatch, examine, "verify_digest", lambda: swap(path))
    else:
        after(monkeypatch, examine, "read_fragment", lambda: swap(path))
    report = Report()
    examiner = examine.Examiner(local(root), report, hashes=True)
    artifact = examiner.package.manifest.layers[1]
    examiner.locate(artifact)
    assert examiner.read(artifact).header is None
    kinds = {"linked": "artifact_escapes_root", "gone": "missing_artifact",
             "waiting": "artifact_not_file"}  # fmt: skip
    # a path that leads nowhere is that when it is opened, and a change when it was open
    wanted = kinds.get(swap.__name__) if moment == "located" else None
    assert errors(report) == [wanted or "artifact_changed"]


def test_a_change_between_the_headers_and_the_bytes_of_repeated_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tiny(tmp_path / "repeated", rope_table=True, repeat_common=True)
    after(monkeypatch, checks, "check_metadata_fragment", lambda: replaced(package.root / LAYER))
    report = checks.validate(package, "package", report=Report())
    assert errors(report) == ["artifact_changed"]


def test_warnings_reach_the_report(tmp_path: Path) -> None:
    package = tiny(tmp_path / "predicting", mtp=True)
    report = Report()
    load_stage.load_stage(package, stage(1, 2), lambda _: None, report=report)
    assert report.kinds() == ["prediction_block_split"]


def test_somebody_who_keeps_replacing_a_file(root: Path) -> None:
    """Every answer is one of the right ones, and nothing hangs."""
    path, package = root / LAYER, local(root)
    good = path.read_bytes()
    bad = bytes([good[0] ^ 1]) + good[1:]
    stop = threading.Event()

    def replace_again() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            other = path.with_name("other.gguf")
            other.write_bytes((good, bad, good[:-1])[number % 3])
            other.rename(path)

    thread = threading.Thread(target=replace_again)
    thread.start()
    seen = set()
    try:
        for _ in range(60):
            report = checks.validate(package, "stage", stage=stage(1, 2), verify=True,
                                     report=Report())  # fmt: skip
            seen |= {*errors(report)}
    finally:
        stop.set()
        thread.join()
    assert seen <= {"artifact_changed", "artifact_sha256_mismatch", "artifact_size_mismatch",
                    "gguf_bad_magic"}  # fmt: skip
    path.write_bytes(good)
    assert errors(checks.validate(package, "stage", stage=stage(1, 2), report=Report())) == []
