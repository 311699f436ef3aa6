"""Owns how many transfers run at once, for each peer and in all.

It must not know what a transfer is.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from packages.layer_package.errors import TransferError


class Slots:
    """At most `per_peer` of one peer and `in_all` together. Safe to use from several threads."""

    def __init__(self, per_peer: int, in_all: int) -> None:
        """All free."""
        self._per_peer = per_peer
        self._in_all = in_all
        self._lock = threading.Lock()
        self._taken: Counter[bytes] = Counter()

    @contextlib.contextmanager
    def taken(self, peer: bytes) -> Iterator[None]:
        """A block that has a slot. TransferError `transfer_busy`, at once, when there is none."""
        with self._lock:
            if self._taken[peer] >= self._per_peer:
                raise TransferError(
                    "transfer_busy", f"the peer has {self._per_peer} transfers, the limit"
                )
            if self._taken.total() >= self._in_all:
                raise TransferError("transfer_busy", f"{self._in_all} transfers run, the limit")
            self._taken[peer] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[peer] -= 1
                # Peers come and go; a count of none must not stay.
                if not self._taken[peer]:
                    del self._taken[peer]
