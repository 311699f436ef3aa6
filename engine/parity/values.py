"""Owns the numbers that a compiled model multiplies with, read or made piece by piece.

A peer gets these and no others: bf16 words as they lie, integer codes with their scales, float32 of
what is small. Random weights are made and encoded on the device, as the model's own are.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from engine.compiled.program import compiled_of
from engine.compiled.records import Form
from engine.compiled.weights import GROUP, TILED, float32_pieces
from engine.errors import ModelError
from engine.records import ModelPlan, Stored
from ptx.device import Device
from ptx.encode_bf16.op import OP as ENCODE_BF16
from ptx.numerics import Array, round_to_bf16, scale_groups, unpack_int4, widen_bf16


class Piece(NamedTuple):
    """Rows start to stop of a weight as its form has them; of integers codes and scales."""

    start: int
    stop: int
    form: Form
    stored: Stored


def forms(plan: ModelPlan) -> dict[str, Form]:
    """The form of each weight on a device with kernels."""
    matrices = compiled_of(plan).matrices.values()
    return {part: matrix.form for matrix in matrices for part in matrix.parts}


def pieces(device: Device, plan: ModelPlan, name: str) -> Iterator[Piece]:
    """A weight in bounded pieces; what is stored in its form comes whole."""
    weight, form = plan.weights[name], forms(plan)[name]
    stored_as = TILED[form][1] if form in TILED else form
    if weight.fill is None and weight.dtype == stored_as:
        yield Piece(0, weight.shape[0], form, weight.stored())
        return
    for start, stop, cells in float32_pieces(device, name, weight):
        yield Piece(start, stop, form, _encoded(device, name, form, cells))


def _encoded(device: Device, name: str, form: Form, cells: Array) -> Stored:
    """Float32 rows on the device -> what is stored of them, in main memory."""
    if form == "f32":
        return Stored(device.download(cells))
    if form == "bf16":
        bits = device.allocate(cells.shape, "bf16", f"bf16 of {name}")
        device.launch(ENCODE_BF16, x=cells, y=bits)
        return Stored(device.download(bits))
    _, _, per_byte, dtype, encode, _ = TILED[form]
    n_rows, width = cells.shape
    codes = device.allocate((n_rows, width // per_byte), dtype, f"codes of {name}")
    scales = device.allocate((n_rows, width // GROUP), "bf16", f"scales of {name}")
    bad = device.allocate((n_rows,), "i32", f"rows of {name} without a scale")
    device.launch(encode, w=cells, codes=codes, scales=scales, bad=bad)
    if (device.download(bad) >= 0).any():
        raise ModelError(f"weight {name}: it cannot be encoded as {form}")
    return Stored(device.download(codes), device.download(scales))


def decoded(piece: Piece) -> Array:
    """The piece's numbers, float32; integers times their scale rounded to bf16, which is what
    prompts multiply with (decoding multiplies with the exact product, up to 2^-9 beside it)."""
    cells, scales = piece.stored
    if piece.form == "f32":
        return cells
    if piece.form == "bf16":
        return widen_bf16(cells)
    q = unpack_int4(cells) if piece.form == "int4_tiles" else cells
    assert scales is not None
    return widen_bf16(round_to_bf16(scale_groups(q, scales, np.dtype(np.float32))))
