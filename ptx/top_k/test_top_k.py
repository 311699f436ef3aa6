"""Protects `top_k`: ties, infinities and NaN, keys of several blocks, zeros left behind."""

import numpy as np
import pytest

from ptx.launch_cases import launch_twice
from ptx.op import OpError
from ptx.top_k.op import OP, SORTED, work_words

INF, NAN = np.inf, np.nan
PER_TOKEN = ("logits", "values", "ids", "work")


def _inputs(logits, k):
    n_tokens, n_vocab = np.shape(logits)
    return {
        "logits": np.asarray(logits, np.float32),
        "values": np.full((n_tokens, k), NAN, np.float32),
        "ids": np.full((n_tokens, k), -7, np.int32),
        "work": np.zeros((n_tokens, work_words(n_vocab, k)), np.int64),
    }


def _same(bench, logits, k):
    """Ids and values by a sort of Python's, and zeros in work."""
    got = bench.run(OP, **_inputs(logits, k))
    assert not got["work"].any()
    for t, row in enumerate(np.asarray(logits, np.float32).tolist()):
        ids = sorted(range(len(row)), key=lambda v: (-row[v], v))[:k]
        values = [row[v] + 0.0 for v in ids]
        if any(value != value for value in row):
            ids, values = [-1] * k, [0.0] * k
        assert got["ids"][t].tolist() == ids, t
        assert got["values"][t].tobytes() == np.float32(values).tobytes(), t


def _rows(n_vocab):
    """Many ties; all equal; only infinities; both zeros; a NaN at the end; random."""
    rng = np.random.default_rng(n_vocab)
    some = rng.choice([INF, -INF], n_vocab)
    zeros = rng.choice([0.0, -0.0], n_vocab)
    corrupt = rng.standard_normal(n_vocab)
    corrupt[-1] = -NAN
    return np.array([rng.integers(0, 9, n_vocab), np.full(n_vocab, -2.5), some, zeros, corrupt,
                     30 * rng.standard_normal(n_vocab)])


def _texts(kernels):
    """Benches of the kernels whose texts differ: that of sm_90a is sm_80's, and costs as much."""
    for bench in kernels(OP):
        if bench.device.name != "emulator" or bench.device.target.name != "sm_90a":
            yield bench


@pytest.mark.parametrize(("n_vocab", "k"), [(1, 1), (7, 7), (64, 64), (300, 20), (49152, 64)])
def test_against_a_plain_sort(bench, n_vocab, k):
    _same(bench, _rows(n_vocab), k)


def test_rows_do_not_depend_on_the_batch(bench):
    bench.check_rows_alone(OP, PER_TOKEN, **_inputs(_rows(90), 5))


def test_what_does_not_fit_is_refused(bench):
    with pytest.raises(OpError, match="K from 1 to 64"):
        bench.run(OP, **_inputs(np.zeros((1, 100)), 65))
    with pytest.raises(OpError, match="no more than V"):
        bench.run(OP, **_inputs(np.zeros((1, 4)), 5))
    with pytest.raises(OpError, match="W = 1"):
        bench.run(OP, **{**_inputs(np.zeros((1, 4)), 2), "work": np.zeros((1, 2), np.int64)})


@pytest.mark.parametrize(("n_vocab", "k"), [(70, 64), (SORTED + 1, 5)])
def test_kernels(kernels, n_vocab, k):
    rows = _rows(n_vocab)[:: 2 if n_vocab > SORTED else 1]
    for bench in _texts(kernels):
        _same(bench, rows, k)


def test_one_cell_in_kernels(kernels):
    for bench in kernels(OP):
        _same(bench, [[-INF]], 1)
        bench.run_bare(OP, **_inputs([[-INF]], 1))


def test_more_keys_than_are_sorted_at_once(kernels):
    # 65 blocks of 64 keys, joined in three turns; the best lie at both ends and where turns meet.
    row = np.random.default_rng(3).standard_normal(64 * SORTED + 70)
    row[[0, 5, 32 * SORTED, 63 * SORTED + 9, 63 * SORTED, len(row) - 60, len(row) - 1]] = 9
    for bench in _texts(kernels):
        device = bench.device
        if device.target.name == "portable":
            continue
        # Once: a seed would change the order of warps only.
        args = _inputs([row], 64)
        buffers = {p.name: device.allocate(args[p.name].shape, p.dtype, p.name)
                   for p in OP.params if p.shape}
        for name, buffer in buffers.items():
            device.upload(buffer, args[name])
        device.launch(bench.alone(OP), **buffers)
        got = {name: device.download(buffer) for name, buffer in buffers.items()}
        order = np.argsort(-np.float32(row), kind="stable")[:64]
        assert got["ids"][0].tolist() == order.tolist()
        assert got["values"][0].tobytes() == np.float32(row)[order].tobytes()
        assert not got["work"].any()


def test_cells_where_turns_meet(kernels):
    # With 5 kept the second turn of the portable text ends before cell 4,091, and there is a third.
    row = np.full(2 * SORTED + 1, -1.0)
    row[[2047, 2048, 4090, 4091, 4095]] = [3, 4, 2, 5, 1]
    for bench in _texts(kernels):
        _same(bench, [row], 5)


def test_kernels_rows_alone(kernels):
    inputs = _inputs(_rows(SORTED + 9)[[0, 4, 5]], 9)
    for bench in _texts(kernels):
        whole = bench.run(OP, **inputs)
        part = {name: inputs[name][[2, 0]] for name in PER_TOKEN}
        for name, array in bench.run(OP, n_guard=3, **part).items():
            assert array.tobytes() == whole[name][[2, 0]].tobytes(), name


def test_a_launch_waits_for_the_one_before(kernels):
    args = _inputs(_rows(70)[:1], 3)
    for bench in kernels(OP):
        want = bench.run(OP, **args)
        for name, array in launch_twice(bench, OP, **args).items():
            assert array.tobytes() == want[name].tobytes(), name
