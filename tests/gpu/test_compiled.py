"""The compiled hybrid on the card: the mini twin's numbers against the oracle, captured passes
against eager ones, and everything that moves state, as on the host's references."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.sampling import Sampler
from ptx.devices.cuda import CudaDevice, available
from tests import compiled_hybrid as mini
from tests.compiled_hybrid import error, rows
from tests.cpu.test_compiled_drawing import HOT, test_a_held_row_draws_the_same_once_it_was_moved
from tests.cpu.test_compiled_program import (
    ERROR,
    IDS,
    RECIPES,
    files,
    session,
    test_a_prefix_is_shared_until_somebody_writes_behind_it,
    test_a_sequence_moves_and_goes_on_with_the_same_bits,
    test_a_verified_window_is_taken_back,
    test_few_and_many_rows_agree,
    test_many_sequences_in_a_pass_of_many_rows,
    test_sessions_of_a_batch_do_not_feel_each_other,
)

__all__ = [
    "files",
    "session",
    "test_a_held_row_draws_the_same_once_it_was_moved",
    "test_a_prefix_is_shared_until_somebody_writes_behind_it",
    "test_a_sequence_moves_and_goes_on_with_the_same_bits",
    "test_a_verified_window_is_taken_back",
    "test_few_and_many_rows_agree",
    "test_many_sequences_in_a_pass_of_many_rows",
    "test_sessions_of_a_batch_do_not_feel_each_other",
]
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    found = available()
    if isinstance(found, str):
        pytest.skip(found)
    return CudaDevice()


@pytest.fixture(scope="module")
def model(files: dict[str, Path], device: CudaDevice) -> Any:
    return mini.model_of(mini.plan_of(files["groupwise-int"]), device)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_prompt_and_what_follows_are_the_oracles(
    files: dict[str, Path], device: CudaDevice, recipe: str
) -> None:
    model = mini.model_of(mini.plan_of(files[recipe]), device)
    want = mini.oracle_of(files[recipe]).forward(IDS).logits
    made = model.create_session()
    assert error(rows(model, made, IDS[:30]), want[:30]) < ERROR
    few = rows(model, made, IDS[30:36])
    singles = [rows(model, made, [token]) for token in IDS[36:]]
    assert error(np.concatenate([few, *singles]), want[30:]) < ERROR


def test_replays_give_the_bits_of_the_first_pass(model: Any) -> None:
    """The first token of a shape runs step by step, the third and later are graphs."""
    made = model.create_session()
    found = []
    for _ in range(4):
        made.reset()
        made.prefill(IDS[:19])
        found.append([rows(model, made, [token]).tobytes() for token in IDS[19:27]])
    assert found[1:] == found[:1] * 3
    made.free()


def test_drawn_tokens_are_the_host_samplers(model: Any) -> None:
    made = model.create_session()
    host = Sampler(HOT, model.plan.n_vocab)
    token, history = made.prefill_sampled(IDS[:20], HOT), list(IDS[:20])
    for _ in range(16):
        assert token == host.choose(made.last_row.array().copy(), history).token
        history.append(token)
        token = made.decode(token, HOT)
    made.free()
