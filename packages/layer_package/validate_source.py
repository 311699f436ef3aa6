"""Owns holding a package against the model that it was made from.

It must not know a terminal, nor the form of the result (`source_report.py`). Scope "source":
everything of scope "package" with digests always taken and no cache, then the comparisons with the
source (`source_compare.py`, `source_identity.py`). Choices: `valid` means that no issue is an
error; a width that differs is a warning unless `strict`; a tensor that no owner has must lie in the
metadata fragment, where every stage gets it.
"""

from pathlib import Path
from typing import Any

from packages.layer_package.checks import check_package
from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.errors import ArtifactError, GgufError, Report
from packages.layer_package.examine import Examiner, changed
from packages.layer_package.fragments import Fragment
from packages.layer_package.meter import Meter
from packages.layer_package.model import Artifact
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.paths import open_artifact
from packages.layer_package.preflight import open_package
from packages.layer_package.source_compare import (
    TensorComparer,
    check_pairs,
    not_in_source,
    ownership,
)
from packages.layer_package.source_identity import check_dims, check_files
from packages.layer_package.source_model import Source, open_source, refuse_changed
from packages.layer_package.source_report import (
    artifact_json,
    head_json,
    projector_json,
    refused_json,
)


def validate_package(
    full: Path,
    package: Path | PackageDir,
    *,
    deep: bool = True,
    strict: bool = False,
    runtime_abi: str | None = None,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> dict[str, Any]:
    """One JSON object, `valid` among its members. `full` is a GGUF file or any shard of a set.

    `deep` compares payloads byte for byte. Progress counts bytes hashed and compared. Raises what
    `open_source` does when the source cannot be used, `artifact_changed` when it changed meanwhile,
    and Cancelled; everything that is wrong with the package is an issue.
    """
    report = Report()
    with open_source(full) as source:
        found = open_package(package, report, runtime_abi, strict)
        if found is None:
            return refused_json(source, package, report)
        n_bytes = source.n_bytes + sum(a.artifact_bytes for a in found.manifest.artifacts)
        n_deep = sum(a.tensor_bytes for a in found.manifest.fragments) if deep else 0
        meter = Meter(n_bytes + n_deep, progress, cancelled, "validating a package")
        result = _compared(source, found, report, meter, deep=deep, strict=strict)
        refuse_changed(source)
        meter.finish()
        return result


def _compared(
    source: Source, package: PackageDir, report: Report, meter: Meter, *, deep: bool, strict: bool
) -> dict[str, Any]:
    manifest = package.manifest
    digest_matches = check_files(source, manifest, report, meter)
    check_dims(source, manifest, report, strict=strict)
    examiner = Examiner(
        package, report, hashes=True, progress=meter.part(), cancelled=meter.cancelled
    )
    check_package(examiner)
    findings = examiner.findings
    headers = {a: h for a in manifest.fragments if (h := findings[a].header) is not None}
    owned = ownership(source, headers, report)
    names = {entry.tensor.name: entry for entry in source.tensors}
    strangers: dict[Artifact, list[str]] = {}
    comparer = TensorComparer(source, report, deep, meter.add)
    for artifact, header in headers.items():
        meter.ask()
        strangers[artifact] = not_in_source(names, artifact, header, report)
        check_pairs(source, artifact, header, report)
        _compare(comparer, examiner, artifact, header)
    required = frozenset(owned.required)
    return {
        **head_json(source, manifest, digest_matches),
        "missing_owned_tensors": owned.missing,
        "duplicate_owned_tensors": owned.duplicate,
        "misplaced_owned_tensors": owned.misplaced,
        "payload_mismatches": [mismatch.as_json() for mismatch in comparer.mismatches],
        "checked_artifact_count": len(headers),
        "artifacts": [
            artifact_json(findings[a], required, strangers.get(a, [])) for a in manifest.fragments
        ],
        "checked_projector_count": sum(
            findings[a].header is not None for a in manifest.projectors
        ),
        "projectors": [projector_json(findings[a]) for a in manifest.projectors],
        "valid": report.valid,
        "issues": report.as_json(),
    }


def _compare(
    comparer: TensorComparer, examiner: Examiner, artifact: Artifact, header: Fragment
) -> None:
    """The file is opened once more; it must be the one whose header was read."""
    package = examiner.package
    try:
        with open_artifact(package.root, artifact.path, repository=package.repository) as opened:
            if not examiner.is_known(artifact, opened):
                raise changed(artifact.path)
            comparer.compare(artifact, header, opened)
            if not opened.still_same():
                raise changed(artifact.path)
    except (ArtifactError, GgufError) as error:
        # a source that fails is not the package's fault
        if error.issue.artifact != artifact.path:
            raise
        examiner.report.add(error)
