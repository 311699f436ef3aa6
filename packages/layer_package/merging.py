"""Owns merging one plan field from operator, package and built-in value, and what is said of it.

It must not know strategies. A value is wider than the package's when a `max` is larger or a `min`
smaller; fields without a direction are never wider.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from packages.layer_package.errors import GenerationError, Issue
from packages.layer_package.generation_fields import shown
from packages.layer_package.overrides import Override
from packages.layer_package.plan import SourceLevel

Direction = Literal["max", "min"]


@dataclass(slots=True)
class Merge:
    """The overrides in force; collects sources, notes, and which overrides were used."""

    overrides: dict[str, Override]
    tighten_only: bool = False
    sources: dict[str, SourceLevel] = field(default_factory=dict)
    notes: list[Issue] = field(default_factory=list)
    used: set[str] = field(default_factory=lambda: {"strategy", "spec_default"})

    def take(
        self,
        target: str,
        name: str,
        package: Any,
        built_in: Any,
        direction: Direction | None = None,
    ) -> Any:
        """The value of plan field `target`; `package` is None where the package says nothing.

        GenerationError `override_exceeds_package` for a wider value under `tighten_only`.
        """
        override = self.overrides.get(name)
        if override is None:
            self.sources[target] = "built-in" if package is None else "package"
            return built_in if package is None else package
        self.used.add(name)
        self.sources[target] = override.level
        if package is None or override.value == package:
            return override.value
        said = f"{name} {shown(override.value)} for the package's {shown(package)}"
        # References of draft models may be paths of the machine.
        said = "draft_model for the package's" if name == "draft_model" else said
        self.overridden(f"{override.level} sets {said}")
        wider = (direction == "max" and override.value > package) or (
            direction == "min" and override.value < package
        )
        if wider and self.tighten_only:
            raise GenerationError(
                "override_exceeds_package", f"{override.level} sets {said}, may only tighten"
            )
        if wider:
            self.note("override_exceeds_package", f"{override.level} sets {said}")
        return override.value

    def overridden(self, message: str) -> None:
        """Note an overridden recommendation of the package."""
        self.note("package_recommendation_overridden", message)

    def note(self, kind: str, message: str) -> None:
        """Add a note."""
        self.notes.append(Issue(kind, message, severity="note"))

    def note_unused(self) -> None:
        """Note every override that the plan has no block for."""
        for name, override in self.overrides.items():
            if name not in self.used:
                self.note("override_not_used", f"{override.level} sets {name}, plan has no use")
