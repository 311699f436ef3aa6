"""Owns the records of T3: what a package is, which artifacts it serves, and what a refusal says.

A package never matches by name: an artifact is served when the digest of its file, or of its
content, is in the table of the package or in the operator's own table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from engine.artifacts.gguf import GgufFile
from engine.artifacts.mspec import MspecFile
from engine.records import ModelPlan

Container = GgufFile | MspecFile
HOST = "host"


@dataclass(frozen=True)
class Target:
    """A device that a package runs on, and what it needs there: a `[[target]]` row.

    `twins` are the artifacts it is for, None for all ("" is the model itself). The GPU fields are
    for devices other than the host: one architecture, the oldest driver and CUDA version, and the
    memory needed beside the artifact's own bytes.
    """

    device: str
    rank: int = 0
    twins: tuple[str, ...] | None = None
    gpu_arch: str = ""
    min_driver: str = "0"
    min_toolkit: str = "0"
    vram_beside_bytes: int = 0

    @property
    def name(self) -> str:
        """The row's name, e.g. `cuda-sm_90a`."""
        return f"{self.device}-{self.gpu_arch}" if self.gpu_arch else self.device


@dataclass(frozen=True)
class Identity:
    """A concrete artifact: the model's name for people, the weights' digest for machines."""

    model_id: str
    weights_id: str

    def __str__(self) -> str:
        return f"{{model_id {self.model_id}, weights_id {self.weights_id}}}"


@dataclass(frozen=True)
class Artifact:
    """One served artifact of a package, and the dims it must have.

    `content_sha256` identifies the weights however they are packed: the content digest of a GGUF
    (`engine/artifacts/content_digest.py`), the weights id of a .mspec. `file_sha256` is the digest
    of the whole file where one file is known. `twin` is "" for the model itself. `tensor_table`
    lists all tensors, so that a stage's part of the artifact is known too (`tensor_table.py`).
    """

    identity: Identity
    twin: str
    package: Package
    dims: Any
    file_sha256: str | None
    content_sha256: str
    tensor_table: Path | None = None

    def plan(self, source: Container) -> ModelPlan:
        """What T1 needs to run this artifact from its open container; ModelError if it is not."""
        return self.package.plan(source, self)


@dataclass(frozen=True)
class Package:
    """One exact model's code and tables.

    `container` says what its artifacts are, "gguf" or "mspec"; `architecture` is the GGUF key that
    tells a foreign file without hashing it. `dims` has the model's numbers under "" and a twin's
    under its name. `read_dims` tells what an open container states of itself, where that is
    cheaper than its digest.
    """

    key: str
    model_id: str
    container: str
    architecture: str | None
    dims: Mapping[str, Any]
    artifacts: tuple[Mapping[str, Any], ...]
    targets: tuple[Target, ...]
    plan: Callable[[Any, Artifact], ModelPlan]
    read_dims: Callable[[Any], Any] | None = None

    def served(self) -> list[Artifact]:
        """The artifacts of the package's own table."""
        return [
            self.artifact("", row.get("file_sha256"), row["content_sha256"], row.get("tensors"))
            for row in self.artifacts
        ]

    def artifact(
        self, twin: str, file_sha256: str | None, content_sha256: str,
        tensor_table: Path | None = None,
    ) -> Artifact:
        """An artifact of this package with the dims of a twin ("" is the model itself)."""
        model_id = f"{self.model_id}:{twin}" if twin else self.model_id
        identity = Identity(model_id, f"sha256:{file_sha256 or content_sha256}")
        return Artifact(
            identity, twin, self, self.dims[twin], file_sha256, content_sha256, tensor_table
        )

    def targets_of(self, twin: str) -> list[Target]:
        """The rows that an artifact may run on."""
        return [row for row in self.targets if row.twins is None or twin in row.twins]


def read_package(
    folder: Path, dims_type: type[Any], plan: Callable[[Any, Artifact], ModelPlan],
    read_dims: Callable[[Any], Any] | None = None,
) -> Package:
    """The package of a folder: the tables of its `package.toml`, and its plan function."""
    table = tomllib.loads((folder / "package.toml").read_text())
    names = [field.name for field in fields(dims_type)]
    dims = {}
    for twin, changed in {"": {}, **table.get("twin", {})}.items():
        values = {**table["dims"], **changed}
        dims[twin] = dims_type(**{name: values[name] for name in names})
    return Package(
        key=folder.name, model_id=table["model_id"], container=table["container"],
        architecture=table.get("architecture"), dims=dims,
        artifacts=tuple(_artifact_row(folder, row) for row in table.get("artifact", ())),
        targets=tuple(_target(row) for row in table["target"]), plan=plan, read_dims=read_dims,
    )


def _artifact_row(folder: Path, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with its table of tensors, if it names one, as a path."""
    return {**row, "tensors": folder / row["tensors"]} if "tensors" in row else row


def _target(row: Mapping[str, Any]) -> Target:
    twins = row.get("twins")
    return Target(**{**row, "twins": None if twins is None else tuple(twins)})
