"""Owns one weight of an .mspec file: what it is, and its numbers.

Knows nothing of files: where the bytes come from, and whether they were verified, is the business
of `mspec.py`, which makes these.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.artifacts import weight_codecs
from engine.artifacts.bf16 import Bits, Floats
from engine.artifacts.group_codes import Codes
from engine.artifacts.mapped_file import printable
from engine.artifacts.mspec_format import GROUP_FORMATS, DType, Layout, MspecObject
from engine.errors import InvalidArgument, ModelError


@dataclass(frozen=True, slots=True)
class MspecTensor:
    """One weight of an open file, `shown` to people. `raw` gives its uint8 [n_bytes], a read-only
    view of the file whose codes and scales are not checked; InvalidArgument after it was closed."""

    entry: MspecObject
    shown: str
    raw: Callable[[], npt.NDArray[np.uint8]]

    @property
    def name(self) -> str:
        """Its name in the file."""
        return self.entry.name

    @property
    def dtype(self) -> DType:
        """What one element is."""
        return self.entry.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, outermost first."""
        return self.entry.shape

    @property
    def layout(self) -> Layout:
        """How the elements lie in `raw`."""
        return self.entry.layout

    @property
    def n_bytes(self) -> int:
        """Bytes of data, scales included."""
        return self.entry.length

    @property
    def sha256(self) -> str:
        """Digest of the data, hex."""
        return self.entry.sha256

    def to_float32(self) -> Floats:
        """A fresh float32 array of `shape`, exact.

        ModelError naming the tensor for an invalid code or scale; NaN and infinity of the float
        formats are passed on.
        """
        return self.rows_to_float32(0, self.shape[0])

    def rows_to_float32(self, start: int, stop: int) -> Floats:
        """Rows [start, stop) of the first dimension, as `to_float32`; InvalidArgument outside."""
        if not 0 <= start < stop <= self.shape[0]:
            raise InvalidArgument(
                f"rows {start} to {stop} of tensor {printable(self.name, 80)},"
                f" which has {self.shape[0]}"
            )
        try:
            return weight_codecs.decode_rows(self.dtype, self.shape, self.raw(), start, stop)
        except ModelError as e:
            raise self._bad(e) from e

    def codes_and_scales(self, *, check: bool = True) -> tuple[Codes, Bits]:
        """Views of an integer weight [N, K]: codes and BF16 scales uint16 [N, K / 128].

        Codes are uint8 [N, K / 2] for int4, int8 [N, K] for int8. ModelError for an invalid code or
        scale where they are checked, InvalidArgument for another dtype. Unchecked ones, which cost
        no look at the data, are for readers that any code suits.
        """
        form = GROUP_FORMATS.get(self.dtype)
        if form is None:
            raise InvalidArgument(
                f"tensor {printable(self.name, 80)} is {self.dtype}: no codes and scales"
            )
        codes, scales = form.planes(self.raw(), self.shape)
        if not check:
            return codes, scales
        try:
            form.check(codes, scales)
        except ModelError as e:
            raise self._bad(e) from e
        return codes, scales

    def _bad(self, error: ModelError) -> ModelError:
        return ModelError(f"{self.shown}: tensor {printable(self.name, 80)}: {error}")
