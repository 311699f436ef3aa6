"""Owns how the emulator's tests run instructions and small kernels.

It must not know what an instruction should give: each test computes that by itself.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from ptx.emulator import Machine, Memory, Output, parse
from ptx.numerics import Array

WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8}
HEAD = ".version 9.0\n.target {target}\n.address_size 64\n"


def n_bytes(type_name: str) -> int:
    """Bytes of a register's type, of a packed one too."""
    digits = type_name.lstrip("abefmstu")
    return 4 if digits.endswith("x2") else WIDTHS[digits]


class Bench:
    """Small kernels on a machine of their own."""

    def evaluate(
        self, line: str, out: str, *inputs: tuple[str, Sequence[Any] | Array],
        target: str = "sm_120a",
    ) -> Array:
        """Run `line` once in a lane for each value; operands a, b, c, e, result d of type `out`.

        Values are arrays of the width that their type has; the result is raw unsigned.
        """
        arrays = [np.ascontiguousarray(values) for _, values in inputs]
        n, width = len(arrays[0]), n_bytes(out)
        text = self.text(line, out, [t for t, _ in inputs], target)
        memory = Memory()
        places = []
        for at, array in enumerate(arrays):
            places.append(memory.allocate(array.nbytes, f"input {at}"))
            memory.write(places[-1], array)
        result = np.zeros(n, f"uint{8 * width}")
        to = memory.allocate(result.nbytes, "result")
        Machine(memory, target).launch(
            parse(text), "k", -(-n // 256), 256, 0, [*places, to, n], [Output(to, result.nbytes)]
        )
        memory.read(to, result)
        return result

    def text(self, line: str, out: str, types: Sequence[str], target: str) -> str:
        """The module of `evaluate`: pointers to the operands, one to the result, how many."""
        names, width = "abcefg", n_bytes(out)
        params = "".join(f".param .u64 p{i}, " for i in range(len(types))) + ".param .u64 out"
        declared = "".join(f".reg .b{8 * n_bytes(t)} {names[i]};\n" for i, t in enumerate(types))
        loads = "".join(
            f"ld.param.u64 at, [p{i}]; mad.wide.u32 at, i, {n_bytes(t)}, at;\n"
            f"ld.global.b{8 * n_bytes(t)} {names[i]}, [at];\n" for i, t in enumerate(types)
        )
        return HEAD.format(target=target) + (
            f".visible .entry k({params}, .param .u32 n) {{\n.reg .pred gone, p, q; .reg .b32 i, j;"
            f".reg .b64 at;\n{declared}.reg .b{8 * width} d;\n.reg .b16 h0, h1;\n"
            "mov.u32 i, %ctaid.x; mov.u32 j, %tid.x; mad.lo.u32 i, i, 256, j;\n"
            "ld.param.u32 j, [n]; setp.ge.u32 gone, i, j; @gone bra END;\n"
            f"{loads}{line}\nld.param.u64 at, [out]; mad.wide.u32 at, i, {width}, at;\n"
            f"st.global.b{8 * width} [at], d;\nEND: ret;\n}}\n"
        )

    def kernel_text(self, body: str, names: Iterable[str], target: str, head: str = "") -> str:
        """The module of `kernel`."""
        names = list(names)
        params = ", ".join(f".param .u64 p_{name}" for name in names)
        return HEAD.format(target=target) + head + (
            f".visible .entry k({params})\n{{\n"
            + "".join(f".reg .b64 {name};\n" for name in names)
            + "".join(f"ld.param.u64 {name}, [p_{name}];\n" for name in names)
            + body + "\n}\n"
        )

    def kernel(
        self, body: str, buffers: dict[str, Array | int], grid: Any = 1, block: Any = 32,
        shared_bytes: int = 0, target: str = "sm_90a", outputs: tuple[str, ...] | None = None,
        head: str = "", **options: Any,
    ) -> dict[str, Array]:
        """Run a kernel whose parameters are buffers: arrays, or a count of fresh bytes.

        The body finds their addresses in 64-bit registers of their names. Returns all contents.
        """
        text = self.kernel_text(body, buffers, target, head)
        memory = Memory()
        arrays = {
            name: np.zeros(b, np.uint8) if isinstance(b, int) else np.ascontiguousarray(b)
            for name, b in buffers.items()
        }
        places = {name: memory.allocate(a.nbytes, name) for name, a in arrays.items()}
        for name, given in buffers.items():
            if not isinstance(given, int):
                memory.write(places[name], arrays[name])
        extents = None
        if outputs is not None:
            extents = [Output(places[name], arrays[name].nbytes) for name in outputs]
        self.machine = Machine(memory, target, **options)
        self.machine.launch(
            parse(text), "k", grid, block, shared_bytes, list(places.values()), extents
        )
        results = {name: np.zeros_like(a) for name, a in arrays.items()}
        for name, array in results.items():
            if array.nbytes:
                memory.read(places[name], array)
        return results


@pytest.fixture
def bench() -> Bench:
    """A bench without state."""
    return Bench()
