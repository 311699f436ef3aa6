"""Owns the version of the serving ABI that a package was made for, and when a runtime accepts it.

It must not know what the ABI is: which version a runtime has is the caller's to say.
"""

import re
from dataclasses import dataclass

from engine.artifacts.mapped_file import printable
from engine.errors import InvalidArgument
from packages.layer_package.errors import CompatibilityError, Report

POINTER = "/skippy_abi_version"
MAX_PART = 2**32 - 1

_PART = r"(0|[1-9][0-9]{0,9})"
_VERSION = re.compile(rf"{_PART}\.{_PART}(?:\.{_PART})?")


@dataclass(frozen=True, slots=True)
class AbiVersion:
    """`major.minor[.patch]`, each a u32; a patch that is not written is 0."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> "AbiVersion":
        """The version of that text: decimal, no sign, no leading zeros, nothing else.

        CompatibilityError `missing_skippy_abi_version` for blank text, else `invalid_abi_version`.
        """
        if not text.strip():
            raise CompatibilityError(
                "missing_skippy_abi_version", "the ABI version is blank", pointer=POINTER
            )
        found = _VERSION.fullmatch(text)
        parts = [int(part) for part in found.groups(default="0")] if found else [MAX_PART + 1]
        if max(parts) > MAX_PART:
            raise CompatibilityError(
                "invalid_abi_version",
                f"the ABI version {printable(text, 40)} is not major.minor[.patch] of decimal"
                f" numbers up to {MAX_PART}", pointer=POINTER,
            )  # fmt: skip
        return cls(*parts)

    def __str__(self) -> str:
        """All three parts."""
        return f"{self.major}.{self.minor}.{self.patch}"


def check_abi(manifest_version: str, runtime_version: str | None, report: Report) -> None:
    """Whether a runtime takes a package: same major, no larger minor; the patch is ignored.

    Errors of `AbiVersion.parse`, `incompatible_abi_version`. Without a runtime version only the
    form is checked. While major is 0, a larger patch of the same minor gives warning
    `abi_patch_newer`: patches of different minors have no order. InvalidArgument when the runtime's
    own version is none.
    """
    ours = None if runtime_version is None else _own(runtime_version)
    try:
        theirs = AbiVersion.parse(manifest_version)
    except CompatibilityError as e:
        report.add(e)
        return
    if ours is None:
        return
    if theirs.major != ours.major or theirs.minor > ours.minor:
        report.add(CompatibilityError(
            "incompatible_abi_version",
            f"the package needs ABI {theirs}, the runtime has {ours}: {ours.major}.0 to"
            f" {ours.major}.{ours.minor} are served", pointer=POINTER,
        ))  # fmt: skip
    elif ours.major == 0 and theirs.minor == ours.minor and theirs.patch > ours.patch:
        report.warn(
            "abi_patch_newer",
            f"the package was made for ABI {theirs}, the runtime has {ours}", pointer=POINTER,
        )  # fmt: skip


def _own(version: str) -> AbiVersion:
    try:
        return AbiVersion.parse(version)
    except CompatibilityError as e:
        raise InvalidArgument(f"the runtime's own ABI version: {e.issue.message}") from None
