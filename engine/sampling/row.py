"""Owns what a usable row of raw logits is, and the greedy choice from it.

Knows no config and no random state. NaN and both infinities are corruption in a raw row: numpy's
argmax would answer with the index of a NaN, and a wrong token looks like a poor model.
"""

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidArgument, RuntimeFailure

Row = npt.NDArray[np.float32]


def checked_row(logits: Row, n_vocab: int) -> Row:
    """`logits` float32 [V], proved whole.

    InvalidArgument: empty, or not [n_vocab]. RuntimeFailure: a NaN or infinity, naming the first.
    """
    row = np.asarray(logits)
    if row.ndim != 1 or row.shape[0] != n_vocab or n_vocab < 1:
        raise InvalidArgument(f"logits: shape {list(row.shape)}, needs [{n_vocab}] and at least 1")
    finite = np.isfinite(row)
    if not finite.all():
        token = int(finite.argmin())
        raise RuntimeFailure(
            f"logits: {row[token]} at token {token} of {n_vocab}, needs finite numbers"
        )
    return row


def greedy_token(logits: Row) -> int:
    """The highest of `logits` float32 [V], lowest id on a tie; errors as `checked_row`."""
    row = np.asarray(logits)
    return int(checked_row(row, row.shape[0] if row.ndim else 0).argmax())


def greedy_tokens(rows: npt.NDArray[np.float32]) -> list[int]:
    """The greedy token of each row of `rows` float32 [T, V]; one bad row refuses all of them."""
    return [greedy_token(row) for row in rows]
