"""Owns the proof that numbers become the data of a weight, and come back, as each dtype says."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from engine.artifacts.bf16 import round_to_bf16, widen_bf16
from engine.artifacts.int4_group128 import INT4
from engine.artifacts.int8_group import INT8
from engine.artifacts.weight_codecs import decode_rows, encode_rows
from engine.errors import InvalidArgument, ModelError

Block = npt.NDArray[np.generic]


def bits_of(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return x.view(np.uint32)


def data(dtype: str, shape: tuple[int, ...], blocks: list[Block]) -> npt.NDArray[np.uint8]:
    pieces = [piece.tobytes() for piece in encode_rows(dtype, shape, blocks, "w")]
    return np.frombuffer(b"".join(pieces), np.uint8)


def test_every_bf16_widens_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(4, -1)
    wide = widen_bf16(bits)
    assert wide.shape == bits.shape
    np.testing.assert_array_equal(bits_of(wide), bits.astype(np.uint32) << 16)
    kept = ~np.isnan(wide)
    np.testing.assert_array_equal(round_to_bf16(wide)[kept], bits[kept])


@pytest.mark.parametrize("low", [0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_rounding_takes_the_nearest_and_the_even_one_of_two(low: int) -> None:
    """Against both neighbours in float64, for every upper half."""
    upper = np.arange(1 << 16, dtype=np.uint32)
    x = (upper << 16 | np.uint32(low)).view(np.float32)
    got = round_to_bf16(x)
    finite = np.isfinite(x)
    # Truncation is the neighbour toward zero; the other one may be the power that overflows.
    near = (upper[finite] << 16).view(np.float32).astype(np.float64)
    exponent = np.where(near == 0, -125, np.maximum(np.frexp(near)[1], -125))
    far = near + np.copysign(np.ldexp(1.0, exponent - 8), x[finite])
    value = x[finite].astype(np.float64)
    to_near, to_far = np.abs(value - near), np.abs(far - value)
    is_even = upper[finite] % 2 == 0
    takes_near = (to_near < to_far) | ((to_near == to_far) & is_even)
    np.testing.assert_array_equal(got[finite], upper[finite] + ~takes_near)
    nan = np.isnan(x)
    assert nan.any()
    assert np.isnan(widen_bf16(got[nan])).all()
    np.testing.assert_array_equal(got[nan] >> 15, upper[nan] >> 15)


def test_infinity_and_overflow() -> None:
    x = np.array([np.inf, -np.inf, 3.4e38, -3.4e38, 3.38e38, -0.0, 1e-45], np.float32)
    expected = [0x7F80, 0xFF80, 0x7F80, 0xFF80, 0x7F7E, 0x8000, 0]
    assert round_to_bf16(x).tolist() == expected


SHAPES = [(7,), (1, 3), (1030, 256), (5, 1, 4), (3, 70_000)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_float_weights_are_rounded_once(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = {"f32": x, "f16": x.astype(np.float16), "bf16": round_to_bf16(x)}[dtype]
    raw = data(dtype, shape, [x[:2], x[2:]])
    assert raw.tobytes() == expected.tobytes()
    values = widen_bf16(expected) if dtype == "bf16" else expected.astype(np.float32)
    np.testing.assert_array_equal(decode_rows(dtype, shape, raw, 0, shape[0]), values)
    last = shape[0] - 1
    np.testing.assert_array_equal(decode_rows(dtype, shape, raw, last, shape[0]), values[last:])
    # What is in the format already goes through as it is, and widening loses nothing.
    assert data(dtype, shape, [expected]).tobytes() == expected.tobytes()
    assert data("f32", shape, [expected]).tobytes() == values.tobytes()


@pytest.mark.parametrize("form", [INT4, INT8], ids=["int4", "int8"])
@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
def test_integer_weights_do_not_depend_on_blocks(form: object, source: str) -> None:
    dtype = "int4" if form is INT4 else "int8"
    shape = (1040, 384)
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    stored = {"f32": x, "f16": x.astype(np.float16), "bf16": round_to_bf16(x)}[source]
    wide = widen_bf16(stored) if source == "bf16" else stored.astype(np.float32)
    codes, scales = form.quantise(wide)  # type: ignore[attr-defined]
    expected = codes.tobytes() + scales.tobytes()
    for cuts in ([], [1], [8, 9, 500], list(range(13, 1040, 13))):
        blocks = np.split(stored, cuts)
        raw = data(dtype, shape, blocks)
        assert raw.tobytes() == expected
    back = decode_rows(dtype, shape, raw, 0, 1040)
    np.testing.assert_array_equal(back, form.dequantise(codes, scales))  # type: ignore[attr-defined]
    np.testing.assert_array_equal(decode_rows(dtype, shape, raw, 343, 1021), back[343:1021])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int4", "int8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
def test_a_number_that_is_not_finite_is_named(dtype: str, value: float, source: str) -> None:
    shape = (1032, 256)
    x = np.ones(shape, np.float32)
    x[1031, 254] = value
    stored = {"f32": x, "f16": x.astype(np.float16), "bf16": round_to_bf16(x)}[source]
    words = rf"^tensor 'w': element \[1031, 254\] is {value}, not finite$"
    with pytest.raises(ModelError, match=words):
        for _ in encode_rows(dtype, shape, [stored[:1000], stored[1000:]], "tensor 'w'"):
            pass


@pytest.mark.parametrize(("dtype", "value"), [("f16", 65520.0), ("bf16", 3.4e38)])
def test_a_number_that_overflows_is_named(dtype: str, value: float) -> None:
    x = np.array([[[1], [value]]], np.float32)
    with pytest.raises(ModelError, match=rf"w: element \[0, 1, 0\] is .*, which {dtype} cannot"):
        data(dtype, (1, 2, 1), [x])


def test_a_group_without_a_scale_is_named() -> None:
    x = np.ones((1032, 256), np.float32)
    x[1029, 128:] = 1e-40
    with pytest.raises(ModelError, match=r"^w: row 1029, group 1: the largest magnitude"):
        data("int4", x.shape, [x])


@pytest.mark.parametrize(
    ("blocks", "words"),
    [([np.ones((7, 128), np.float32)], "7 rows, its shape has 8"),
     ([np.ones((9, 128), np.float32)], "more rows than the 8"),
     ([np.ones((8, 128), np.float32), np.ones((1, 128), np.float32)], "more rows than the 8"),
     ([], "0 rows, its shape has 8"),
     ([np.ones((8, 256), np.float32)], r"float32 \[8, 256\] is not made of rows of"),
     ([np.ones((8 * 128,), np.float32)], "is not made of rows"),
     ([np.float32(1).reshape(())], "is not made of rows"),
     ([np.ones((8, 128))], "float64 .* is not made of rows"),
     ([np.ones((8, 128), np.uint8)], "uint8 .* is not made of rows")],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_blocks_that_are_not_the_shape_are_refused(
    dtype: str, blocks: list[Block], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^w: .*{words}"):
        data(dtype, (8, 128), blocks)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("int4", (8, 64)), ("f32", ()), ("u8", (4,)), ("q4", (8, 128))]
)
def test_what_no_file_holds_is_refused_before_a_block_is_asked_for(
    dtype: str, shape: tuple[int, ...]
) -> None:
    def blocks() -> Iterator[Block]:
        pytest.fail("asked for a block")
        yield np.ones(1)

    with pytest.raises(InvalidArgument):
        encode_rows(dtype, shape, blocks(), "w")


def test_encoding_keeps_little() -> None:
    """A block is not asked for before the one in front of it is out."""
    asked = 0

    def blocks() -> Iterator[Block]:
        nonlocal asked
        for _ in range(64):
            asked += 1
            yield np.ones((8, 16_384), np.float32)

    pieces = encode_rows("int4", (512, 16_384), blocks(), "w")
    for n in range(1, 64):
        assert next(pieces).nbytes == 8 * 8192
        assert asked == n
