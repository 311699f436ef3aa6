"""Qwen3.8-27B, text path, as one exact artifact: dims, inventory, conversion, schedule."""

from pathlib import Path

from packages.package import read_package
from packages.qwen3_8_27b.bind import plan
from packages.qwen3_8_27b.dims import HybridDims

PACKAGE = read_package(Path(__file__).parent, HybridDims, plan)
