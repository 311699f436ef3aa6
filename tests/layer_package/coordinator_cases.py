"""Owns what the tests of a coordinator share: a refused request, seen from both ends; bad bytes."""

import os
from pathlib import Path
from typing import Any

from tests.layer_package.transfer_cases import PEER, Coordinator


def refusal(coordinator: Coordinator, request: Any, peer: bytes = PEER) -> tuple[str, str]:
    """The text that a peer gets, and the kind in the log."""
    answer, rest = coordinator.ask(request, peer)
    coordinator.join()
    assert not answer.accepted
    assert rest == b""
    # Nothing of the file is told with a refusal.
    assert (answer.total_size, answer.sha256) == (0, None)
    assert answer.error is not None
    (reason,) = coordinator.reasons
    assert str(coordinator.cache) not in str(reason)
    return answer.error, reason.kind


def flip(path: Path) -> None:
    """Change the last byte in place: the file is never shorter, not even for a moment."""
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
