"""Owns the way from the bytes of `model-package.json` to a `Manifest` or refusals (checks 1 to 14).

It must not know fragments, caches or stages. What the members have to be is in
`manifest_document.py` and the files that it uses.
"""

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import overload

from packages.layer_package.errors import Issue, ManifestError, Report
from packages.layer_package.json_text import parse_json
from packages.layer_package.manifest_document import Options, read_document
from packages.layer_package.manifest_fields import MAX_ISSUES, BoundedReport, TooManyIssues
from packages.layer_package.manifest_file import check_length, read_manifest_file
from packages.layer_package.model import Manifest

PROJECTOR_KINDS = frozenset(("mmproj",))


@overload
def read_manifest(
    data: bytes, *, runtime_abi: str | None = None, strict: bool = False, report: None = None,
    projector_kinds: Collection[str] = PROJECTOR_KINDS,
) -> Manifest: ...  # fmt: skip


@overload
def read_manifest(
    data: bytes, *, runtime_abi: str | None = None, strict: bool = False, report: Report | None,
    projector_kinds: Collection[str] = PROJECTOR_KINDS,
) -> Manifest | None: ...  # fmt: skip


def read_manifest(
    data: bytes,
    *,
    runtime_abi: str | None = None,
    strict: bool = False,
    report: Report | None = None,
    projector_kinds: Collection[str] = PROJECTOR_KINDS,
) -> Manifest | None:
    """The manifest of these bytes (checks 2 to 14, and the limit of check 1).

    Without a report, or with a fail-fast one, the first fault is raised: ManifestError, or its
    subclasses CompatibilityError and GenerationError. Any other report gets every fault whose
    inputs are valid, at most 256, and None is returned. Warnings go to the report.

    `runtime_abi` is the version of the serving ABI at hand, None when any will do; `strict` makes a
    missing `activation_width` an error; `projector_kinds` are those that the caller knows.
    """
    found = BoundedReport(fail_fast=report is None or report.fail_fast)
    options = Options(runtime_abi, strict, projector_kinds)
    try:
        return _read(data, options, found)
    except TooManyIssues:
        # not by `note`, which is full; there are errors, so None is the answer
        message = f"only the first {MAX_ISSUES} findings are listed"
        found.issues.append(Issue("too_many_issues", message, "", severity="note"))
        return None
    finally:
        if report is not None:
            report.issues += found.issues


@overload
def load_manifest(
    root: Path, *, repository: Path | None = None, runtime_abi: str | None = None,
    strict: bool = False, report: None = None,
    projector_kinds: Collection[str] = PROJECTOR_KINDS,
) -> Manifest: ...  # fmt: skip


@overload
def load_manifest(
    root: Path, *, repository: Path | None = None, runtime_abi: str | None = None,
    strict: bool = False, report: Report | None,
    projector_kinds: Collection[str] = PROJECTOR_KINDS,
) -> Manifest | None: ...  # fmt: skip


def load_manifest(
    root: Path,
    *,
    repository: Path | None = None,
    runtime_abi: str | None = None,
    strict: bool = False,
    report: Report | None = None,
    projector_kinds: Collection[str] = PROJECTOR_KINDS,
) -> Manifest | None:
    """The manifest of the package in the folder `root` (checks 1 to 14); see `read_manifest`.

    `repository` is the hub cache's folder of which `root` is a snapshot, as for `open_artifact`.
    ManifestError `missing_manifest` when there is no regular file of that name that may be read (a
    local package's may be no symbolic link), `manifest_too_large`.
    """
    try:
        data = read_manifest_file(root, repository)
    except ManifestError as e:
        if report is None:
            raise
        report.add(e)
        return None
    return read_manifest(
        data, runtime_abi=runtime_abi, strict=strict, report=report, projector_kinds=projector_kinds
    )


def _read(data: bytes, options: Options, report: Report) -> Manifest | None:
    try:
        check_length(len(data))
        document = parse_json(data)
    except ManifestError as e:
        report.add(e)
        return None
    return read_document(document, hashlib.sha256(data).hexdigest(), options, report)
