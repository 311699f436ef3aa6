"""Owns validation by scope: which checks run on which files of a package, and in which order.

It must not know how one file is examined (`examine.py`) nor where a tensor belongs
(`placement.py`). A report that fails fast raises the first error; another one collects all that
can be found: a check is left out for a file that an earlier check refused. Order: the manifest
(1 to 14), the range and the selection (15, 16), presence and size of every file (17, 18), then for
each file digest and header (19, 20), then what the headers say together (21, 22, 24, hints).
A projector (23) is examined with the other files, after them. Where hints are missing, the
selection reads headers before their digests are known; what it took from them is compared with the
checked headers in the end.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.embedding_need import FragmentOf
from packages.layer_package.errors import (
    ArtifactError,
    GgufError,
    Issue,
    ManifestError,
    PackageError,
    Report,
    SelectionError,
)
from packages.layer_package.examine import Examiner, changed
from packages.layer_package.fragments import (
    Fragment,
    FragmentTensor,
    read_fragment,
    tensor_digest,
)
from packages.layer_package.manifest import load_manifest
from packages.layer_package.manifest_fields import MAX_ISSUES, BoundedReport, TooManyIssues
from packages.layer_package.model import MANIFEST_NAME, Artifact
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.paths import open_artifact, open_file
from packages.layer_package.placement import (
    PayloadDigest,
    check_metadata_fragment,
    check_native_mtp,
    check_placement,
)
from packages.layer_package.profile_check import check_profile
from packages.layer_package.selection import Selection, StageRequest
from packages.layer_package.selection_checks import check_hints, check_stage_hints
from packages.layer_package.verification import must_verify

Scope = Literal["manifest", "metadata", "stage", "package"]


def validate(
    package: PackageDir,
    scope: Scope,
    *,
    stage: StageRequest | None = None,
    verify: bool | None = None,
    checksum_cache: ChecksumCache | None = None,
    expected_manifest_sha256: str | None = None,
    runtime_abi: str | None = None,
    strict: bool = False,
    report: Report | None = None,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> Report:
    """Check a package as far as `scope` needs it; the report (a new fail-fast one by default).

    `stage` is required by scope "stage" and by it alone. `checksum_cache` is used in that scope
    only. Progress counts bytes hashed. Raises the first error where the report fails fast;
    `checksum_required` and Cancelled always.
    """
    report = Report(fail_fast=True) if report is None else report
    hashes = scope != "manifest" and must_verify(package.ref, verify)
    if not check_manifest(
        package, report, expected_sha256=expected_manifest_sha256, runtime_abi=runtime_abi,
        strict=strict,
    ):  # fmt: skip
        return report
    examiner = Examiner(
        package, report, hashes=hashes, progress=progress, cancelled=cancelled,
        checksum_cache=checksum_cache if scope == "stage" else None,
    )  # fmt: skip
    if scope == "metadata":
        check_metadata(examiner)
    elif scope == "stage":
        try:
            if stage is None:
                raise SelectionError("missing_layer_range", "scope 'stage' needs a range of layers")
            selection = stage.select(package.manifest, header_reader(package), report)
        except SelectionError as error:
            report.add(error)
            return report
        check_stage(examiner, stage, selection)
    elif scope == "package":
        check_package(examiner)
    return report


def check_manifest(
    package: PackageDir,
    report: Report,
    *,
    expected_sha256: str | None = None,
    runtime_abi: str | None = None,
    strict: bool = False,
) -> bool:
    """Checks 1 to 14 again, on the file as it is now, which must be the one of `package`.

    False when something was added to the report. ManifestError `manifest_sha256_mismatch` where the
    caller expects another digest, ArtifactError `artifact_changed` where the file is another.
    """
    known = package.manifest.sha256
    if expected_sha256 is not None and expected_sha256.lower() != known:
        report.add(ManifestError(
            "manifest_sha256_mismatch",
            f"the manifest has SHA-256 {known}, {expected_sha256.lower()!r:.70} is expected",
            artifact=MANIFEST_NAME,
        ))  # fmt: skip
        return False
    found = load_manifest(
        package.root, repository=package.repository, runtime_abi=runtime_abi, strict=strict,
        report=report,
    )  # fmt: skip
    if found is not None and found.sha256 != known:
        report.add(changed(MANIFEST_NAME))
        return False
    return found is not None


def check_metadata(examiner: Examiner) -> None:
    """Scope "metadata": checks 17 to 21 of the metadata fragment."""
    _examine(examiner, (examiner.package.manifest.metadata,))
    _check_metadata_header(examiner)


def check_stage(examiner: Examiner, stage: StageRequest, selection: Selection) -> None:
    """Scope "stage" behind the selection: checks 17 to 24 of its files."""
    package, report = examiner.package, examiner.report
    headers = _examine(examiner, selection.files)
    if selection.projector_path is not None:
        _check_outside_projector(examiner, selection.projector_path)
    _check_metadata_header(examiner)
    _check_placement(headers, report)
    check_native_mtp(package.manifest, headers, report)
    if stage.embeddings == "auto":
        check_stage_hints(package.manifest, selection, headers, report)


def check_package(examiner: Examiner) -> None:
    """Scope "package" behind the manifest: every file, repeated tensors byte for byte."""
    package, report = examiner.package, examiner.report
    headers = _examine(examiner, package.manifest.artifacts)

    def payload_digest(artifact: Artifact, tensor: FragmentTensor) -> bytes:
        with open_artifact(package.root, artifact.path, repository=package.repository) as opened:
            if not examiner.is_known(artifact, opened):
                raise changed(artifact.path)
            return tensor_digest(opened, artifact.path, tensor)

    _check_metadata_header(examiner)
    _check_placement(headers, report, payload_digest)
    check_native_mtp(package.manifest, headers, report)
    check_profile(package.manifest, headers, report)
    check_hints(package.manifest, headers, report)


def header_reader(package: PackageDir) -> FragmentOf:
    """Reads headers for the choice of parts: None for a file that is not there or not sound, which
    the checks of files explain."""

    def read(artifact: Artifact) -> Fragment | None:
        try:
            with open_artifact(
                package.root, artifact.path, repository=package.repository
            ) as opened:
                return read_fragment(opened, artifact.path)
        except PackageError:
            return None

    return read


def _examine(examiner: Examiner, files: tuple[Artifact, ...]) -> Mapping[Artifact, Fragment]:
    """Checks 17 to 20; the sound headers of the fragments, without projectors, in load order."""
    for artifact in files:
        examiner.locate(artifact)
    headers = {}
    for artifact in files:
        header = examiner.read(artifact).header
        if header is not None and artifact.role != "projector":
            headers[artifact] = header
    return headers


def _check_placement(
    headers: Mapping[Artifact, Fragment],
    report: Report,
    payload_digest: PayloadDigest | None = None,
) -> None:
    """Check 22; bounded, for one file can hold a million tensors that belong elsewhere."""
    found = BoundedReport(fail_fast=report.fail_fast)
    try:
        check_placement(headers, found, payload_digest=payload_digest)
    except TooManyIssues:
        message = f"only the first {MAX_ISSUES} findings on where tensors lie are listed"
        found.issues.append(Issue("too_many_issues", message))
    except (ArtifactError, GgufError) as error:
        # a file can no longer be read; the rest of the placement is not to be told then
        if report.fail_fast:
            raise
        found.issues.append(error.issue)
    finally:
        report.issues.extend(found.issues)


def _check_metadata_header(examiner: Examiner) -> None:
    manifest = examiner.package.manifest
    finding = examiner.findings.get(manifest.metadata)
    if finding is not None and finding.header is not None:
        check_metadata_fragment(manifest, finding.header, examiner.report)


def _check_outside_projector(examiner: Examiner, path: Path) -> None:
    """The caller's own file: only whether it is GGUF. Named by its last component."""
    try:
        with ExitStack() as closing:
            opened = open_file(path, path.name)
            if examiner.held is None:
                closing.enter_context(opened)
            else:
                examiner.held.add(path.name, opened)
            read_fragment(opened, path.name, report=examiner.report)
    except PackageError as error:
        examiner.report.add(error)
