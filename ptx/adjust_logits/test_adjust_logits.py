"""Protects `adjust_logits`: order and roundings of the formulas, bans, corruption, invariance."""

import math

import numpy as np
import pytest

from ptx.adjust_logits.op import BLOCK_TOKENS, OP
from ptx.adjust_logits.ref import adjust_logits
from ptx.launch_cases import launch_twice
from ptx.op import OpError

INF, NAN = np.inf, np.nan
PER_ROW = tuple(param.name for param in OP.params if param.shape and not param.out)
ONE_BLOCK = [(1, 1, 1), (2, 2, 1), (3, 31, 2), (3, 33, 4), (2, 255, 3), (2, 257, 7)]
SHAPES = [*ONE_BLOCK, (2, BLOCK_TOKENS, 9), (2, 2 * BLOCK_TOKENS + 1, 9)]
# Off, each alone, all, and minus zeros, which are off as well.
PENALTIES = [(1, 0, 0), (1.3, 0, 0), (0.7, 0, 0), (1, 0.3, 0), (1, 0, -0.6), (1.1, -0.2, 0.7),
             (1, -0.0, -0.0), (1.3, -0.0, -0.0)]


def packed(allowed):
    """bool [T, V] -> u32 [T, W], bits past V set."""
    n_words = -(-allowed.shape[1] // 32)
    wide = np.ones((len(allowed), 32 * n_words), bool)
    wide[:, : allowed.shape[1]] = allowed
    bits = wide.reshape(len(allowed), n_words, 32).astype(np.uint64) << np.arange(32, dtype="u8")
    return bits.sum(axis=2).astype(np.uint32)


def _inputs(n_tokens, n_vocab, n_biases=4, seed=0):
    rng = np.random.default_rng((n_tokens, n_vocab, seed))
    logits = (4 * rng.standard_normal((n_tokens, n_vocab))).astype(np.float32)
    logits[rng.random(logits.shape) < 0.1] = -0.0
    # Half of the biases meet at one token, and the sum of their sizes depends on the order.
    ids = rng.integers(-1, n_vocab, (n_tokens, n_biases))
    ids[:, ::2] = rng.integers(0, n_vocab, (n_tokens, 1))
    bias = 10.0 ** rng.integers(-3, 17, ids.shape) * rng.choice([-1, 1], ids.shape)
    bias[rng.random(ids.shape) < 0.1] = -INF
    bias[ids < 0] = NAN
    penalties = np.array([PENALTIES[(seed + t) % len(PENALTIES)] for t in range(n_tokens)])
    return {
        "logits": logits,
        "counts": rng.choice([0, 0, 1, 2, 77, 2**31 - 1], logits.shape).astype(np.int32),
        "mask": packed(rng.random(logits.shape) < 0.8),
        "bias_ids": ids.astype(np.int32),
        "bias": bias,
        "repeat": penalties[:, 0].astype(np.float32).astype(np.float64),
        "frequency": penalties[:, 1].astype(np.float32).astype(np.float64),
        "presence": penalties[:, 2].astype(np.float32).astype(np.float64),
    }


def _neutral(logits):
    """Nothing masked, counted, penalised or biased."""
    logits = np.asarray(logits, np.float32)
    n_tokens = len(logits)
    return {
        "logits": logits,
        "counts": np.zeros(logits.shape, np.int32),
        "mask": packed(np.ones(logits.shape, bool)),
        "bias_ids": np.full((n_tokens, 1), -1, np.int32),
        "bias": np.zeros((n_tokens, 1)),
        "repeat": np.ones(n_tokens),
        "frequency": np.zeros(n_tokens),
        "presence": np.zeros(n_tokens),
    }


def _model(args, t):
    """Row t by the contract, in Python floats, one token after the other."""
    repeat, frequency, presence = (float(args[n][t]) for n in ("repeat", "frequency", "presence"))
    is_off = repeat == 1 and frequency == 0 and presence == 0
    row = []
    for v, logit in enumerate(args["logits"][t].tolist()):
        z = logit if int(args["mask"][t, v // 32]) >> v % 32 & 1 else -math.inf
        count = int(args["counts"][t, v])
        if count > 0 and not is_off:
            z = z / repeat if z > 0 else z * repeat
            z = z - float(count) * frequency
            z = z - presence
        for token, bias in zip(args["bias_ids"][t].tolist(), args["bias"][t].tolist(), strict=True):
            if token == v:
                z = z + bias
        row.append(z if math.isfinite(logit) else math.nan)
    return np.array(row)


def _same(bench, args):
    """A bench has the bits of the reference."""
    want = adjust_logits(**args)
    got = bench.run(OP, **args)["z"]
    for t, (left, right) in enumerate(zip(got, want, strict=True)):
        differ = np.flatnonzero(left.view(np.uint64) != right.view(np.uint64))
        assert not len(differ), f"row {t}, token {differ[0]}: {left[differ[0]]}, {right[differ[0]]}"
    if hasattr(bench, "run_bare"):
        bench.run_bare(OP, **args)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_reference_is_the_model(bench, shape):
    for seed in range(8):
        args = _inputs(*shape, seed)
        got = bench.run(OP, **args)["z"]
        for t, row in enumerate(got):
            assert row.tobytes() == _model(args, t).tobytes(), (seed, t)


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, PER_ROW, **_inputs(9, 70))


def test_values_by_hand(bench):
    args = _neutral([[4, 4, -4, 4, 1]])
    args.update(counts=np.array([[0, 1, 1, 0, 3]], np.int32), repeat=np.array([2.0]))
    assert bench.run(OP, **args)["z"].tolist() == [[4, 2, -8, 4, 0.5]]
    args.update(frequency=np.array([0.5]), presence=np.array([0.25]))
    assert bench.run(OP, **args)["z"].tolist() == [[4, 1.25, -8.75, 4, -1.25]]
    args.update(mask=np.array([[0b10111]], np.uint32), bias_ids=np.array([[1, 3, 1]], np.int32))
    args["bias"] = np.array([[1.0, 9, -0.5]])
    assert bench.run(OP, **args)["z"].tolist() == [[4, 1.75, -8.75, -INF, -1.25]]


def test_what_does_not_fit_is_refused(bench):
    args = _inputs(2, 33)
    with pytest.raises(OpError, match="W = ceil"):
        bench.run(OP, **{**args, "mask": args["mask"][:, :1]})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(kernels, shape):
    for bench in kernels(OP):
        for seed in (0, 3, 5):
            _same(bench, _inputs(*shape, seed))


def test_every_penalty_in_kernels(kernels):
    for bench in kernels(OP):
        _same(bench, _inputs(2 * len(PENALTIES), 90))


def test_kernels_rows_alone(kernels):
    for bench in kernels(OP):
        bench.check_rows_alone(OP, PER_ROW, **_inputs(3, 40))


def test_neutral_rows_keep_every_bit(bench, kernels):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 500, np.uint32)
    bits = bits[(bits & 0x7F800000) != 0x7F800000]
    bits = np.append(bits, np.array([0, 1 << 31, 1, 0x7F7FFFFF], np.uint32))
    args = _neutral([bits.view(np.float32)])
    # Even where every token was seen: off is off.
    args["counts"] += 3
    for each in (bench, *kernels(OP)):
        assert each.run(OP, **args)["z"].tobytes() == args["logits"].astype(np.float64).tobytes()


def test_corruption_stays_to_be_seen(bench, kernels):
    bits = [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF923456, 0x7F800000, 0xFF800000, 0x3F800000]
    args = _neutral([np.array(bits, np.uint32).view(np.float32)] * 4)
    args["counts"] += 1
    args["mask"][1] = 0
    args["repeat"][2] = 1.5
    args["bias_ids"] = np.tile(np.arange(7, dtype=np.int32), (4, 1))
    args["bias"] = np.full((4, 7), -INF)
    args["bias"][3] = 1.0
    for each in (bench, *kernels(OP)):
        z = each.run(OP, **args)["z"]
        assert np.all(z[:, :6].view(np.uint64) == 0x7FF8000000000000)
        assert z[:, 6].tolist() == [-INF, -INF, -INF, 2]


def test_extremes_in_kernels(kernels):
    args = _neutral([[3.4e38, -3.4e38, 1e-45, -1e-45, 0, -0.0, 7, -7]] * 4)
    args["counts"][...] = [2**31 - 1, 2**31 - 1, 1, 1, 5, 5, 0, -3]
    args["repeat"][...] = [1e-45, 3.4e38, 1.0, 1 + 2.0**-23]
    args["frequency"][...] = [0, 3.4e38, -3.4e38, 1e-45]
    args["presence"][...] = [3.4e38, -1e-45, 0, 2.0**-149]
    for bench in kernels(OP):
        _same(bench, args)


def test_biases_of_two_blocks_and_their_edges(kernels):
    edges = [0, BLOCK_TOKENS - 1, BLOCK_TOKENS, 2 * BLOCK_TOKENS - 1, 2 * BLOCK_TOKENS]
    args = _neutral(np.zeros((1, 2 * BLOCK_TOKENS + 1)))
    # 1e16 + 1 is 1e16 again, so that only the order of the list gives 0 first and 1 then.
    args["bias_ids"] = np.array([[*edges, -1, *edges, -1, *edges]], np.int32)
    args["bias"] = np.array([[*[1.0] * 5, NAN, *[1e16] * 5, 3, *[-1e16] * 5]])
    want = np.zeros((1, 2 * BLOCK_TOKENS + 1))
    for bench in kernels(OP):
        assert bench.run(OP, **args)["z"].tobytes() == want.tobytes()
        turned = {**args, "bias": args["bias"][:, ::-1].copy(),
                  "bias_ids": args["bias_ids"][:, ::-1].copy()}
        assert np.flatnonzero(bench.run(OP, **turned)["z"]).tolist() == edges


def test_more_biases_than_threads_in_kernels(kernels):
    # They are looked at 256 at a time, and those of one token still come in the order of the list.
    args = _inputs(2, 40, n_biases=600)
    for bench in kernels(OP):
        _same(bench, args)


def test_a_launch_waits_for_the_one_before(kernels):
    args = {**_inputs(1, 40), "z": np.zeros((1, 40))}
    for bench in kernels(OP):
        want = bench.run(OP, **args)
        for name, array in launch_twice(bench, OP, **args).items():
            assert array.tobytes() == want[name].tobytes(), name
