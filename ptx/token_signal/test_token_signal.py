"""Protects `token_signal`: ids and ties, the promised nats, rows without an answer, invariance."""

import math

import numpy as np
import pytest

from ptx.op import OpError
from ptx.token_signal.op import OP

INF, NAN = np.inf, np.nan
SHAPES = [(1, 2), (3, 3), (2, 255), (2, 256), (2, 257), (2, 1025)]
MARGINS = [0.0, 1e-6, 1.0, 20.0, 60.0, 200.0]
# What one rounding to float32 leaves, with a trace for the one to float64 before it.
UNIT = 2.0**-24 + 2.0**-50


def _inputs(logits):
    """Arguments of a launch; outputs start as what nobody would compute."""
    n_tokens = len(logits)
    return {
        "logits": np.asarray(logits, np.float32),
        "ids": np.full((n_tokens, 2), -7, np.int32),
        "values": np.full((n_tokens, 4), NAN, np.float32),
    }


def _random(n_tokens, n_vocab):
    """Rows from flat to steep."""
    rng = np.random.default_rng(n_vocab)
    spread = np.geomspace(0.1, 30, n_tokens)[:, None]
    return (spread * rng.standard_normal((n_tokens, n_vocab)) - 3).astype(np.float32)


def _peaked(n_vocab):
    """Rows whose best leads all others, or one of them, by each margin; rows without a lead; rows
    with cells of -infinity."""
    rng = np.random.default_rng(n_vocab)
    rows = []
    for margin in MARGINS:
        best, second = rng.choice(n_vocab, 2, replace=False)
        level = np.full(n_vocab, -margin)
        slope = -margin - rng.gamma(2, 4, n_vocab)
        slope[second] = -margin
        for row in (level, slope):
            row[best] = 0
            # At 0, 1e-6 is a float32 difference still; elsewhere differences have to be rounded.
            rows.append(row + (3.7 if margin >= 1 else 0))
    rows += [np.full(n_vocab, 5.25), rng.uniform(0, 1e-3, n_vocab), np.arange(n_vocab) % 2]
    for best in (0, n_vocab - 1):
        row = np.where(rng.random(n_vocab) < 0.7, -INF, rng.standard_normal(n_vocab))
        row[best] = 4
        rows.append(row)
    return np.array(rows).astype(np.float32)


def _exact(row):
    """The two ids and four values of a row, by a sort and exact sums of float64."""
    wide = [float(value) for value in row]
    ranked = sorted(range(len(wide)), key=lambda v: (-wide[v], v))
    a, b = ranked[:2]
    d = [wide[v] - wide[a] for v in ranked[1:]]
    rest = math.fsum(math.exp(x) for x in d)
    moment = math.fsum(x * math.exp(x) for x in d if x > -INF)
    log_total, margin = math.log1p(rest), wide[a] - wide[b]
    return (a, b), (log_total - moment / (1 + rest), -log_total, -margin - log_total, margin)


def _keeps_its_promise(got, logits):
    """Ids are exact, and every value by itself is as near as the contract says."""
    for t, row in enumerate(logits):
        ids, want = _exact(row)
        assert tuple(got["ids"][t]) == ids, t
        log_total = -want[1]
        small = [min(5e-6, 1e-5 * part + 1e-35) for part in (want[0], log_total)]
        bounds = [*small, 5e-6 + UNIT * abs(want[2]), UNIT * want[3]]
        for value, exact, bound in zip(got["values"][t].tolist(), want, bounds, strict=True):
            shown = f"row {t}: {got['values'][t]}, exact {want}"
            near = math.isfinite(exact) and abs(value - exact) <= bound
            assert near or value == exact, shown


# Rows without a finite best, then rows that only look odd: cells, ids, values.
LN2 = math.log(2)
SPECIAL_ROWS = [
    ([1, NAN, 3, 2], (-1, -1), (0, 0, 0, 0)),
    ([NAN, 1, 3, 2], (-1, -1), (0, 0, 0, 0)),
    ([9, 1, 3, NAN], (-1, -1), (0, 0, 0, 0)),
    ([NAN, NAN, NAN, NAN], (-1, -1), (0, 0, 0, 0)),
    ([NAN, INF, -INF, 0], (-1, -1), (0, 0, 0, 0)),
    ([1, INF, 3, 2], (-1, -1), (0, 0, 0, 0)),
    ([-INF, -INF, -INF, -INF], (-1, -1), (0, 0, 0, 0)),
    ([-INF, 5, -INF, -INF], (1, 0), (0, 0, -INF, INF)),
    ([5, -INF, -INF, -INF], (0, 1), (0, 0, -INF, INF)),
    ([-INF, -INF, 5, 5], (2, 3), (LN2, -LN2, -LN2, 0)),
    ([-INF, 7, -INF, 7], (1, 3), (LN2, -LN2, -LN2, 0)),
    ([0.0, -0.0, -INF, -INF], (0, 1), (LN2, -LN2, -LN2, 0)),
    ([-0.0, 0.0, -INF, -INF], (0, 1), (LN2, -LN2, -LN2, 0)),
    ([-INF, 1, 3, 1], (2, 1), None),
    ([3, 1, 3, 3], (0, 2), None),
    ([1, 2, 3, 4], (3, 2), None),
    ([4, 3, 2, 1], (0, 1), None),
    ([3e38, -3e38, -3e38, -INF], (0, 1), (0, 0, -INF, INF)),
    ([-3e38, -3e38, -INF, -3e38], (0, 1), (math.log(3), -math.log(3), -math.log(3), 0)),
    ([0, -1e6, -2e6, -1e6], (0, 1), (0, 0, -1e6, 1e6)),
]


def _special(bench):
    rows = np.array([row for row, _, _ in SPECIAL_ROWS])
    # Also with cells in other threads and in other rounds of one thread; nothing between them.
    wide = np.full((len(rows), 1028), -INF)
    wide[:, [0, 255, 256, 1027]] = rows
    for logits in (rows, wide):
        got = bench.run(OP, **_inputs(logits))
        for t, (row, ids, values) in enumerate(SPECIAL_ROWS):
            wanted = ids if logits is rows or -1 in ids else _exact(wide[t])[0]
            assert tuple(got["ids"][t]) == wanted, row
            wanted = values or _exact(rows[t])[1]
            assert got["values"][t] == pytest.approx(wanted, rel=1e-6, abs=0), row


@pytest.mark.parametrize(("n_tokens", "n_vocab"), [*SHAPES, (1, 248320)])
def test_against_float64(bench, n_tokens, n_vocab):
    bench.check(OP, **_inputs(_random(n_tokens, n_vocab)))


@pytest.mark.parametrize("n_vocab", [2, 3, 255, 256, 257, 1025])
def test_keeps_the_promised_nats(bench, n_vocab):
    for logits in (_random(5, n_vocab), _peaked(n_vocab)):
        _keeps_its_promise(bench.run(OP, **_inputs(logits)), logits)


def _whole_vocabulary():
    """Rows of 248,320: all equal, nearly flat, one level below the best, random, and a sure one.

    On one level all cells err the same way, at 12 to 13 nats with the most weight.
    """
    n_vocab = 248320
    rng = np.random.default_rng(1)
    levels = np.repeat(np.array([0.3, 12.3, 13.1])[:, None], n_vocab, axis=1)
    rows = [np.zeros((1, n_vocab)), rng.uniform(0, 0.01, (1, n_vocab)), 2.1 - levels,
            3 * rng.standard_normal((1, n_vocab)), 20 + 3 * rng.standard_normal((1, n_vocab))]
    logits = np.concatenate(rows).astype(np.float32)
    logits[2:5, 70_001] = 2.1
    logits[6, 248_319] = 90
    return logits


def test_keeps_the_promised_nats_over_a_whole_vocabulary(bench):
    logits = _whole_vocabulary()
    _keeps_its_promise(bench.run(OP, **_inputs(logits)), logits)


def test_special_rows(bench):
    _special(bench)


@pytest.mark.parametrize("n_vocab", [2, 7, 257, 1025])
def test_rows_do_not_depend_on_the_batch(bench, n_vocab):
    bench.check_rows_alone(OP, ("logits", "ids", "values"), **_inputs(_random(9, n_vocab)))


def test_one_token_is_no_comparison(bench):
    with pytest.raises(OpError, match="token_signal: needs two tokens to compare, found T=1 V=1"):
        bench.run(OP, **_inputs(np.zeros((1, 1))))
    with pytest.raises(OpError, match="2 ids and 4 values"):
        bench.run(OP, **{**_inputs(np.zeros((1, 4))), "ids": np.zeros((1, 3), np.int32)})


@pytest.mark.parametrize(("n_tokens", "n_vocab"), SHAPES)
def test_kernels(kernels, n_tokens, n_vocab):
    for bench in kernels(OP):
        bench.check(OP, **_inputs(_random(n_tokens, n_vocab)))


@pytest.mark.parametrize("n_vocab", [2, 3, 255, 256, 257, 1025])
def test_kernels_keep_the_promised_nats(kernels, n_vocab):
    logits = _peaked(n_vocab)
    for bench in kernels(OP):
        _keeps_its_promise(bench.run(OP, **_inputs(logits)), logits)


def test_kernels_keep_the_promised_nats_over_a_whole_vocabulary(kernels):
    # On one device: a seed would change the order of warps only, at ten times the cost.
    inputs = _inputs(_whole_vocabulary())
    for bench in kernels(OP):
        device = bench.device
        buffers = {
            p.name: device.allocate(inputs[p.name].shape, p.dtype, p.name) for p in OP.params[:3]
        }
        device.upload(buffers["logits"], inputs["logits"])
        device.launch(bench.alone(OP), **buffers)
        got = {name: device.download(buffers[name]) for name in ("ids", "values")}
        _keeps_its_promise(got, inputs["logits"])


def test_special_rows_in_kernels(kernels):
    for bench in kernels(OP):
        _special(bench)


def test_kernels_rows_alone(kernels):
    inputs = _inputs(_random(3, 257))
    for bench in kernels(OP):
        bench.check_rows_alone(OP, ("logits", "ids", "values"), **inputs)
