"""Protects how linear ops of few tokens are laid out: parts, jobs, rings and shared memory."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from engine.bench_ops.case import kernels_of
from engine.bench_ops.cases import LINEARS, linear_dims, linear_name
from ptx import linear_few
from ptx.assemble import assemble_all, find_ptxas, resident_warps
from ptx.inventory import ops, targets
from ptx.linear_few import LAYOUTS, SHARES, Chip, Form, choose
from ptx.linear_few_cases import epilogue_of, few_inputs, weight_of
from ptx.linear_xbf16_int4_tiles_add.op import OP as ADD
from ptx.linear_xbf16_int8_tiles_add.op import OP as ADD_8
from ptx.norm_linear_int4_tiles_swiglu.op import OP as SWIGLU
from ptx.norm_linear_int8_tiles_split2.op import OP as SPLIT
from ptx.op import Dims, Kernel, Op, pick
from ptx.template import text_of
from ptx.tile_int4_group128.op import OP as TILE
from ptx.weight_tiles import untile

# Two blocks, so that each has several parts of several jobs; little room, so that jobs are small.
# Jobs of up to three steps where two warps share a ring, so that either has one and one may not.
NARROW = {
    "sm_90a": (Chip("sm_90a", "8.0", "bulk", 2, 60 << 10, 60 << 10, 2, 3, 4, n_warps=3),),
    SHARES: (Chip("sm_90a", "8.0", "bulk", 2, 99 << 10, 99 << 10, 6, 3, 4, n_warps=3, n_shares=2),),
    "sm_80": (Chip("sm_80", "7.0", "cp.async", 2, 60 << 10, 60 << 10, 2, 3, 4, n_warps=3),),
}
HEAD = {"T": 1, "K": 5120, "R": 40, "I": 31040, "Q": 1040, "N": 248320}


def _laid_out(op: Op, chips: Mapping[str, tuple[Chip, ...]] = NARROW) -> Op:
    """`op` with the same texts in other layouts."""
    normed = op.name.startswith("norm_")
    made = linear_few.op(op.name, weight_of(op), epilogue_of(op), normed, (), chips)
    return replace(op, kernels=made.kernels)


@pytest.mark.parametrize("n_tokens", [1, 6, 9])
@pytest.mark.parametrize(("op", "widths"), [
    (SWIGLU, (88,)), (SPLIT, (48, 56)),
], ids=["swiglu", "split2"])
def test_parts_and_jobs(kernels, n_tokens, op, widths):
    narrow = _laid_out(op)
    inputs = few_inputs(op, n_tokens, widths, 7)
    for bench in kernels(narrow, **inputs):
        bench.check(narrow, **inputs)


def test_narrow_layouts_are_what_they_are_for():
    form = Form("int4", "swiglu", normed=True)
    _, found = choose(form, NARROW["sm_90a"], {"T": 1, "K": 896, "R": 7, "I": 22})
    assert (found.n_blocks, found.n_parts, found.n_subs, found.n_tiles) == (2, 2, 2, 2)


def test_layouts_of_the_model():
    form = Form("int4", "swiglu", normed=True)
    gate_up = {"T": 1, "K": 5120, "R": 40, "I": 4352}
    chip, found = choose(form, LAYOUTS["sm_90a"], gate_up)
    # Two blocks a multiprocessor, each in one part of at most nine pairs of tiles.
    assert (chip.n_blocks, found.n_parts, found.n_subs * found.n_tiles) == (264, 1, 9)
    chip, _ = choose(form, LAYOUTS["sm_90a"], {**gate_up, "T": 8})
    assert chip.n_blocks == 132
    chip, _ = choose(Form("int8", "none", normed=True), LAYOUTS["sm_90a"], HEAD)
    assert chip.n_blocks == 132


def test_every_linear_of_the_model_has_a_layout_for_each_number_of_tokens():
    for name, epilogue, n_rows, n_k, widths, _ in LINEARS:
        for weight in ("int4", "int8"):
            op = ops()[linear_name(f"{weight}_tiles", epilogue)]
            for n_tokens in range(1, 17):
                dims = linear_dims(f"{weight}_tiles", n_rows, n_k, widths, n_tokens)
                found = pick(op, targets()["sm_90a"], dims)
                assert found.target == "sm_90a", (name, weight, n_tokens)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_a_target_splits_k_in_one_way(arch):
    # Otherwise a row's bits would depend on how many tokens there are.
    chips = [chip for layouts in LAYOUTS.values() for chip in layouts if chip.arch == arch]
    assert len({chip.n_warps for chip in chips}) == 1


# Two warps to a ring

# The same, of an x that lies in memory: of each two groups of a ring either warp makes digits.
WINDOWED = {**NARROW, SHARES: tuple(
    replace(chip, max_tiles=4, max_steps=2, staged_bytes=0) for chip in NARROW[SHARES]
)}


def _in_both_layouts(op: Op) -> Op:
    return replace(op, kernels=tuple(k for k in op.kernels if k.target == "sm_90a"))


def _assert_same_bits(kernels, op, inputs):
    found = [bench.run(op, **inputs) for bench in kernels(op, **inputs)]
    assert len(found) in (0, 2)
    for name in found[0] if found else ():
        one, other = (outputs[name] for outputs in found)
        assert one.tobytes() == other.tobytes(), name


@pytest.mark.parametrize(("op", "widths", "n_tokens"), [
    (SWIGLU, (88,), 8), (SPLIT, (48, 56), 3), (ADD, (104,), 13),
], ids=["swiglu", "split2", "add"])
def test_two_warps_to_a_ring_leave_the_bits(kernels, op, widths, n_tokens):
    narrow = _in_both_layouts(_laid_out(op))
    _assert_same_bits(kernels, narrow, few_inputs(op, n_tokens, widths, 7))


# Rings of one to three groups, so that a second of two is not there; of two parts, or of one.
@pytest.mark.parametrize(("op", "n_tokens", "n_tiles", "n_groups", "n_parts"), [
    (ADD, 7, 9, 7, 2), (ADD, 16, 7, 5, 1), (ADD_8, 11, 9, 4, 2), (ADD, 3, 7, 2, 1),
], ids=["7 groups", "5 groups", "int8", "2 groups"])
def test_digits_that_two_warps_make_in_turn_leave_the_bits(
    kernels, op, n_tokens, n_tiles, n_groups, n_parts
):
    dims = {"T": n_tokens, "K": 128 * n_groups, "R": n_groups, "I": n_tiles}
    _, found = choose(Form(weight_of(op), "add", normed=False), WINDOWED[SHARES], dims)
    assert (found.staged, found.n_parts) == (False, n_parts)
    narrow = _in_both_layouts(_laid_out(op, WINDOWED))
    inputs = few_inputs(op, n_tokens, (8 * n_tiles,), n_groups)
    _assert_same_bits(kernels, narrow, inputs)
    for bench in kernels(narrow, **inputs):
        bench.run_bare(narrow, **inputs)


@pytest.mark.parametrize("kernels", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize(("op", "n_rows", "n_groups", "n_tokens"), [
    *((SWIGLU, 8 * 1195, 40, n_tokens) for n_tokens in (1, 2, 8, 11, 16)),
    *((ADD, 5120, 48, n_tokens) for n_tokens in (4, 8, 16)),
], ids=[*(f"swiglu {n}" for n in (1, 2, 8, 11, 16)), *(f"add {n}" for n in (4, 8, 16))])
def test_two_warps_to_a_ring_leave_the_bits_of_long_rows(kernels, op, n_rows, n_groups, n_tokens):
    # All blocks of the card, 9 or 10 pairs of tiles each: rings go round, parts follow each other.
    list(kernels(op))  # Skips before there are inputs to make.
    inputs = few_inputs(op, n_tokens, (n_rows,), n_groups)
    _assert_same_bits(kernels, _in_both_layouts(_laid_out(op, LAYOUTS)), inputs)


def _shared(n_tokens: tuple[int, ...]) -> Iterator[tuple[str, Op, Dims]]:
    """The model's linears at these numbers of tokens, where two warps to a ring can serve them."""
    for name, epilogue, n_rows, n_k, widths, _ in LINEARS:
        for weight in ("int4_tiles", "int8_tiles"):
            op = _laid_out(ops()[linear_name(weight, epilogue)], LAYOUTS)
            for count in n_tokens:
                dims = linear_dims(weight, n_rows, n_k, widths, count)
                if _shares_of(op).fits(dims):
                    yield f"{weight} {name}", op, dims


def _shares_of(op: Op) -> Kernel:
    return next(kernel for kernel in op.kernels if kernel.stem == SHARES)


def test_which_linears_two_warps_to_a_ring_serve():
    found = {(name, dims["T"]) for name, _, dims in _shared(tuple(range(1, 17)))}
    every = {(f"{w}_tiles {name}", t) for w in ("int4", "int8") for name, *_ in LINEARS
             for t in range(1, 17)}
    # Beside digits of 16 tokens there is room for one pair of int8 tiles, which is one step.
    assert every - found == {("int8_tiles gate/up", 16)}


# The model's int4 linears, and tokens at which launches take two warps to a ring: as measured.
FASTER = {
    "gate/up": range(8, 13), "gdn in": range(4, 13), "attention in": range(8, 13),
}


def test_launches_take_two_warps_to_a_ring_where_a_card_had_them_faster():
    runs = targets()["sm_90a"].runs
    for name, epilogue, n_rows, n_k, widths, _ in LINEARS:
        for weight in ("int4_tiles", "int8_tiles"):
            op = ops()[linear_name(weight, epilogue)]
            for n_tokens in range(1, 17):
                dims = linear_dims(weight, n_rows, n_k, widths, n_tokens)
                shared = weight == "int4_tiles" and n_tokens in FASTER.get(name, ())
                best = [SHARES, "sm_90a"] if shared else ["sm_90a", SHARES]
                if (weight, name, n_tokens) == ("int8_tiles", "gate/up", 16):
                    best.remove(SHARES)
                assert pick(op, targets()["sm_90a"], dims).stem == best[0], (name, dims)
                # Both are timed beside each other, whichever launches take.
                stems = [kernel.stem for kernel in kernels_of(op, runs, dims)]
                assert stems[:len(best)] == best, (name, dims)


def test_a_bf16_x_of_up_to_four_tokens_is_staged():
    form = Form("int4", "add", normed=False)
    for n_groups in (48, 136):
        for n_tokens in range(1, 17):
            dims = {"T": n_tokens, "K": 128 * n_groups, "R": n_groups, "I": 640}
            chip, found = choose(form, LAYOUTS["sm_90a"], dims)
            assert found.staged == (n_tokens <= 4)
            # A block alone on its multiprocessor only where x has no room beside another.
            alone = found.staged and 2 * n_tokens * 128 * n_groups > 40 << 10
            assert (chip.n_resident == 1) == alone


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_two_warps_to_a_ring_spill_at_no_number_of_tokens():
    # Those of the benchmark are assembled by tests/cpu/test_assemble.py.
    cases = list(_shared((9, 11, 13, 15)))
    jobs = [(text_of(op, _shares_of(op), dims), "sm_90a") for _, op, dims in cases]
    for (name, op, dims), report in zip(cases, assemble_all(jobs), strict=True):
        launch = _shares_of(op).launch(dims)
        assert report.clean, (name, dims, report)
        warps = resident_warps(report, launch.block, launch.shared_bytes, "sm_90a")
        assert warps == launch.block / 2048, (name, dims, report)


# Geometry


def test_no_job_of_a_layout_is_empty():
    form = Form("int4", "none", normed=False)
    for chips in (LAYOUTS["sm_90a"], LAYOUTS[SHARES], *NARROW.values()):
        for n_tiles in range(1, 1500):
            dims = {"T": 1, "R": 2, "K": 256, "I": n_tiles}
            _, found = choose(form, chips, dims)
            shortest = n_tiles // found.n_blocks
            assert shortest // found.n_parts // found.n_subs >= 1, (n_tiles, found)
            longest = -(-n_tiles // found.n_blocks)
            assert longest <= found.n_parts * found.n_subs * found.n_tiles, (n_tiles, found)


def test_no_layout_passes_the_shared_memory_of_its_chip():
    for epilogue in linear_few.OUTPUTS:
        for weight in ("int4", "int8"):
            form = Form(weight, epilogue, normed=epilogue != "add")
            for chips in LAYOUTS.values():
                for n_tokens in range(1, 17):
                    for n_groups in (1, 40, 136):
                        dims = {"T": n_tokens, "R": n_groups, "K": 128 * n_groups, "I": 4352}
                        found = choose(form, chips, dims)
                        if found:
                            chip, placed = found
                            assert placed.shared_bytes <= chip.shared_bytes
                            assert placed.n_stages >= 2


def test_tiles_of_a_device_are_those_of_the_reference(bench):
    inputs = few_inputs(SWIGLU, 1, (16,), 2)
    codes, scales = untile("int4", inputs["w"])
    w = bench.run(TILE, codes=codes, scales=scales, w=np.zeros_like(inputs["w"]))["w"]
    assert w.tobytes() == inputs["w"].tobytes()

