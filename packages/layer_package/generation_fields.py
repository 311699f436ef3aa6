"""Owns reading one JSON object of the generation block: typed members, each fault reported once.

It must not know what a member means. A member that is `null` counts as absent, as the reference
runtime reads optional members. Messages cut long values, for a manifest may hold megabytes of one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from packages.layer_package.errors import GenerationError, Report

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
_SHOWN_CHARACTERS = 80


def shown(value: object) -> str:
    """`value` as a message shows it: at most 80 characters."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    if isinstance(value, int) and value.bit_length() > 128:
        return "an integer of more than 128 bits"
    text = repr(value[:_SHOWN_CHARACTERS] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def step(pointer: str, name: str | int) -> str:
    """`pointer` one member further (RFC 6901)."""
    return f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}"


def is_integer(value: object) -> bool:
    """Whether `value` was a JSON integer: a boolean is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def object_at(value: object, pointer: str, report: Report) -> Mapping[str, object] | None:
    """`value` if it is an object, else None after `invalid_field_type`."""
    if isinstance(value, dict):
        return cast(Mapping[str, object], value)
    report.add(
        GenerationError(
            "invalid_field_type", f"is {shown(value)}, needs an object", pointer=pointer
        )
    )
    return None


@dataclass(frozen=True, slots=True)
class Fields:
    """The members of the object at `pointer`, read into `report`."""

    members: Mapping[str, object]
    pointer: str
    report: Report

    def at(self, name: str | int) -> str:
        """The pointer of a member."""
        return step(self.pointer, name)

    def has(self, name: str) -> bool:
        """Whether the member is there and not null."""
        return self.members.get(name) is not None

    def fail(self, kind: str, message: str, name: str | None = None) -> None:
        """Add an error at a member, or at the object."""
        pointer = self.pointer if name is None else self.at(name)
        self.report.add(GenerationError(kind, message, pointer=pointer))

    def warn(self, kind: str, message: str, name: str | None = None) -> None:
        """Add a warning at a member, or at the object."""
        self.report.warn(kind, message, pointer=self.pointer if name is None else self.at(name))

    def text(self, name: str) -> str | None:
        """A string as written; None when absent, or after `invalid_field_type`."""
        value = self.members.get(name)
        if value is None or isinstance(value, str):
            return value
        self.fail("invalid_field_type", f"{name} is {shown(value)}, needs a string", name)
        return None

    def integer(self, name: str) -> int | None:
        """An integer of any size; None when absent, or after `invalid_field_type`."""
        value = self.members.get(name)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        self.fail("invalid_field_type", f"{name} is {shown(value)}, needs an integer", name)
        return None

    def bounded(self, name: str, low: int, high: int, kind: str, unit: str) -> int | None:
        """An integer in `low..high`; None when absent, or after `invalid_field_type` or `kind`.

        Above 2^32-1 is `integer_out_of_range` when that is the only bound it breaks.
        """
        value = self.integer(name)
        if value is None or low <= value <= high:
            return value
        if value > U32_MAX and high == U32_MAX:
            kind = "integer_out_of_range"
        self.fail(kind, f"{name} is {shown(value)} {unit}, needs {low} to {high}", name)
        return None

    def child(self, name: str) -> "Fields | None":
        """The object of that name; None when absent, or after `invalid_field_type`."""
        value = self.members.get(name)
        if value is None:
            return None
        members = object_at(value, self.at(name), self.report)
        return None if members is None else Fields(members, self.at(name), self.report)

    def children(self, name: str) -> dict[str, "Fields | None"]:
        """The entries of the object of that name in file order; None is one reported as no object.

        A null entry is no object: what has a name is never absent.
        """
        parent = self.child(name)
        if parent is None:
            return {}
        found: dict[str, Fields | None] = {}
        for key, value in parent.members.items():
            members = object_at(value, parent.at(key), self.report)
            found[key] = None if members is None else Fields(members, parent.at(key), self.report)
        return found
