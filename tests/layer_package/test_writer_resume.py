"""Owns the proof that a writer that stops, however, leaves no half package, and can go on."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package import package_output
from packages.layer_package.errors import Cancelled, PackageError
from packages.layer_package.validate_source import validate_package
from packages.layer_package.writer import write_package
from tests.layer_package.package_cases import CREATED, Model, gguf_bytes, tiny_model
from tests.layer_package.writer_cases import finished, local_options, tiny_source, tree, write

ROOT = Path(__file__).resolve().parents[2]
# Kills itself without a chance to clean up once that many bytes are done.
KILLED = """
import os, signal, sys
from pathlib import Path
from packages.layer_package.writer import write_package
from tests.layer_package.writer_cases import local_options

def progress(done, total):
    if done > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

write_package(Path(sys.argv[1]), Path(sys.argv[2]), local_options(), progress=progress)
"""


@pytest.fixture(autouse=True)
def epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(CREATED))


@pytest.mark.parametrize("at_bytes", [1_000, 40_000])
def test_m98_a_killed_writer(at_bytes: int, tmp_path: Path) -> None:
    source, out = tiny_source(tmp_path, mtp=True), tmp_path / "out"
    whole = tmp_path / "whole"
    wanted = write(source, whole)
    command = [sys.executable, "-c", KILLED, str(source), str(out), str(at_bytes)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr
    left = tree(out)
    assert "model-package.json" not in left
    assert any(Path(name).name.startswith(".writing-") for name in left)
    before = finished(out)
    found = write(source, out, resume=True)
    assert found.manifest == wanted.manifest
    assert tree(out) == tree(whole)
    assert {a.path for a in found.artifacts if a.kept} == before


def test_m98_the_next_run_removes_temporaries_also_without_resume(tmp_path: Path) -> None:
    source, out = tiny_source(tmp_path), tmp_path / "out"
    write(source, out)
    for name in ("", "shared", "layers"):
        (out / name / ".writing-0123456789abcdef.gguf").write_bytes(b"left")
    (out / ".writing-mine.gguf").write_bytes(b"not ours")
    write(source, out, force=True)
    assert [name for name in tree(out) if "writing" in name] == [".writing-mine.gguf"]


@pytest.mark.parametrize("after_bytes", [0, 20_000, 40_000])
def test_a_cancelled_run_leaves_whole_files_alone(after_bytes: int, tmp_path: Path) -> None:
    source, out = tiny_source(tmp_path), tmp_path / "out"
    wanted = write(source, tmp_path / "whole")
    seen = [0]

    def progress(done: int, total: int) -> None:
        seen[0] = done

    with pytest.raises(Cancelled) as caught:
        write_package(source, out, local_options(), progress=progress,
                      cancelled=lambda: seen[0] > after_bytes)  # fmt: skip
    assert caught.value.kind == "cancelled"
    whole = tree(tmp_path / "whole")
    left = tree(out) if out.exists() else {}
    assert left.items() <= whole.items()
    assert "model-package.json" not in left
    assert write(source, out, resume=True).manifest == wanted.manifest
    assert tree(out) == whole


def test_resuming_keeps_only_what_is_equal(tmp_path: Path) -> None:
    source, out = tiny_source(tmp_path), tmp_path / "out"
    wanted = write(source, out)
    (out / "model-package.json").unlink()
    flipped, short, gone = (out / f"layers/layer-0000{i}.gguf" for i in range(3))
    data = bytearray(flipped.read_bytes())
    data[-40] ^= 1
    flipped.write_bytes(data)
    os.truncate(short, short.stat().st_size - 1)
    gone.unlink()
    link = out / "shared/output.gguf"
    link.rename(tmp_path / "moved")
    link.symlink_to(tmp_path / "moved")
    found = write(source, out, resume=True)
    assert [a.path for a in found.artifacts if a.kept] == [
        "shared/metadata.gguf", "shared/embeddings.gguf"
    ]  # fmt: skip
    assert found.manifest == wanted.manifest
    assert not link.is_symlink()
    assert validate_package(source, out)["valid"]


def test_resuming_with_another_source_rewrites(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(tiny_source(tmp_path), out)
    other = tmp_path / "other.gguf"
    model = tiny_model()
    changed = [t._replace(data=bytes(len(t.data))) if "blk.1." in t.name else t
               for t in model.tensors]  # fmt: skip
    other.write_bytes(gguf_bytes(*Model(model.pairs, changed, 32)))
    found = write(other, out, resume=True, force=True)
    assert [a.path for a in found.artifacts if not a.kept] == ["layers/layer-00001.gguf"]
    assert validate_package(other, out)["valid"]


def test_a_full_disk_leaves_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tiny_source(tmp_path), tmp_path / "out"
    real, n_written = os.write, [0]

    def full(fd: int, data: Any) -> int:
        n_written[0] += len(data)
        if n_written[0] > 30_000:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(package_output.os, "write", full)
    with pytest.raises(PackageError) as caught:
        write(source, out)
    monkeypatch.undo()
    assert caught.value.kind == "insufficient_space"
    assert not any("writing" in name or "package" in name for name in tree(out))


def test_an_old_manifest_does_not_vouch_for_a_run_that_stops(tmp_path: Path) -> None:
    source, out = tiny_source(tmp_path), tmp_path / "out"
    write(source, out)
    with pytest.raises(PackageError):
        write(source, out, force=True, after_artifact=["/bin/false"])
    assert "model-package.json" not in tree(out)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_source(tmp_path)
    wanted = write(source, tmp_path / "whole")
    real = os.write
    monkeypatch.setattr(package_output.os, "write", lambda fd, data: real(fd, data[:1000]))
    assert write(source, tmp_path / "out").artifacts == wanted.artifacts


def test_two_writers_in_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with package_output.PackageOutput(out):
        with pytest.raises(PackageError) as caught:
            write(tiny_source(tmp_path), out)
    assert caught.value.kind == "output_busy"
    write(tiny_source(tmp_path), out)


def test_a_source_that_changes_is_refused(tmp_path: Path) -> None:
    source, out = tiny_source(tmp_path), tmp_path / "out"

    def progress(done: int, total: int) -> None:
        os.utime(source, ns=(1, done))

    with pytest.raises(PackageError) as caught:
        write_package(source, out, local_options(), progress=progress)
    assert caught.value.kind == "artifact_changed"
    assert "model-package.json" not in tree(out)


def test_a_file_that_is_not_as_planned_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = package_output._write_all

    def spoiled(fd: int, piece: bytes | memoryview) -> None:
        real(fd, bytes(piece).replace(b"ffn_bias", b"ffn_bios"))

    monkeypatch.setattr(package_output, "_write_all", spoiled)
    with pytest.raises(PackageError) as caught:
        write(tiny_source(tmp_path), tmp_path / "out")
    assert caught.value.kind == "artifact_plan_mismatch"
    assert caught.value.issue.artifact == "layers/layer-00000.gguf"
