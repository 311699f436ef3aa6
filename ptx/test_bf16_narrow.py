"""Protects the kernel of normed bf16 linears of few rows: shares of blocks, bits, the pick."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from engine.bench_ops.case import kernels_of
from engine.bench_ops.cases import LINEARS, linear_dims, linear_name
from ptx.assemble import archs_of, assemble_all, find_ptxas
from ptx.bf16_few_cases import check_rows, few_inputs
from ptx.bf16_narrow_kernel import CHIPS, MAX_ROWS, narrow_kernels, share
from ptx.inventory import ops, targets
from ptx.linear_xbf16_bf16_add.op import OP as ADD
from ptx.norm_linear_bf16_split2.op import OP
from ptx.numerics import round_to_bf16
from ptx.op import Op, pick
from ptx.template import text_of

AB = {"N": 96, "A": 48, "B": 48, "K": 5120}


def _of_few_blocks(n_blocks: int) -> Op:
    """The op with the narrow kernels alone, of so many blocks: each has more rows and tokens."""
    chips = {name: replace(chip, n_blocks=n_blocks) for name, chip in CHIPS.items()}
    return replace(OP, kernels=narrow_kernels(OP.name, "split2", chips))


# Blocks; T, widths, K; rows and tokens of a block. K of less than a four for each thread, of one,
# of a few fours more, of two and a part, of four and a part; rows and tokens that do and do not
# fill the last block; sums that are and are not a power of two; outputs that part within a block.
SHAPES = [
    (132, (1, (9, 5), 40), (1, 1)),
    (132, (2, (1, 1), 1024), (1, 1)),
    (132, (16, (48, 48), 8), (6, 2)),
    (3, (1, (9, 5), 1032), (5, 1)),
    (4, (4, (3, 8), 1028 * 4 + 8), (6, 2)),
    (4, (5, (2, 5), 1024), (4, 3)),
    (4, (16, (1, 1), 2056), (2, 4)),
    (2, (7, (5, 2), 72), (7, 4)),
    (1, (3, (4, 5), 264), (9, 3)),
]


@pytest.mark.parametrize(("n_blocks", "shape", "want"), SHAPES, ids=str)
def test_shares_and_their_ends(kernels, n_blocks, shape, want):
    op, inputs = _of_few_blocks(n_blocks), few_inputs(OP, *shape)
    n_tokens, widths, n_in = shape
    for kernel in op.kernels:
        dims = {"T": n_tokens, "A": widths[0], "B": widths[1], "K": n_in}
        constants = kernel.constants(dims)
        assert (constants["rows"], constants["tokens"]) == want
    found = list(kernels(op, **inputs))
    assert found
    for bench in found:
        bench.check(op, **inputs)


def test_a_token_feels_neither_the_others_nor_how_they_are_dealt_out(kernels):
    inputs = few_inputs(OP, 16, (5, 3), 1160)
    answers = []
    for n_blocks in (132, 24, 6):
        op = _of_few_blocks(n_blocks)
        for bench in kernels(op, **inputs):
            check_rows(bench, op, inputs)
            answers.append(bench.run(op, **inputs))
    for other in answers[1:]:
        for name, array in answers[0].items():
            assert array.tobytes() == other[name].tobytes(), name


def test_whole_numbers_are_exact(kernels):
    # Of whole squares with a mean of 4, so that the scale is one half but for eps.
    inputs = few_inputs(OP, 5, (4, 7), 2056, whole=True)
    inputs |= {"x": np.where(inputs["x"] < 0, -2.0, 2.0), "gain": np.zeros(2056), "eps": 1e-30}
    want = inputs["x"] @ (inputs["w"].astype(np.uint32) << 16).view(np.float32).T / 2
    for bench in kernels(_of_few_blocks(7), **inputs):
        got = bench.run(_of_few_blocks(7), **inputs)
        assert np.concatenate([got["y0"], got["y1"]], 1).tobytes() == want.astype("f4").tobytes()


def test_a_launch_that_begins_early_waits_for_x(kernels):
    # On a device with programmatic launches the emulator refuses what is read before it is written.
    rng = np.random.default_rng(3)
    inputs = few_inputs(OP, 3, (4, 3), 64)
    x, out = (round_to_bf16(rng.standard_normal(shape)) for shape in ((3, 32), (64, 32)))
    cells = {**inputs, "z": x, "out": out}
    for bench in kernels(_of_few_blocks(4), **inputs):
        on = {}
        for name, array in cells.items():
            if np.ndim(array):
                dtype = "bf16" if array.dtype == np.uint16 else "f32"
                on[name] = bench.device.allocate(array.shape, dtype, name)
                bench.device.upload(on[name], array.astype("u2" if dtype == "bf16" else "f4"))
        bench.device.launch(ADD, x=on["z"], w=on["out"], h=on["x"])
        bench.device.launch(
            bench.alone(_of_few_blocks(4)), eps=1e-5, offset=1.0,
            **{name: on[name] for name in ("x", "gain", "w", "y0", "y1")},
        )
        got = [bench.device.download(on[name]) for name in ("y0", "y1")]
        h = inputs["x"].astype(np.float32)
        import_module("ptx.linear_xbf16_bf16_add.ref").linear_xbf16_bf16_add(x, out, h)
        want = {"y0": np.zeros((3, 4)), "y1": np.zeros((3, 3))}
        import_module(f"ptx.{OP.name}.ref").norm_linear_bf16_split2(
            h, inputs["gain"].astype("f4"), inputs["w"], **want, eps=1e-5, offset=1.0
        )
        for one, other in zip(got, want.values(), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-2, atol=2e-2)


# Which kernel, and what it takes


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_the_gates_take_it_at_every_number_of_tokens_it_has(target):
    known = targets()[target]
    for n_tokens in range(1, 17):
        dims = {"T": n_tokens, **AB}
        assert pick(OP, known, dims).stem == f"{target}_narrow"
        if target == "sm_90a":
            # Both are timed beside each other.
            stems = [kernel.stem for kernel in kernels_of(OP, known.runs, dims)]
            assert stems[0] == "sm_90a_narrow"
            assert "sm_90a" in stems
    assert pick(OP, known, {"T": 17, **AB}).stem == "portable"
    wide = {"T": 1, "N": MAX_ROWS + 1, "A": MAX_ROWS, "B": 1, "K": 5120}
    assert pick(OP, known, wide).stem == target


def test_long_matrices_of_the_model_keep_the_general_kernel():
    for name, epilogue, n_rows, n_k, widths, _ in LINEARS:
        op = ops()[linear_name("bf16", epilogue)]
        for n_tokens in range(1, 17):
            dims = linear_dims("bf16", n_rows, n_k, widths, n_tokens)
            stem = pick(op, targets()["sm_90a"], dims).stem
            assert stem in ("sm_90a", "sm_90a_few"), (name, n_tokens)


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_the_gates_spill_at_no_number_of_tokens():
    # Those of the benchmark are assembled by tests/cpu/test_assemble.py, but not what they take.
    jobs = {
        (text_of(OP, kernel, {"T": n_tokens, **AB}), arch): (kernel.stem, n_tokens, arch)
        for kernel in OP.kernels if kernel.form == "narrow"
        for n_tokens in range(1, 17)
        for arch in archs_of(targets()[kernel.target])
        if arch in ("sm_80", "sm_90a")
    }
    for name, report in zip(jobs.values(), assemble_all(list(jobs)), strict=True):
        assert report.clean, (name, report)
        # Half of a multiprocessor's for 256 threads: such a block has room beside the launch ahead.
        assert report.registers <= 128, (name, report)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_every_block_has_a_multiprocessor_and_every_cell_a_block(chip):
    for n_rows in range(1, MAX_ROWS + 1):
        for n_tokens in range(1, 17):
            for n_in in (64, 5120):
                one = share(chip, n_rows, n_tokens, n_in)
                if one is not None:
                    runs, groups = -(-n_rows // one.rows), -(-n_tokens // one.tokens)
                    assert runs * groups <= chip.n_blocks
                    assert one.n_sums <= 32


def test_what_a_block_has_no_room_for_is_left_to_others():
    assert share(CHIPS["sm_90a"], 96, 16, 16384) is None
    assert share(CHIPS["sm_90a"], MAX_ROWS, 16, 5120) is None
    # Eight tokens of 10,240 are 320 KB of shared memory, and nothing else is there to deal out.
    assert share(replace(CHIPS["sm_90a"], n_blocks=2), 1, 16, 10240) is None
