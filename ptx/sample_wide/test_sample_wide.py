"""Protects `sample_wide`: it has the bits of `sample`, whatever the slices; zeros left behind."""

import math

import numpy as np
import pytest

from ptx.launch_cases import launch_twice
from ptx.op import OpError
from ptx.sample.op import MAX_VOCAB
from ptx.sample.ref import sample
from ptx.sample.test_sample import (
    EDGES,
    INF,
    NEUTRAL,
    ONE,
    PER_ROW,
    _choices,
    _inputs,
    _seed_of,
    _some_pairs,
)
from ptx.sample_wide.op import MAX_SLICES, OP, THREADS, WORK_WORDS


def _with_work(args):
    return {**args, "work": np.zeros((len(args["z"]), WORK_WORDS), np.int64)}


def _same(bench, args):
    """A bench has the numbers of `sample`, and leaves zeros; the numbers are the answer."""
    written = bench.run(OP, **_with_work(args))
    got, want = _choices(written), {name: array.copy() for name, array in args.items()}
    with np.errstate(all="ignore"):
        sample(**want)
    for t, (left, right) in enumerate(zip(got, _choices(want), strict=True)):
        assert left == right, [args[name][t] for name in PER_ROW]
    assert not written["work"].any()
    return got


def _tuned(kernels):
    """Benches of the tuned texts: that of sm_90a is sm_80's, and costs as much to emulate."""
    for bench in kernels(OP):
        target = bench.device.target.name
        if target != "portable" and (target != "sm_90a" or bench.device.name != "emulator"):
            yield bench


def test_the_reference_is_that_of_sample(bench):
    _same(bench, _some_pairs(60, 50))


def test_rows_do_not_depend_on_the_batch(bench):
    args = _with_work({name: _some_pairs(33, 11)[name] for name in PER_ROW})
    outputs = ("ids", "weights", "n_left")
    whole = _inputs(args["z"], [NEUTRAL] * 11) | args
    bench.check_rows_alone(OP, (*PER_ROW, *outputs, "work"), **whole)


def test_what_does_not_fit_is_refused(bench):
    args = _with_work(_some_pairs(5, 2))
    with pytest.raises(OpError, match="W = 2320"):
        bench.run(OP, **{**args, "work": np.zeros((2, 2319), np.int64)})
    shapes = {p.name: np.shape(args[p.name]) for p in OP.params if p.shape}
    with pytest.raises(OpError, match=r"V < 2\^19"):
        OP.bind({**shapes, "z": (2, MAX_VOCAB + 1)})


@pytest.mark.parametrize("n_tokens", [1, 3, 16])
@pytest.mark.parametrize("n_vocab", [1, 255, 65_536, 65_537, 248_320, MAX_VOCAB])
def test_slices_cover_a_row(n_vocab, n_tokens):
    dims = {"T": n_tokens, "V": n_vocab, "2": 2, "W": WORK_WORDS}
    kernel = OP.kernels[0]
    n_slices, n_rows = kernel.launch(dims).grid
    constants = kernel.constants(dims)
    assert n_rows == n_tokens
    assert n_slices == constants["n_slices"] <= MAX_SLICES
    assert 0 <= n_slices * THREADS * constants["cells"] - n_vocab < THREADS * constants["cells"]


@pytest.mark.parametrize(("n_vocab", "n_tokens"), [(1, 2), (256, 4), (257, 5), (600, 3)])
def test_kernels(kernels, n_vocab, n_tokens):
    args = _some_pairs(n_vocab, n_tokens)
    for bench in _tuned(kernels):
        _same(bench, args)


def test_each_kernel(kernels):
    args = _some_pairs(3, 5)
    for bench in kernels(OP):
        _same(bench, args)
        bench.run_bare(OP, **_with_work(args))


def test_keys_that_differ_in_every_digit(kernels):
    # Ties, and neighbours whose keys are one apart, so that a search takes all of its rounds.
    z = np.array([[1.5, np.nextafter(1.5, 2), 1.5, 1.5, np.nextafter(1.5, 0), 1.0] * 50])
    args = _inputs(np.repeat(z, 2, axis=0), [(1.0, 120, 1.0, -INF), (0.7, 150, 0.7, -0.1)])
    for bench in _tuned(kernels):
        assert _same(bench, args)[0][3] == 120


def test_several_tokens_in_a_thread(kernels):
    # Two tokens a thread, 65 slices.
    n_vocab = 33_000
    z = 3 * np.random.default_rng(0).standard_normal((1, n_vocab))
    for bench in _tuned(kernels):
        if bench.device.name == "emulator":
            args = _with_work(_inputs(np.round(z, 2), [(0.8, 400, 0.9, -4.0)]))
            device = bench.device
            buffers = {p.name: device.allocate(args[p.name].shape, p.dtype, p.name)
                       for p in OP.params if p.shape}
            for name, buffer in buffers.items():
                device.upload(buffer, args[name])
            device.launch(bench.alone(OP), **buffers)
            got = {name: device.download(buffers[name]) for name in buffers}
            with np.errstate(all="ignore"):
                sample(**{name: array for name, array in args.items() if name != "work"})
            assert _choices(got) == _choices(args)
            assert not got["work"].any()
        else:
            z = 3 * np.random.default_rng(0).standard_normal((3, 248_320))
            _same(bench, _inputs(z, [(0.8, 400, 0.9, -4.0), (0.8, 0, 0.95, -INF), NEUTRAL]))


def test_many_rows_take_longer_slices(kernels, monkeypatch):
    monkeypatch.setattr("ptx.sample_wide.op.AT_ONCE", 6)
    args = _some_pairs(1000, 3)
    assert OP.kernels[0].launch({"T": 3, "V": 1000}).grid == (2, 3)
    for bench in _tuned(kernels):
        _same(bench, args)


def test_words_on_the_edges(bench, kernels):
    # Cells of a row in slices of their own.
    wide = np.full((len(EDGES), 3 * THREADS + 1), -1000.0)
    columns = THREADS * np.arange(4)
    wide[:, columns] = [row for row, _, _ in EDGES]
    args = _inputs(wide, [NEUTRAL] * len(EDGES))
    seeds = np.array([_seed_of(word) for _, word, _ in EDGES], np.uint64)
    args.update(seed=seeds.view(np.int64), draw=np.zeros(len(EDGES), np.int64))
    for each in (bench, *_tuned(kernels)):
        got = _same(each, args)
        assert [choice[0] for choice in got] == [columns[want] for _, _, want in EDGES]
        assert {choice[1] for choice in got} == {ONE}


def test_kernels_rows_alone(kernels):
    args = _with_work(_some_pairs(300, 4))
    for bench in _tuned(kernels):
        whole = _choices(bench.run(OP, **args))
        for rows in ([3], [2, 0]):
            part = {name: array[rows] for name, array in args.items()}
            assert _choices(bench.run(OP, n_guard=3, **part)) == [whole[row] for row in rows]


def test_draws_by_hand(kernels):
    # Weights 4, 2, 2, 1 of 9 in four slices: top-p 0.8 needs three, the ties in order of their ids.
    z = np.full((3, 3 * THREADS + 1), -INF)
    z[:, THREADS * np.arange(4)] = np.log([2.0, 1, 4, 2])
    args = _inputs(z, [(1.0, 2, 1.0, -INF), (1.0, 0, 0.8, -INF), (0.1, 0, 1.0, math.log(0.4))])
    for bench in _tuned(kernels):
        assert [choice[3] for choice in _same(bench, args)] == [2, 3, 3]


def test_a_launch_waits_for_the_one_before(kernels):
    args = _with_work(_some_pairs(3, 1))
    for bench in kernels(OP):
        want = bench.run(OP, **args)
        for name, array in launch_twice(bench, OP, **args).items():
            assert array.tobytes() == want[name].tobytes(), name
