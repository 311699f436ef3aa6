"""Owns the proof that the encoders which run on a device write what the engine's own write.

Bit for bit, on random and edge weights; the ops run on the host device, and their own folders
hold their kernels to the same reference.
"""

import numpy as np
import pytest

from engine.artifacts.bf16 import round_to_bf16, widen_bf16
from engine.artifacts.int4_group128 import INT4
from engine.artifacts.int8_group import INT8
from engine.errors import ModelError
from ptx.devices.host import HostDevice
from ptx.encode_bf16.op import OP as ENCODE_BF16
from ptx.encode_cases import all_cases, arguments, random_weights
from ptx.encode_int4_group128.op import OP as ENCODE_INT4
from ptx.encode_int8_group.op import OP as ENCODE_INT8

FORMATS = {"int4": (ENCODE_INT4, INT4), "int8": (ENCODE_INT8, INT8)}
CASES = {name: all_cases(form.qmax) for name, (_, form) in FORMATS.items()}
EACH_CASE = [(name, case) for name in CASES for case in CASES[name]]


def encoded(op, w):
    """codes, scales and bad of an encoder of integers."""
    given = arguments(op, w)
    HostDevice().launch(op, **given)
    return given["codes"], given["scales"], given["bad"]


def engine_encoded(form, w):
    """The same from the engine, a group at a time, because it refuses a weight as a whole."""
    codes, scales, bad = [], [], np.full(len(w), -1)
    for row in range(len(w)):
        for r, group in enumerate(w[row].reshape(-1, 1, 128)):
            try:
                scale = form.scales_of(group)
                code = form.codes_of(group, scale)
            except ModelError:
                scale = np.zeros((1, 1), np.uint16)
                code = np.zeros((1, 128 // form.codes_per_byte), form.code_dtype)
                bad[row] = r if bad[row] < 0 else bad[row]
            codes.append(code)
            scales.append(scale)
    return (
        np.concatenate(codes).reshape(len(w), -1), np.concatenate(scales).reshape(len(w), -1), bad
    )


@pytest.mark.parametrize(("name", "case"), EACH_CASE)
def test_integers_are_the_engines(name, case):
    op, form = FORMATS[name]
    w = CASES[name][case]
    codes, scales, bad = encoded(op, w)
    want_codes, want_scales, want_bad = engine_encoded(form, w)
    assert codes.dtype == want_codes.dtype
    assert codes.tobytes() == want_codes.tobytes()
    assert scales.tobytes() == want_scales.tobytes()
    assert bad.tolist() == want_bad.tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_the_cases_hold_groups_of_both_kinds(name):
    bad = [(encoded(FORMATS[name][0], w)[2] >= 0).mean() for w in CASES[name].values()]
    assert bad[:5] == [0.0] * 5
    assert all(0.5 < share < 1 for share in bad[5:])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(8, 128), (1032, 256), (24, 5120)])
def test_a_whole_weight_is_the_engines(name, shape):
    op, form = FORMATS[name]
    w = random_weights(*shape)
    codes, scales, bad = encoded(op, w)
    want_codes, want_scales = form.quantise(w)
    assert codes.tobytes() == want_codes.tobytes()
    assert scales.tobytes() == want_scales.tobytes()
    assert (bad == -1).all()


@pytest.mark.parametrize(("name", "case"), EACH_CASE)
def test_what_was_decoded_encodes_to_the_same(name, case):
    """For the groups that are encoded at all; the others' scale is one that no reader takes."""
    op, form = FORMATS[name]
    w = CASES[name][case].reshape(-1, 128)
    codes, scales, bad = encoded(op, w)
    kept = bad < 0
    assert kept.any()
    assert (~kept).any() == (case in ("edges", "rows of edges"))
    again = encoded(op, form.dequantise(codes[kept], scales[kept]))
    assert again[0].tobytes() == codes[kept].tobytes()
    assert again[1].tobytes() == scales[kept].tobytes()
    assert (again[2] == -1).all()
    if not kept.all():
        with pytest.raises(ModelError, match="0x0000, which are not positive and finite"):
            form.check(codes, scales)


def test_the_vectors_of_the_format():
    w = np.zeros((9, 128), np.float32)
    w[0, :8], w[0, -1] = [1, -1, 7, -7, 0, 3, -4, 2], 7
    w[1, :8], w[1, -1] = [0.5, 1.5, 2.5, -0.5, -2.5, 6.5, -6.5, 3.49], 7
    w[2:8, -1] = [3, 1, 0.38, 0.1, 0.001, -0.0]
    w[8, :4] = [1, -1, 0.5, 1 / 14]
    codes, scales, bad = encoded(ENCODE_INT4, w)
    assert codes[0, :4].tobytes().hex(" ").upper() == "F1 97 30 2C"
    assert INT4.unpack(codes)[1, :8].tolist() == [0, 2, 2, 0, -2, 6, -6, 3]
    assert scales[:, 0].tolist() == [
        0x3F80, 0x3F80, 0x3EDB, 0x3E12, 0x3D5E, 0x3C6A, 0x3916, 0x3F80, 0x3E12
    ]
    assert INT4.unpack(codes)[2:8, -1].tolist() == [7, 7, 7, 7, 7, 0]
    assert INT4.unpack(codes)[8, :4].tolist() == [7, -7, 4, 1]
    assert (bad == -1).all()


def test_bf16_is_the_engines_but_for_the_bits_of_a_nan():
    """The engine keeps a NaN's sign and payload; the op has the one NaN of a card's own cvt."""
    rng = np.random.default_rng(0)
    upper = np.arange(0x10000, dtype=np.uint32)[:, None] << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    for bits in (upper | lower, rng.integers(0, 2**32, (100, 3000), np.uint32)):
        x = bits.view(np.float32)
        y = np.zeros(x.shape, np.uint16)
        HostDevice().launch(ENCODE_BF16, x=x, y=y)
        nan = np.isnan(x)
        assert nan.any()
        np.testing.assert_array_equal(y[~nan], round_to_bf16(x)[~nan])
        assert (y[nan] == 0x7FFF).all()
        assert np.isnan(widen_bf16(round_to_bf16(x)[nan])).all()
