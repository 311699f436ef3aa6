"""Owns the structure and every bound of `generation.speculative_decoding`.

It must not know operators or the plan (`precedence.py`, `plan.py`), nor the tensors of a package.
Checks go in the order of the contract: default, proposers, strategies, each in file order. A member
that breaks its own bound has that bound's kind, negative numbers too. An absent `default` is an
empty one. Members of a strategy whose type is unknown are not looked at: their meaning is unknown.
"""

from collections.abc import Mapping
from typing import cast

from packages.layer_package.generation_fields import Fields, is_integer, shown
from packages.layer_package.speculation_proposers import (
    NGRAM_TYPES,
    PROPOSER_TYPES,
    check_depth,
    check_layers,
    check_proposer,
    has_integer_layers,
    type_of,
)
from packages.layer_package.speculation_windows import check_extension, check_window

STRATEGY_TYPES = (*PROPOSER_TYPES, "composite", "draft-model")
RESERVED_IDS = ("auto", "disabled")

Proposers = Mapping[str, Fields | None]


def check_speculation(block: Fields, layer_count: int, *, strict: bool = False) -> None:
    """Check the block `speculative_decoding`; faults go to its report."""
    proposers = block.children("proposers")
    strategies = block.children("strategies")
    default = block.text("default")
    declared = block.members.get("strategies")
    if not block.has("default") or (default is not None and not default.strip()):
        block.fail("empty_speculative_default", "needs a default strategy", "default")
    elif default is not None and not (isinstance(declared, dict) and default in declared):
        block.fail(
            "missing_speculative_default_strategy",
            f"default {shown(default)} is not among the strategies",
            "default",
        )
    needed = _needed_proposers(strategies)
    for name, proposer in proposers.items():
        if proposer is not None:
            _check_id(name, proposer, "proposer")
            check_proposer(proposer, layer_count, name in needed, strict)
    for name, strategy in strategies.items():
        if strategy is not None:
            _check_id(name, strategy, "strategy")
            _check_strategy(strategy, proposers, layer_count, name == default)


def _check_id(name: str, fields: Fields, what: str) -> None:
    if not name.strip():
        fields.fail(f"empty_speculative_{what}_name", f"a {what} needs a non-blank id")
    # An operator who writes these means something else.
    elif name.strip() in RESERVED_IDS:
        fields.fail("reserved_strategy_name", f"{what} id {shown(name)} is reserved")


def _needed_proposers(strategies: Proposers) -> set[str]:
    """Ids that a strategy of a known type refers to."""
    needed: set[str] = set()
    for strategy in strategies.values():
        members = {} if strategy is None else strategy.members
        if members.get("type") in PROPOSER_TYPES:
            needed.update(v for v in (members.get("proposer"),) if isinstance(v, str))
        elif members.get("type") == "composite":
            ids = (members.get("primary"), members.get("extender"))
            needed.update(v for v in ids if isinstance(v, str))
    return needed


def _check_strategy(
    strategy: Fields, proposers: Proposers, layer_count: int, is_default: bool
) -> None:
    strategy_type = type_of(strategy)
    if strategy_type is None:
        return
    if strategy_type not in STRATEGY_TYPES:
        message = f"type {shown(strategy_type)} is none of {', '.join(STRATEGY_TYPES)}"
        say = strategy.fail if is_default else strategy.warn
        say("unsupported_speculative_strategy_type", message, "type")
        return
    if strategy_type == "native-mtp":
        _check_native_mtp(strategy, proposers, layer_count)
    elif strategy_type in NGRAM_TYPES:
        kind = "missing_ngram_strategy_proposer"
        mismatch = "ngram_strategy_proposer_type_mismatch"
        _check_reference(strategy, "proposer", proposers, (strategy_type,), kind, mismatch)
    elif strategy_type == "composite":
        for name, types in (("primary", ("native-mtp",)), ("extender", NGRAM_TYPES)):
            missing, mismatch = f"missing_composite_{name}", f"invalid_composite_{name}_type"
            _check_reference(strategy, name, proposers, types, missing, mismatch)
    elif not (strategy.text("draft_model") or "").strip():
        strategy.fail("missing_draft_model", "needs a draft_model reference", "draft_model")
    check_extension(strategy, composite=strategy_type == "composite")
    check_window(strategy, native=strategy_type == "native-mtp")


def _check_native_mtp(strategy: Fields, proposers: Proposers, layer_count: int) -> None:
    if not strategy.has("proposer"):
        check_depth(strategy)
        check_layers(strategy, layer_count)
        return
    mismatch = "native_mtp_strategy_proposer_type_mismatch"
    kind = "missing_speculative_proposer"
    proposer = _check_reference(strategy, "proposer", proposers, ("native-mtp",), kind, mismatch)
    depth = strategy.integer("prediction_depth")
    if not has_integer_layers(strategy) or proposer is None:
        return
    layers = cast(list[int], strategy.members.get("layer_indices") or [])
    theirs = proposer.members.get("layer_indices")
    if depth is not None and depth != proposer.members.get("prediction_depth"):
        message = f"prediction_depth {shown(depth)} is not that of the proposer"
        strategy.fail("native_mtp_inline_conflict", message, "prediction_depth")
    # The order of the layers means nothing.
    if layers and isinstance(theirs, list) and sorted(layers) != sorted(filter(is_integer, theirs)):
        message = "layer_indices are not those of the proposer"
        strategy.fail("native_mtp_inline_conflict", message, "layer_indices")


def _check_reference(
    strategy: Fields,
    name: str,
    proposers: Proposers,
    types: tuple[str, ...],
    missing: str,
    mismatch: str,
) -> Fields | None:
    """The proposer that member `name` refers to, when it is one of those types."""
    target = strategy.text(name)
    if not strategy.has(name) or (target is not None and not target.strip()):
        strategy.fail(missing, f"needs a {name}", name)
        return None
    if target is None:
        return None
    if target not in proposers:
        message = f"{name} {shown(target)} is not among the proposers"
        strategy.fail("missing_speculative_proposer", message, name)
        return None
    proposer = proposers[target]
    given = None if proposer is None else proposer.members.get("type")
    if given in types:
        return proposer
    # What is no object, or of an unknown type, was reported at the proposer already.
    if given in PROPOSER_TYPES:
        message = f"{name} {shown(target)} is {given}, needs {' or '.join(types)}"
        strategy.fail(mismatch, message, name)
    return None
