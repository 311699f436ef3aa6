"""Owns the skip of every test here on a machine without a card, with the reason.

And the name `tests`: a package of that name among the machine's own would hide our folder.
"""

import importlib.util
import sys
import types
from pathlib import Path

import pytest

from ptx.devices import cuda

OURS = Path(__file__).resolve().parents[1]
found = importlib.util.find_spec("tests")
if found is None or str(OURS) not in (found.submodule_search_locations or ()):
    ours = types.ModuleType("tests")
    ours.__path__ = [str(OURS)]
    sys.modules["tests"] = ours


@pytest.fixture(autouse=True)
def card() -> None:
    """Skip where CUDA shows no card."""
    found = cuda.available()
    if isinstance(found, str):
        pytest.skip(found)
