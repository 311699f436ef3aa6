"""Owns the records of a manifest, schema version 1, after validation.

It must not know how they are checked (`manifest.py`) nor where files lie. Paths are as the
manifest writes them, digests in lower case.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MANIFEST_NAME = "model-package.json"
MAX_MANIFEST_BYTES = 16 << 20
FORMAT = "layer-package"
SCHEMA_VERSION = 1

Role = Literal["metadata", "embeddings", "output", "layer", "projector"]


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file: bytes of its tensors without padding, bytes of the file, SHA-256 in lower case.

    `layer_index` for a layer, `kind` for a projector; `pointer` of its entry in the manifest.
    """

    role: Role
    path: str
    tensor_count: int
    tensor_bytes: int
    artifact_bytes: int
    sha256: str
    pointer: str
    layer_index: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of the source model."""

    path: str
    size_bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class SourceModel:
    """What the package was made from; `path` is informational and never opened."""

    path: str
    sha256: str
    repo: str | None = None
    revision: str | None = None
    primary_file: str | None = None
    canonical_ref: str | None = None
    distribution_id: str | None = None
    files: tuple[SourceFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A valid manifest. `layers` by index; `document` is the JSON as read, unknown members too;
    `sha256` of its exact bytes."""

    model_id: str
    source_model: SourceModel
    layer_count: int
    activation_width: int | None
    metadata: Artifact
    embeddings: Artifact
    output: Artifact
    layers: tuple[Artifact, ...]
    projectors: tuple[Artifact, ...]
    skippy_abi_version: str
    sha256: str
    created_at_unix_secs: int | None = None
    generation: Mapping[str, Any] | None = None
    selection_hints: Mapping[str, Any] | None = None
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fragments(self) -> tuple[Artifact, ...]:
        """Metadata, embeddings, output, then the layers: every file but the projectors."""
        return (self.metadata, self.embeddings, self.output, *self.layers)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Fragments, then projectors."""
        return (*self.fragments, *self.projectors)
