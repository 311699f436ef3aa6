"""Owns copies of boxes of tensors into shared memory: cp.async.bulk.tensor, prefetch.tensormap.

It must not know when copies land: that is `completions.py`; the map is `tensor_maps.py`. Contract:
the PTX ISA's tiled mode with an mbarrier. A copy's start in shared memory is aligned as the map's
swizzle asks for a pattern that begins there, which is stricter than the ISA.
"""

from math import prod

import numpy as np

from ptx.emulator.copies import BARRIER, Copy
from ptx.emulator.decode import Build, Step
from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_memory import AddressOf, address_of
from ptx.emulator.registers import Get
from ptx.emulator.spaces import WINDOW_BYTES, WINDOWS
from ptx.emulator.syntax import Address, Vector
from ptx.emulator.tensor_maps import ALIGNMENT, N_BYTES, TensorMap, decoded, rows_of
from ptx.numerics import Array

S32 = TYPES["s32"]
DIMENSIONS = {"1d": 1, "2d": 2, "3d": 3, "4d": 4, "5d": 5}
# What a box's start is a multiple of: a whole pattern of its swizzle, and 128 bytes without one.
STARTS = {0: 128, 32: 256, 64: 512, 128: 1024}


def tensor_load(build: Build, hinted: bool) -> Step:
    """cp.async.bulk.tensor from global to shared memory; its cache words are gone."""
    n_axes = DIMENSIONS.get(build.take(*DIMENSIONS) or "", 0)
    if not n_axes or not build.take("mbarrier::complete_tx::bytes"):
        raise build.refuse("needs 1d to 5d, and .mbarrier::complete_tx::bytes")
    build.take("shared::cluster", "shared::cta")
    build.take("global")
    build.take("tile")
    build.done(3 + hinted)
    to, barrier = (address_of(build, build.operand(at), "shared") for at in (0, 2))
    where, coordinates = _tensor(build, n_axes)
    state = build.state
    state.claims.watch_proxy()

    def run(sel: Sel) -> None:
        places = state.mbarriers.places(sel, barrier(sel))
        state.mbarriers.touch(sel, places, False)
        lanes = build.lanes.index(sel)
        starts = np.stack([np.broadcast_to(get(sel), len(lanes)) for get in coordinates], axis=1)
        for at, lane in enumerate(lanes):
            one = lanes[at : at + 1]
            tensor = _map_at(build, int(where(sel)[at]), n_axes, one)
            start = tuple(int(n) for n in starts[at, ::-1])
            _start(build, int(lane), tensor, start, int(to(sel)[at]), int(places[at]))

    return Step(run)


def tensor_prefetch(build: Build) -> Step:
    """Nothing to do, but there must be a map."""
    space = build.take("param") or "generic"
    build.done(1)
    where = address_of(build, build.operand(0), space)
    window = WINDOWS["param"] if space == "param" else 0

    def run(sel: Sel) -> None:
        lanes = build.lanes.index(sel)
        for at, address in enumerate(where(sel)):
            _map_at(build, int(address) | window, None, lanes[at : at + 1])

    return Step(run)


def _tensor(build: Build, n_axes: int) -> tuple[AddressOf, list[Get]]:
    """The operand [map, {coordinates}]: innermost first."""
    operand = build.operand(1)
    given = operand.coordinates if isinstance(operand, Address) else ()
    if len(given) != 1 or not isinstance(given[0], Vector) or len(given[0].items) != n_axes:
        raise build.refuse(f"needs [map, {{{n_axes} coordinates}}]")
    gets = [build.read(item, S32) for item in given[0].items]
    return address_of(build, operand, "generic"), gets


def _map_at(build: Build, address: int, n_axes: int | None, sel: Array) -> TensorMap:
    """The map at a generic address, in the parameters or in global memory."""
    state = build.state
    if address % ALIGNMENT:
        raise Fault("alignment", f"a tensor map needs a multiple of {ALIGNMENT}", sel, address)
    offset = address - WINDOWS["param"]
    if 0 <= offset < WINDOW_BYTES:
        if offset + N_BYTES > state.n_param_bytes:
            raise Fault("bounds", "128 bytes are not inside the parameters", sel, address)
        raw = state.params.data[offset : offset + N_BYTES].tobytes()
    else:
        try:
            block, at = state.memory.range(address, N_BYTES)
        except Fault as fault:
            fault.lanes = sel
            raise
        raw = block.data[at : at + N_BYTES].tobytes()
    tensor = decoded(raw, sel)
    if n_axes not in (None, len(tensor.shape)):
        raise Fault("undefined", f"the tensor has {len(tensor.shape)} axes, the copy {n_axes}", sel)
    return tensor


def _start(
    build: Build, lane: int, tensor: TensorMap, start: tuple[int, ...], to: int, barrier_at: int
) -> None:
    state, sel = build.state, np.array([lane])
    if to % STARTS[tensor.swizzle]:
        raise Fault("alignment", f"a box with a swizzle of {tensor.swizzle} bytes needs a multiple "
                    f"of {STARTS[tensor.swizzle]}", sel, to)
    space = state.space("shared")
    first = int(space.places(sel, np.array([to], np.uint64), tensor.box_bytes)[0])
    n_bytes = prod(tensor.shape) * tensor.cell_bytes
    try:
        block, base = state.memory.range(tensor.address, n_bytes)
    except Fault as fault:
        fault.lanes = sel
        raise
    for rows in rows_of(tensor, start, to):
        lanes = np.full(len(rows.to), lane)
        store, source = (None, rows.to) if rows.source is None else (block, base + rows.source)
        state.completions.start(Copy(
            BARRIER, lanes, store, source, space, first + rows.to, np.zeros(len(lanes), np.int32),
            state.site, rows.inside, barrier_at,
        ))
