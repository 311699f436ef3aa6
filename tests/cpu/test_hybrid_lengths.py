"""The hybrid's prompts in pieces: every length around a border, every split, the same bits."""

import pytest

from engine.records import ModelPlan
from engine.session import Session
from tests.hybrid_model import export, greedy, opened, plan, text

__all__ = ["plan"]

LENGTHS = [*range(1, 6), *range(15, 18), *range(31, 34), *range(63, 66), *range(127, 130)]


def run(session: Session, pieces: list[list[int]]) -> tuple[bytes, bytes | None, list[int], bytes]:
    """State and logits behind a prompt in pieces, three steps, and the state behind those."""
    session.reset()
    for piece in pieces[:-1]:
        session.prefill(piece)
    session.prefill_sampled(pieces[-1], None)
    row = None if session.last_row is None else session.last_row.array().tobytes()
    return export(session), row, greedy(session, 9, 3), export(session)


@pytest.mark.parametrize("length", LENGTHS)
def test_pieces_change_no_bit(plan: ModelPlan, length: int) -> None:
    session, tokens = opened(plan).create_session(), text(length)
    wanted = run(session, [[token] for token in tokens])
    assert run(session, [tokens]) == wanted
    for at in range(1, length):
        assert run(session, [tokens[:at], tokens[at:]]) == wanted, at


@pytest.mark.parametrize("length", [511, 512, 513, 1025])
def test_a_prompt_of_several_passes_in_one_call(plan: ModelPlan, length: int) -> None:
    """A call of more rows than one pass has goes on in the state that its first pass left."""
    session, tokens = opened(plan, n_context=1040).create_session(), text(length)
    wanted = run(session, [tokens[i : i + 100] for i in range(0, length, 100)])
    assert run(session, [tokens]) == wanted
    assert run(session, [tokens[:3], tokens[3:]]) == wanted
