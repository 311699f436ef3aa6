"""Protects `sample`: weights, order of the filters, ties, hostile numbers, the draw, invariance.

The reference is judged by `_model`, lists and Python numbers written from the contract; kernels
are judged by the reference, bit for bit. Past 250 lines because that model stands beside its cases.
"""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from ptx.op import OpError
from ptx.sample.op import MAX_VOCAB, OP
from ptx.sample.ref import sample, weigh

INF, NAN = np.inf, np.nan
ONE = 2**44
GIVEN = ("temperature", "top_k", "top_p", "log_min_p")
PER_ROW = ("z", *GIVEN, "seed", "draw")
NEUTRAL = (1.0, 0, 1.0, -INF)
# temperature, top_k, top_p, log_min_p: ordinary ones, each filter alone, and hostile numbers.
PARAMETERS = [
    NEUTRAL, (0.7, 40, 0.95, -3.0), (2.5, 3, 0.8, -INF), (0.9, 0, 0.6, -1.5), (1.3, 20, 1.0, -0.7),
    (1.0, 1, 1.0, -INF), (1.0, 2, 1.0, -INF), (1.0, 2**31 - 1, 1.0, -INF), (1.0, -(2**31), 0, 0),
    (1.0, 0, 1e-30, -INF), (1.0, 0, 1 - 2.0**-53, -INF), (1.0, 0, 5e-324, -INF), (3, 0, 0.5, -INF),
    (0.0, 5, 0.5, -1.0), (-0.0, 0, 1.0, -INF), (-1.0, 0, 0.3, 0.0), (NAN, 7, 0.9, -2.0),
    (1e-38, 0, 1.0, -INF), (5e-324, 0, 0.9, -INF), (INF, 0, 1.0, -1.0), (1e300, 4, 0.5, -INF),
    (1.0, 0, NAN, -INF), (1.0, 0, -1.0, -2.0**-53), (1.0, 0, INF, NAN), (1.0, 6, 2.0, 1.0),
]


def _rows(n_vocab):
    """Rows of every kind that a ranking could get wrong, and some without an answer."""
    rng = np.random.default_rng(n_vocab)
    normal = rng.standard_normal((4, n_vocab))
    holes = np.where(rng.random(n_vocab) < 0.5, -INF, np.round(normal[2]))
    alone = np.full(n_vocab, -INF)
    alone[rng.integers(n_vocab)] = -3e38
    corrupt = np.tile(2 * normal[3], (4, 1))
    corrupt[range(4), rng.integers(0, n_vocab, 4)] = [NAN, -NAN, INF, 1]
    corrupt[2, 1:2] = -INF
    return [
        4 * normal[0],
        np.round(normal[1]),
        holes,
        np.full(n_vocab, -1.25),
        rng.choice([0.0, -0.0], n_vocab),
        rng.choice([-0.0, 0.0, 5e-324, -5e-324, 1e-300], n_vocab),
        normal[2] * 10.0 ** rng.integers(-300, 300, n_vocab),
        rng.choice([1.7e308, -1.7e308, 0], n_vocab),
        np.arange(n_vocab) / 8.0,
        np.arange(n_vocab) / -8.0,
        -30.0 - rng.gamma(2, 2, n_vocab) * (np.arange(n_vocab) > 0),
        alone,
        corrupt[0],
        corrupt[1],
        corrupt[2],
        np.full(n_vocab, -INF),
    ]


def _inputs(z, parameters, seed=0):
    """Arguments of a launch, a draw of its own for each row; outputs are what nobody computes."""
    n_tokens = len(z)
    bits = np.random.default_rng(seed).integers(-(2**63), 2**63, (2, n_tokens))
    columns = zip(GIVEN, zip(*parameters, strict=True), strict=True)
    given = {name: np.array(c, np.int32 if name == "top_k" else float) for name, c in columns}
    return {
        "z": np.asarray(z, np.float64),
        **given,
        "seed": bits[0],
        "draw": bits[1],
        "ids": np.full(n_tokens, -7, np.int32),
        "weights": np.full((n_tokens, 2), -7),
        "n_left": np.full(n_tokens, -7, np.int32),
    }


def _all_pairs(n_vocab):
    """Every kind of row under all parameters."""
    pairs = [(row, p) for row in _rows(n_vocab) for p in PARAMETERS]
    return _inputs(*zip(*pairs, strict=True), seed=n_vocab)


def _some_pairs(n_vocab, n_tokens):
    """So many of them, of many kinds."""
    rows = _rows(n_vocab)
    chosen = [(rows[(5 * t + n_vocab) % 16], PARAMETERS[(7 * t + n_vocab) % 25])
              for t in range(n_tokens)]
    return _inputs(*zip(*chosen, strict=True), seed=n_vocab)


def _drawn(z, parameters, n_draws, seed=5):
    """One row with one seed, and a row of the launch for each draw from 0."""
    args = _inputs(np.tile(np.asarray(z, np.float64), (n_draws, 1)), [parameters] * n_draws)
    args.update(seed=np.full(n_draws, seed), draw=np.arange(n_draws))
    return args


def _weight(x):
    """w(x) of the contract in Python floats."""
    x = max(x, -32.0) if x == x else -32.0
    n = round(x * 1.4426950408889634)
    r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10
    p = 1 / math.factorial(13)
    for k in range(12, -1, -1):
        p = p * r
        p = p + 1 / math.factorial(k)
    return round(p * 2.0 ** (44 + n))


def _word(seed, draw):
    s = (seed + (draw + 1) * 0x9E3779B97F4A7C15) % 2**64
    s = (s ^ s >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    s = (s ^ s >> 27) * 0x94D049BB133111EB % 2**64
    return s ^ s >> 31


def _seed_of(word):
    """The seed whose draw 0 is `word`: splitmix64 backwards."""
    def unshifted(x, n):
        y = x
        for _ in range(64 // n):
            y = x ^ y >> n
        return y

    s = unshifted(word, 31) * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    s = unshifted(s, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    return (unshifted(s, 30) - 0x9E3779B97F4A7C15) % 2**64


def _model(args, t):
    """Id, weight, total and count of row t: by the contract, one token after the other."""
    z = args["z"][t].tolist()
    temperature, top_k, top_p, log_min_p = (args[name][t].item() for name in GIVEN)
    if any(value != value or value == INF for value in z):
        return -1, 0, 0, 0
    ranked = sorted((v for v in range(len(z)) if z[v] > -INF), key=lambda v: (-z[v], v))
    if not ranked:
        return -2, 0, 0, 0
    best = z[ranked[0]]
    if not temperature > 0:
        return ranked[0], ONE, ONE, 1
    if top_k > 0:
        ranked = ranked[:top_k]
    if 0 < top_p < 1:
        weights = [_weight(z[v] - best) for v in ranked]
        need = min(math.ceil(top_p * float(sum(weights))), sum(weights))
        reached = n_kept = 0
        while reached < need:
            reached += weights[n_kept]
            n_kept += 1
        ranked = ranked[:n_kept]
    offset = log_min_p if log_min_p < 0 else 0.0
    left = sorted(v for v in ranked if z[v] >= best + offset)
    # Python refuses to divide past the largest float: numpy gives the infinity that is meant.
    with np.errstate(all="ignore"):
        weights = [_weight(float(np.float64(z[v] - best) / temperature)) for v in left]
    target = _word(args["seed"][t].item(), args["draw"][t].item()) * sum(weights) // 2**64
    reached = 0
    for v, weight in zip(left, weights, strict=True):
        reached += weight
        if reached > target:
            return v, weight, sum(weights), len(left)
    raise AssertionError("no token reached")


def _choices(got):
    """Outputs as a list of what `_model` gives."""
    columns = (got["ids"], *got["weights"].T, got["n_left"])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _same(bench, args):
    """A bench has the numbers of the reference; they are the answer."""
    got = _choices(bench.run(OP, **args))
    want = {name: array.copy() for name, array in args.items()}
    with np.errstate(all="ignore"):
        sample(**want)
    for t, (left, right) in enumerate(zip(got, _choices(want), strict=True)):
        shown = [args[name][t].item() for name in GIVEN]
        assert left == right, f"row {t}, {shown}: {left}, the reference has {right}"
    if hasattr(bench, "run_bare"):
        bench.run_bare(OP, **args)
    return got


# The reference


def test_weights_are_near_the_exponential():
    x = -np.concatenate([np.linspace(0, 33, 400), np.arange(48) * math.log(2), [5e-324, 1e-16]])
    with localcontext(prec=50):
        for value, weight in zip(x.tolist(), weigh(x).tolist(), strict=True):
            exact = Decimal(ONE) * Decimal(value).exp()
            # Half a unit of the rounding, and two of float64.
            assert abs(weight - exact) <= Decimal("0.5") + exact * Decimal(2) ** -51, value


def test_weights_are_frozen():
    # Every device must have these. The first below half a unit is near e^-31.19.
    x = [0, -0.0, -1e-17, -(2.0**-52), -0.1, -1, -10, -24.5, -31.19, -31.2, -32, -1e9, -INF, NAN]
    want = [ONE, ONE, ONE, ONE, 15918068198038, 6471803571004, 798684011, 403, 1, 0, 0, 0, 0, 0]
    assert weigh(np.array(x)).tolist() == want


def test_weights_are_those_of_one_float_after_the_other():
    rng = np.random.default_rng(2)
    # Near 0 a unit is small beside the weight, and the recipe's last terms and bits show.
    x = -np.concatenate([rng.exponential(9, 1000), rng.uniform(0, 2, 6000)])
    assert weigh(x).tolist() == [_weight(value) for value in x.tolist()]


@pytest.mark.parametrize("n_vocab", [1, 2, 3, 60])
def test_the_reference_is_the_model(bench, n_vocab):
    args = _all_pairs(n_vocab)
    got = _choices(bench.run(OP, **args))
    for t, choice in enumerate(got):
        assert choice == _model(args, t), [args[name][t] for name in PER_ROW]
    assert {-1, -2} < {choice[0] for choice in got}


def test_rows_do_not_depend_on_the_batch(bench):
    args = {name: _some_pairs(33, 11)[name] for name in PER_ROW}
    outputs = ("ids", "weights", "n_left")
    whole = _inputs(args["z"], [NEUTRAL] * 11) | args
    bench.check_rows_alone(OP, (*PER_ROW, *outputs), **whole)


def test_values_by_hand(bench):
    # Weights 4, 2, 2, 1 of 9: top-p 0.8 needs three, the ties in the order of their ids.
    z = np.log([2.0, 1, 4, 2])
    for parameters, n_left, ids in [
        (NEUTRAL, 4, {0, 1, 2, 3}),
        ((1.0, 2, 1.0, -INF), 2, {0, 2}),
        ((1.0, 0, 0.6, -INF), 2, {0, 2}),
        ((1.0, 0, 0.8, -INF), 3, {0, 2, 3}),
        ((1.0, 3, 0.74, -INF), 2, {0, 2}),
        ((1.0, 3, 0.76, -INF), 3, {0, 2, 3}),
        ((0.1, 0, 1.0, math.log(0.4)), 3, {0, 2, 3}),
        ((0.0, 0, 1.0, -INF), 1, {2}),
    ]:
        got = bench.run(OP, **_drawn(z, parameters, 300))
        assert set(got["n_left"].tolist()) == {n_left}, parameters
        assert set(got["ids"].tolist()) <= ids, parameters
        if parameters[0] == 1.0:
            assert set(got["ids"].tolist()) == ids, parameters


def test_a_sum_exactly_at_top_p_is_enough(bench):
    # Four equal weights: 2^45 of 2^46 is half of them; the next number above it needs a third.
    for top_p, n_left in [(0.5, 2), (np.nextafter(0.5, 1), 3), (0.25, 1), (2.0**-47, 1)]:
        got = bench.run(OP, **_drawn([3.0] * 4, (1.0, 0, top_p, -INF), 1))
        assert got["n_left"].tolist() == [n_left], top_p


def test_the_largest_sum_is_below_2_to_the_63(bench):
    got = bench.run(OP, **_drawn(np.zeros(MAX_VOCAB), (1.0, 0, 1 - 2.0**-53, -INF), 1))
    assert got["weights"].tolist() == [[ONE, MAX_VOCAB * ONE]]
    assert MAX_VOCAB * ONE < 2**63
    assert got["ids"][0] == _word(5, 0) * MAX_VOCAB >> 64


def test_what_does_not_fit_is_refused(bench):
    args = _drawn([0.0, 1.0], NEUTRAL, 2)
    with pytest.raises(OpError, match="a weight and a total"):
        bench.run(OP, **{**args, "weights": np.zeros((2, 3), np.int64)})
    shapes = {p.name: np.shape(args[p.name]) for p in OP.params if p.shape}
    OP.bind({**shapes, "z": (2, MAX_VOCAB)})
    with pytest.raises(OpError, match=r"V < 2\^19"):
        OP.bind({**shapes, "z": (2, MAX_VOCAB + 1)})


# The kernels


@pytest.mark.parametrize(("n_vocab", "n_tokens"), [
    (1, 8), (2, 8), (3, 8), (255, 8), (256, 8), (257, 25), (1000, 8),
])
def test_kernels(kernels, n_vocab, n_tokens):
    for bench in kernels(OP):
        _same(bench, _some_pairs(n_vocab, n_tokens))


def test_more_pairs_in_kernels(kernels):
    for bench in kernels(OP):
        # The emulator would take a minute for as many.
        n_vocab, n_tokens = (90, 10) if bench.device.name == "emulator" else (600, 400)
        _same(bench, _some_pairs(n_vocab, n_tokens))


def test_a_large_vocabulary(kernels):
    for bench in kernels(OP):
        # Past 2^16 the search for an id cuts three times.
        n_vocab = 66_000 if bench.device.name == "emulator" else 248_320
        z = 3 * np.random.default_rng(0).standard_normal((1, n_vocab))
        _same(bench, _inputs(np.round(z, 3), [(0.8, 400, 0.9, -4.0)]))
        # So many large weights that a last bit wrong in one of a thousand shows in the total.
        _same(bench, _inputs(z[:, :20_000] / 9, [NEUTRAL]))


def test_the_last_token_of_a_short_run(kernels):
    # Runs of 2 tokens; the last one is shorter, and nothing lies behind it.
    z = np.full((3, 257), -9.0)
    z[:, -1] = 100
    args = _inputs(z, [NEUTRAL, (0.0, 0, 1.0, -INF), (1.0, 1, 0.5, -INF)])
    for bench in kernels(OP):
        assert [choice[0] for choice in _same(bench, args)] == [256] * 3


EDGES = [
    ([0, 0, -1000, -1000], 0, 0), ([0, 0, -1000, -1000], 2**63 - 1, 0),
    # Exactly at the border of two tokens the next one is chosen.
    ([0, 0, -1000, -1000], 2**63, 1), ([0, 0, -1000, -1000], 2**64 - 1, 1),
    # What weighs nothing is never chosen, neither first, between, nor last.
    ([-1000, 0, -1000, 0], 0, 1), ([-1000, 0, -1000, 0], 2**63, 3),
    ([7, 7, 7, 7], 2**62, 1), ([7, 7, 7, 7], 2**62 - 1, 0), ([7, 7, 7, 7], 2**64 - 1, 3),
    ([-1000, -1000, -1000, 0], 0, 3), ([0, -1000, -1000, -1000], 2**64 - 1, 0),
]


def test_words_on_the_edges(bench, kernels):
    args = _inputs([row for row, _, _ in EDGES], [NEUTRAL] * len(EDGES))
    seeds = np.array([_seed_of(word) for _, word, _ in EDGES], np.uint64)
    assert [_word(int(seed), 0) for seed in seeds] == [word for _, word, _ in EDGES]
    args.update(seed=seeds.view(np.int64), draw=np.zeros(len(EDGES), np.int64))
    for each in (bench, *kernels(OP)):
        got = each.run(OP, **args)
        assert got["ids"].tolist() == [want for _, _, want in EDGES]
        assert got["weights"][:, 0].tolist() == [ONE] * len(EDGES)


def test_kernels_rows_alone(kernels):
    args = _some_pairs(40, 6)
    for bench in kernels(OP):
        whole = _choices(bench.run(OP, **args))
        for rows in ([4], [5, 1, 0]):
            part = {name: array[rows] for name, array in args.items()}
            got = _choices(bench.run(OP, n_guard=3, **part))
            assert got == [whole[row] for row in rows]


def test_many_draws_of_kernels(kernels):
    z = np.random.default_rng(8).standard_normal(37)
    for bench in kernels(OP):
        n_draws = 24 if bench.device.name == "emulator" else 2000
        _same(bench, _drawn(z, (1.2, 0, 1.0, -INF), n_draws, seed=-1))
