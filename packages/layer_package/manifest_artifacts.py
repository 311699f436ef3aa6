"""Owns the manifest's entries that name files: shared, projectors, layers (checks 9 to 12).

It must not know the rest of the manifest, nor look at any file. In an entry with a fault that was
reported, the value at fault is 0 or empty, so that the other entries can still be compared with it;
such a record never leaves `read_manifest`.
"""

from collections.abc import Collection, Iterable
from itertools import pairwise

from packages.layer_package.errors import ManifestError
from packages.layer_package.manifest_fields import U32, U64, Members, members_at, shown
from packages.layer_package.model import Artifact, Role
from packages.layer_package.paths import check_path

SHARED: tuple[Role, ...] = ("metadata", "embeddings", "output")
MAX_TENSORS = 1_000_000
_GAPS_SHOWN = 8


def read_shared(top: Members, shared: Members | None) -> dict[Role, Artifact]:
    """The shared fragments that could be read, by role; `missing_shared_artifact`.

    `shared` is None when it is absent, or was reported for its type.
    """
    if shared is None:
        if "shared" not in top.value:
            top.fail("missing_shared_artifact", "shared is missing", "shared")
        return {}
    found: dict[Role, Artifact] = {}
    for role in SHARED:
        if role not in shared.value:
            shared.fail("missing_shared_artifact", f"shared.{role} is missing", role)
            continue
        entry = members_at(shared.value[role], shared.at(role), shared.report)
        if entry is not None:
            found[role] = _read_entry(entry, role)
    return found


def read_projectors(
    top: Members, values: Iterable[object], kinds: Collection[str]
) -> list[Artifact]:
    """The projector entries that are objects; only these kinds are known."""
    found = []
    for index, value in enumerate(values):
        entry = members_at(value, f"{top.at('projectors')}/{index}", top.report)
        if entry is None:
            continue
        kind = entry.filled("kind", "empty_projector_kind")
        if kind is not None and kind not in kinds:
            message = f"kind is {shown(kind)}, known: {', '.join(sorted(kinds))}"
            entry.fail("unsupported_projector_kind", message, "kind")
        found.append(_read_entry(entry, "projector", kind=kind, empty="empty_projector"))
    return found


def read_layers(top: Members, values: Iterable[object]) -> list[Artifact]:
    """The layer entries that are objects, in their order; `layer_index` None where it is faulty."""
    found = []
    for index, value in enumerate(values):
        entry = members_at(value, f"{top.at('layers')}/{index}", top.report)
        if entry is not None:
            number = entry.integer("layer_index", U32)
            found.append(_read_entry(entry, "layer", layer_index=number, empty="empty_layer"))
    return found


def check_coverage(top: Members, layers: list[Artifact], n_entries: int, layer_count: int) -> None:
    """Each of 0 to `layer_count` - 1 exactly once; gaps only where every entry could be read."""
    seen: dict[int, str] = {}
    indices = [(a.layer_index, a.pointer) for a in layers if a.layer_index is not None]
    for index, pointer in indices:
        if index >= layer_count:
            top.report.add(ManifestError(
                "layer_index_out_of_range", f"layer_index is {index}, layer_count is {layer_count}",
                pointer=f"{pointer}/layer_index",
            ))  # fmt: skip
    for index, pointer in indices:
        if index in seen:
            top.report.add(ManifestError(
                "duplicate_layer", f"layer {index} is also {seen[index]}",
                pointer=f"{pointer}/layer_index",
            ))  # fmt: skip
        seen.setdefault(index, pointer)
    if len(indices) == n_entries:
        gaps = _gaps(sorted(seen), layer_count)
        if gaps:
            more = "" if len(gaps) <= _GAPS_SHOWN else f" and {len(gaps) - _GAPS_SHOWN} more gaps"
            message = f"no entry for layer {', '.join(gaps[:_GAPS_SHOWN])}{more}"
            top.fail("missing_layer", f"{message}; layer_count is {layer_count}", "layers")
    if layer_count == 0:
        top.fail("invalid_layer_count", "layer_count is 0, needs 1 or more", "layer_count")


def _gaps(present: list[int], layer_count: int) -> list[str]:
    """The ranges that are missing, so that a count of billions costs nothing."""
    ends = [-1, *(index for index in present if index < layer_count), layer_count]
    runs = ((before + 1, after - 1) for before, after in pairwise(ends) if after - before > 1)
    return [str(first) if first == last else f"{first} to {last}" for first, last in runs]


def _read_entry(
    entry: Members,
    role: Role,
    *,
    layer_index: int | None = None,
    kind: str | None = None,
    empty: str | None = None,
) -> Artifact:
    path = _read_path(entry)
    tensor_count = entry.integer("tensor_count", U64)
    if tensor_count is not None and tensor_count > MAX_TENSORS:
        message = f"tensor_count is {tensor_count}, at most {MAX_TENSORS}"
        entry.fail("invalid_tensor_count", message, "tensor_count")
    tensor_bytes = entry.integer("tensor_bytes", U64)
    if None not in (tensor_count, tensor_bytes) and (tensor_count == 0) != (tensor_bytes == 0):
        message = f"tensor_bytes is {tensor_bytes} for a tensor_count of {tensor_count}"
        entry.fail("invalid_tensor_bytes", message, "tensor_bytes")
    artifact_bytes = entry.integer("artifact_bytes", U64)
    if artifact_bytes == 0:
        entry.fail("empty_artifact", "artifact_bytes is 0, needs to be more", "artifact_bytes")
    elif artifact_bytes is not None and artifact_bytes < (tensor_bytes or 0):
        message = f"artifact_bytes is {artifact_bytes}, less than tensor_bytes, {tensor_bytes}"
        entry.fail("invalid_artifact_bytes", message, "artifact_bytes")
    sha256 = entry.digest("sha256", "invalid_artifact_sha256")
    if tensor_count == 0 and empty is not None:
        entry.fail(empty, f"tensor_count is 0 in a {role}", "tensor_count")
    return Artifact(
        role, path, tensor_count or 0, tensor_bytes or 0, artifact_bytes or 0, sha256 or "",
        entry.pointer, layer_index, kind,
    )  # fmt: skip


def _read_path(entry: Members) -> str:
    path = entry.text("path")
    try:
        return "" if path is None else check_path(path, entry.at("path"))
    except ManifestError as e:
        entry.report.add(e)
        return ""
