"""Owns opened packages for tests of selection and checks: local ones, and snapshots of a hub cache.

Knows nothing of what a check finds.
"""

import os
from pathlib import Path
from typing import Any

from packages.layer_package.errors import Report
from packages.layer_package.manifest import read_manifest
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.references import PackageRef
from packages.layer_package.selection import StageRequest
from tests.layer_package.hub_cases import FOLDER, REF, cached
from tests.layer_package.package_cases import write_tiny_package


def local(root: Path) -> PackageDir:
    """A folder as a local package, its manifest as it is now."""
    manifest = read_manifest((root / MANIFEST_NAME).read_bytes())
    return PackageDir(root, PackageRef.local(root), None, manifest)


def tiny(root: Path, **kinds: Any) -> PackageDir:
    """A tiny sound package, written and opened."""
    return local(write_tiny_package(root, **kinds))


def hub(cache: Path, package: Path) -> PackageDir:
    """The package as a snapshot of a hub cache: every file a link to a blob."""
    snapshot = cached(cache, package)
    manifest = read_manifest((snapshot / MANIFEST_NAME).read_bytes())
    return PackageDir(snapshot, PackageRef.parse(REF), cache / FOLDER, manifest)


def stage(start: int, end: int, **choices: Any) -> StageRequest:
    return StageRequest(start, end, **choices)


def errors(report: Report) -> list[str]:
    """Kinds of the errors, in order."""
    return [issue.kind for issue in report if issue.severity == "error"]


def flip(path: Path, offset: int = -1, *, keep_times: bool = False) -> None:
    """Change one byte in place, by default the last; the file keeps its inode and size."""
    found = path.stat()
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    with open(path, "r+b") as out:
        out.write(data)
    if keep_times:
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
