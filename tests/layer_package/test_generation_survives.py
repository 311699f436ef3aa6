"""Owns that no value in a generation block breaks its checks, nor what reads a checked one."""

from collections.abc import Iterator
from typing import Any

import pytest

from packages.layer_package.errors import GenerationError
from packages.layer_package.policy import resolve_policy
from packages.layer_package.policy_inputs import Backend, PhaseRequest
from packages.layer_package.precedence import resolve_speculation
from packages.layer_package.telemetry import record_of
from tests.layer_package.generation_cases import GONE, changed, report_of, whole_block

DRAFT = {"type": "draft-model", "draft_model": "acme/tiny:Q4"}
BLOCK = changed(whole_block(), ("/speculative_decoding/strategies/draft", DRAFT))
ODD = [GONE, None, True, False, 0, -1, 2**64, 1.5, "", "auto", "x" * 300, [], [None], {}, {"": {}},
       [[]], ["a", 1], {"type": []}, {"type": "composite"}]  # fmt: skip
STEPS = [PhaseRequest(1, 9, top_k=8), PhaseRequest(9, 9), PhaseRequest(4, 9, is_verification=True)]


def pointers(value: Any, at: str = "") -> Iterator[str]:
    """Every member of the block."""
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield f"{at}/{name}"
        yield from pointers(inner, f"{at}/{name}")


def refusal_of(block: Any, name: str) -> str | None:
    """The kind a strategy of a checked block is refused with: what it does not offer, no bound."""
    try:
        resolve_speculation(packaged=True, generation=block, cli={"strategy": name})
    except GenerationError as error:
        return error.kind
    return None


@pytest.mark.parametrize("odd", ODD, ids=lambda v: "gone" if v is GONE else repr(v)[:20])
def test_any_value_in_any_place(odd: Any) -> None:
    n_sound = 0
    for pointer in pointers(BLOCK):
        block = changed(BLOCK, (pointer, odd))
        if not report_of(block).valid:
            continue
        n_sound += 1
        for step in STEPS:
            decision = resolve_policy(
                step, architecture="llama", backend=Backend("b", {"dense": 1}), generation=block
            )
            record_of(decision, runtime_version="0", abi_version="0")
        menu = block.get("speculative_decoding") or {}
        for name in ("auto", "mtp", "disabled", *(menu.get("strategies") or ())):
            assert refusal_of(block, name) in (
                None,
                "native_mtp_unproven",
                "unsupported_speculative_strategy_type",
            ), (pointer, name)
    assert n_sound or odd is not GONE
