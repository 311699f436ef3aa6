"""Owns whether the manifest's `selection_hints` has the form of hints.

It must not know what they are used for (`selection_hints.py`), which takes none of them where one
is wrong. They are advice, so a fault is a warning and no more.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

from packages.layer_package.manifest_fields import Members, shown


def read_hints(top: Members, layer_count: int) -> Mapping[str, Any] | None:
    """The object as it is; None when absent or no object. Warning `invalid_selection_hints`."""
    name = "selection_hints"
    if name not in top.value:
        return None
    hints = top.value[name]
    if not isinstance(hints, dict):
        _warn(top, f"{name} is {shown(hints)}, needs to be an object", top.at(name))
        return None
    for member, fits in _FORMS.items():
        if member in hints and not fits(hints[member], layer_count):
            message = f"{member} is {shown(hints[member])}, which is no such hint"
            _warn(top, message, f"{top.at(name)}/{member}")
    return cast(Mapping[str, Any], hints)


def _warn(top: Members, message: str, pointer: str) -> None:
    top.report.warn("invalid_selection_hints", message, pointer=pointer)


def _is_number(value: object, layer_count: int) -> bool:
    return type(value) is int


def _is_flag(value: object, layer_count: int) -> bool:
    return isinstance(value, bool)


def _are_layers(value: object, layer_count: int) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < layer_count for item in value
    )


def _are_all_or_layers(value: object, layer_count: int) -> bool:
    return value == "all" or _are_layers(value, layer_count)


_FORMS: dict[str, Callable[[object, int], bool]] = {
    "role_map": _is_number,
    "tied_output": _is_flag,
    "prediction_layers": _are_layers,
    "prediction_needs_embeddings": _is_flag,
    "per_layer_embedding_layers": _are_all_or_layers,
}
