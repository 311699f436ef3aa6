"""Owns symmetric integer weights with one BF16 scale for each group of 128 along K.

What int4 and int8 share; their widths, names and packing are in `int4_group128.py` and
`int8_group.py`. Knows nothing of files. A weight is [N, K] row-major; K is whole groups and N whole
tiles of 8 rows, never padded. For each group of float32 values:

    a = max |w|;  s = BF16(a / qmax), or 1 where a is 0;  q = round-half-even(w / s)
    w' = float32(q) float32(s), exact

Rounding moves s by at most 2^-8 of itself, so |w / s| stays below qmax + 1/2 and nothing needs
clipping.

Every group that is not zero reaches qmax, so quantising w' gives codes and scales back exactly.
The code -qmax - 1 is never written and is an error when read. A source with NaN or infinity, and a
group whose scale would be zero or subnormal in BF16 (a GPU may flush it to zero), are refused.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.artifacts.bf16 import INFINITY_BITS, Bits, Floats, round_to_bf16, widen_bf16
from engine.errors import InvalidArgument, ModelError

GROUP = 128
ROW_TILE = 8
SCALE_BYTES = 2

Codes = npt.NDArray[Any]
SmallInts = npt.NDArray[np.int8]

# Elements worked on at a time: the temporaries stay inside the cache.
CHUNK_ELEMENTS = 1 << 17
_ONE_BITS = 0x3F80
_SMALLEST_NORMAL_BITS = 0x0080


@dataclass(frozen=True)
class GroupFormat:
    """One width. `pack` takes int8 [n, K] to stored codes [n, K / codes_per_byte] of `code_dtype`,
    `unpack` takes them back."""

    name: str
    qmax: int
    codes_per_byte: int
    code_dtype: str
    pack: Callable[[SmallInts], Codes]
    unpack: Callable[[Codes], SmallInts]

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """InvalidArgument for anything but [N, K] of whole tiles and groups."""
        if len(shape) != 2 or min(shape) < 1 or shape[0] % ROW_TILE or shape[1] % GROUP:
            raise InvalidArgument(
                f"shape {list(shape)} does not suit {self.name}: it needs [N, K],"
                f" N a multiple of {ROW_TILE}, K a multiple of {GROUP}"
            )

    def codes_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of all codes; always a multiple of 256."""
        return shape[0] * shape[1] // self.codes_per_byte

    def scales_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of all scales, uint16 [N, K / 128]."""
        return shape[0] * shape[1] // GROUP * SCALE_BYTES

    def scales_of(self, x: Floats, first_row: int = 0, what: str = "weight") -> Bits:
        """x float32 [n, K] -> BF16 bits [n, K / 128]; ModelError for a group that has none."""
        grouped = x.reshape(len(x), -1, GROUP)
        a = np.maximum(grouped.max(axis=2), -grouped.min(axis=2))
        if not np.isfinite(a).all():
            raise ModelError(_not_finite(x, first_row, what))
        bits = round_to_bf16(a / np.float32(self.qmax))
        bits = np.where(a == 0, np.uint16(_ONE_BITS), bits)
        if bits.min() < _SMALLEST_NORMAL_BITS:
            row, group = np.argwhere(bits < _SMALLEST_NORMAL_BITS)[0]
            raise ModelError(
                f"{what}: row {first_row + row}, group {group}: the largest magnitude"
                f" {a[row, group]} over {self.qmax} is below the smallest normal BF16 scale"
            )
        return bits

    def codes_of(self, x: Floats, scales: Bits) -> Codes:
        """Stored codes of x float32 [n, K] under its scales."""
        scaled = x.reshape(len(x), -1, GROUP) / widen_bf16(scales)[:, :, None]
        np.rint(scaled, out=scaled)
        return self.pack(scaled.astype(np.int8).reshape(x.shape))

    def quantise(self, w: Floats) -> tuple[Codes, Bits]:
        """w float32 [N, K] -> stored codes and scales, both fresh; all of w is checked first."""
        self.check_shape(w.shape)
        if w.dtype != np.float32:
            raise InvalidArgument(f"{self.name} is made from float32, not from {w.dtype.name}")
        parts = list(row_parts(w.shape))
        scales = [self.scales_of(w[start:stop], start) for start, stop in parts]
        codes = [
            self.codes_of(w[start:stop], s) for (start, stop), s in zip(parts, scales, strict=True)
        ]
        return np.concatenate(codes), np.concatenate(scales)

    def planes(self, data: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> tuple[Codes, Bits]:
        """Views of the codes and scales in the data of a weight [N, K], not checked."""
        split = self.codes_bytes(shape)
        codes = data[:split].view(self.code_dtype).reshape(shape[0], -1)
        return codes, data[split:].view("<u2").reshape(shape[0], -1)

    def dequantise(self, codes: Codes, scales: Bits, first_row: int = 0) -> Floats:
        """Codes [n, K / codes_per_byte] and scales uint16 [n, K / 128] -> float32 [n, K].

        Checks what it reads: ModelError with the row (counted from `first_row`) for the invalid
        code and for a scale that is not positive and finite.
        """
        shape = self._check_planes(codes, scales)
        out = np.empty(shape, np.float32)
        for start, stop in row_parts(shape):
            q, s = self._read(codes[start:stop], scales[start:stop], first_row + start)
            grouped = (stop - start, -1, GROUP)
            np.multiply(
                q.reshape(grouped), widen_bf16(s)[:, :, None], out=out[start:stop].reshape(grouped)
            )
        return out

    def check(self, codes: Codes, scales: Bits) -> None:
        """ModelError where `dequantise` would raise it; nothing is decoded."""
        for start, stop in row_parts(self._check_planes(codes, scales)):
            self._read(codes[start:stop], scales[start:stop], start)

    def _check_planes(self, codes: Codes, scales: Bits) -> tuple[int, int]:
        n_rows, width = codes.shape[0], codes.shape[1] * self.codes_per_byte
        if width % GROUP or scales.shape != (n_rows, width // GROUP):
            raise InvalidArgument(
                f"{self.name}: codes {list(codes.shape)} and scales {list(scales.shape)} disagree"
            )
        return n_rows, width

    def _read(self, codes: Codes, scales: Bits, first_row: int) -> tuple[SmallInts, Bits]:
        # Zero wraps around to the top, above every finite number, where negative ones are too.
        if (scales - np.uint16(1)).max() >= INFINITY_BITS - 1:
            row, group = np.argwhere(scales - np.uint16(1) >= INFINITY_BITS - 1)[0]
            raise ModelError(
                f"scale of row {first_row + row}, group {group} has the BF16 bits"
                f" 0x{scales[row, group]:04X}, which are not positive and finite"
            )
        q = self.unpack(codes)
        if q.min() < -self.qmax:
            row, column = np.argwhere(q < -self.qmax)[0]
            raise ModelError(
                f"code of row {first_row + row}, column {column} is {q[row, column]},"
                f" {self.name} has -{self.qmax} to {self.qmax}"
            )
        return q, scales


def row_parts(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Ranges (start, stop) of whole rows with about `CHUNK_ELEMENTS` elements each."""
    width = math.prod(shape[1:])
    step = max(1, CHUNK_ELEMENTS // width)
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])


def _not_finite(x: Floats, first_row: int, what: str) -> str:
    row, column = np.argwhere(~np.isfinite(x))[0]
    return f"{what}: element [{first_row + row}, {column}] is {x[row, column]}, not finite"
