"""Protects how linear ops of few tokens are laid out: parts, jobs, rings and shared memory."""

from dataclasses import replace

import numpy as np
import pytest

from engine.bench_ops.cases import LINEARS, linear_dims, linear_name
from ptx import linear_few
from ptx.inventory import ops, targets
from ptx.linear_few import CHIPS, Chip, Form, choose
from ptx.linear_few_cases import few_inputs
from ptx.norm_linear_int4_tiles_swiglu.op import OP as SWIGLU
from ptx.norm_linear_int8_tiles_split2.op import OP as SPLIT
from ptx.op import Op, pick
from ptx.tile_int4_group128.op import OP as TILE
from ptx.weight_tiles import untile

# Two blocks, so that each has several parts of several jobs; little room, so that jobs are small.
NARROW = {
    "sm_90a": (Chip("sm_90a", "8.0", "bulk", 2, 60 << 10, 60 << 10, 2, 3, 4, n_warps=3),),
    "sm_80": (Chip("sm_80", "7.0", "cp.async", 2, 60 << 10, 60 << 10, 2, 3, 4, n_warps=3),),
}
HEAD = {"T": 1, "K": 5120, "R": 40, "I": 31040, "Q": 1040, "N": 248320}


def _narrow(op: Op, weight: str, epilogue: str) -> Op:
    """`op` with the same texts, laid out narrowly."""
    kernels = linear_few.op(op.name, weight, epilogue, True, (), NARROW).kernels
    return replace(op, kernels=kernels)


@pytest.mark.parametrize("n_tokens", [1, 6, 9])
@pytest.mark.parametrize(("op", "weight", "epilogue", "widths"), [
    (SWIGLU, "int4", "swiglu", (88,)), (SPLIT, "int8", "split2", (48, 56)),
], ids=["swiglu", "split2"])
def test_parts_and_jobs(kernels, n_tokens, op, weight, epilogue, widths):
    narrow = _narrow(op, weight, epilogue)
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
    chip, found = choose(form, CHIPS["sm_90a"], gate_up)
    # Two blocks a multiprocessor, each in one part of at most nine pairs of tiles.
    assert (chip.n_blocks, found.n_parts, found.n_subs * found.n_tiles) == (264, 1, 9)
    chip, _ = choose(form, CHIPS["sm_90a"], {**gate_up, "T": 8})
    assert chip.n_blocks == 132
    chip, _ = choose(Form("int8", "none", normed=True), CHIPS["sm_90a"], HEAD)
    assert chip.n_blocks == 132


def test_every_linear_of_the_model_has_a_layout_for_each_number_of_tokens():
    for name, epilogue, n_rows, n_k, widths, _ in LINEARS:
        for weight in ("int4", "int8"):
            op = ops()[linear_name(f"{weight}_tiles", epilogue)]
            for n_tokens in range(1, 17):
                dims = linear_dims(f"{weight}_tiles", n_rows, n_k, widths, n_tokens)
                found = pick(op, targets()["sm_90a"], dims)
                assert found.stem == "sm_90a", (name, weight, n_tokens)


@pytest.mark.parametrize("target", CHIPS)
def test_a_target_splits_k_in_one_way(target):
    # Otherwise a row's bits would depend on how many tokens there are.
    assert len({chip.n_warps for chip in CHIPS[target]}) == 1


def test_no_job_of_a_layout_is_empty():
    form = Form("int4", "none", normed=False)
    for chips in (CHIPS["sm_90a"], NARROW["sm_90a"], NARROW["sm_80"]):
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
            for chips in CHIPS.values():
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

