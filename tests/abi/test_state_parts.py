"""Guards KV pages against parts that do not belong together: other layers, other tokens."""

from collections.abc import Iterator

import pytest

from engine.errors import Status
from skippy_abi.client import OpenModel, OpenSession
from tests.abi.steps import batch, export, greedy, load_page, page, refused, straight, trim

TOKENS = list(range(40, 70))


@pytest.fixture
def filled(tiny_model: OpenModel) -> Iterator[OpenSession]:
    session = tiny_model.session()
    session.prefill(TOKENS)
    yield session
    session.free()


def test_a_page_of_some_layers_only_renews_tokens_that_are_there(filled: OpenSession) -> None:
    """Else the other layers would show rows that nobody wrote for this session."""
    target = filled.model.session()
    target.prefill(TOKENS[:29])
    before = export(target)
    for layers in ((0, 1), (1, 2)):
        desc, data = page(filled, 0, 30, layers)
        assert desc.layer_count == 1
        refused(load_page(target, desc, data), Status.RUNTIME_ERROR, "no other rows")
    assert (target.position, export(target)) == (29, before)
    target.prefill(TOKENS[29:])
    assert load_page(target, desc, data)[0] == Status.OK
    assert export(target) == export(filled)
    target.free()


def test_a_page_behind_other_tokens_is_refused(filled: OpenSession) -> None:
    target = filled.model.session()
    target.prefill([99, *TOKENS[1:20]])
    before = export(target)
    refused(load_page(target, *page(filled, 10, 20)), Status.RUNTIME_ERROR, "10 tokens before it")
    assert (target.position, export(target)) == (20, before)
    target.free()


def test_a_page_of_other_tokens_ends_what_was_behind_it(filled: OpenSession) -> None:
    other = filled.model.session()
    other.prefill([*TOKENS[:5], 200, 201])
    assert load_page(filled, *page(other, 3, 4))[0] == Status.OK
    assert filled.position == 30
    refused(batch([filled], [9])[:2], Status.RUNTIME_ERROR, "KV for 7 tokens")
    trim(filled, 7)
    wanted = straight(filled.model, [*TOKENS[:5], 200, 201])
    assert (export(filled), greedy(filled, 9, 4)) == wanted
    other.free()
