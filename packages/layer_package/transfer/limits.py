"""Owns the limits of a transfer: seconds, bytes and how many at once.

It must not know streams or messages. Tests pass small values.
"""

from dataclasses import dataclass

from packages.layer_package.model import MAX_MANIFEST_BYTES


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """`idle_seconds` for one piece of a body, `open_seconds` from the first byte of a request to
    the last of its answer, `piece_bytes` of a body, `frame_bytes` of one message, `manifest_bytes`
    of `model-package.json`, transfers at once `per_peer` and `in_all`.
    """

    idle_seconds: float = 30.0
    open_seconds: float = 30.0
    piece_bytes: int = 1 << 20
    frame_bytes: int = 8 << 20
    manifest_bytes: int = MAX_MANIFEST_BYTES
    per_peer: int = 4
    in_all: int = 16
