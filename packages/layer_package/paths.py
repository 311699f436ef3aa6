"""Owns which relative paths a package may use, and opening what one of them names.

It must not know manifests' other members nor what a file holds. Rules 1 to 5 look at text alone and
come before any call of the file system; how a file is then found without leaving the package is in
`opened_file.py`.
"""

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import ManifestError, Report
from packages.layer_package.model import MANIFEST_NAME, Artifact
from packages.layer_package.opened_file import Identity as Identity
from packages.layer_package.opened_file import OpenedFile as OpenedFile
from packages.layer_package.opened_file import open_below
from packages.layer_package.opened_file import open_file as open_file

MAX_PATH_BYTES, MAX_COMPONENT_BYTES = 1024, 255

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[1-9]|lpt[1-9]) *(?:\..*)?", re.IGNORECASE | re.DOTALL)
_SHOWN = 120


def check_path(path: object, pointer: str | None, kind: str = "unsafe_artifact_path") -> str:
    """The path, if it is text that stays below any folder on any system (rules 1 to 4).

    ManifestError `invalid_field_type` when it is no string, else `kind`. Beyond the letter of the
    rules, the manifest's own name is refused in any case and as a folder, since it is taken.
    """
    if not isinstance(path, str):
        raise ManifestError("invalid_field_type", "a path needs to be a string", pointer=pointer)
    fault = _fault(path)
    if fault is not None:
        raise ManifestError(kind, f"path {printable(path, _SHOWN)} {fault}", pointer=pointer)
    return path


def check_unique(artifacts: Iterable[Artifact], report: Report | None = None) -> None:
    """No two paths equal after case folding, none a folder of another (rule 5).

    ManifestError `duplicate_artifact_path` for the later of each pair, in the order given; without
    a report the first is raised. Case folding is Unicode's; nothing is normalised.
    """
    report = report or Report(fail_fast=True)
    given = list(artifacts)
    # With '/' as the lowest character a folder sorts right before what lies in it.
    order = sorted((a.path.casefold().replace("/", "\0"), n) for n, a in enumerate(given))
    found: list[tuple[int, int, str]] = []
    for (first, m), (second, n) in pairwise(order):
        if second == first:
            found.append((n, m, "is also"))
        elif second.startswith(first + "\0"):
            found.append((max(m, n), min(m, n), "cannot be a file and a folder beside"))
    for n, m, how in sorted(found):
        report.add(ManifestError(
            "duplicate_artifact_path",
            f"path {printable(given[n].path, _SHOWN)} {how} the path"
            f" {printable(given[m].path, _SHOWN)} of {given[m].pointer}",
            pointer=f"{given[n].pointer}/path",
        ))  # fmt: skip


def open_artifact(root: Path, path: str, *, repository: Path | None = None) -> OpenedFile:
    """The file of that manifest path below the folder `root`, opened for reading.

    `repository` is the hub cache's `models--ns--repo` folder when `root` is a snapshot of it, None
    for a local package. No symbolic link is followed, but in a snapshot the last component may be
    one to a file below `repository`. `root` itself may be reached by links.

    ManifestError as `check_path`; ArtifactError `missing_artifact` (also: a link to nothing),
    `artifact_escapes_root`, `artifact_not_file`, `artifact_unreadable` (the system refuses).
    """
    return open_below(root, check_path(path, None), repository)


def _fault(path: str) -> str | None:
    try:
        n_bytes = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        return "is not UTF-8: it holds a lone surrogate"
    if not 1 <= n_bytes <= MAX_PATH_BYTES:
        return f"has {n_bytes} bytes, needs 1 to {MAX_PATH_BYTES}"
    if _CONTROL.search(path) is not None:
        return "holds a control character"
    if "\\" in path or ":" in path:
        return "holds a backslash or a colon"
    components = path.split("/")
    if components[0].startswith("~"):
        return "begins with '~'"
    if components[0].casefold() == MANIFEST_NAME:
        return "is the manifest's own name"
    return next(filter(None, map(_component_fault, components)), None)


def _component_fault(name: str) -> str | None:
    if not name:
        return "holds an empty component, or begins or ends with '/'"
    if name in (".", ".."):
        return f"holds the component {name!r}"
    if name[-1] in " .":
        return "holds a component that ends in a space or '.'"
    if len(name.encode("utf-8")) > MAX_COMPONENT_BYTES:
        return f"holds a component of more than {MAX_COMPONENT_BYTES} bytes"
    if _DEVICE.fullmatch(name) is not None:
        return f"holds {printable(name, _SHOWN)}, the name of a device"
    return None
