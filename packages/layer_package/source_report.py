"""Owns the form of the result of holding a package against its source: members, order, nulls.

It must not know how anything is compared. What cannot be said of a file that is missing or unsound
is null, and its matches are false.
"""

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from packages.layer_package.errors import ManifestError, Report
from packages.layer_package.examine import Finding
from packages.layer_package.json_text import parse_json
from packages.layer_package.manifest_file import read_manifest_file
from packages.layer_package.model import Manifest
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.source_model import Source

_MAX_LAYERS_LISTED = 1000


def head_json(source: Source, manifest: Manifest | None, digest_matches: bool) -> dict[str, Any]:
    """All members in the order of a report, those of a comparison as if nothing was compared."""
    width = None if manifest is None else manifest.activation_width
    return {
        "valid": False,
        "full_tensor_count": len(source.tensors),
        "layer_count": None if manifest is None else manifest.layer_count,
        "manifest_layer_count_matches_model": manifest is not None
        and manifest.layer_count == source.layer_count,
        "activation_width_matches_model": width == source.activation_width,
        "expected_activation_width": source.activation_width,
        "manifest_activation_width": width,
        "manifest_sha256": None if manifest is None else manifest.sha256,
        "source_sha256_matches_manifest": digest_matches,
        "required_owned_tensor_count": sum(t.role.is_owned for t in source.tensors),
        "missing_owned_tensors": [],
        "duplicate_owned_tensors": [],
        "misplaced_owned_tensors": [],
        "payload_mismatches": [],
        "checked_artifact_count": 0,
        "artifacts": [],
        "checked_projector_count": 0,
        "projectors": [],
        "missing_layers": [],
        "duplicate_layers": [],
        "issues": [],
    }


def refused_json(source: Source, package: Path | PackageDir, report: Report) -> dict[str, Any]:
    """The report where the manifest is no manifest; its layers as far as they can be told."""
    if isinstance(package, Path):
        missing, duplicate = _layer_faults(package, None)
    else:
        missing, duplicate = _layer_faults(package.root, package.repository)
    return {
        **head_json(source, None, False),
        "missing_layers": missing,
        "duplicate_layers": duplicate,
        "issues": report.as_json(),
    }


def _layer_faults(root: Path, repository: Path | None) -> tuple[list[int], list[int]]:
    """Layers that a refused manifest lacks and has twice, the first thousand of each."""
    try:
        document = parse_json(read_manifest_file(root, repository))
    except ManifestError:
        return [], []
    members = document if isinstance(document, dict) else {}
    layers, layer_count = members.get("layers"), members.get("layer_count")
    if not isinstance(layers, list) or type(layer_count) is not int:
        return [], []
    entries = [entry.get("layer_index") for entry in layers if isinstance(entry, dict)]
    counts = Counter(index for index in entries if type(index) is int)
    missing = (index for index in range(layer_count) if index not in counts)
    duplicate = sorted(index for index, count in counts.items() if count > 1)
    return list(islice(missing, _MAX_LAYERS_LISTED)), duplicate[:_MAX_LAYERS_LISTED]


def artifact_json(
    finding: Finding, required: frozenset[str], strangers: list[str]
) -> dict[str, Any]:
    """A fragment's entry: `required` names of owned tensors, `strangers` that the source lacks."""
    header = finding.header
    names = [] if header is None else [tensor.name for tensor in header.tensors]
    return {
        "path": finding.artifact.path,
        **_counts(finding),
        "owned_tensor_count": None if header is None else sum(n in required for n in names),
        "missing_from_full": strangers,
    }


def projector_json(finding: Finding) -> dict[str, Any]:
    """A projector's entry."""
    artifact = finding.artifact
    return {"path": artifact.path, "kind": artifact.kind, **_counts(finding)}


def _counts(finding: Finding) -> dict[str, Any]:
    artifact, header = finding.artifact, finding.header
    n_tensors = None if header is None else len(header.tensors)
    n_bytes = None if header is None else header.tensor_bytes
    return {
        "tensor_count": n_tensors,
        "tensor_bytes": n_bytes,
        "artifact_bytes": finding.n_bytes,
        "sha256_matches_manifest": finding.has_its_digest is True,
        "tensor_count_matches_manifest": n_tensors == artifact.tensor_count,
        "tensor_bytes_matches_manifest": n_bytes == artifact.tensor_bytes,
        "artifact_bytes_matches_manifest": finding.has_its_size,
    }
