"""Owns bringing a model's weights onto a device in the forms that its kernels read.

Each weight is read from its source when its turn comes and let go of at once. Integer codes are
uploaded as they are stored and put in tile order by a kernel; numbers that are not stored in the
form of their matrix are encoded on the way. It must not know files nor models.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from engine.compiled.ahead import Ahead
from engine.compiled.records import Form, Matrix
from engine.compiled.uploads import Uploads
from engine.errors import ModelError
from engine.records import Fill, Stored, Weight
from ptx.device import Buffer, Device
from ptx.encode_bf16.op import OP as ENCODE_BF16
from ptx.encode_int4_group128.op import OP as ENCODE_INT4
from ptx.encode_int8_group.op import OP as ENCODE_INT8
from ptx.fill_uniform.op import OP as FILL_UNIFORM
from ptx.op import Op
from ptx.tile_int4_group128.op import OP as TILE_INT4
from ptx.tile_int8_group.op import OP as TILE_INT8
from ptx.weight_tiles import ROWS, TILE_BYTES

GROUP = 128
# Float32 of a weight that is encoded, at a time.
PIECE_BYTES = 256 << 20
WORD = 0xFFFF_FFFF
# Of each tiled form: the name of its tiles, what its source is stored as, codes in a byte, their
# dtype, and the ops that encode rows and that put codes in tile order.
TILED: dict[Form, tuple[str, str, int, str, Op, Op]] = {
    "int4_tiles": ("int4", "int4_group128", 2, "u8", ENCODE_INT4, TILE_INT4),
    "int8_tiles": ("int8", "int8_group", 1, "i8", ENCODE_INT8, TILE_INT8),
}


def shape_of(matrix: Matrix, weights: Mapping[str, Weight]) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of a matrix's buffer."""
    shapes = [weights[part].shape for part in matrix.parts]
    shape = (sum(s[0] for s in shapes), *shapes[0][1:])
    if matrix.form in TILED:
        n_rows, n_columns = shape
        return "u8", (n_columns // GROUP, n_rows // ROWS, TILE_BYTES[TILED[matrix.form][0]])
    return matrix.form, shape


def matrix_bytes(matrix: Matrix, weights: Mapping[str, Weight]) -> int:
    """Bytes of its buffer."""
    dtype, shape = shape_of(matrix, weights)
    return prod(shape) * {"u8": 1, "bf16": 2, "f32": 4}[dtype]


def load_matrices(
    device: Device, matrices: Mapping[str, Matrix], weights: Mapping[str, Weight],
    progress: Callable[[float], None],
) -> dict[str, Buffer]:
    """Every matrix in a buffer of its own; ModelError names a weight that its form cannot hold.

    Digests of the next weights are compared by other threads while one is copied, and what is
    copied crosses while the next piece of it is brought.
    """
    made: dict[str, Buffer] = {}
    total = sum(matrix_bytes(matrix, weights) for matrix in matrices.values())
    done = 0
    order = [part for matrix in matrices.values() for part in matrix.parts]
    with Ahead({part: weights[part] for part in order}) as ahead, Uploads(device) as uploads:
        for name, matrix in matrices.items():
            progress(done / total)
            made[name] = _load(device, name, matrix, ahead, uploads)
            done += matrix_bytes(matrix, weights)
    return made


def _load(
    device: Device, name: str, matrix: Matrix, weights: Mapping[str, Weight], uploads: Uploads
) -> Buffer:
    if matrix.form in TILED:
        return _load_tiles(device, name, matrix, weights, uploads)
    buffer = device.allocate(shape_of(matrix, weights)[1], matrix.form, name)
    for part, rows in _parts(matrix, weights, buffer):
        weight = weights[part]
        if matrix.form == "f32":
            device.upload(rows, weight.load())
        elif weight.dtype == "bf16":
            uploads.put(rows, weight.stored().cells)
        else:
            for start, stop, piece in float32_pieces(device, part, weight):
                device.launch(ENCODE_BF16, x=piece, y=rows[start:stop])
    return buffer


def _load_tiles(
    device: Device, name: str, matrix: Matrix, weights: Mapping[str, Weight], uploads: Uploads
) -> Buffer:
    """Codes and scales of all rows, then their tiles: a group of 128 has all rows side by side."""
    tiles, stored_as, per_byte, dtype, _, tile = TILED[matrix.form]
    shapes = [weights[part].shape for part in matrix.parts]
    n_rows, n_columns = sum(s[0] for s in shapes), shapes[0][1]
    codes = device.allocate((n_rows, n_columns // per_byte), dtype, f"codes of {name}")
    scales = device.allocate((n_rows, n_columns // GROUP), "bf16", f"scales of {name}")
    for part, code_rows in _parts(matrix, weights, codes):
        start = sum(weights[p].shape[0] for p in matrix.parts[: matrix.parts.index(part)])
        scale_rows = scales[start : start + weights[part].shape[0]]
        weight = weights[part]
        if weight.dtype == stored_as:
            stored = weight.stored()
            uploads.put(code_rows, stored.cells)
            uploads.put(scale_rows, _scales(part, stored))
        else:
            encode_groups(device, part, weight, matrix.form, code_rows, scale_rows)
    w = device.allocate((n_columns // GROUP, n_rows // ROWS, TILE_BYTES[tiles]), "u8", name)
    device.launch(tile, codes=codes, scales=scales, w=w)
    # The codes go when this returns, and a kernel may still read them.
    device.synchronize()
    return w


def _scales(part: str, stored: Stored) -> Any:
    if stored.scales is None:
        raise ModelError(f"weight {part}: integer codes without scales")
    return stored.scales


def encode_groups(
    device: Device, part: str, weight: Weight, form: Form, codes: Any, scales: Any
) -> None:
    """Codes and scales of a weight's rows, into buffers; ModelError names a group without a scale.
    """
    for start, stop, piece in float32_pieces(device, part, weight):
        bad = device.allocate((stop - start,), "i32", f"rows of {part} without a scale")
        encode = TILED[form][4]
        device.launch(
            encode, w=piece, codes=codes[start:stop], scales=scales[start:stop], bad=bad
        )
        groups = device.download(bad)
        if (groups >= 0).any():
            row = int(np.argmax(groups >= 0))
            raise ModelError(
                f"weight {part}: row {start + row}, group {groups[row]} cannot be encoded as {form}"
            )


def float32_pieces(device: Device, part: str, weight: Weight) -> Iterator[tuple[int, int, Any]]:
    """A weight's rows as float32 on the device, piece by piece: first row, one past the last."""
    n_rows, width = weight.shape[0], prod(weight.shape[1:])
    step = max(1, min(n_rows, PIECE_BYTES // (4 * width)))
    room = device.allocate((step, *weight.shape[1:]), "f32", f"float32 of {part}")
    cells = None if weight.fill else weight.load()
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        piece = room[: stop - start]
        if cells is None:
            _fill(device, piece, weight.fill, start * width)
        else:
            device.upload(piece, cells[start:stop])
        yield start, stop, piece


def _fill(device: Device, cells: Any, fill: Fill | None, start: int) -> None:
    assert fill is not None
    device.launch(
        FILL_UNIFORM, y=cells, seed_lo=fill.seed & WORD, seed_hi=fill.seed >> 32,
        start_lo=start & WORD, start_hi=start >> 32, low=fill.low, high=fill.high,
    )


def _parts(matrix: Matrix, weights: Mapping[str, Weight], buffer: Any) -> list[tuple[str, Any]]:
    """Each part's name and its rows of the buffer."""
    found, at = [], 0
    for part in matrix.parts:
        n_rows = weights[part].shape[0]
        found.append((part, buffer[at : at + n_rows]))
        at += n_rows
    return found
