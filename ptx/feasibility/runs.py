"""Owns running a variant: the text for a device, its buffers, and how far the cells are from right.

It must not know families. Devices are those of `ptx/devices`, which serve ops; a kernel here is
none, so it is loaded and run one step below `launch`.
"""

from dataclasses import dataclass

import numpy as np

from ptx.devices.compiled import CompiledDevice
from ptx.devices.cuda import CudaDevice
from ptx.devices.emulator import EmulatorDevice
from ptx.feasibility.cases import Case
from ptx.feasibility.families import CARDS, Variant
from ptx.inventory import targets
from ptx.numerics import Array

# The emulator draws the order of warps from a seed; results may not depend on it.
SEEDS = (0, 1, 2)
# Outputs are full of this before: bytes that nobody writes are seen on a card too.
POISON_BYTE = 0xA5


@dataclass(frozen=True)
class Outcome:
    """How a result compares: whether all bits agree, else the largest difference and its bound.

    Both are relative to the sum of magnitudes where the case has one; 0 is the bound of cells that
    must be exact.
    """

    same_bits: bool
    difference: float
    bound: float

    @property
    def passed(self) -> bool:
        """Within the bound; with exact operands equal in every bit, the sign of zero included."""
        return self.same_bits or (self.bound > 0 and self.difference <= self.bound)


def emulated_arch(variant: Variant) -> str:
    """The architecture to emulate: a card that the project has, or else the first that has it."""
    archs = variant.archs()
    return next((arch for arch in CARDS if arch in archs), archs[0])


def emulators(variant: Variant) -> list[EmulatorDevice]:
    """One emulator with its sanitiser for each seed."""
    arch = emulated_arch(variant)
    name = next(row.name for row in targets().values() if row.arch == arch)
    return [EmulatorDevice(target=name, seed=seed) for seed in SEEDS]


def arch_of(device: CompiledDevice) -> str:
    """The most that a text may declare to run there: `sm_90a`."""
    return f"{device.facts.arch}a" if isinstance(device, CudaDevice) else device.target.arch


def run(device: CompiledDevice, variant: Variant, case: Case) -> Array:
    """The cells that the kernel writes; the device must have the variant. PtxError if it fails."""
    target = variant.target_for(arch_of(device))
    assert target is not None, f"{variant.title} is not for {arch_of(device)}"
    kernel = device._load(
        variant.text(target), variant.family, f"feasibility/{variant.family}.ptx"
    )
    n_bytes = case.want.size * case.cells.itemsize
    before = np.full(n_bytes, POISON_BYTE, np.uint8) if case.start is None else case.start
    buffers = []
    for number, array in enumerate((*case.inputs, before)):
        cells = np.ascontiguousarray(array).view(np.uint8).ravel()
        buffers.append(device.allocate(cells.shape, "u8", f"parameter {number}"))
        device.upload(buffers[-1], cells)
    out = buffers[-1]
    maps = [device._encode(buffers[number].address, tiled) for number, tiled in variant.maps]
    for _ in range(variant.n_launches):
        device._run(
            kernel, variant.launch, [*(buffer.address for buffer in buffers), *maps],
            [(out.address, out.nbytes, True)], variant.title,
        )
    return device.download(out).view(case.cells).reshape(case.want.shape)


def against_numpy(got: Array, case: Case) -> Outcome:
    """Compare with what numpy computed."""
    return _compare(got, case.want, case, case.bound)


def against(got: Array, other: Array, case: Case) -> Outcome:
    """Compare with another device, which may be off by as much as this one."""
    return _compare(got, other, case, 2 * case.bound)


def _compare(got: Array, want: Array, case: Case, bound: float) -> Outcome:
    same_bits = got.tobytes() == want.astype(case.cells).tobytes()
    difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
    if case.magnitude is not None:
        difference = difference / case.magnitude
    # NaN is past every bound.
    return Outcome(same_bits, float(np.max(np.where(difference >= 0, difference, np.inf))), bound)
