"""Owns what a pass is made of: its steps by op and matrix, and the bytes that each cannot avoid.

Counted from the compiled schedule alone, so it needs neither a device nor the weights. Read are
weights, KV rows and recurrent state, each once; written are KV rows and state, and the bf16 rows
that a prompt makes of a matrix. Rows of activations are not counted: a cache holds those of a small
pass. It must not know how anything is timed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from engine.compiled.records import Cells, CompiledSchedule, CompiledStep, Rows
from engine.compiled.weights import matrix_bytes
from engine.errors import Unsupported
from engine.records import ModelPlan
from ptx.numerics import DTYPES
from ptx.op import Param

PAGES = re.compile(r"[kv]_pages\.\d+")
# A matrix of a layer ("down.3"), or the buffer that holds bf16 rows of such ("rows.5120x17408").
OF_LAYER, WIDE = re.compile(r"(\w+)\.\d+"), re.compile(r"rows\.\w+")
KV_CELL_BYTES, STATE_CELL_BYTES = 2, 4


class Shape(NamedTuple):
    """A pass: its rows, their sequences, and the KV cells that the sequences' last rows see."""

    n_rows: int
    n_sequences: int
    n_cells: int


@dataclass
class Bytes:
    """Bytes by what they are of; `written` are beside those read."""

    weights: int = 0
    kv: int = 0
    state: int = 0
    written: int = 0

    @property
    def read(self) -> int:
        """Everything that is read."""
        return self.weights + self.kv + self.state

    def add(self, other: "Bytes") -> None:
        """Count the other's too."""
        for name in ("weights", "kv", "state", "written"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class Group:
    """The launches of one op on one kind of matrix."""

    n_launches: int
    moved: Bytes


def schedule_of(plan: ModelPlan) -> CompiledSchedule:
    """The plan's compiled schedule; Unsupported without one."""
    if plan.compiled is None:
        raise Unsupported(f"model {plan.model_id}: no compiled schedule, so no table of its steps")
    return plan.compiled


def steps_of(plan: ModelPlan, n_rows: int) -> Iterator[CompiledStep]:
    """Every step of a pass in order, the head's behind it."""
    schedule = schedule_of(plan)
    layers = schedule.few if n_rows <= schedule.few_rows else schedule.many
    for group in (schedule.embed, *layers, schedule.head):
        yield from group


def label_of(step: CompiledStep) -> str:
    """The op, and the kind of matrix it reads: `norm_linear_bf16_split2 (ab)`."""
    weight = step.args.get("w")
    name = weight.name if isinstance(weight, Rows) else str(weight)
    found = OF_LAYER.fullmatch(name)
    kind = name if WIDE.fullmatch(name) else found[1] if found else ""
    return f"{step.op.name} ({kind})" if kind else step.op.name


def groups_of(plan: ModelPlan, shape: Shape) -> dict[str, Group]:
    """The pass's launches by label, in the order in which each comes first."""
    found: dict[str, Group] = {}
    for step in steps_of(plan, shape.n_rows):
        group = found.setdefault(label_of(step), Group(0, Bytes()))
        group.n_launches += 1
        group.moved.add(moved(plan, step, shape))
    return found


def total(groups: Iterable[Group]) -> Bytes:
    """What all of them move."""
    whole = Bytes()
    for group in groups:
        whole.add(group.moved)
    return whole


def must_read(plan: ModelPlan, shape: Shape) -> int:
    """Bytes that a pass cannot do without reading."""
    return total(groups_of(plan, shape).values()).read


def moved(plan: ModelPlan, step: CompiledStep, shape: Shape) -> Bytes:
    """What one launch of a step moves."""
    counted = Bytes()
    looked_up = "ids" in {param.name for param in step.op.params if not param.out}
    for param in step.op.params:
        value = step.args.get(param.name)
        if param.shape is None or param.scratch or not isinstance(value, str | Rows):
            continue
        _count(counted, plan, param, value, shape, looked_up)
    return counted


def _count(
    counted: Bytes, plan: ModelPlan, param: Param, value: str | Rows, shape: Shape,
    looked_up: bool,
) -> None:
    schedule = schedule_of(plan)
    name = value.name if isinstance(value, Rows) else value
    if name in schedule.matrices:
        whole = matrix_bytes(schedule.matrices[name], plan.weights)
        n_rows = sum(plan.weights[part].shape[0] for part in schedule.matrices[name].parts)
        counted.weights += whole * _taken(value, n_rows, shape, looked_up) // n_rows
    elif PAGES.fullmatch(name):
        cell = plan.kv.n_heads * plan.kv.d_head * KV_CELL_BYTES
        if param.out:
            counted.written += shape.n_rows * cell
        else:
            counted.kv += shape.n_cells * cell
    elif name in plan.states:
        slots = shape.n_sequences * prod(plan.states[name]) * STATE_CELL_BYTES
        counted.state += slots
        counted.written += slots
    elif WIDE.fullmatch(name):
        n_bytes = _bytes_of_rows(schedule.in_turns, value)
        if param.out:
            counted.written += n_bytes
        else:
            counted.weights += n_bytes


def _taken(value: str | Rows, n_rows: int, shape: Shape, looked_up: bool) -> int:
    """Rows of a matrix that a launch reads."""
    if isinstance(value, Rows):
        return value.stop - value.start
    return min(shape.n_rows, n_rows) if looked_up else n_rows


def _bytes_of_rows(buffers: Mapping[str, Cells], value: str | Rows) -> int:
    dtype, lengths = buffers[value.name if isinstance(value, Rows) else value]
    if isinstance(value, Rows):
        lengths = (value.stop - value.start, *lengths[1:])
    return prod(lengths) * DTYPES[dtype].itemsize
