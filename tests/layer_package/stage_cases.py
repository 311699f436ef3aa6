"""Owns packages and selections for tests of materialised stages, and models from real files."""

from pathlib import Path

from engine.artifacts.gguf import open_gguf
from packages.layer_package.manifest import load_manifest
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.references import PackageRef
from packages.layer_package.selection import Selection, select_parts
from tests.cpu.gguf_cases import text, u32
from tests.layer_package.model_cases import Model, Pair, Tensor
from tests.layer_package.package_cases import write_tiny_package


def model_of(path: Path) -> Model:
    """What a GGUF file holds, for the makers."""
    with open_gguf(path) as file:
        pairs = [
            Pair(key, text(key.encode()) + u32(value.type) + bytes(value.payload))
            for key, value in file.metadata.items()
        ]
        tensors = [
            Tensor(t.name, t.dims, t.ggml_type, t.raw().tobytes()) for t in file.tensors
        ]
        return Model(pairs, tensors, file.alignment)


def opened(root: Path) -> PackageDir:
    """A local package."""
    return PackageDir(root, PackageRef.parse(str(root)), None, load_manifest(root))


def tiny_package(root: Path, **kinds: object) -> PackageDir:
    """A tiny package in that folder, opened."""
    return opened(write_tiny_package(root, **kinds))  # type: ignore[arg-type]


def select(package: PackageDir, start: int = 0, end: int | None = None) -> Selection:
    """The parts of a range of layers; all of them without one."""
    last = package.manifest.layer_count if end is None else end
    return select_parts(package.manifest, start, last)
