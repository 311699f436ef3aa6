"""Owns what the emulator says when a kernel is wrong: the error that callers see, the inner fault.

It must not know instructions or memory. Kinds are the rows of the sanitiser's table.
"""

from dataclasses import dataclass
from typing import Any

from ptx.numerics import Array
from ptx.op import PtxError

# bounds, alignment, uninitialised, race, barrier, outputs, const, limits, async, deadlock,
# dependency (what a launch ahead may still write), undefined (an operand for which PTX defines no
# result), subset (text outside what runs here).


@dataclass
class Fault(Exception):
    """Raised inside an instruction; the machine adds kernel, line and lane.

    `lanes` are lane numbers of the batch, the first one is reported. A fault that is not `fatal`
    leaves a defined state, so that collecting may go on.
    """

    kind: str
    message: str
    lanes: Array | None = None
    address: int | None = None
    allocation: str | None = None
    offset: int | None = None
    fatal: bool = True


class EmulatorError(PtxError):
    """A kernel did what no kernel may do; `kind` is its row in the sanitiser's table.

    Attributes that do not apply are None: kernel, line (from 1), text, cta (x, y, z), warp, lane,
    address, allocation (its name), offset (bytes into it).
    """

    def __init__(self, kind: str, message: str, **where: Any) -> None:
        self.kind = kind
        self.kernel: str | None = where.get("kernel")
        self.line: int | None = where.get("line")
        self.text: str | None = where.get("text")
        self.cta: tuple[int, int, int] | None = where.get("cta")
        self.warp: int | None = where.get("warp")
        self.lane: int | None = where.get("lane")
        self.address: int | None = where.get("address")
        self.allocation: str | None = where.get("allocation")
        self.offset: int | None = where.get("offset")
        super().__init__(self._shown(message))

    def _shown(self, message: str) -> str:
        parts = [self.kernel or "module"]
        if self.line is not None:
            parts.append(f"line {self.line}")
        head = " ".join(parts)
        text = f" `{self.text}`" if self.text else ""
        tail = []
        if self.cta is not None:
            tail.append(f"CTA {self.cta}")
        if self.warp is not None:
            tail.append(f"warp {self.warp} lane {self.lane}")
        if self.address is not None:
            tail.append(f"address {self.address:#x}")
        if self.allocation is not None:
            at = "" if self.offset is None else f" offset {self.offset}"
            tail.append(f"allocation {self.allocation}{at}")
        where = f" ({', '.join(tail)})" if tail else ""
        return f"{self.kind}: {head}:{text} {message}{where}"


class CollectedErrors(EmulatorError):
    """Several errors of one launch, in the order found; `errors` holds them."""

    def __init__(self, errors: list[EmulatorError]) -> None:
        self.errors = errors
        PtxError.__init__(self, "\n".join(map(str, errors)))
        first = errors[0]
        for name in ("kind", "kernel", "line", "text", "cta", "warp", "lane"):
            setattr(self, name, getattr(first, name))
        self.address, self.allocation = first.address, first.allocation
        self.offset = first.offset
