"""Owns reading the members of one JSON object of a manifest: present, of the type, in the range.

It must not know what a member is for. What is wrong goes to the report under its pointer, and the
value reads as None. An optional member that is `null` counts as absent, for the reference writer
writes the facts of a source file so where it does not know them; a list that is `null` does not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import ManifestError, PackageError, Report
from packages.layer_package.json_text import escape_pointer

MAX_ISSUES = 256
U32, U64 = 2**32 - 1, 2**64 - 1

_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_SHOWN = 80


class TooManyIssues(Exception):
    """A report has all the errors that it takes."""


class BoundedReport(Report):
    """A report that ends at `MAX_ISSUES`: few bytes of a hostile manifest can break many rules.

    Warnings and notes beyond it are dropped, for they are no reason to refuse a package.
    """

    def add(self, error: PackageError) -> None:
        """Record an error, or raise it; TooManyIssues when it is the last that fits."""
        super().add(error)
        if len(self.issues) >= MAX_ISSUES:
            raise TooManyIssues

    def warn(
        self, kind: str, message: str, *, pointer: str | None = None, artifact: str | None = None
    ) -> None:
        """Record a warning if it fits."""
        if len(self.issues) < MAX_ISSUES:
            super().warn(kind, message, pointer=pointer, artifact=artifact)

    def note(
        self, kind: str, message: str, *, pointer: str | None = None, artifact: str | None = None
    ) -> None:
        """Record a note if it fits."""
        if len(self.issues) < MAX_ISSUES:
            super().note(kind, message, pointer=pointer, artifact=artifact)


@dataclass(frozen=True, slots=True)
class Members:
    """The members of the object at `pointer`."""

    value: Mapping[str, object]
    pointer: str
    report: Report

    def at(self, name: str | int) -> str:
        """The pointer of a member."""
        return f"{self.pointer}/{escape_pointer(name)}"

    def fail(self, kind: str, message: str, name: str | None = None) -> None:
        """A ManifestError at a member, or at the object."""
        pointer = self.pointer if name is None else self.at(name)
        self.report.add(ManifestError(kind, message, pointer=pointer))

    def has(self, name: str) -> bool:
        """Whether the member is there and not null."""
        return self.value.get(name) is not None

    def text(self, name: str, *, required: bool = True) -> str | None:
        """A string of any length."""
        value = self._present(name, required)
        if value is None or isinstance(value, str):
            return value
        self._wrong_type(name, value, "a string")
        return None

    def filled(self, name: str, kind: str, *, required: bool = True) -> str | None:
        """A string that is more than white space, else `kind`."""
        value = self.text(name, required=required)
        if value is not None and not value.strip():
            self.fail(kind, f"{name} is blank", name)
            return None
        return value

    def integer(self, name: str, largest: int, *, required: bool = True) -> int | None:
        """A JSON integer of 0 to `largest`, else `integer_out_of_range`."""
        value = self._present(name, required)
        if value is None:
            return None
        if type(value) is not int:
            self._wrong_type(name, value, "an integer")
            return None
        if not 0 <= value <= largest:
            message = f"{name} is {shown(value)}, needs 0 to {largest}"
            self.fail("integer_out_of_range", message, name)
            return None
        return value

    def digest(self, name: str, kind: str, *, required: bool = True) -> str | None:
        """64 hex digits of either case, else `kind`; in lower case."""
        value = self.text(name, required=required)
        if value is None:
            return None
        if _SHA256.fullmatch(value) is None:
            self.fail(kind, f"{name} is {shown(value)}, needs 64 hex digits", name)
            return None
        return value.lower()

    def child(self, name: str) -> "Members | None":
        """An object that must be there."""
        value = self._present(name, True)
        return None if value is None else members_at(value, self.at(name), self.report)

    def array(self, name: str, *, required: bool) -> list[object] | None:
        """A list; empty when it is absent and may be."""
        if not required and name not in self.value:
            return []
        value = self._present(name, True)
        if value is None or isinstance(value, list):
            return value
        self._wrong_type(name, value, "an array")
        return None

    def _present(self, name: str, required: bool) -> object | None:
        value = self.value.get(name)
        if value is None and name in self.value and required:
            self._wrong_type(name, value, "a value")
            return None
        if value is None and required:
            self.fail("missing_field", f"{name} is missing", name)
        return value

    def _wrong_type(self, name: str, value: object, needed: str) -> None:
        self.fail("invalid_field_type", f"{name} is {shown(value)}, needs {needed}", name)


def members_at(value: object, pointer: str, report: Report) -> Members | None:
    """The members of `value` if it is an object, else None after `invalid_field_type`."""
    if isinstance(value, dict):
        return Members(cast(Mapping[str, object], value), pointer, report)
    message = f"is {shown(value)}, needs to be an object"
    report.add(ManifestError("invalid_field_type", message, pointer=pointer))
    return None


def shown(value: object) -> str:
    """A value of the manifest as a message shows it, cut to some 80 characters."""
    if isinstance(value, str):
        return printable(value, _SHOWN)
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 128:
        return "an integer of more than 128 bits"
    return f"{value}"[:_SHOWN]
