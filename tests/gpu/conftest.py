"""Owns the skip of every test here on a machine without a card, with the reason."""

import pytest

from ptx.devices import cuda


@pytest.fixture(autouse=True)
def card() -> None:
    """Skip where CUDA shows no card."""
    found = cuda.available()
    if isinstance(found, str):
        pytest.skip(found)
