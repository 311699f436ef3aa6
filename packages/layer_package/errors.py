"""Owns what a layer package is refused with: families, stable kinds, issues, reports.

It must not know any check. A kind is part of the public contract: it may be added, never renamed.
Messages name paths of the manifest, never those of a machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from engine.errors import EngineError, Status

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Issue:
    """One finding: a stable snake_case `kind`, where (`pointer` into the manifest as RFC 6901, an
    `artifact`'s manifest path), what, and what to do about it."""

    kind: str
    message: str
    pointer: str | None = None
    artifact: str | None = None
    hint: str | None = None
    severity: Severity = "error"

    def as_json(self) -> dict[str, str | None]:
        """Its members in the order of a report."""
        return {
            "severity": self.severity, "kind": self.kind, "pointer": self.pointer,
            "artifact": self.artifact, "message": self.message, "hint": self.hint,
        }


class PackageError(EngineError):
    """Base of every refusal of a layer package; `issue` says which."""

    status = Status.MODEL_ERROR

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        pointer: str | None = None,
        artifact: str | None = None,
        hint: str | None = None,
    ) -> None:
        """An error of that kind."""
        super().__init__(message)
        self.issue = Issue(kind, message, pointer, artifact, hint)

    @property
    def kind(self) -> str:
        """The stable code."""
        return self.issue.kind

    def __str__(self) -> str:
        """Kind, place and message in one line."""
        where = self.issue.artifact or self.issue.pointer
        return f"{self.kind}: {f'{where}: ' if where else ''}{self.issue.message}"


class RefError(PackageError):
    """A package reference or model coordinate that is none."""

    status = Status.INVALID_ARGUMENT


class ManifestError(PackageError):
    """The manifest breaks one of the checks 1 to 14."""


class SelectionError(PackageError):
    """A stage that the package cannot give."""

    status = Status.INVALID_ARGUMENT


class ArtifactError(PackageError):
    """A file that is missing, escapes, or is not what the manifest says."""


class GgufError(PackageError):
    """A fragment that is not a sound GGUF file."""


class ContentError(PackageError):
    """Tensors or metadata that are not where they belong."""


class CompatibilityError(ManifestError):
    """A schema, format or ABI that this reader does not have."""

    status = Status.UNSUPPORTED


class GenerationError(ManifestError):
    """The generation block, a policy or a speculative plan."""


class CacheError(PackageError):
    """A cache that is corrupt, or lacks what may not be fetched."""


class TransferError(PackageError):
    """A peer that may not have what it asks for, or gave something else."""


class WriterError(PackageError):
    """A source or target that no package can be written from or to."""

    status = Status.INVALID_ARGUMENT


class SignatureError(PackageError):
    """A manifest's signature that is missing, broken, or of nobody who is trusted."""


class Cancelled(PackageError):
    """The caller's `cancelled` asked a long call to stop; it left nothing half done."""

    status = Status.RUNTIME_ERROR

    def __init__(self, doing: str, *, artifact: str | None = None) -> None:
        """Kind `cancelled`; `doing` says what was stopped."""
        super().__init__("cancelled", f"{doing} was cancelled by its caller", artifact=artifact)


@dataclass(slots=True)
class Report:
    """Every finding of a validation, in the order of the checks.

    With `fail_fast` the first error is raised as the family it was added with.
    """

    fail_fast: bool = False
    issues: list[Issue] = field(default_factory=list)

    def add(self, error: PackageError) -> None:
        """Record an error, or raise it."""
        if self.fail_fast:
            raise error
        self.issues.append(error.issue)

    def warn(
        self, kind: str, message: str, *, pointer: str | None = None, artifact: str | None = None
    ) -> None:
        """Record a warning."""
        self.issues.append(Issue(kind, message, pointer, artifact, severity="warning"))

    def note(
        self, kind: str, message: str, *, pointer: str | None = None, artifact: str | None = None
    ) -> None:
        """Record a note: a choice that the caller may want to know of."""
        self.issues.append(Issue(kind, message, pointer, artifact, severity="note"))

    @property
    def valid(self) -> bool:
        """Whether nothing is an error."""
        return not any(issue.severity == "error" for issue in self.issues)

    def __iter__(self) -> Iterator[Issue]:
        """The issues in order."""
        return iter(self.issues)

    def kinds(self) -> list[str]:
        """The kinds in order."""
        return [issue.kind for issue in self.issues]

    def as_json(self) -> list[dict[str, str | None]]:
        """All issues as JSON objects."""
        return [issue.as_json() for issue in self.issues]
