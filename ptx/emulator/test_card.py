"""Protects that instructions give on a card what they give here, bit for bit, NaN included.

Families of instructions as kernels are in `ptx/feasibility`; here are single lines over codes, most
of all those of which the ISA leaves something open.
"""

from itertools import product

import numpy as np
import pytest

from ptx.devices.cuda import CudaDevice, available
from ptx.devices.emulator import EmulatorDevice
from ptx.op import Launch

RNG = np.random.default_rng(41)
ALL = np.arange(65536, dtype=np.uint16)
HALF_EDGES = [0, 1, 0x7F, 0x80, 0x3FF, 0x400, 0x3C00, 0x3F80, 0x4200, 0x7BFF, 0x7C00, 0x7C01,
              0x7E00, 0x7F7F, 0x7F80, 0x7F81, 0x7FFF]
F32_EDGES = [0, 1, 0x7FFFFF, 0x800000, 0x3F7FFFFF, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001,
             0x7FC00000, 0x7FFFFFFF]
MIN_MAX = ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs")


def operands(name, n):
    """Edges of both signs against each other, and random codes: n columns."""
    bits = 32 if name == "f32" else 16
    edges = [e | sign for e in (F32_EDGES if name == "f32" else HALF_EDGES)
             for sign in (0, 1 << (bits - 1))]
    rows = np.array(list(product(edges, repeat=2)), np.uint64)
    rows = np.concatenate([rows, RNG.integers(0, 1 << bits, (4000, 2), np.uint64)])
    third = RNG.permutation(rows[:, :1])
    columns = np.concatenate([rows, third], axis=1)
    if name != "bf16":
        columns = np.concatenate([columns, *tiny(name)])
    columns = columns[: len(columns) // 2 * 2, :n]
    return [np.ascontiguousarray(c.astype(f"u{bits // 8}")) for c in columns.T]


def tiny(name):
    """Three operands whose product, sum of a product, or quotient is just below the smallest normal
    number: by less than half, half and more than half a unit of what the number could be there."""
    n_fraction, bias, kind = (23, 127, np.float32) if name == "f32" else (10, 15, np.float16)
    below = np.array([-(2.0 ** (1 - bias))] * 16)
    half = -(n_fraction + 4 + bias) // 2
    steps = np.arange(16) * 2.0**half
    rest = np.full(16, 2.0 ** (1 - bias - n_fraction - 4 - half))
    unit, least = 2.0**-n_fraction, 2.0 ** (1 - bias)
    near = [(1 - i * unit / 2, (1 + j * unit) * least) for i in range(4) for j in range(4)]
    a, b = np.array(near).T
    for values in ((steps, rest, below), (steps, rest, -below), (a, b, 0 * a), (b, 1 + a / 2, b),
                   (b, 1 + np.arange(16) * unit, b)):
        narrow = np.stack(values, axis=1).astype(kind)
        yield narrow.view(f"u{narrow.itemsize}").astype(np.uint64)


def lines():
    """Lines with the type of the result, of the operands, and operands."""
    for name in ("f16", "bf16"):
        for word in ("neg", "abs"):
            yield f"{word}.{name} d, a;", name, name, [ALL]
            yield f"{word}.{name}x2 d, a;", f"{name}x2", f"{name}x2", [ALL.view(np.uint32)]
    yield "neg.ftz.f16 d, a;", "f16", "f16", [ALL]
    for name, word in product(("f32", "f16", "bf16"), ("min", "max")):
        for mods in (*MIN_MAX, *((".ftz", ".ftz.NaN.xorsign.abs") if name != "bf16" else ())):
            yield f"{word}{mods}.{name} d, a, b;", name, name, operands(name, 2)
    for word, n in (("add", 2), ("mul", 2), ("fma", 3)):
        for mods in ("", ".ftz", ".sat", ".ftz.sat", *((".relu", ".ftz.relu") if n == 3 else ())):
            yield (f"{word}.rn{mods}.f16 d, {', '.join('abc'[:n])};", "f16", "f16",
                   operands("f16", n))
    for word, n in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("fma", 3), ("sqrt", 1)):
        for mode, ftz in product(("rn", "rz", "rm", "rp"), ("", ".ftz")):
            yield (f"{word}.{mode}{ftz}.f32 d, {', '.join('abc'[:n])};", "f32", "f32",
                   operands("f32", n))
    yield "fma.rn.relu.bf16 d, a, b, c;", "bf16", "bf16", operands("bf16", 3)
    for name, word in product(("f16", "bf16"), ("lt", "ne", "geu", "num", "nan")):
        pairs = [c.view(np.uint32) for c in operands(name, 2)]
        yield (f"setp.{word}.{name}x2 p|q, a, b; selp.u32 d, 1, 0, p; @q add.u32 d, d, 2;", "u32",
               f"{name}x2", pairs)
        yield f"set.{word}.u32.{name}x2 d, a, b;", "u32", f"{name}x2", pairs
        yield f"set.{word}.{name}x2.{name}x2 d, a, b;", "u32", f"{name}x2", pairs
    integers = [RNG.integers(-400, 400, 2000).astype(np.int32) for _ in range(2)]
    for name in ("u8", "s8", "u4", "s4", "u2", "s2"):
        yield f"cvt.pack.sat.{name}.s32.b32 d, a, b, 0x1234;", "u32", "s32", integers
    yield "cvt.pack.sat.s16.s32 d, a, b;", "u32", "s32", integers
    for name in ("e4m3", "e5m2"):
        yield f"cvt.rn.satfinite.{name}x2.f32 d, a, b;", "u16", "f32", operands("f32", 2)
        yield f"cvt.rn.satfinite.relu.{name}x2.f32 d, a, b;", "u16", "f32", operands("f32", 2)
        yield f"cvt.rn.f16x2.{name}x2 d, a;", "f16x2", "u16", [ALL]
    yield "cvt.f32.bf16 d, a;", "f32", "bf16", [ALL]
    yield "cvt.f32.f16 d, a;", "f32", "f16", [ALL]
    yield "cvt.rn.bf16x2.f32 d, a, b;", "bf16x2", "f32", operands("f32", 2)


LINES = list(lines())


def evaluated(device, bench, line, out, type_, columns):
    """The results of a line on a device that takes PTX."""
    text = bench.text(line, out, [type_] * len(columns), "sm_90a")
    n = len(columns[0])
    cells = bench.evaluate(line, out, *[(type_, c[:1]) for c in columns], target="sm_90a")
    buffers = []
    for number, array in enumerate((*columns, np.zeros(n, cells.dtype))):
        raw = np.ascontiguousarray(array).view(np.uint8)
        buffers.append(device.allocate(raw.shape, "u8", f"parameter {number}"))
        device.upload(buffers[-1], raw)
    kernel = device._load(text, "k", "line.ptx")
    result = buffers[-1]
    device._run(kernel, Launch(-(-n // 256), 256), [*(b.address for b in buffers), n],
                [(result.address, result.nbytes, True)], "k")
    return device.download(result).view(cells.dtype)


@pytest.fixture(scope="module")
def card():
    found = available()
    if isinstance(found, str):
        pytest.skip(found)
    device = CudaDevice()
    if int(device.facts.arch.removeprefix("sm_")) != 90:
        pytest.skip(f"the texts are for sm_90a, the card is {device.facts.arch}")
    return device


@pytest.mark.gpu
@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_a_card_gives_the_same_bits(bench, card, line):
    got = evaluated(card, bench, *line)
    want = evaluated(EmulatorDevice(target="sm_90a"), bench, *line)
    differ = np.flatnonzero(got != want)
    assert not len(differ), (
        f"{len(differ)} of {len(got)}: " + ", ".join(
            f"{[hex(int(c[at])) for c in line[3]]} gives {int(got[at]):#x} on the card, "
            f"{int(want[at]):#x} here" for at in differ[:5]))


@pytest.mark.parametrize("line", LINES[::7], ids=lambda line: line[0])
def test_the_lines_run_here(bench, line):
    device = EmulatorDevice(target="sm_90a")
    got = evaluated(device, bench, *line)
    direct = bench.evaluate(*line[:2], *[(line[2], c) for c in line[3]], target="sm_90a")
    assert np.array_equal(got, direct)
