"""Protects `norm_linear_bf16`: the product, every edge of its kernels, walks, rows alone."""

import pytest

from ptx.bf16_few_cases import SHAPES, WALKS, check_rows, few_blocks, few_inputs, refused, tuned
from ptx.bf16_few_kernel import CHIPS, Form, geometry
from ptx.norm_linear_bf16.op import OP
from ptx.op import OpError


@pytest.mark.parametrize("shape", SHAPES["none"], ids=str)
def test_against_float64(bench, shape):
    bench.check(OP, **few_inputs(OP, *shape))


@pytest.mark.parametrize("shape", SHAPES["none"], ids=str)
def test_kernels(kernels, shape):
    inputs = few_inputs(OP, *shape)
    for bench in kernels(OP, **inputs):
        bench.check(OP, **inputs)


@pytest.mark.parametrize("shape", WALKS["none"], ids=str)
def test_few_blocks_walk_through_parts(kernels, shape):
    op = few_blocks(OP)
    inputs = few_inputs(op, *shape)
    for bench in tuned(kernels, op, inputs):
        bench.check(op, **inputs)


def test_parts_are_multiplied_no_sooner_than_there_is_room_for_their_sums(kernels):
    """One block, whose ring holds several parts, and so many tokens that adding up takes longer."""
    op = few_blocks(OP, n_blocks=1, max_stages=6, max_tiles=1)
    inputs = few_inputs(op, 16, (112,), 32)
    for bench in tuned(kernels, op, inputs):
        bench.check(op, **inputs)


def test_tokens_do_not_feel_the_others(bench, kernels):
    inputs = few_inputs(OP, 16, (8,), 288)
    for one in (bench, *kernels(OP, **inputs)):
        check_rows(one, OP, inputs)


@pytest.mark.parametrize("epilogue", ["none", "swiglu"])
@pytest.mark.parametrize("normed", [False, True])
def test_real_shapes_fit_a_card_and_cut_k_alike_for_all_tokens(epilogue, normed):
    form, chip = Form(epilogue, normed), CHIPS["sm_90a"]
    width = "F" if epilogue == "swiglu" else "N"
    for units, n_in in ((1, 5120), (96, 5120), (5120, 6144), (5120, 17408), (248320, 5120)):
        cuts = set()
        for n_tokens in range(1, 17):
            found = geometry(form, chip, {"T": n_tokens, width: units, "K": n_in})
            if normed and n_in > 5120:
                # Of many tokens there is no room for x.
                assert found is None or n_tokens < 15
                continue
            assert found.shared_bytes <= (chip.wanted_bytes if found.n_resident == 2
                                          else chip.shared_bytes)
            cuts.add((found.n_steps, found.n_chunks, found.chunk_steps, found.n_warps))
            # Every tile of every block has a row, and no more than its slot has room for.
            n_tiles = found.n_parts * found.n_tiles
            for count in {units // found.n_blocks, -(-units // found.n_blocks)}:
                rows = {count * (q + 1) // n_tiles - count * q // n_tiles for q in range(n_tiles)}
                assert 1 <= min(rows) <= max(rows) <= form.tile_units
                assert max(rows) * (16 // form.tile_units) <= found.slot_rows
        assert len(cuts) <= 1


@pytest.mark.parametrize("sentence", OP.requires)
def test_shapes_that_do_not_belong_together_are_refused(bench, sentence):
    with pytest.raises(OpError, match="norm_linear_bf16: needs "):
        bench.run(OP, **refused(OP, sentence))
