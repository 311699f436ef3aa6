"""Owns what a caller may ask of the writer, and what the writer answers.

It must not know how a package is written (`writer.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packages.layer_package.errors import Report

Command = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of `write_package`, named as those of the command.

    `model_id`, `source_repo`, `source_revision`, `source_file` belong to a local file alone. A
    command is a list of words, or text that is split as a shell would and run without one.
    `generation` is merged into what the writer emits itself. `hub_cache` is the root of the hub's
    cache (None: the environment's). `strict` turns what a reader merely warns of into errors.
    """

    model_id: str | None = None
    source_repo: str | None = None
    source_revision: str | None = None
    source_file: str | None = None
    projectors: Sequence[Path] = ()
    abi_version: str | None = None
    after_artifact: Command | None = None
    transform_artifact: Command | None = None
    resume: bool = False
    force: bool = False
    generation: Mapping[str, Any] | None = None
    policy_profile: str = "auto"
    fragment_metadata: Literal["full", "lean"] = "full"
    engine: Literal["python", "native"] = "python"
    dry_run: bool = False
    readme: bool = False
    strict: bool = False
    hub_cache: Path | None = None


@dataclass(frozen=True, slots=True)
class WrittenArtifact:
    """One file of the package. `sha256` is None in a dry run; `kept` says that a resumed run found
    it as it would have written it."""

    role: str
    path: str
    tensor_count: int
    tensor_bytes: int
    artifact_bytes: int
    layer_index: int | None = None
    sha256: str | None = None
    kept: bool = False

    def as_json(self) -> dict[str, Any]:
        """Its members."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What was written, or in a dry run would be.

    `manifest` is the exact bytes of the manifest, empty in a dry run; `needed_bytes` the free space
    that is asked for before anything is written.
    """

    artifacts: tuple[WrittenArtifact, ...]
    needed_bytes: int
    manifest: bytes = b""
    manifest_sha256: str | None = None
    report: Report = field(default_factory=Report)

    def as_json(self) -> dict[str, Any]:
        """The machine-readable report of a run."""
        return {
            "dry_run": not self.manifest,
            "needed_bytes": self.needed_bytes,
            "artifact_bytes": sum(artifact.artifact_bytes for artifact in self.artifacts),
            "manifest_sha256": self.manifest_sha256,
            "manifest": json.loads(self.manifest) if self.manifest else None,
            "artifacts": [artifact.as_json() for artifact in self.artifacts],
            "issues": self.report.as_json(),
        }
