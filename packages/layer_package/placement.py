"""Owns whether tensors and metadata lie where they belong, over fragments that were read.

It must not know files (payloads are compared by a caller's digest) nor the source. A common tensor
may lie in any fragment, in several if all agree. An owned tensor that lies where it belongs and
somewhere else is `duplicate_owned_tensor`, one that lies only elsewhere `misplaced_owned_tensor`.
A metadata fragment without an architecture is `missing_architecture`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import ContentError, PackageError, Report
from packages.layer_package.fragments import ARCHITECTURE_KEY, Fragment, FragmentTensor
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.roles import TensorRole, is_prediction, role_of

PayloadDigest = Callable[[Artifact, FragmentTensor], bytes]
Holders = list[tuple[Artifact, FragmentTensor]]

_SHOWN = 80


def check_placement(
    fragments: Mapping[Artifact, Fragment],
    report: Report,
    *,
    payload_digest: PayloadDigest | None = None,
) -> None:
    """Check 22: every tensor in the right fragment, and one architecture in all of them.

    `fragments` are those selected. With `payload_digest` (deep) the bytes of repeated common
    tensors are compared too, type and shape always. ContentError `architecture_mismatch`,
    `invalid_layer_name`, `misplaced_owned_tensor`, `duplicate_owned_tensor`, `conflicting_tensor`.
    """
    _check_architectures(fragments, report)
    for name, holders in _holders(fragments).items():
        try:
            role = role_of(name)
        except ContentError as error:
            artifact = holders[0][0]
            report.add(ContentError(error.kind, error.issue.message, artifact=artifact.path))
            continue
        if role.is_owned:
            _check_owned(name, role, holders, report)
        else:
            _check_common(name, holders, payload_digest, report)


def belongs(role: TensorRole, artifact: Artifact) -> bool:
    """Whether the artifact is the fragment that owns tensors of that role."""
    return artifact.role == role.fragment and artifact.layer_index == role.layer_index


def check_metadata_fragment(manifest: Manifest, fragment: Fragment, report: Report) -> None:
    """Check 21, of the metadata fragment against the manifest.

    ContentError `missing_architecture`, `layer_count_mismatch`; warning
    `activation_width_mismatch`.
    """
    path, architecture = manifest.metadata.path, fragment.architecture
    if architecture is None:
        message = f"no text {ARCHITECTURE_KEY} in the metadata"
        report.add(ContentError("missing_architecture", message, artifact=path))
        return
    width, wanted = fragment.integer(f"{architecture}.embedding_length"), manifest.activation_width
    if width is not None and wanted is not None and width != wanted:
        report.warn(
            "activation_width_mismatch",
            f"{_shown(architecture)} has embedding_length {width}, activation_width is {wanted}",
            pointer="/activation_width", artifact=path,
        )  # fmt: skip
    n_blocks = fragment.integer(f"{architecture}.block_count")
    if n_blocks is not None and n_blocks != manifest.layer_count:
        report.add(ContentError(
            "layer_count_mismatch",
            f"{_shown(architecture)} has block_count {n_blocks},"
            f" layer_count is {manifest.layer_count}",
            pointer="/layer_count", artifact=path,
        ))  # fmt: skip


def check_native_mtp(
    manifest: Manifest, fragments: Mapping[Artifact, Fragment], report: Report
) -> None:
    """The tensor part of check 24: every layer a native-mtp proposer or strategy names, and whose
    fragment is given, holds prediction tensors. ContentError `missing_native_mtp_tensors`."""
    by_layer = {a.layer_index: (a, f) for a, f in fragments.items() if a.role == "layer"}
    for pointer, layer_index in _native_mtp_layers(manifest):
        artifact, fragment = by_layer.get(layer_index, (None, None))
        if artifact is None or fragment is None:
            continue
        if not any(is_prediction(tensor.name) for tensor in fragment.tensors):
            report.add(ContentError(
                "missing_native_mtp_tensors",
                f"layer {layer_index} is advertised for native MTP and has none of its tensors",
                pointer=pointer, artifact=artifact.path,
            ))  # fmt: skip


def _native_mtp_layers(manifest: Manifest) -> list[tuple[str, int]]:
    """Pointer and layer of each that is advertised; the structure was checked, or is skipped."""
    found: list[tuple[str, int]] = []
    speculative = _member(manifest.generation, "speculative_decoding")
    for group in ("proposers", "strategies"):
        for name, entry in _member(speculative, group).items():
            layers = entry.get("layer_indices") if isinstance(entry, Mapping) else None
            if not isinstance(layers, list) or entry.get("type") != "native-mtp":
                continue
            escaped = name.replace("~", "~0").replace("/", "~1")
            place = f"/generation/speculative_decoding/{group}/{escaped}/layer_indices"
            found += [(f"{place}/{i}", n) for i, n in enumerate(layers) if isinstance(n, int)]
    return found


def _member(value: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    found = None if value is None else value.get(name)
    return found if isinstance(found, Mapping) else {}


def _holders(fragments: Mapping[Artifact, Fragment]) -> dict[str, Holders]:
    holders: dict[str, Holders] = {}
    for artifact, fragment in fragments.items():
        for tensor in fragment.tensors:
            holders.setdefault(tensor.name, []).append((artifact, tensor))
    return holders


def _check_architectures(fragments: Mapping[Artifact, Fragment], report: Report) -> None:
    """All parts against the first, which is the metadata where that is given."""
    ordered = sorted(fragments.items(), key=lambda item: item[0].role != "metadata")
    for artifact, fragment in ordered[1:]:
        wanted, found = ordered[0][1].architecture, fragment.architecture
        if found != wanted:
            report.add(ContentError(
                "architecture_mismatch",
                f"architecture {_shown(found)}, that of {ordered[0][0].path} is {_shown(wanted)}",
                artifact=artifact.path,
            ))  # fmt: skip


def _check_owned(name: str, role: TensorRole, holders: Holders, report: Report) -> None:
    wrong = [artifact for artifact, _ in holders if not belongs(role, artifact)]
    if len(wrong) < len(holders) and len(holders) > 1:
        kind, what = "duplicate_owned_tensor", f"tensor {_shown(name)} lies here too; it belongs"
    else:
        kind, what = "misplaced_owned_tensor", f"tensor {_shown(name)} lies here; it belongs"
    where = role.fragment if role.layer_index is None else f"layer {role.layer_index}"
    others: list[Artifact] = wrong or [artifact for artifact, _ in holders[1:]]
    for artifact in others:
        report.add(_placed_wrong(kind, f"{what} to {where} alone", artifact))


def _placed_wrong(kind: str, message: str, artifact: Artifact) -> PackageError:
    return ContentError(kind, message, pointer=artifact.pointer, artifact=artifact.path)


def _check_common(
    name: str, holders: Holders, payload_digest: PayloadDigest | None, report: Report
) -> None:
    if len(holders) < 2:
        return
    (first, tensor), *others = holders
    kind = (tensor.ggml_type, tensor.dims)
    digest = None
    for artifact, other in others:
        what = None
        if (other.ggml_type, other.dims) != kind:
            what = f"type {other.ggml_type} and dimensions {other.dims}, there {kind[0]}, {kind[1]}"
        elif payload_digest is not None:
            digest = payload_digest(first, tensor) if digest is None else digest
            if payload_digest(artifact, other) != digest:
                what = "other bytes"
        if what is not None:
            message = f"tensor {_shown(name)} is also in {first.path} and differs: {what}"
            report.add(_placed_wrong("conflicting_tensor", message, artifact))


def _shown(text: str | None) -> str:
    return "none" if text is None else printable(text, _SHOWN)
