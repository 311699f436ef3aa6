"""Owns the report on a package before anybody splits a model with it; no source is needed.

It must not know a terminal. The report's members have the names of the reference program where it
has them. Choices: `package_path` is the folder's own name, for a report must not tell where it lies
on a machine; stages are chosen as a load chooses them, so one that needs the embeddings has them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packages.layer_package.checks import check_package
from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.errors import Report, SelectionError
from packages.layer_package.examine import Examiner, Finding
from packages.layer_package.fragments import Fragment
from packages.layer_package.manifest import load_manifest
from packages.layer_package.model import Artifact
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.references import PackageRef
from packages.layer_package.selection import StageRequest, even_ranges

REPORT_VERSION = 1


def preflight(
    package: Path | PackageDir,
    *,
    stages: int | None = None,
    verify_sha256: bool = False,
    runtime_abi: str | None = None,
    strict: bool = False,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> dict[str, Any]:
    """Scope "package" as one JSON object, `valid` among its members; raises Cancelled alone.

    `package` is a local folder, or a package of the hub's cache. `stages` adds that many stages of
    an even split. Digests are taken with `verify_sha256` only, and never from a cache.
    """
    report = Report()
    found = open_package(package, report, runtime_abi, strict)
    result = _head(package, found)
    if found is not None:
        examiner = Examiner(
            found, report, hashes=verify_sha256, progress=progress, cancelled=cancelled
        )
        check_package(examiner)
        findings = [examiner.findings[artifact] for artifact in found.manifest.artifacts]
        result["checked_artifact_count"] = len(findings)
        result["missing_artifact_count"] = sum(f.n_bytes is None for f in findings)
        result["artifacts"] = [_artifact(finding) for finding in findings]
        result["stages"] = _stages(found, stages, examiner.findings, report)
    return {
        **result,
        "valid": report.valid,
        "issue_count": len(report.issues),
        "issues": report.as_json(),
    }


def open_package(
    package: Path | PackageDir, report: Report, runtime_abi: str | None, strict: bool
) -> PackageDir | None:
    """The package with its manifest as it is now; None when that was refused into the report.

    `package` is a local folder, or a package whose manifest is read again.
    """
    if isinstance(package, Path):
        root, ref, repository = package, PackageRef.local(package), None
    else:
        root, ref, repository = package.root, package.ref, package.repository
    manifest = load_manifest(
        root, repository=repository, runtime_abi=runtime_abi, strict=strict, report=report
    )
    return None if manifest is None else PackageDir(root, ref, repository, manifest)


def _head(package: Path | PackageDir, found: PackageDir | None) -> dict[str, Any]:
    """All members in the order of a report; those of the manifest None where it was refused."""
    root = package if isinstance(package, Path) else package.root
    manifest = None if found is None else found.manifest
    return {
        "schema_version": REPORT_VERSION,
        "package_path": root.absolute().name,
        "valid": False,
        "model_id": manifest and manifest.model_id,
        "layer_count": manifest and manifest.layer_count,
        "activation_width": manifest and manifest.activation_width,
        "generation": manifest and manifest.generation,
        "manifest_sha256": manifest and manifest.sha256,
        "checked_artifact_count": 0,
        "missing_artifact_count": 0,
        "issue_count": 0,
        "issues": [],
        "artifacts": [],
        "stages": [],
    }


def _artifact(finding: Finding) -> dict[str, Any]:
    artifact = finding.artifact
    is_there = finding.n_bytes is not None
    return {
        "role": artifact.role,
        "layer_index": artifact.layer_index,
        "path": artifact.path,
        "present": is_there,
        "declared_artifact_bytes": artifact.artifact_bytes,
        "actual_artifact_bytes": finding.n_bytes,
        "size_matches_manifest": finding.has_its_size if is_there else None,
        "sha256_matches_manifest": finding.has_its_digest,
    }


def _stages(
    package: PackageDir, stages: int | None, findings: Mapping[Artifact, Finding], report: Report
) -> list[dict[str, Any]]:
    if stages is None:
        return []
    try:
        ranges = even_ranges(package.manifest.layer_count, stages)
    except SelectionError as error:
        report.add(error)
        return []
    return [_stage(package, i, r, findings, report) for i, r in enumerate(ranges)]


def _stage(
    package: PackageDir,
    index: int,
    layers: range,
    findings: Mapping[Artifact, Finding],
    report: Report,
) -> dict[str, Any]:
    """One stage; its bytes are those of the parts that are there, projectors excluded."""

    def header(artifact: Artifact) -> Fragment | None:
        return findings[artifact].header

    selection = StageRequest(layers.start, layers.stop).select(package.manifest, header, report)
    return {
        "stage_index": index,
        "layer_start": layers.start,
        "layer_end": layers.stop,
        "includes_embeddings": selection.include_embeddings,
        "includes_output": selection.include_output,
        "part_count": len(selection.parts),
        "artifact_bytes": sum(findings[part].n_bytes or 0 for part in selection.parts),
        "parts": [_name(part) for part in selection.parts],
        "missing_parts": [_name(p) for p in selection.parts if findings[p].n_bytes is None],
    }


def _name(part: Artifact) -> str:
    return part.role if part.layer_index is None else f"{part.role}:{part.layer_index}"
