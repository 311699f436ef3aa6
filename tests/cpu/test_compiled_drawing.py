"""Protects drawing a token where the logits lie: the host sampler's tokens, whatever the config
says, from rows on the device and from rows that were moved, and nothing left over for the next."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from engine.compiled.drawing import Drawing
from engine.compiled.staging import Staging
from engine.errors import InvalidArgument, RuntimeFailure
from engine.sampling import Sampler, SamplerState, SamplingConfig
from engine.sampling.draws import VERSION
from ptx.device import DeviceError
from tests import compiled_hybrid as mini
from tests.cpu.test_sampling_ops import random_config
from tests.deferred_host import DeferredHost

N_VOCAB, N_PADDED, N_ROWS = 131, 144, 5
BASE = SamplingConfig(version=1, flags=1, seed=7)
HOT = replace(BASE, temperature=1.3, top_k=40, top_p=0.95, repeat_penalty=1.1, penalty_last_n=8)
IDS = [(7 * t * t + 13 * t + 5) % 1021 for t in range(40)]


class PlainRow:
    """A row in main memory that a `Drawing` draws from."""

    def __init__(self, drawing, row, moved=False):
        self.drawing, self.row, self.moved = drawing, row, moved

    def array(self):
        return self.row

    def draw(self, request):
        if self.moved:
            return self.drawing.draw_moved(self.row, request())
        cells = np.full(N_PADDED, -np.inf, np.float32)
        cells[:N_VOCAB] = self.row
        padded = self.drawing._device.allocate((N_PADDED,), "f32", "logits")
        self.drawing._device.upload(padded, cells)
        return self.drawing.draw(padded, request())


def _given(mask):
    return mask


@pytest.fixture(scope="module")
def drawing():
    device = DeferredHost()
    return Drawing(device, Staging(device), N_VOCAB, N_ROWS)


def test_random_requests_draw_what_the_host_draws(drawing):
    source = np.random.default_rng(3)
    n_drawn = n_banned = 0
    for turn in range(300):
        config = random_config(source, N_VOCAB)
        row = (3 * source.standard_normal(N_VOCAB)).astype(np.float32)
        mask = source.random(N_VOCAB) < 0.6 if turn % 3 == 0 else None
        history = source.integers(0, N_VOCAB, source.integers(0, 90)).tolist()
        state = SamplerState(int(source.integers(0, 2**64, dtype=np.uint64)), turn)
        there, here = (Sampler(config, N_VOCAB, state.seed) for _ in range(2))
        if here.seed is not None:
            there.restore(state)
            here.restore(state)
        try:
            want = here.choose(row, history, mask)
        except RuntimeFailure:
            with pytest.raises(RuntimeFailure, match="ban every one of 131"):
                there.choose_row(PlainRow(drawing, row), history, partial(_given, mask))
            assert there.snapshot() == here.snapshot()
            n_banned += 1
            continue
        given = PlainRow(drawing, row, moved=bool(turn % 2))
        found = there.choose_row(given, history, partial(_given, mask))
        # Seeds at which no running sum lies on an edge: `test_sampling_ops.py` has the others.
        assert (found.token, found.draw_index) == (want.token, want.draw_index), (turn, config)
        assert math.isclose(found.log_p_sampler, want.log_p_sampler, abs_tol=1e-6)
        assert found.sampler_version == VERSION
        assert there.snapshot() == here.snapshot()
        n_drawn += 1
    assert n_drawn > 200
    assert n_banned < 50
    counts = drawing._device.download(drawing._on["counts"])
    assert not counts.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_corrupt_row_is_refused_and_draws_nothing(drawing, bad):
    row = np.zeros(N_VOCAB, np.float32)
    row[77] = bad
    sampler = Sampler(BASE, N_VOCAB)
    with pytest.raises(RuntimeFailure, match="one of 131 is not finite"):
        sampler.choose_row(PlainRow(drawing, row))
    assert sampler.n_drawn == 0
    row[77] = 0
    assert sampler.choose_row(PlainRow(drawing, row)).draw_index == 0


def test_a_history_that_is_none_is_refused_before_the_device(drawing):
    sampler = Sampler(HOT, N_VOCAB)
    for history in ([3, N_VOCAB], [-1, 2]):
        with pytest.raises(InvalidArgument, match="history tokens"):
            sampler.choose_row(PlainRow(drawing, np.zeros(N_VOCAB, np.float32)), history)
    assert sampler.n_drawn == 0


def test_a_draw_that_broke_off_leaves_no_counts(monkeypatch):
    # A new one: of a shape that has come before the launches are in a graph.
    late = DeferredHost()
    drawing = Drawing(late, Staging(late), N_VOCAB, N_ROWS)
    row = np.linspace(0, 3, N_VOCAB, dtype=np.float32)
    want = Sampler(HOT, N_VOCAB).choose(row, [5, 6, 6]).token
    device, launch = drawing._device, drawing._device.launch

    def breaks(op, **args):
        if op.name == "adjust_logits":
            raise DeviceError("planted")
        launch(op, **args)

    with monkeypatch.context() as patch:
        patch.setattr(device, "launch", breaks)
        with pytest.raises(RuntimeFailure, match="planted"):
            Sampler(HOT, N_VOCAB).choose_row(PlainRow(drawing, row), [5, 5, 130])
    found = Sampler(HOT, N_VOCAB).choose_row(PlainRow(drawing, row), [5, 6, 6])
    assert found.token == want
    assert not device.download(drawing._on["counts"]).any()


def test_rows_that_are_drawn_together_are_as_alone(drawing):
    source, device, n_same = np.random.default_rng(5), drawing._device, 0
    for turn in range(60):
        n_rows = int(source.integers(1, N_ROWS + 1))
        rows = (3 * source.standard_normal((n_rows, N_VOCAB))).astype(np.float32)
        if turn % 7 == 0:
            rows[0, 5] = np.nan
        requests = []
        for _ in range(n_rows):
            history = source.integers(0, N_VOCAB, source.integers(0, 400)).tolist()
            mask = source.random(N_VOCAB) < 0.6 if source.random() < 0.3 else None
            config = random_config(source, N_VOCAB)
            sampler = Sampler(config, N_VOCAB, 3 + turn)
            requests.append(sampler.request(history, partial(_given, mask)))
        padded = device.allocate((n_rows, N_PADDED), "f32", "logits")
        device.upload(padded, np.pad(rows, ((0, 0), (0, N_PADDED - N_VOCAB))))
        drawing.start([padded[i] for i in range(n_rows)], requests)
        drawing._staging.wait()
        together = [repr(found) for found in drawing.finish(n_rows)]
        alone = []
        for i, request in enumerate(requests):
            try:
                alone.append(repr(drawing.draw(padded[i], request)))
            except RuntimeFailure as error:
                alone.append(repr(error))
        assert together == alone
        n_same += n_rows
    assert n_same > 100


def test_windows_of_any_length_share_graphs():
    late = DeferredHost()
    drawing = Drawing(late, Staging(late), N_VOCAB, N_ROWS)
    row = late.allocate((N_VOCAB,), "f32", "logits")
    late.upload(row, np.linspace(0, 3, N_VOCAB, dtype=np.float32))
    sampler, history = Sampler(replace(HOT, penalty_last_n=-1), N_VOCAB), [1, 2]
    for n in range(3, 90):
        drawing.draw(row, sampler.request([*history, *range(n)]))
    assert len(late.graphs) == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    path: Path = mini.write(tmp_path_factory.mktemp("mini") / "mini.mspec", "bf16", mini.SHALLOW)
    return mini.model_of(mini.plan_of(path, mini.SHALLOW), DeferredHost())


def test_sessions_draw_on_the_device_what_the_host_would(model):
    session = model.create_session()
    host = Sampler(HOT, model.plan.n_vocab)
    token, history = session.prefill_sampled(IDS[:20], HOT), IDS[:20]
    for _ in range(12):
        assert session.last_row._batch._moved is None
        want = host.choose(session.last_row.array().copy(), history).token
        assert token == want
        history = [*history, token]
        token = session.decode(token, HOT)
    assert session.history == history
    session.free()


def test_a_held_row_draws_the_same_once_it_was_moved(model):
    one, two = model.create_session(), model.create_session()
    one.prefill_sampled(IDS[:9], HOT)
    drawn = [one.sample_current(replace(HOT, seed=seed)) for seed in range(1, 9)]
    for token in IDS[:4]:
        two.decode(token, None)
    assert one.last_row._batch._moved is not None
    assert [one.sample_current(replace(HOT, seed=seed)) for seed in range(1, 9)] == drawn
    assert len(set(drawn)) > 1
    one.free()
    two.free()


def test_a_drawn_token_comes_with_its_pass(model):
    """One wait for all sessions of a batch, whoever draws, and the tokens of each one alone."""
    configs = [HOT, None, replace(HOT, seed=9, penalty_last_n=-1), replace(BASE, seed=11)]
    prompts = [IDS[:6], IDS[6:9], IDS[9:20], IDS[20:24]]

    def tokens_of(step):
        sessions = [model.create_session() for _ in configs]
        last = [
            session.prefill_sampled(prompt, config)
            for session, prompt, config in zip(sessions, prompts, configs, strict=True)
        ]
        told = []
        for _ in range(8):
            last = step(sessions, last)
            told.append(last)
        for session in sessions:
            session.free()
        return told

    def each(sessions, last):
        found = zip(sessions, last, configs, strict=True)
        return [session.decode(token, config) for session, token, config in found]

    late, waits = model.program._device, []

    def together(sessions, last):
        before = late.n_waits
        found = model.decode_batch(sessions, last, configs)
        waits.append(late.n_waits - before)
        return found

    assert tokens_of(together) == tokens_of(each)
    # The first passes of a shape load and capture, and a page of cells is brought now and then.
    assert waits[-1] == 1
    assert len({tuple(tokens) for tokens in tokens_of(each)}) > 1
