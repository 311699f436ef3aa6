"""Protects `ptx.bench`: what it feeds every op lies in the op's domain, and its bytes are right."""

import numpy as np
import pytest

from ptx.bench import IN_PART, SCALARS, VALUES, buffers_for, bytes_of, main
from ptx.bench_cells import fill_random, int4_tiles, int8_tiles, repeat
from ptx.devices import cuda
from ptx.devices.emulator import EmulatorDevice
from ptx.inventory import ops
from ptx.numerics import unpack_int4, widen_bf16

OPS = ops()
# Small dims for axes of real use, such that every op's requirements hold.
SMALL = {
    "T": 2, "S": 2, "D": 8, "H": 4, "G": 2, "E": 8, "2E": 16, "C": 32, "P": 2, "V": 64, "W": 2,
    "W-1": 1, "S+1": 3, "N": 8, "K": 128, "J": 64, "R": 1, "F": 4, "Nv": 2, "Dv": 4, "Dk": 6,
    "B": 16, "I": 4, "Q": 2, "A": 3, "Z": 3,
}
OWN = {
    "attention": {"W": 16}, "qgate_norm_rope_append_kv": {"J": 2}, "rope_append_kv": {"J": 4},
    "adjust_logits": {"B": 3}, "delta_rule": {"P": 4}, "delta_rule_chunked": {"P": 4},
    "causal_conv_silu": {"P": 4}, "repack_tiles": {"J": 8, "P": 2},
    "unpack_tiles": {"J": 8, "P": 2},
    "copy_rows": {"N": 2}, "copy_rows_bf16": {"N": 2}, "encode_bf16": {"K": 5},
    "qgate_norm_rope_append_pages": {"J": 2}, "rope_append_pages": {"J": 4},
    "linear_xbf16_bf16_swiglu": {"N": 16, "F": 8}, "encode_nvfp4": {"R": 8},
    "norm_linear_bf16_split2": {"A": 3, "B": 5},
    "linear_nvfp4": {"R": 8, "I": 1, "P": 2, "Q": 512},
    "pack_nvfp4_scales": {"R": 4, "I": 1, "P": 1, "Q": 512},
    "sample_wide": {"W": 2320}, "token_signal_wide": {"W": 5}, "top_k": {"K": 8, "W": 9},
    "tile_int4_group128": {"I": 1, "Q": 528}, "untile_int4_group128": {"I": 1, "Q": 528},
    "tile_int8_group": {"I": 1, "Q": 1040}, "untile_int8_group": {"I": 1, "Q": 1040},
}
TILE_BYTES = {"int4_tiles": 528, "int8_tiles": 1040}
SPLITS = {"split3": {"A": 3, "B": 3, "C": 2}, "split4": {"A": 3, "B": 2, "C": 2, "D": 1}}


def small(op):
    axes = [axis for p in op.params for axis in p.shape or ()]
    dims = {axis: int(axis) if axis.isdigit() else SMALL[axis] for axis in axes}
    dims.update(OWN.get(op.name, {}))
    for ending, widths in SPLITS.items():
        if op.name.endswith(ending):
            dims.update(widths)
    for word, n_bytes in TILE_BYTES.items():
        if word in op.name:
            # A tile for each output, two for gate and up.
            widths = dict.fromkeys(axis for axis in ("N", "F", "A", "B", "C") if axis in dims)
            dims.update({**dict.fromkeys(widths, 8), "Q": n_bytes, "R": 1})
            dims["I"] = 2 if "F" in widths else len(widths)
    return dims


@pytest.mark.parametrize("name", OPS)
def test_every_op_runs_on_what_it_is_given(name):
    op, device = OPS[name], EmulatorDevice()
    dims = small(op)
    args = buffers_for(device, op, dims)
    device.launch(op, **args)
    buffers = [value for value in args.values() if hasattr(value, "nbytes")]
    assert bytes_of(op, dims) == sum(buffer.nbytes for buffer in buffers)


def test_tiles_hold_codes_and_positive_scales():
    rng = np.random.default_rng(0)
    tiles = int4_tiles(3, rng)
    codes = unpack_int4(tiles[:, :512])
    assert tiles.shape == (3, 528)
    assert set(codes.ravel().tolist()) == set(range(-7, 8)) - {0}
    scales = widen_bf16(np.ascontiguousarray(tiles[:, 512:]).view("<u2"))
    assert scales.shape == (3, 8)
    assert ((scales > 0) & (scales < 1)).all()
    tiles = int8_tiles(3, rng)
    assert tiles.shape == (3, 1040)
    assert tiles[:, :1024].view(np.int8).min() == -127
    assert (widen_bf16(np.ascontiguousarray(tiles[:, 1024:]).view("<u2")) > 0).all()


def test_large_buffers_repeat_their_first_rows():
    device = EmulatorDevice()
    buffer = device.allocate((7, 2), "i32", "x")
    repeat(device, buffer, np.array([[1, 2], [3, 4], [5, 6]]))
    assert device.download(buffer)[:, 0].tolist() == [1, 3, 5, 1, 3, 5, 1]
    for shape, dtype in (((5, 528), "u8"), ((3, 1 << 20), "u8"), ((2, 0), "f32")):
        fill_random(device, device.allocate(shape, dtype, "x"), np.random.default_rng(0))
    scales = device.allocate((9, 3), "bf16", "scales")
    fill_random(device, scales, np.random.default_rng(0), positive=True)
    assert (widen_bf16(device.download(scales)) > 0).all()


def test_values_of_a_case_go_before_the_common_ones():
    device, op = EmulatorDevice(), OPS["embedding"]
    args = buffers_for(device, op, small(op), values={"ids": lambda shape, dims: 5})
    assert device.download(args["ids"]).tolist() == [5, 5]


def test_tables_name_what_there_is():
    names = {p.name for op in OPS.values() for p in op.params}
    assert set(VALUES) <= names
    assert set(SCALARS) <= names
    assert set(OPS) >= IN_PART


def test_without_a_card_it_says_so(capsys):
    if not isinstance(cuda.available(), str):
        pytest.skip("there is a card")
    assert main([]) == 1
    assert "no card" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), [
    (["nothing"], "no op 'nothing'; known: add_rmsnorm, "),
    (["argmax", "--dims", "T=1"], "argmax: --dims needs T, V, found T=1"),
    (["argmax", "--dims", "T=one"], "invalid axis_lengths value: 'T=one'"),
])
def test_what_cannot_be_measured_is_named(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
