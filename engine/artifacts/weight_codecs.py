"""Owns the way from numbers to the data of a weight and back, for every dtype of .mspec, by rows.

Knows nothing of files. The arithmetic is in `group_codes.py`, `bf16.py` and numpy; here it is cut
into pieces that fit the cache, and what does not survive the change of format is refused by
coordinate. Contract of the formats: `mspec_format.py`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.artifacts.bf16 import (
    INFINITY_BITS,
    MAGNITUDE_BITS,
    Floats,
    round_to_bf16,
    widen_bf16,
)
from engine.artifacts.group_codes import GroupFormat, row_parts
from engine.artifacts.mspec_format import (
    ELEMENT_BYTES,
    GROUP_FORMATS,
    DType,
    Kind,
    layout_of,
    object_bytes,
)
from engine.errors import InvalidArgument, ModelError

Block = npt.NDArray[Any]

# uint16 stands for the bits of BF16, which numpy has not.
_STORED: dict[str, np.dtype[Any]] = {
    DType.F32: np.dtype("<f4"),
    DType.F16: np.dtype("<f2"),
    DType.BF16: np.dtype("<u2"),
}


def encode_rows(
    dtype: str, shape: Sequence[int], blocks: Iterable[Block], what: str
) -> Iterator[Block]:
    """The data of a weight in pieces, from blocks of its rows.

    Blocks are [n, *shape[1:]], together `shape[0]` rows, in float32, float16 or uint16 (the bits of
    BF16); to a float format they are rounded to nearest, ties to even, and what already is in it
    passes unchanged. Keeps one piece and, for the integer formats, all scales.
    ModelError beginning with `what` for a number that is not finite before or after, and for a
    group without a scale; InvalidArgument for blocks that do not make up the shape.
    """
    dims = tuple(shape)
    object_bytes(Kind.TENSOR, dtype, dims, layout_of(dtype))
    form = GROUP_FORMATS.get(dtype)
    pieces = _pieces(dims, blocks, what)
    return _floats(dtype, pieces, what) if form is None else _groups(form, pieces, what)


def decode_rows(
    dtype: str, shape: tuple[int, ...], raw: npt.NDArray[np.uint8], start: int, stop: int
) -> Floats:
    """Rows [start, stop) of a weight from its data uint8 [n_bytes], as fresh float32.

    ModelError for an invalid code or scale of those rows.
    """
    out_shape = (stop - start, *shape[1:])
    form = GROUP_FORMATS.get(dtype)
    if form is not None:
        codes, scales = form.planes(raw, shape)
        return form.dequantise(codes[start:stop], scales[start:stop], start)
    row_bytes = math.prod(shape[1:]) * ELEMENT_BYTES[dtype]
    stored = raw[start * row_bytes : stop * row_bytes].view(_STORED[dtype]).reshape(out_shape)
    return widen_bf16(stored) if dtype == DType.BF16 else stored.astype(np.float32)


def _pieces(
    shape: tuple[int, ...], blocks: Iterable[Block], what: str
) -> Iterator[tuple[int, Block]]:
    """(first row, some rows), each small; refuses blocks that are not the shape."""
    n_rows = 0
    for block in blocks:
        if block.dtype not in _STORED.values() or block.shape[1:] != shape[1:] or not block.ndim:
            raise InvalidArgument(
                f"{what}: a block of {block.dtype.name} {list(block.shape)} is not made of rows of"
                f" float32, float16 or uint16 {list(shape)}"
            )
        if n_rows + len(block) > shape[0]:
            raise InvalidArgument(f"{what}: more rows than the {shape[0]} of its shape")
        for start, stop in row_parts(block.shape):
            yield n_rows + start, np.ascontiguousarray(block[start:stop])
        n_rows += len(block)
    if n_rows != shape[0]:
        raise InvalidArgument(f"{what}: {n_rows} rows, its shape has {shape[0]}")


def _floats(dtype: str, pieces: Iterable[tuple[int, Block]], what: str) -> Iterator[Block]:
    stored = _STORED[dtype]
    for first_row, piece in pieces:
        encoded = piece
        if piece.dtype != stored:
            x = _as_float32(piece)
            with np.errstate(over="ignore", under="ignore"):
                encoded = round_to_bf16(x) if dtype == DType.BF16 else x.astype(stored)
        if not _is_finite(encoded):
            raise ModelError(f"{what}: {_lost(dtype, first_row, piece, encoded)}")
        yield encoded


def _groups(form: GroupFormat, pieces: Iterable[tuple[int, Block]], what: str) -> Iterator[Block]:
    all_scales = []
    for first_row, piece in pieces:
        x = _as_float32(piece)
        scales = form.scales_of(x, first_row, what)
        yield form.codes_of(x, scales)
        all_scales.append(scales)
    yield np.concatenate(all_scales)


def _as_float32(piece: Block) -> Floats:
    if piece.dtype == _STORED[DType.BF16]:
        return widen_bf16(piece)
    return piece.astype(np.float32, copy=False)


def _is_finite(x: Block) -> bool:
    if x.dtype == _STORED[DType.BF16]:
        return bool((x & MAGNITUDE_BITS).max() < INFINITY_BITS)
    return bool(np.isfinite(x).all())


def _lost(dtype: str, first_row: int, piece: Block, encoded: Block) -> str:
    """Says which number of a piece is not finite, in its own format or in the new one."""
    values = widen_bf16(encoded) if encoded.dtype == _STORED[DType.BF16] else encoded
    at = np.argwhere(~np.isfinite(values))[0]
    value = float(_as_float32(piece)[tuple(at)])
    where = [first_row + int(at[0]), *map(int, at[1:])]
    reason = f"which {dtype} cannot hold" if math.isfinite(value) else "not finite"
    return f"element {where} is {value}, {reason}"
