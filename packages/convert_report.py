"""Owns what a conversion reports: every tensor's formats before and after, and why."""

from dataclasses import dataclass

from packages.recipes import Format


@dataclass(frozen=True)
class Converted:
    """One tensor of the report: formats before and after, and why."""

    name: str
    stored: str
    source_dtype: str
    shape: tuple[int, ...]
    role: str
    format: Format
    n_bytes: int


@dataclass(frozen=True)
class Report:
    """What a conversion did; `left_out` counts tensors by part, `notes` are for people."""

    model_id: str
    package: str
    recipe: str
    recipe_sha256: str
    weights_id: str
    source: str
    n_source_bytes: int
    n_bytes: int
    n_resumed_bytes: int
    tensors: tuple[Converted, ...]
    left_out: dict[str, int]
    notes: tuple[str, ...]

    @property
    def fallbacks(self) -> tuple[Converted, ...]:
        """Tensors that did not get the recipe's own format."""
        return tuple(tensor for tensor in self.tensors if tensor.format.why_fallback)

    def lines(self) -> list[str]:
        """The report for a person, one fact a line."""
        by_format: dict[tuple[str, str], list[Converted]] = {}
        for tensor in self.tensors:
            by_format.setdefault((tensor.role, tensor.format.dtype), []).append(tensor)
        return [
            f"{self.model_id}: {self.source} by recipe {self.recipe}",
            f"weights_id {self.weights_id}",
            f"{self.n_source_bytes} bytes read from, {self.n_bytes} bytes of objects"
            + (f", {self.n_resumed_bytes} of an earlier run" if self.n_resumed_bytes else ""),
            *(
                f"{len(some)} {role} {dtype}, {sum(t.n_bytes for t in some)} bytes:"
                f" {some[0].format.reason}"
                for (role, dtype), some in by_format.items()
            ),
            *(f"{n} {part} tensors left out" for part, n in sorted(self.left_out.items())),
            *(
                f"{tensor.name} is {tensor.format.dtype}: {tensor.format.why_fallback}"
                for tensor in self.fallbacks
            ),
            *self.notes,
        ]
