"""Owns the manifest that the writer makes: its members in the order of the format, and its bytes.

It must not know how files are written. `source_model.path` is the primary file's path in its
repository and never one of this machine.
"""

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from packages.layer_package.embedding_need import TABLE, BlockFacts
from packages.layer_package.errors import WriterError
from packages.layer_package.fragments import Fragment
from packages.layer_package.model import FORMAT, SCHEMA_VERSION
from packages.layer_package.roles import ROLE_MAP_VERSION
from packages.layer_package.shard_names import shard_name
from packages.layer_package.source_input import SourceIdentity
from packages.layer_package.source_model import Source
from packages.layer_package.write_options import WrittenArtifact

EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"
_MAX_U64 = 2**64 - 1


def manifest_document(
    source: Source,
    identity: SourceIdentity,
    artifacts: Sequence[WrittenArtifact],
    digests: Sequence[str],
    *,
    abi_version: str,
    created_at: int,
    generation: dict[str, Any] | None,
) -> dict[str, Any]:
    """The manifest as JSON values. `digests` of the source's files in order, `created_at` in
    seconds since 1970."""
    by_role: dict[str, list[dict[str, Any]]] = {}
    for artifact in artifacts:
        by_role.setdefault(artifact.role, []).append(_entry(artifact))
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "format": FORMAT,
        "model_id": identity.model_id,
        "source_model": _source_model(source, identity, digests),
        "layer_count": source.layer_count,
        "activation_width": source.activation_width,
        "shared": {role: by_role[role][0] for role in ("metadata", "embeddings", "output")},
        "layers": by_role["layer"],
    }
    if "projector" in by_role:
        document["projectors"] = by_role["projector"]
    if generation is not None:
        document["generation"] = generation
    document["skippy_abi_version"] = abi_version
    document["created_at_unix_secs"] = created_at
    document["selection_hints"] = selection_hints(source)
    return document


def manifest_bytes(document: dict[str, Any]) -> bytes:
    """Pretty JSON: two spaces, a final newline."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def selection_hints(source: Source) -> dict[str, Any]:
    """What spares a planner the headers of fragments."""
    names = {item.tensor.name for item in source.tensors}
    blocks = [_block_facts(source, layer) for layer in _by_layer(source)]
    prediction = [i for i, block in enumerate(blocks) if block.is_prediction]
    readers: list[int] | str = [i for i, block in enumerate(blocks) if block.reads_table] or "all"
    return {
        "role_map": ROLE_MAP_VERSION,
        "tied_output": "output.weight" not in names,
        "prediction_layers": prediction,
        "prediction_needs_embeddings": any(not blocks[i].has_own_embedding for i in prediction),
        "per_layer_embedding_layers": readers if TABLE in names else [],
    }


def created_at_unix_secs() -> int:
    """Now, or what `SOURCE_DATE_EPOCH` says. WriterError `invalid_source_date_epoch`."""
    given = os.environ.get(EPOCH_VARIABLE)
    if given is None:
        return int(time.time())
    if not (given.isascii() and given.isdigit() and len(given) <= 20 and int(given) <= _MAX_U64):
        raise WriterError(
            "invalid_source_date_epoch",
            f"{EPOCH_VARIABLE} is {given!r:.40}; it needs to be seconds since 1970",
        )
    return int(given)


def source_paths(source: Source, identity: SourceIdentity) -> list[str]:
    """The paths of the source's files in their repository."""
    shard = shard_name(identity.primary_file)
    if shard is None:
        return [identity.primary_file]
    return [shard.of(number) for number in range(1, len(source.shards) + 1)]


def _source_model(
    source: Source, identity: SourceIdentity, digests: Sequence[str]
) -> dict[str, Any]:
    paths = source_paths(source, identity)
    files = zip(paths, source.shards, digests, strict=True)
    return {
        "path": identity.primary_file,
        "sha256": digests[0],
        "repo": identity.repo,
        "revision": identity.revision,
        "primary_file": identity.primary_file,
        "canonical_ref": identity.canonical_ref,
        "distribution_id": identity.distribution_id,
        "files": [
            {"path": path, "size_bytes": shard.opened.n_bytes, "sha256": digest}
            for path, shard, digest in files
        ],
    }


def _entry(artifact: WrittenArtifact) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if artifact.layer_index is not None:
        entry["layer_index"] = artifact.layer_index
    if artifact.role == "projector":
        entry["kind"] = "mmproj"
    return {
        **entry,
        "path": artifact.path,
        "tensor_count": artifact.tensor_count,
        "tensor_bytes": artifact.tensor_bytes,
        "artifact_bytes": artifact.artifact_bytes,
        "sha256": artifact.sha256,
    }


def _by_layer(source: Source) -> list[list[int]]:
    """Indices of the tensors of each layer."""
    layers: list[list[int]] = [[] for _ in range(source.layer_count)]
    for index, item in enumerate(source.tensors):
        if item.role.layer_index is not None:
            layers[item.role.layer_index].append(index)
    return layers


def _block_facts(source: Source, tensors: Sequence[int]) -> BlockFacts:
    return BlockFacts.of(Fragment(3, (), tuple(source.tensors[i].tensor for i in tensors), 32, 0))
