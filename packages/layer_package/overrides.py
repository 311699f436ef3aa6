"""Owns what operators may set of speculation, and merging their levels field by field.

It must not know packages or plans. A level is a mapping of these fields, as a configuration file or
command line gives them; null and absent are the same. Names are those of the host's configuration,
but the two marked ours.

| field | value |
|---|---|
| `strategy` | `auto`, `disabled`, `mtp`, `ngram-cache`, `ngram-suffix`, or an id of the package |
| `spec_default` | bool or `auto`; false turns off what `auto` would choose |
| `ngram_min`, `ngram_max` | tokens, match window |
| `ngram_max_proposal_tokens` | tokens of one n-gram proposal |
| `extension_max_tokens` | tokens, widest n-gram tail of a composite |
| `extension_initial_tokens` (ours) | tokens, width at the start |
| `extension_tail_backoff_proposals` (ours) | tokens taken off after an unhelpful tail |
| `native_mtp_reject_cooldown_tokens` | tokens without drafts after a rejection |
| `native_mtp_suppress_cooldown_drafts` | bool |
| `native_mtp_suppress_cooldown_draft_limit` | drafts |
| `verify_window_min_tokens`, `verify_window_max_tokens` | tokens |
| `verify_window_pipeline_depth` | windows in flight |
| `draft_max_tokens`, `draft_min_tokens` | tokens of a native or model draft |
| `draft_model` | reference of the draft model of a package's `draft-model` strategy |
| `draft_acceptance_threshold`, `draft_split_probability` | probability, 0 to 1 |
| `pairing_fault` | `warn_disable`, `fail_open`, `fail_closed` |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packages.layer_package.errors import GenerationError
from packages.layer_package.generation_fields import U32_MAX, is_integer, shown
from packages.layer_package.plan import PAIRING_FAULTS, SourceLevel

_TEXTS = ("strategy", "draft_model", "pairing_fault")
_BOOLS = ("native_mtp_suppress_cooldown_drafts",)
_PROBABILITIES = ("draft_acceptance_threshold", "draft_split_probability")
_INTEGERS = (
    "ngram_min",
    "ngram_max",
    "ngram_max_proposal_tokens",
    "extension_max_tokens",
    "extension_initial_tokens",
    "extension_tail_backoff_proposals",
    "native_mtp_reject_cooldown_tokens",
    "native_mtp_suppress_cooldown_draft_limit",
    "verify_window_min_tokens",
    "verify_window_max_tokens",
    "verify_window_pipeline_depth",
    "draft_max_tokens",
    "draft_min_tokens",
)
FIELDS = ("spec_default", *_TEXTS, *_BOOLS, *_PROBABILITIES, *_INTEGERS)


@dataclass(frozen=True, slots=True)
class Override:
    """A value and the level that won with it."""

    value: Any
    level: SourceLevel


def merge_levels(
    cli: Mapping[str, Any] | None,
    model: Mapping[str, Any] | None,
    defaults: Mapping[str, Any] | None,
) -> dict[str, Override]:
    """The fields that are set, each from the command line, else the model's entry, else defaults.

    GenerationError `unknown_speculative_field`, `invalid_field_type`, `integer_out_of_range`, of
    every level, also where a higher one wins: a file that is wrong is wrong always.
    """
    levels: tuple[tuple[SourceLevel, Mapping[str, Any] | None], ...] = (
        ("cli", cli),
        ("model", model),
        ("defaults", defaults),
    )
    merged: dict[str, Override] = {}
    for level, fields in levels:
        for name, value in (fields or {}).items():
            if value is not None:
                merged.setdefault(name, Override(_checked(level, name, value), level))
    return merged


def _checked(level: str, name: str, value: object) -> object:
    if name not in FIELDS:
        raise GenerationError(
            "unknown_speculative_field", f"{level}: {shown(name)} is no speculation setting"
        )
    if name in _TEXTS and isinstance(value, str):
        text = value.strip()
        if name != "pairing_fault":
            return text
        # The host accepts both spellings.
        fault = text.replace("-", "_")
        if fault in PAIRING_FAULTS:
            return fault
        _fail(level, name, value, f"one of {', '.join(PAIRING_FAULTS)}")
    if name in _INTEGERS and is_integer(value) and isinstance(value, int):
        if not 0 <= value <= U32_MAX:
            raise GenerationError(
                "integer_out_of_range", f"{level}: {name} is {shown(value)}, needs 0 to {U32_MAX}"
            )
        return value
    is_number = isinstance(value, float) or is_integer(value)
    if (
        (name in _PROBABILITIES and is_number)
        or (name in _BOOLS and isinstance(value, bool))
        or (name == "spec_default" and (isinstance(value, bool) or value == "auto"))
    ):
        return value
    needs = "an integer" if name in _INTEGERS else "a string" if name in _TEXTS else "a number"
    _fail(level, name, value, needs if name in (*_INTEGERS, *_TEXTS, *_PROBABILITIES) else "a bool")
    return None


def _fail(level: str, name: str, value: object, needs: str) -> None:
    raise GenerationError("invalid_field_type", f"{level}: {name} is {shown(value)}, needs {needs}")
