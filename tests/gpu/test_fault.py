"""Protects a host from a kernel that faults on the card in the middle of a request."""

from pathlib import Path

import pytest

from tests import fault_flow

pytestmark = pytest.mark.gpu


def test_a_lost_card_is_refused_and_nothing_else_dies(tmp_path: Path) -> None:
    fault_flow.check("CUDA0", tmp_path, "CUDA_ERROR_ILLEGAL_ADDRESS")
