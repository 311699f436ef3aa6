"""Owns wgmma as instructions: asynchronous products of a warpgroup, their fence, groups and waits.

It must not know when a product ends: that is `products.py`. Contract: the PTX ISA's asynchronous
warpgroup matrix instructions without sparsity and single bits. Numbers are those of `ops_mma.py`:
products exact, one sum in float64 for each result, rounded once. All four warps of the warpgroup
arrive at an instruction before any goes on, as .aligned over 128 threads asks.
"""

import re
from typing import NamedTuple

import numpy as np

from ptx.emulator.decode import Build, Flow, Run, Step, opcode
from ptx.emulator.descriptors import addresses, matrices
from ptx.emulator.errors import Fault
from ptx.emulator.formats import TYPES, narrow, to_f32, widen
from ptx.emulator.fragments import BITS, ROWS, a_places, c_places, elements, matrix
from ptx.emulator.lanes import Sel
from ptx.emulator.ops_integer import saturated_s32
from ptx.emulator.ops_matrix import FULL
from ptx.emulator.products import GROUP_LANES, Product
from ptx.emulator.registers import Get, Reg
from ptx.emulator.syntax import Immediate, Operand, Vector
from ptx.numerics import Array

U32, U64, PRED = TYPES["u32"], TYPES["u64"], TYPES["pred"]
N_WARPS, M = 4, 64
FLOATS = {"f16": ("f16",), "bf16": ("bf16",), "tf32": ("tf32",), "e4m3": ("e4m3", "e5m2"),
          "e5m2": ("e4m3", "e5m2")}
INTEGERS = ("s8", "u8")
HALF_SUMS = ("f16", "e4m3", "e5m2")
# Operands after scale-d: signs of A and B, then which of the matrices in shared memory lie K last.
N_SIGNS = {"f16": 2, "bf16": 2, "tf32": 2, "e4m3": 2, "e5m2": 2, "s8": 0, "u8": 0}


class Form(NamedTuple):
    """What an instruction's words and constants say."""

    n: int
    depth: int
    types: tuple[str, str, str]
    satfinite: bool
    signs: tuple[int, int]
    transposed: tuple[bool, bool]
    a_in_registers: bool

    @property
    def shape(self) -> str:
        """What consecutive products into one D must share."""
        return f"m64n{self.n}k{self.depth} {self.types[0]}"


@opcode("wgmma")
def _wgmma(build: Build) -> Step:
    what = build.take("mma_async", "fence", "commit_group", "wait_group")
    if what is None or not build.take("sync") or not build.take("aligned"):
        raise build.refuse("needs what it does, then .sync.aligned")
    products = build.state.products
    if what == "mma_async":
        return _mma_async(build)
    build.done(int(what == "wait_group"))
    if what == "fence":
        return _warpgroup(products.held.fence)
    if what == "commit_group":
        return _warpgroup(products.commit)
    n_open = build.integer(0)
    return _warpgroup(lambda sel: products.wait(sel, n_open))


def _warpgroup(run: Run) -> Step:
    return Step(run, Flow.GATHER, mask=lambda sel: FULL, full_mask=True, aligned=True,
                waits_for="its warpgroup", n_warps=N_WARPS)


def _form(build: Build) -> Form:
    shape = next((m for m in build.mods if re.fullmatch(r"m64n\d+k\d+", m)), None)
    if shape is None:
        raise build.refuse("needs a shape m64nNkK")
    build.mods.remove(shape)
    n, depth = (int(x) for x in re.findall(r"\d+", shape)[1:])
    satfinite = bool(build.take("satfinite"))
    if len(build.mods) != 3:
        raise build.refuse("needs the types of D, A and B")
    d, a, b = build.mods
    build.mods.clear()
    why = _fault_of(n, depth, (d, a, b), satfinite)
    if why:
        raise build.refuse(why)
    in_registers = isinstance(build.operand(1), Vector)
    n_signs, n_layouts = N_SIGNS[a], (2 - in_registers if BITS[a] == 16 else 0)
    build.done(4 + n_signs + n_layouts)
    numbers = [build.integer(4 + at) for at in range(n_signs + n_layouts)]
    signs, layouts = numbers[:n_signs] or [1, 1], numbers[n_signs:]
    if not {*signs} <= {1, -1} or not {*layouts} <= {0, 1}:
        raise build.refuse("signs are 1 or -1, transpositions 0 or 1")
    layouts = [0] * (2 - len(layouts)) + layouts
    return Form(n, depth, (d, a, b), satfinite, (signs[0], signs[1]),
                (bool(layouts[0]), bool(layouts[1])), in_registers)


def _fault_of(n: int, depth: int, types: tuple[str, str, str], satfinite: bool) -> str | None:
    """Why there is no such form, or None."""
    d, a, b = types
    if a not in N_SIGNS or b not in (INTEGERS if a in INTEGERS else FLOATS[a]):
        return f"{a} by {b} is outside what the emulator runs"
    if depth * BITS[a] != 256:
        return f"{a} by {b} with k{depth} is outside what the emulator runs"
    if n % 8 or not 8 <= n <= 256 or (a in INTEGERS and n > 24 and n % 16):
        return f"{a} by {b} has no n{n}"
    sums = ("s32",) if a in INTEGERS else ("f32", "f16") if a in HALF_SUMS else ("f32",)
    if d not in sums:
        return f"{a} by {b} does not accumulate into {d}"
    if satfinite and d != "s32":
        return ".satfinite is for integers"
    return None


def _mma_async(build: Build) -> Step:
    form = _form(build)
    d = _registers(build, build.operand(0), form.n // (4 if form.types[0] == "f16" else 2))
    a = _registers(build, build.operand(1), 4) if form.a_in_registers else []
    if {reg.name for reg in d} & {reg.name for reg in a}:
        raise build.refuse("a register is of both A and D")
    descriptors: list[tuple[Get, int, bool]] = []
    if not form.a_in_registers:
        descriptors.append((build.read(build.operand(1), U64), M, form.transposed[0]))
    descriptors.append((build.read(build.operand(2), U64), form.n, form.transposed[1]))
    if isinstance(build.operand(3), Immediate):
        raise build.refuse("scale-d is a predicate")
    scale = build.read(build.operand(3), PRED)
    state, compute = build.state, _Compute(build, form, d, a)
    row_of = state.products.held.row_of
    rows_d, rows_a = (np.array([row_of[reg.name] for reg in r], np.int64) for r in (d, a))
    state.claims.watch_products()

    def run(sel: Sel) -> None:
        lanes = build.lanes.index(sel).copy()
        keeps = _same(scale(sel), lanes, "scale-d")
        first = lanes[::GROUP_LANES]
        space, runs = state.space("shared"), []
        for get, n_rows, transposed in descriptors:
            at = addresses(_same(get(sel), lanes, "a matrix descriptor"), n_rows, transposed, first)
            owners = np.repeat(first, at.shape[1])
            flat = space.places(owners, at.reshape(-1).astype(np.uint64), 16)
            runs.append(flat.reshape(at.shape))
        _check_written(build, lanes, keeps, d, a)
        places = np.concatenate(runs, axis=1)
        state.products.start(
            Product(lanes, places, keeps, compute, rows_d, rows_a, state.site), form.shape
        )

    return _warpgroup(run)


def _registers(build: Build, operand: Operand, n: int) -> list[Reg]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != n:
        raise build.refuse(f"a vector of {len(items)}, expected {n}")
    found = []
    for item in items:
        build.write(item, U32)
        reg = build.reg(item)
        if reg is None:
            raise build.refuse("needs registers")
        found.append(reg)
    return found


def _same(values: Array, lanes: Array, what: str) -> Array:
    """The one value of each warpgroup."""
    rows = np.broadcast_to(values, len(lanes)).reshape(-1, GROUP_LANES)
    bad = rows != rows[:, :1]
    if bad.any():
        raise Fault("undefined", f"lanes of a warpgroup disagree on {what}", lanes[bad.reshape(-1)])
    # A copy: the register may change while a product is pending.
    return np.array(rows[:, 0])


def _check_written(build: Build, lanes: Array, keeps: Array, d: list[Reg], a: list[Reg]) -> None:
    """Fault for operands that nobody wrote; D is written by this."""
    added = lanes[np.repeat(keeps, GROUP_LANES)]
    for reg, read in (*((r, added) for r in d), *((r, lanes) for r in a)):
        if reg.taint is not None:
            reg.blame(read, 0, build.lanes)
    for reg in d:
        if reg.taint is not None:
            reg.clear(lanes)


class _Compute:
    """D = A B (+ D) of some warpgroups, when it happens."""

    def __init__(self, build: Build, form: Form, d: list[Reg], a: list[Reg]) -> None:
        self.state, self.form = build.state, form
        self._d = [reg.view(U32) for reg in d]
        self._a = [reg.view(U32) for reg in a]

    def __call__(self, lanes: Array, places: Array, keeps: Array) -> None:
        form, (d_type, _, b_type) = self.form, self.form.types
        data = self.state.space("shared").data
        n_of_a = 0 if form.a_in_registers else 2 * M
        runs = data[places[:, :, None] + np.arange(16)]
        b = matrices(runs[:, n_of_a:], b_type, form.n, form.transposed[1])
        total = (form.signs[0] * self._left(lanes, runs[:, :n_of_a])) @ (
            form.signs[1] * np.swapaxes(b, 1, 2))
        before = self._before(lanes)
        added = np.repeat(keeps, GROUP_LANES)
        result = np.where(added, before, 0) + self._of_lanes(total)
        if d_type == "s32":
            wide = result.astype(np.int64)
            bits = (saturated_s32(wide) if form.satfinite else wide.astype(np.int32)).view("u4")
        elif d_type == "f32":
            bits = to_f32(result).view(np.uint32)
        else:
            pairs = narrow(result, "f16").reshape(-1, 2, len(lanes))
            bits = np.ascontiguousarray(np.swapaxes(pairs, 1, 2)).view(np.uint32)[:, :, 0]
        sel = self.state.lanes.compact(lanes)
        for view, words in zip(self._d, bits, strict=True):
            view[sel] = words

    def _left(self, lanes: Array, runs: Array) -> Array:
        """A [groups, 64, K]."""
        form, kind = self.form, self.form.types[1]
        if not form.a_in_registers:
            return matrices(runs, kind, M, form.transposed[0])
        words = np.stack([view[lanes] for view in self._a], axis=-1).reshape(-1, 32, 4)
        places = a_places(BITS[kind], form.depth)
        rows = matrix(elements(words, kind), places, (ROWS, form.depth))
        return np.asarray(rows.reshape(-1, M, form.depth).astype(np.float64))

    def _before(self, lanes: Array) -> Array:
        """D as float64 [values, lanes]."""
        sel = self.state.lanes.compact(lanes)
        words = np.stack([view[sel] for view in self._d])
        if self.form.types[0] == "f16":
            halves = widen(words[:, :, None].view(np.uint16), "f16")
            return np.swapaxes(halves, 1, 2).reshape(-1, len(lanes))
        return words.view(np.int32 if self.form.types[0] == "s32" else np.float32).astype("f8")

    def _of_lanes(self, total: Array) -> Array:
        """[groups, 64, N] as each lane's values [N / 2, lanes]: 4 of each 8 columns."""
        rows, columns = c_places()
        blocks = total.reshape(-1, ROWS, self.form.n // 8, 8)[:, rows, :, columns]
        # [lane, value, warp, block] so far.
        return blocks.transpose(3, 1, 2, 0).reshape(self.form.n // 2, -1)
