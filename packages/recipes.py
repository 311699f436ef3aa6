"""Owns the recipes of conversion: which number format each role of a tensor gets, and why.

A recipe's hash covers what decides bytes (formats and fallbacks by role, package, converter), not
the reasons. Where a layout cannot hold a shape the role's fallback is taken, and the report says so
for each tensor.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from engine.artifacts.mspec_format import DType, Kind, layout_of, object_bytes
from engine.errors import InvalidArgument

# Raised by whoever changes the bytes that a recipe makes of a source.
CONVERTER_VERSION = 1


@dataclass(frozen=True)
class Choice:
    """A role's format, the one it gets where its shape does not fit, and the reason."""

    dtype: DType
    reason: str
    fallback: DType | None = None


@dataclass(frozen=True)
class Format:
    """What one tensor gets: `why_fallback` is empty where the recipe's own format holds it."""

    dtype: DType
    reason: str
    why_fallback: str


@dataclass(frozen=True)
class Recipe:
    """A table role -> choice under a name."""

    name: str
    choices: Mapping[str, Choice]

    def format_of(self, role: str, shape: tuple[int, ...]) -> Format:
        """The format of a tensor; InvalidArgument for a role that the recipe does not know."""
        if role not in self.choices:
            known = ", ".join(self.choices)
            raise InvalidArgument(f"recipe {self.name}: no role {role!r} among {known}")
        choice = self.choices[role]
        try:
            object_bytes(Kind.TENSOR, choice.dtype, shape, layout_of(choice.dtype))
        except InvalidArgument as e:
            if choice.fallback is None:
                raise
            return Format(choice.fallback, choice.reason, f"{choice.dtype}: {e}")
        return Format(choice.dtype, choice.reason, "")

    def sha256(self, package: str) -> str:
        """Hex digest of everything but the source that decides the weights of a package."""
        table = {
            role: [choice.dtype, choice.fallback] for role, choice in sorted(self.choices.items())
        }
        said = {
            "choices": table, "converter": CONVERTER_VERSION, "package": package,
            "recipe": self.name,
        }
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


_SMALL = {
    "vector": Choice(
        DType.F32, "a few kB, used in float32 arithmetic; exact for every float source"
    ),
    "conv": Choice(
        DType.F32, "four taps for each channel, under 0.1 % of the bytes; exact for every source"
    ),
}
_WORDS = "what upstream stores: its BF16 words pass unchanged"

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("bf16", {
            **{
                role: Choice(DType.BF16, _WORDS)
                for role in ("embedding", "head", "mlp", "attention", "gdn", "gdn_gate")
            },
            **_SMALL,
        }),
        Recipe("groupwise-int", {
            "embedding": Choice(
                DType.BF16, "a step reads one row of it: small codes would save no time"
            ),
            "head": Choice(
                DType.INT8, "read whole in each step, and its errors go straight into the logits",
                DType.BF16,
            ),
            "mlp": Choice(DType.INT4, "two thirds of the bytes that a step reads", DType.BF16),
            "attention": Choice(
                DType.INT4, "read whole in each step; norms and softmax follow in float32",
                DType.BF16,
            ),
            "gdn": Choice(
                DType.INT4, "a fifth of the bytes that a step reads", DType.BF16
            ),
            "gdn_gate": Choice(
                DType.BF16, "48 rows that set decay and write strength: a state carries their"
                " errors on for the whole context",
            ),
            **_SMALL,
        }),
    )
}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name; InvalidArgument lists those there are."""
    if name not in RECIPES:
        raise InvalidArgument(f"recipe {name!r}: there are {', '.join(RECIPES)}")
    return RECIPES[name]
