"""Owns the folder that MeshLLM installs: both libraries, our Python code, and the manifest.

    lib/libmesh_specialize_abi_stubs.so    loaded first
    lib/libmesh_specialize.so              loaded last, so its symbols win
    python/                                skippy_abi, engine, ptx, packages, without their tests
    manifest.json                          written last: it holds the digests of the libraries

The folder may be copied or moved anywhere on this machine: the engine library finds `python/` from
its own place. What it does not carry is Python itself and the installed packages (numpy, cffi,
tokenizers, jinja2): those stay where this Python has them, by absolute path, because binary wheels
belong to one interpreter. It must not know how a library is built.
"""

import compileall
import hashlib
import json
import os
import platform
import py_compile
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

from abi_stubs import stubs
from engine.artifacts.mapped_file import printable
from engine.errors import InvalidArgument, IoFailure, Unsupported
from packages.package import Artifact
from packages.select import served_artifacts
from skippy_abi import build, table

MANIFEST = "manifest.json"
# The release that an unchanged host must have to load this folder.
MESH_VERSION = "0.76.0-rc6"
# The host takes an id for an id only with this beginning.
ID_START = "meshllm-specialize-"
# Below every standard runtime: the host chooses by rank alone, before it knows the model, and this
# runtime refuses all models but its own. Whoever wants it names its id.
RANK = -50
CODE = ("skippy_abi", "engine", "ptx", "packages")
NOT_SHIPPED = shutil.ignore_patterns("test_*", "conftest.py", "__pycache__", ".*")


def write_bundle(out: Path, *, mesh_version: str = MESH_VERSION) -> Path:
    """Write the runtime folder `out` and return its path.

    An earlier bundle of ours at `out` is replaced; anything else that is not an empty folder is
    InvalidArgument. The folder appears whole: it is made beside `out` and renamed. Failures of the
    system are IoFailure, those of the compiler BuildError.
    """
    if not mesh_version.strip():
        raise InvalidArgument("mesh_version: blank; the host compares it with its own")
    target = Path(os.path.realpath(out))
    _refuse_foreign(target)
    new = target.parent / f".bundle-{secrets.token_hex(8)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fill(new, mesh_version)
        _put(new, target)
    except (OSError, shutil.Error) as error:
        raise IoFailure(f"bundle: cannot write {_shown(target)}: {error}") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return target


def manifest(mesh_version: str, digests: dict[str, str]) -> dict[str, Any]:
    """The manifest of libraries by relative path, in load order, with their SHA-256."""
    os_name, arch = _platform()
    return {
        "runtime": {
            "id": f"{ID_START}{os_name}-{arch}-cpu",
            "mesh_version": mesh_version,
            "skippy_abi": ".".join(map(str, table.load().version)),
            "platform": {"os": os_name, "arch": arch, "target": f"{arch}-unknown-linux-gnu"},
            # The words that an unchanged host supports are few, and the device is the CPU.
            "backend": {"kind": "cpu"},
            "rank": RANK,
            "libraries": list(digests),
            "files": digests,
            "serves": [_served(artifact) for artifact in served_artifacts()],
        }
    }


def _served(artifact: Artifact) -> dict[str, Any]:
    return {
        "model_id": artifact.identity.model_id,
        "weights_id": artifact.identity.weights_id,
        "architecture": artifact.package.architecture,
        "file_sha256": artifact.file_sha256,
        "content_sha256": artifact.content_sha256,
    }


def _platform() -> tuple[str, str]:
    """Operating system and architecture as Rust names them."""
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if sys.platform != "linux" or arch not in ("x86_64", "aarch64"):
        raise Unsupported(f"bundle: {sys.platform} on {arch}; only Linux on x86_64 and aarch64")
    return "linux", arch


def _refuse_foreign(target: Path) -> None:
    """What is not a bundle of ours, nor empty, is somebody's data."""
    try:
        is_empty = not any(os.scandir(target))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise InvalidArgument(f"bundle: {_shown(target)} is not a folder") from None
    except OSError as error:
        raise IoFailure(f"bundle: cannot read {_shown(target)}: {error.strerror}") from None
    if not is_empty and not _is_ours(target / MANIFEST):
        raise InvalidArgument(
            f"bundle: {_shown(target)} is neither empty nor an earlier bundle of this runtime"
        )


def _is_ours(path: Path) -> bool:
    try:
        return str(json.loads(path.read_bytes())["runtime"]["id"]).startswith(ID_START)
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return False


def _fill(folder: Path, mesh_version: str) -> None:
    folder.mkdir()
    python, libraries = folder / "python", folder / "lib"
    for name in CODE:
        shutil.copytree(
            build.SOURCE_ROOT / name, python / name, ignore=NOT_SHIPPED,
            copy_function=shutil.copyfile,
        )
    # Judged by content, so that they stay good in a copy and in a folder nobody may write to.
    compileall.compile_dir(
        str(python), quiet=2, stripdir=str(folder),
        invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
    )
    made = [
        stubs.build(libraries),
        build.build_engine(libraries, source_root=Path("..") / python.name),
    ]
    digests = {
        f"{libraries.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in made
    }
    text = json.dumps(manifest(mesh_version, digests), indent=2) + "\n"
    (folder / MANIFEST).write_text(text)


def _put(new: Path, target: Path) -> None:
    """Rename `new` to `target`; an earlier bundle steps aside first, and back if that fails."""
    old = new.with_name(f"{new.name}-old")
    if target.exists():
        os.rename(target, old)
    try:
        os.rename(new, target)
    except OSError:
        if old.exists():
            os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _shown(path: Path) -> str:
    return printable(os.fsencode(path))
