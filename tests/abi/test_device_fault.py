"""Protects a host from a device that is lost in the middle of a request, through the C ABI."""

from pathlib import Path

from tests import fault_flow


def test_a_lost_device_is_refused_and_nothing_else_dies(tmp_path: Path) -> None:
    fault_flow.check("LOST0", tmp_path, "CUDA_ERROR_ILLEGAL_ADDRESS (700)")
