"""Owns the bounds of one proposer, and of the native-mtp members that a strategy may hold inline.

It must not know which strategy refers to what (`speculation.py`).
"""

from typing import cast

from packages.layer_package.generation_fields import U32_MAX, Fields, is_integer, shown

NGRAM_TYPES = ("ngram-cache", "ngram-suffix")
PROPOSER_TYPES = ("native-mtp", *NGRAM_TYPES)
NGRAM_CACHE_MAX = 4
NGRAM_SUFFIX_MIN, NGRAM_SUFFIX_MAX = 3, 64
PREDICTION_DEPTH = 1
HISTORY_SCOPE = "request"


def window_fault(proposer_type: str, ngram_min: int, ngram_max: int) -> str | None:
    """None when the window is allowed for that type, else the kind it breaks."""
    if not 1 <= ngram_min <= ngram_max:
        return "invalid_ngram_proposer_window"
    if proposer_type == "ngram-cache" and ngram_max > NGRAM_CACHE_MAX:
        return "unsupported_ngram_cache_max_window"
    if proposer_type == "ngram-suffix" and not (
        ngram_min >= NGRAM_SUFFIX_MIN and ngram_max <= NGRAM_SUFFIX_MAX
    ):
        return "unsupported_ngram_suffix_window"
    return None


def type_of(fields: Fields) -> str | None:
    """The member `type`, a string; `missing_field` when there is none."""
    if not fields.has("type"):
        fields.fail("missing_field", "needs a type", "type")
    return fields.text("type")


def check_proposer(proposer: Fields, layer_count: int, needed: bool, strict: bool) -> None:
    """Check one proposer; an unknown type is an error only when `needed` by a strategy."""
    proposer_type = type_of(proposer)
    if proposer_type is None:
        return
    if proposer_type == "native-mtp":
        check_depth(proposer)
        check_layers(proposer, layer_count)
    elif proposer_type in NGRAM_TYPES:
        _check_ngram(proposer, proposer_type, strict)
    else:
        message = f"type {shown(proposer_type)} is none of {', '.join(PROPOSER_TYPES)}"
        say = proposer.fail if needed else proposer.warn
        say("unsupported_speculative_proposer_type", message, "type")


def check_depth(fields: Fields) -> None:
    """`prediction_depth` is there and 1."""
    depth = fields.integer("prediction_depth")
    if (depth is None and not fields.has("prediction_depth")) or depth not in (None, 1):
        given = "absent" if depth is None else shown(depth)
        fields.fail(
            "unsupported_native_mtp_prediction_depth",
            f"prediction_depth is {given}, needs {PREDICTION_DEPTH}",
            "prediction_depth",
        )


def check_layers(fields: Fields, layer_count: int) -> None:
    """`layer_indices`: one error of each kind at most, the list may be as long as a manifest."""
    layers = fields.members.get("layer_indices")
    if layers is None or layers == []:
        fields.fail("missing_native_mtp_layers", "needs layer indices", "layer_indices")
        return
    if not has_integer_layers(fields):
        return
    values = cast(list[int], layers)
    at = Fields({}, fields.at("layer_indices"), fields.report)
    outside = next((i for i, v in enumerate(values) if not 0 <= v < layer_count), None)
    if outside is not None:
        at.fail(
            "native_mtp_layer_out_of_range",
            f"layer {shown(values[outside])} of {layer_count} layers",
            str(outside),
        )
    seen: set[int] = set()
    for index, value in enumerate(values):
        if value in seen:
            at.fail("duplicate_native_mtp_layer", f"layer {shown(value)} again", str(index))
            return
        seen.add(value)


def has_integer_layers(fields: Fields) -> bool:
    """Whether `layer_indices` is absent or a list of integers; reported when not."""
    layers = fields.members.get("layer_indices")
    if layers is not None and not isinstance(layers, list):
        message = f"layer_indices is {shown(layers)}, needs an array"
        fields.fail("invalid_field_type", message, "layer_indices")
        return False
    for index, value in enumerate(layers or ()):
        if not is_integer(value):
            at = Fields({}, fields.at("layer_indices"), fields.report)
            at.fail("invalid_field_type", f"is {shown(value)}, needs an integer", str(index))
            return False
    return True


def _check_ngram(proposer: Fields, proposer_type: str, strict: bool) -> None:
    low, high = proposer.integer("ngram_min"), proposer.integer("ngram_max")
    if not (proposer.has("ngram_min") and proposer.has("ngram_max")):
        proposer.fail("invalid_ngram_proposer_window", "needs both ngram_min and ngram_max")
    elif low is not None and high is not None:
        kind = window_fault(proposer_type, low, high)
        if kind is not None:
            short = proposer_type == "ngram-suffix" and low < NGRAM_SUFFIX_MIN
            name = "ngram_min" if kind == "invalid_ngram_proposer_window" or short else "ngram_max"
            text = f"{proposer_type} window {shown(low)} to {shown(high)} tokens"
            proposer.fail(kind, text, name)
    kind = "invalid_ngram_proposer_max_tokens"
    proposer.bounded("max_proposal_tokens", 1, U32_MAX, kind, "tokens")
    if not proposer.has("max_proposal_tokens"):
        say = proposer.fail if strict else proposer.warn
        say(kind, "max_proposal_tokens is absent, ngram_max stands in", "max_proposal_tokens")
    scope = proposer.text("history_scope")
    if not proposer.has("history_scope") or scope not in (None, HISTORY_SCOPE):
        given = "absent" if scope is None else shown(scope)
        kind = f"invalid_{proposer_type.replace('-', '_')}_history_scope"
        proposer.fail(kind, f"history_scope is {given}, needs 'request'", "history_scope")
