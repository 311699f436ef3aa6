"""Protects `token_signal_wide`: what `token_signal` promises, across blocks; zeros left behind."""

import numpy as np
import pytest

from ptx.launch_cases import launch_twice
from ptx.op import OpError
from ptx.token_signal.test_token_signal import (
    INF,
    NAN,
    SPECIAL_ROWS,
    _exact,
    _keeps_its_promise,
    _peaked,
    _random,
    _whole_vocabulary,
)
from ptx.token_signal_wide.op import BLOCK_CELLS, OP, work_words

PER_TOKEN = ("logits", "ids", "values", "work")
SHAPES = [(1, 2), (3, 3), (2, 257), (1, BLOCK_CELLS), (2, 2 * BLOCK_CELLS + 1)]


def _inputs(logits):
    n_tokens, n_vocab = np.shape(logits)
    return {
        "logits": np.asarray(logits, np.float32),
        "ids": np.full((n_tokens, 2), -7, np.int32),
        "values": np.full((n_tokens, 4), NAN, np.float32),
        "work": np.zeros((n_tokens, work_words(n_vocab)), np.int64),
    }


def _run(bench, logits):
    got = bench.run(OP, **_inputs(logits))
    assert not got["work"].any()
    return got


def _texts(kernels):
    """Benches of the kernels whose texts differ: that of sm_90a is sm_80's, and costs as much."""
    for bench in kernels(OP):
        if bench.device.name != "emulator" or bench.device.target.name != "sm_90a":
            yield bench


def _special(bench):
    """Rows of four cells, apart in threads, warps and blocks."""
    rows = np.array([row for row, _, _ in SPECIAL_ROWS])
    apart = np.full((len(rows), BLOCK_CELLS + 1), -INF)
    apart[:, [0, 256, BLOCK_CELLS - 1, BLOCK_CELLS]] = rows
    got = _run(bench, apart)
    for t, (row, ids, values) in enumerate(SPECIAL_ROWS):
        wanted = ids if -1 in ids else _exact(apart[t])[0]
        assert tuple(got["ids"][t]) == wanted, row
        wanted = values or _exact(rows[t])[1]
        assert got["values"][t] == pytest.approx(wanted, rel=1e-6, abs=0), row


@pytest.mark.parametrize(("n_tokens", "n_vocab"), [*SHAPES, (1, 248320)])
def test_against_float64(bench, n_tokens, n_vocab):
    bench.check(OP, **_inputs(_random(n_tokens, n_vocab)))


def test_special_rows(bench, kernels):
    for each in (bench, *_texts(kernels)):
        _special(each)


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, PER_TOKEN, **_inputs(_random(9, 257)))


def test_what_does_not_fit_is_refused(bench):
    with pytest.raises(OpError, match="needs two tokens to compare, found T=1 V=1"):
        bench.run(OP, **_inputs(np.zeros((1, 1))))
    with pytest.raises(OpError, match=r"W = 1 \+ 4 ceil"):
        bench.run(OP, **{**_inputs(np.zeros((1, 4))), "work": np.zeros((1, 6), np.int64)})


@pytest.mark.parametrize(("n_tokens", "n_vocab"), SHAPES)
def test_kernels(kernels, n_tokens, n_vocab):
    inputs = _inputs(_random(n_tokens, n_vocab))
    for bench in kernels(OP):
        bench.check(OP, **inputs)
        _keeps_its_promise(_run(bench, inputs["logits"]), inputs["logits"])


@pytest.mark.parametrize("n_vocab", [2, BLOCK_CELLS + 300])
def test_kernels_keep_the_promised_nats(kernels, n_vocab):
    logits = _peaked(n_vocab)
    for bench in _texts(kernels):
        _keeps_its_promise(_run(bench, logits), logits)


def test_kernels_keep_the_promised_nats_over_a_whole_vocabulary(kernels):
    # On one device: a seed would change the order of warps only, at ten times the cost.
    # All equal, one level below the best, random.
    inputs = _inputs(_whole_vocabulary()[[0, 3, 5]])
    for bench in _texts(kernels):
        device = bench.device
        if device.target.name == "portable":
            continue
        buffers = {
            p.name: device.allocate(inputs[p.name].shape, p.dtype, p.name) for p in OP.params[:4]
        }
        for name in ("logits", "work"):
            device.upload(buffers[name], inputs[name])
        device.launch(bench.alone(OP), **buffers)
        got = {name: device.download(buffers[name]) for name in ("ids", "values", "work")}
        _keeps_its_promise(got, inputs["logits"])
        assert not got["work"].any()


def test_kernels_rows_alone(kernels):
    inputs = _inputs(_random(3, BLOCK_CELLS + 1))
    for bench in _texts(kernels):
        whole = bench.run(OP, **inputs)
        for rows in ([1], [2, 0]):
            part = {name: inputs[name][rows] for name in PER_TOKEN}
            for name, array in bench.run(OP, n_guard=3, **part).items():
                assert array.tobytes() == whole[name][rows].tobytes(), name


def test_a_launch_waits_for_the_one_before(kernels):
    args = _inputs(_random(1, 300))
    for bench in kernels(OP):
        want = bench.run(OP, **args)
        for name, array in launch_twice(bench, OP, **args).items():
            assert array.tobytes() == want[name].tobytes(), name
