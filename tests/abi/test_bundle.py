"""Guards the folder that MeshLLM installs: its manifest, that it stands alone, how it appears."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.errors import InvalidArgument, IoFailure
from packages import bundle
from packages.select import known_packages
from skippy_abi import build
from skippy_abi.toolchain import BuildError

if TYPE_CHECKING:
    # Left to pytest_plugins at run time, so that pytest rewrites its assertions.
    from tests.abi.native_host import NativeHost

pytest_plugins = ["tests.abi.native_host"]
ROOT = Path(__file__).resolve().parents[2]
AWKWARD = "ein Ordner\u3000模型 "
FIELDS = {
    "id", "mesh_version", "skippy_abi", "platform", "backend", "rank", "libraries", "files",
    "serves",
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle at the place it was written to."""
    return bundle.write_bundle(tmp_path_factory.mktemp("made") / "out", mesh_version="1.2.3")


@pytest.fixture
def moved(made: Path, tmp_path: Path) -> Path:
    """A copy in a folder with an awkward name, made as an installer copies: no times are kept."""
    target = tmp_path / AWKWARD / "runtime"
    shutil.copytree(made, target, copy_function=shutil.copyfile)
    return target


def runtime_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())["runtime"]
    return found


def libraries_of(folder: Path) -> list[Path]:
    """In the manifest's order, as the host joins them."""
    return [folder / name for name in runtime_of(folder)["libraries"]]


def test_manifest_is_what_the_host_reads(made: Path) -> None:
    runtime = runtime_of(made)
    assert set(runtime) == FIELDS
    assert runtime["id"].startswith("meshllm-")
    assert (runtime["mesh_version"], runtime["skippy_abi"]) == ("1.2.3", "0.1.39")
    machine = os.uname().machine
    assert runtime["platform"] == {
        "os": "linux", "arch": machine, "target": f"{machine}-unknown-linux-gnu"
    }
    assert runtime["backend"] == {"kind": "cpu"}
    # The standard CPU runtime ranks 100 or more, this one 100 plus its own.
    assert runtime["rank"] < 0


def test_manifest_lists_the_libraries_in_load_order_with_their_digests(made: Path) -> None:
    runtime = runtime_of(made)
    assert runtime["libraries"] == [
        "lib/libmesh_specialize_abi_stubs.so", "lib/libmesh_specialize.so"
    ]
    assert list(runtime["files"]) == runtime["libraries"]
    for name, digest in runtime["files"].items():
        assert hashlib.sha256((made / name).read_bytes()).hexdigest() == digest


def test_manifest_says_what_is_served(made: Path) -> None:
    served = {(row["model_id"], row["weights_id"]) for row in runtime_of(made)["serves"]}
    own = {
        (artifact.identity.model_id, artifact.identity.weights_id)
        for package in known_packages() for artifact in package.served()
    }
    assert own
    assert own <= served


def test_bundle_holds_no_tests_and_no_path_of_the_tree(made: Path) -> None:
    assert not [p for p in made.rglob("*") if p.name.startswith(("test_", "conftest", ".git"))]
    for path in made.rglob("*"):
        if path.is_file():
            # The Python that runs us may live in the tree, and its packages are recorded.
            data = path.read_bytes().replace(os.fsencode(sys.prefix), b"")
            assert os.fsencode(ROOT) + b"/" not in data, path
            assert os.fsencode(made) not in data, path
    engine = (made / "lib" / build.LIBRARY).read_bytes()
    assert b"\0../python\0" in engine
    assert b"\0" + os.fsencode(ROOT) + b"\0" not in engine


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_a_copy_answers_and_stays_as_it_is(
    native_host: NativeHost, moved: Path, tiny_path: Path
) -> None:
    before = snapshot(moved)
    ran = native_host.run(libraries_of(moved), "chat", tiny_path, "Hi", env={"LC_ALL": "C"})
    assert ran.returncode == 0, ran.stderr
    assert snapshot(moved) == before


def test_a_copy_is_found_by_relative_paths_too(
    native_host: NativeHost, moved: Path, tiny_path: Path
) -> None:
    relative = [Path(name) for name in runtime_of(moved)["libraries"]]
    ran = native_host.run(relative, "chat", tiny_path, "Hi", cwd=moved)
    assert ran.returncode == 0, ran.stderr


def test_a_link_to_the_library_leads_to_its_code(
    native_host: NativeHost, moved: Path, tiny_path: Path, tmp_path: Path
) -> None:
    links: Sequence[Path] = [tmp_path / path.name for path in libraries_of(moved)]
    for link, path in zip(links, libraries_of(moved), strict=True):
        link.symlink_to(path)
    ran = native_host.run(links, "chat", tiny_path, "Hi")
    assert ran.returncode == 0, ran.stderr


def test_a_copy_runs_its_own_code(native_host: NativeHost, moved: Path) -> None:
    (moved / "python" / "packages" / "boot.py").write_text("raise RuntimeError('of the copy')")
    ran = native_host.run(libraries_of(moved), "broken", "of the copy")
    assert ran.returncode == 0, ran.stderr
    shutil.rmtree(moved / "python")
    cause = f"{AWKWARD}/runtime/lib/../python  (missing)"
    ran = native_host.run(libraries_of(moved), "broken", cause)
    assert ran.returncode == 0, ran.stderr


def test_an_earlier_bundle_is_replaced_whole(tmp_path: Path) -> None:
    out = bundle.write_bundle(tmp_path / "a" / "b")
    (out / "left over").write_text("x")
    assert bundle.write_bundle(out, mesh_version="9") == out
    assert runtime_of(out)["mesh_version"] == "9"
    assert not (out / "left over").exists()
    assert [path.name for path in out.parent.iterdir()] == ["b"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert bundle.write_bundle(tmp_path / "out") == tmp_path / "out"


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", '{"runtime": {"id": "meshllm-other"}}', "[" * 100_000],
    ids=["none", "empty", "list", "no runtime", "other", "nested"],
)
def test_other_peoples_folders_are_not_touched(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "precious").write_text("data")
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    before = snapshot(tmp_path)
    with pytest.raises(InvalidArgument, match="neither empty nor an earlier bundle"):
        bundle.write_bundle(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("data")
    with pytest.raises(InvalidArgument, match="is not a folder"):
        bundle.write_bundle(tmp_path / "file")
    with pytest.raises((InvalidArgument, IoFailure)):
        bundle.write_bundle(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "data"


def test_a_name_that_is_too_long_is_an_io_failure(tmp_path: Path) -> None:
    with pytest.raises(IoFailure):
        bundle.write_bundle(tmp_path / ("x" * 300))
    assert not list(tmp_path.iterdir())


def test_a_blank_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="mesh_version"):
        bundle.write_bundle(tmp_path / "out", mesh_version=" ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "expected"),
    [(BuildError("no compiler"), BuildError), (OSError(28, "full"), IoFailure)],
    ids=["build", "disk"],
)
def test_a_failure_leaves_the_earlier_bundle(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception,
    expected: type[Exception],
) -> None:
    out = shutil.copytree(made, tmp_path / "out")
    before = snapshot(out)

    def fail(*args: object, **kwargs: object) -> Path:
        raise error

    monkeypatch.setattr(build, "build_engine", fail)
    with pytest.raises(expected):
        bundle.write_bundle(out)
    assert snapshot(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_refused_rename_puts_the_earlier_bundle_back(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(made, tmp_path / "out")
    before = snapshot(out)
    rename = os.rename

    def refuse_new(source: Path, target: Path) -> None:
        if target == out and not source.name.endswith("-old"):
            raise PermissionError(13, "refused")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse_new)
    with pytest.raises(IoFailure, match="refused"):
        bundle.write_bundle(out)
    assert snapshot(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
