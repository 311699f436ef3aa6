"""Protects the compiled schedule of the hybrid: its numbers against the oracle, on references.

What its ops' kernels do is judged op by op (`ptx/`); here, that weights reach the device in their
forms, that passes of few and of many rows agree, and that state moves like on any device.

Long because the two kinds of pass are compared for each of these.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import prefixes, rollback, transfer
from engine.arena import MemoryPlan
from engine.chunks import Work
from engine.compiled import program, weights
from engine.errors import ModelError, RuntimeFailure
from engine.evaluate import evaluate
from engine.records import Stage, Stored
from engine.sampling import token_signal
from packages.qwen3_8_27b.compiled import compiled
from packages.synthetic import synthetic_plan
from tests import compiled_hybrid as mini
from tests.compiled_hybrid import error, rows

RECIPES = ("bf16", "groupwise-int")
IDS = [(7 * t * t + 13 * t + 5) % 1021 for t in range(40)]
# Activations and KV cells are bf16, 2^-9 each; heads of 256 over 4 layers: measured 0.012.
ERROR = 0.03


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("mini")
    return {recipe: mini.write(folder / f"{recipe}.mspec", recipe) for recipe in RECIPES}


@pytest.fixture(scope="module")
def model(files):
    return mini.model_of(mini.plan_of(files["groupwise-int"]))


@pytest.fixture
def session(model):
    made = model.create_session()
    yield made
    made.free()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_prompt_and_what_follows_are_the_oracles(files, recipe):
    model = mini.model_of(mini.plan_of(files[recipe]))
    want = mini.oracle_of(files[recipe]).forward(IDS).logits
    session = model.create_session()
    assert error(rows(model, session, IDS[:30]), want[:30]) < ERROR
    few = rows(model, session, IDS[30:36])
    singles = [rows(model, session, [token]) for token in IDS[36:]]
    assert error(np.concatenate([few, *singles]), want[30:]) < ERROR


def test_few_and_many_rows_agree(model, session):
    want = rows(model, session, IDS[:32])
    session.reset()
    found = [rows(model, session, IDS[at : at + 4]) for at in range(0, 32, 4)]
    assert error(np.concatenate(found), want) < ERROR


def test_many_sequences_in_a_pass_of_many_rows(model):
    sessions = [model.create_session() for _ in range(3)]
    lengths = (9, 1, 21)
    works = [Work(s, IDS[:n], "all") for s, n in zip(sessions, lengths, strict=True)]
    together = evaluate(model, works)
    together.commit()
    whole = rows(model, model.create_session(), IDS[:21])
    for found, n in zip(together.rows, lengths, strict=True):
        assert error(found, whole[:n]) < ERROR
    for session in model.sessions():
        session.free()


def test_sessions_of_a_batch_do_not_feel_each_other(model):
    sessions = [model.create_session() for _ in range(3)]
    alone = model.create_session()
    lengths = (20, 3, 17)
    for session, length in zip(sessions, lengths, strict=True):
        rows(model, session, IDS[:length])
    works = [Work(s, [IDS[n]], "all") for s, n in zip(sessions, lengths, strict=True)]
    together = evaluate(model, works)
    together.commit()
    for found, length in zip(together.rows, lengths, strict=True):
        rows(model, alone, IDS[:length])
        assert found.tobytes() == rows(model, alone, [IDS[length]]).tobytes()
        alone.reset()
    for session in (*sessions, alone):
        session.free()


def test_a_sequence_moves_and_goes_on_with_the_same_bits(model, session):
    rows(model, session, IDS[:21])
    data = transfer.export_full_state(session)
    other = model.create_session()
    transfer.import_full_state(other, data)
    assert transfer.export_full_state(other) == data
    want = rows(model, session, IDS[21:23]).tobytes()
    assert rows(model, other, IDS[21:23]).tobytes() == want
    other.free()


def test_a_prefix_is_shared_until_somebody_writes_behind_it(model, session):
    rows(model, session, IDS[:20])
    prefixes.save(session, 100, 20)
    want = rows(model, session, IDS[20:24]).tobytes()
    other = model.create_session()
    prefixes.restore(other, 100, IDS[:20])
    assert rows(model, other, IDS[20:24]).tobytes() == want
    prefixes.drop(other, 100)
    other.free()


def test_a_verified_window_is_taken_back(model, session):
    rows(model, session, IDS[:18])
    session.verify(IDS[18:22])
    rollback.trim(session, 19)
    fresh = model.create_session()
    rows(model, fresh, IDS[:18])
    rows(model, fresh, [IDS[18]])
    want = rows(model, fresh, [IDS[19]])
    assert error(rows(model, session, [IDS[19]]), want) < ERROR
    fresh.free()


def test_stages_hand_rows_on_as_the_whole_model_does(files, model, session):
    plan = mini.plan_of(files["groupwise-int"])
    stages = [
        mini.model_of(plan, stage=stage)
        for stage in (Stage(0, 2, True, False), Stage(2, 4, False, True))
    ]
    first, last = (stage.create_session() for stage in stages)
    for part in (IDS[:20], IDS[20:22]):
        want = rows(model, session, part)
        given = evaluate(stages[0], [Work(first, part, "none")])
        given.commit()
        found = evaluate(stages[1], [Work(last, part, "all", given.hidden[0])])
        found.commit()
        assert found.rows[0].tobytes() == want.tobytes()


def test_memory_is_planned_and_refused_before_anything_is_allocated(files, monkeypatch):
    plan = mini.plan_of(files["groupwise-int"])
    needs = program.plan_memory(plan, 16, 9)
    # Pages: K and V, one layer, one head of 256, 16 cells, 2 bytes.
    slots = 9 * 4 * sum(int(np.prod(shape)) for shape in plan.states.values())
    assert (needs.kv_bytes, needs.state_bytes) == (16 * 2 * 256 * 16 * 2, slots)
    device = mini.KernelHost()
    monkeypatch.setattr(device, "memory_info", lambda: replace(
        mini.KernelHost().memory_info(), free_bytes=needs.total_bytes // 2
    ))
    monkeypatch.setattr(device, "allocate", None)
    with pytest.raises(RuntimeFailure, match=r"GiB \(weights .*, KV .*, state .*, scratch"):
        mini.model_of(plan, device)
    assert isinstance(needs, MemoryPlan)


def test_a_weight_without_its_scales_is_refused_by_name(files):
    plan = mini.plan_of(files["groupwise-int"])
    name = "model.layers.0.mlp.down_proj.weight"
    codes = plan.weights[name].stored().cells
    bad = replace(plan.weights[name], load_stored=lambda: Stored(codes))
    with pytest.raises(ModelError, match=f"{name}: integer codes without scales"):
        mini.model_of(replace(plan, weights={**plan.weights, name: bad}))


@pytest.mark.parametrize("widths", [{"d_model": 320}, {"n_value_heads": 12, "d_value": 96}])
def test_widths_without_kernels_have_no_compiled_schedule(widths):
    assert compiled(replace(mini.DIMS, **widths), lambda name: "bf16") is None


def test_forms_without_ops_have_no_compiled_schedule():
    assert compiled(mini.DIMS, lambda name: "int8_tiles") is None
    assert compiled(mini.DIMS, lambda name: "f32") is None
    mixed = {"model.layers.0.mlp.up_proj.weight": "int4_tiles"}
    assert compiled(mini.DIMS, lambda name: mixed.get(name, "bf16")) is None
    assert compiled(mini.DIMS, lambda name: "bf16") is not None


@pytest.mark.parametrize("recipe", RECIPES)
def test_weights_of_a_counter_are_made_on_the_device(monkeypatch, recipe):
    """In pieces, with the bits that the processor makes."""
    plan = synthetic_plan("qwen3_8_27b:mini", recipe=recipe)
    monkeypatch.setattr(weights, "PIECE_BYTES", 4 * 256 * 24)
    made = weights.load_matrices(
        mini.KernelHost(), plan.compiled.matrices, plan.weights, lambda done: None
    )
    uploaded = {name: replace(weight, fill=None) for name, weight in plan.weights.items()}
    want = weights.load_matrices(
        mini.KernelHost(), plan.compiled.matrices, uploaded, lambda done: None
    )
    assert made.keys() == want.keys()
    for name in want:
        assert made[name].tobytes() == want[name].tobytes(), name


# Rows that lie on the device


def test_greedy_and_signal_come_without_the_row(model, session, monkeypatch):
    evaluation = evaluate(model, [Work(session, IDS[:20], "all")])
    evaluation.commit()
    greedy = [row.greedy() for row in evaluation.logits[0]]
    signals = [row.signal() for row in evaluation.logits[0]]
    for row, token, signal in zip(evaluation.rows[0], greedy, signals, strict=True):
        want = token_signal(row)
        assert (token, signal.top_token, signal.second_token) == (
            int(row.argmax()), want.top_token, want.second_token
        )
        assert signal.entropy == pytest.approx(want.entropy, abs=1e-4)
        assert signal.margin == pytest.approx(want.margin, abs=1e-5)
    assert token < mini.DIMS.n_vocab_real


def test_a_row_outlives_the_passes_behind_it(model, session):
    rows_of = []
    for at in range(5):
        evaluation = evaluate(model, [Work(session, [IDS[at]], "last")])
        evaluation.commit()
        rows_of.append((evaluation.logits[0][0], None if at % 2 else evaluation.rows[0].copy()))
    session.reset()
    for at, (row, copied) in enumerate(rows_of):
        want = rows(model, session, [IDS[at]])[0]
        assert row.array().tobytes() == want.tobytes()
        assert copied is None or copied.tobytes() == want.tobytes()


def test_rows_that_are_no_tokens_win_nothing(files):
    plan = mini.plan_of(files["bf16"])
    name = "lm_head.weight"
    head = plan.weights[name].load()
    # Whatever the last rows of the table hold, and however large.
    head[mini.DIMS.n_vocab_real :] = 50.0 * np.sign(head[0])
    loud = replace(plan.weights[name], load=lambda: head, dtype="f32", load_stored=None)
    model = mini.model_of(replace(plan, weights={**plan.weights, name: loud}))
    evaluation = evaluate(model, [Work(model.create_session(), IDS[:20], "all")])
    assert all(row.greedy() < mini.DIMS.n_vocab_real for row in evaluation.logits[0])


def test_a_corrupt_row_is_refused_and_the_session_needs_a_reset(files):
    plan = mini.plan_of(files["bf16"])
    name = "model.norm.weight"
    gain = plan.weights[name].load()
    gain[3] = np.nan
    bad = replace(plan.weights[name], load=lambda: gain)
    model = mini.model_of(replace(plan, weights={**plan.weights, name: bad}))
    session = model.create_session()
    with pytest.raises(RuntimeFailure, match="not finite for the session on lane 0 at position 0"):
        session.decode(IDS[0], None)
    assert session.needs_reset
