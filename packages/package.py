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
from engine.records import Dims, Schedule, Weight


@dataclass(frozen=True)
class Identity:
    """A concrete artifact: the model's name for people, the weights' digest for machines."""

    model_id: str
    weights_id: str

    def __str__(self) -> str:
        return f"{{model_id {self.model_id}, weights_id {self.weights_id}}}"


@dataclass(frozen=True)
class Artifact:
    """One served artifact: SHA-256 of the whole file (None for one known by content only) and
    of its content (`engine/artifacts/content_digest.py`), with the dims it must have."""

    identity: Identity
    package: Package
    dims: Dims
    file_sha256: str | None
    content_sha256: str


@dataclass(frozen=True)
class Package:
    """One exact model's code: `bind` names and checks its tensors, `schedule` orders its ops."""

    key: str
    model_id: str
    architecture: str
    dims: Mapping[str, Dims]
    artifacts: tuple[Mapping[str, Any], ...]
    bind: Callable[[GgufFile, Dims], Mapping[str, Weight]]
    schedule: Callable[[Dims], Schedule]
    read_dims: Callable[[GgufFile], Dims]

    def served(self) -> list[Artifact]:
        """The artifacts of the package's own table."""
        return [
            self.artifact("", row.get("file_sha256"), row["content_sha256"])
            for row in self.artifacts
        ]

    def artifact(self, twin: str, file_sha256: str | None, content_sha256: str) -> Artifact:
        """An artifact of this package with the dims of a twin ("" is the model itself)."""
        model_id = f"{self.model_id}:{twin}" if twin else self.model_id
        identity = Identity(model_id, f"sha256:{file_sha256 or content_sha256}")
        return Artifact(identity, self, self.dims[twin], file_sha256, content_sha256)


def read_package(
    folder: Path,
    bind: Callable[[GgufFile, Dims], Mapping[str, Weight]],
    schedule: Callable[[Dims], Schedule],
    read_dims: Callable[[GgufFile], Dims],
) -> Package:
    """The package of a folder: its `package.toml` and its three functions."""
    table = tomllib.loads((folder / "package.toml").read_text())
    dims = {"": _dims(table["dims"])}
    for name, changed in table.get("twin", {}).items():
        dims[name] = _dims({**table["dims"], **changed})
    return Package(
        key=folder.name, model_id=table["model_id"], architecture=table["architecture"],
        dims=dims, artifacts=tuple(table["artifact"]), bind=bind, schedule=schedule,
        read_dims=read_dims,
    )


def _dims(table: Mapping[str, Any]) -> Dims:
    return Dims(**{field.name: table[field.name] for field in fields(Dims)})
