"""Owns what opening a hostile file may cost in tests: the time and memory that readers promise."""

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from engine.artifacts.closing import Closing
from engine.errors import ModelError

SECONDS = 1.0
BYTES = 64 << 20
F = TypeVar("F", bound=Closing)


def opened(open_file: Callable[[Path], F], path: Path) -> F:
    """The open file, opened once timed and once with memory traced."""
    start = time.process_time()
    open_file(path).close()
    # Three times the promise, for the machines that run tests next to other work.
    assert time.process_time() - start < 3 * SECONDS
    tracemalloc.start()
    try:
        file = open_file(path)
        assert tracemalloc.get_traced_memory()[1] < BYTES
    finally:
        tracemalloc.stop()
    return file


def refusal(open_file: Callable[[Path], object], path: Path) -> str:
    """The message with which the file is refused, once timed and once with memory traced."""
    start = time.process_time()
    with pytest.raises(ModelError):
        open_file(path)
    assert time.process_time() - start < SECONDS
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            open_file(path)
        assert tracemalloc.get_traced_memory()[1] < BYTES
    finally:
        tracemalloc.stop()
    return str(caught.value)
