"""Owns reading the manifest's `selection_hints`, the writer's advice on what stages need.

It must not know fragments. Hints are advice of an untrusted file: of another role map, or with one
member of a wrong type or a layer that is none, all of them are as absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packages.layer_package.model import Manifest
from packages.layer_package.roles import ROLE_MAP_VERSION


@dataclass(frozen=True, slots=True)
class Hints:
    """The hints of a package; a member is None where it is absent.

    `table_layers` are those that read the per-layer embedding table.
    """

    tied_output: bool | None = None
    prediction_layers: frozenset[int] | None = None
    prediction_needs_embeddings: bool | None = None
    table_layers: frozenset[int] | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> "Hints":
        """The usable hints of a manifest."""
        found = manifest.selection_hints
        if not isinstance(found, Mapping) or found.get("role_map") != ROLE_MAP_VERSION:
            return cls()
        try:
            return cls._read(found, manifest.layer_count)
        except TypeError:
            return cls()

    @classmethod
    def _read(cls, found: Mapping[str, Any], layer_count: int) -> "Hints":
        table = found.get("per_layer_embedding_layers")
        return cls(
            _flag(found.get("tied_output")),
            _layers(found.get("prediction_layers"), layer_count),
            _flag(found.get("prediction_needs_embeddings")),
            frozenset(range(layer_count)) if table == "all" else _layers(table, layer_count),
        )


def _flag(value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise TypeError


def _layers(value: object, layer_count: int) -> frozenset[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(_is_number(item, layer_count) for item in value):
        raise TypeError
    return frozenset(value)


def _is_number(value: object, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end
