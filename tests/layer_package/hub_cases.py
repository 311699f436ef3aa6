"""Owns a hub without a network for tests: it serves a package's folder file by file, with faults.

Lays a cache out by the layout's own words too, on purpose without the code under test.
"""

import os
from collections.abc import Callable
from pathlib import Path

from packages.layer_package.download import FetchRequest
from packages.layer_package.manifest import read_manifest
from packages.layer_package.model import MANIFEST_NAME, Manifest

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
OTHER_COMMIT = "00000000000000000000000000000000000000aa"
REF = f"hf://acme-lab/TinyDemo-layers@{COMMIT}"
MOVING = "hf://acme-lab/TinyDemo-layers"
FOLDER = "models--acme-lab--TinyDemo-layers"


class FakeHub:
    """A `Fetch`: serves `folder` as `commit`; what `faults` has for a path comes first, in turn."""

    def __init__(self, folder: Path, commit: str = COMMIT) -> None:
        self.folder, self.commit = folder, commit
        self.requests: list[FetchRequest] = []
        self.faults: dict[str, list[bytes | Callable[[FetchRequest], None]]] = {}

    def __call__(self, request: FetchRequest) -> str:
        self.requests.append(request)
        waiting = self.faults.get(request.path, [])
        fault = waiting.pop(0) if waiting else None
        if callable(fault):
            fault(request)
            return self.commit
        data = (self.folder / request.path).read_bytes() if fault is None else fault
        with open(request.target, "xb") as out:
            out.write(data)
        if request.progress is not None:
            request.progress(len(data), len(data))
        return self.commit

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


def manifest_of(folder: Path) -> Manifest:
    return read_manifest((folder / MANIFEST_NAME).read_bytes())


def cached(cache: Path, package: Path, *, commit: str = COMMIT, ref: str | None = None) -> Path:
    """Put a package's files into a cache as the hub's own client does; the snapshot."""
    repository = cache / FOLDER
    snapshot = repository / "snapshots" / commit
    for number, source in enumerate(sorted(p for p in package.rglob("*") if p.is_file())):
        blob = repository / "blobs" / f"etag{number}"
        link = snapshot / source.relative_to(package)
        blob.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(source.read_bytes())
        link.symlink_to(os.path.relpath(blob, link.parent))
    if ref is not None:
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / ref).write_text(commit)
    return snapshot


def leftovers(cache: Path) -> list[str]:
    """Whatever in the cache is neither a blob, a link to one, a ref, a lock nor quarantined."""
    found = []
    for path in cache.rglob("*"):
        names = path.relative_to(cache).parts
        if path.is_dir() and not path.is_symlink() and names[-1] != ".incoming":
            continue
        is_ours = names[0] in (".locks", ".quarantine") or names[1] in ("blobs", "refs")
        if names[1:2] == ("snapshots",) and path.is_symlink() and path.is_file():
            is_ours = True
        if not is_ours or names[-1].endswith((".link", ".ref")):
            found.append("/".join(names))
    return found
