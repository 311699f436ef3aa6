"""SmolLM2-135M-Instruct as one exact artifact: identity, dims, binding, schedule."""

from pathlib import Path

from packages.package import read_package
from packages.smollm2_135m.bind import plan, read_dims
from packages.smollm2_135m.dims import DenseDims

PACKAGE = read_package(Path(__file__).parent, DenseDims, plan, read_dims)
