"""Owns how tests write packages: the options of a local source, in one call."""

from pathlib import Path
from typing import Any

from packages.layer_package.write_options import WriteOptions, WriteResult
from packages.layer_package.writer import write_package
from tests.layer_package.package_cases import ABI, MODEL_ID, PRIMARY, REVISION, source_gguf


def local_options(**changed: Any) -> WriteOptions:
    """Identity of the tiny model, and what is changed."""
    own: dict[str, Any] = {
        "model_id": MODEL_ID, "source_revision": REVISION, "source_file": PRIMARY,
        "abi_version": ABI,
    }  # fmt: skip
    return WriteOptions(**{**own, **changed})


def write(source: Path, folder: Path, **changed: Any) -> WriteResult:
    """Write a package of the source; keyword arguments are options."""
    return write_package(source, folder, local_options(**changed))


def tiny_source(tmp_path: Path, **kinds: Any) -> Path:
    """The tiny model in a folder of its own."""
    return source_gguf(tmp_path / "source" / PRIMARY, **kinds)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its relative path, hidden ones too."""
    files = (path for path in folder.rglob("*") if not path.is_dir())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def finished(folder: Path) -> set[str]:
    """The files of `tree` that are not hidden."""
    return {name for name in tree(folder) if not Path(name).name.startswith(".")}
