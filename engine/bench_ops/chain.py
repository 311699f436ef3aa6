"""Owns the chain: all the linears of one token as one graph, over weights that are all distinct.

64 layers in the order of the schedule, every fourth of them attention, then the head. A linear
reads what the one before it wrote, but for the out-projections: what stands before those is no
linear, so that they read a fixed row. A launch waits for the one before it either way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from engine.bench_ops.case import Case, dims_of, kernels_of
from engine.bench_ops.cases import CASES
from engine.bench_ops.ceilings import read_of
from engine.bench_ops.timing import Effort, Launch, Spread, captured, time_replays
from ptx.bench import buffers_for
from ptx.bench_cells import fill_random
from ptx.devices.buffer import DeviceBuffer
from ptx.op import Op, OpError

NAME = "chain"
LIMIT_US = 4200.0
N_LAYERS, INTERVAL = 64, 4
BODY, HEAD = "int4", "int8"
# A row of the buffer that one kernel reads, and the lines of 16 bytes of a block's part.
ROW_BYTES, PART_LINES = 64 << 10, 1024


@dataclass(frozen=True)
class Chain:
    """Microseconds of one token's linears, and of pure reads of as many bytes in the same run: by
    one kernel, and by one for each weight. `plain` is the chain without programmatic launches."""

    us: Spread
    plain: Spread | None
    read_us: Spread
    read_each_us: Spread
    weight_bytes: int
    n_launches: int
    kernels: Mapping[str, str]

    @property
    def holds(self) -> bool:
        """Whether it keeps its bar."""
        return self.us.median <= LIMIT_US


@dataclass(frozen=True)
class Link:
    """A linear of the chain: its op with the one kernel that runs, the same with the best one that
    is no programmatic launch, and arguments of its own, one of them the weight."""

    op: Op
    plain: Op | None
    args: Mapping[str, Any]
    weight: str


def names(n_layers: int = N_LAYERS) -> list[str]:
    """Labels of the cases that the chain is made of, in order."""
    found = []
    for layer in range(n_layers):
        mixer = "attention in" if layer % INTERVAL == INTERVAL - 1 else "gdn in"
        found += [f"{BODY} {name} T=1" for name in (mixer, "out", "gate/up", "down")]
    return [*found, f"{HEAD} head T=1"]


def op_names() -> list[str]:
    """The ops that the chain needs."""
    labels = set(names())
    return list(dict.fromkeys(case.op for case in CASES if case.label in labels))


def measure_chain(
    device: Any, known: Mapping[str, Op], effort: Effort,
    cases: Sequence[Case] = CASES, n_layers: int = N_LAYERS,
) -> Chain:
    """Time the chain; PtxError when an op or kernel of it is not there, or the card has no room."""
    labels = names(n_layers)
    by_label = {case.label: case for case in cases}
    links = {label: _link(device, by_label[label], known) for label in dict.fromkeys(labels)}
    _wire(links)
    n_bytes = sum(links[label].args[links[label].weight].nbytes for label in labels)
    read_us = _read_once(device, n_bytes, effort)
    weights = _weights(device, [links[label] for label in labels])
    picked, plain = (
        [
            partial(device.launch, op, **{**link.args, link.weight: weight})
            for link, weight in zip((links[label] for label in labels), weights, strict=True)
            if (op := getattr(link, form)) is not None
        ]
        for form in ("op", "plain")
    )
    differs = len(plain) == len(picked) and any(x.op is not x.plain for x in links.values())
    return Chain(
        _time(device, picked, effort), _time(device, plain, effort) if differs else None,
        read_us, _time(device, [read_of(device, weight) for weight in weights], effort),
        n_bytes, len(labels), {label: link.op.kernels[0].stem for label, link in links.items()},
    )


def _link(device: Any, case: Case, known: Mapping[str, Op]) -> Link:
    op = known.get(case.op)
    if op is None:
        raise OpError(f"{NAME}: {case.op} is not there")
    dims = dims_of(case, op)
    kernels = kernels_of(op, device.target.runs, dims)
    alone = [replace(op, kernels=(kernel,)) for kernel in kernels]
    plain = [one for one in alone if not one.kernels[0].launch(dims).programmatic]
    args = buffers_for(device, op, dims)
    buffers = {name: value for name, value in args.items() if isinstance(value, DeviceBuffer)}
    weight = max(buffers, key=lambda name: buffers[name].nbytes)
    return Link(alone[0], plain[0] if plain else None, args, weight)


def _wire(links: dict[str, Link]) -> None:
    """Let the linears share the residual stream, and down read what gate/up wrote."""
    gate_up, down = links[f"{BODY} gate/up T=1"], links[f"{BODY} down T=1"]
    residual = down.args["h"]
    for label, link in links.items():
        shared = {
            name: residual for name, value in link.args.items()
            if name in ("x", "h") and (value.shape, value.dtype) == (residual.shape, "f32")
        }
        links[label] = replace(link, args={**link.args, **shared})
    down = links[f"{BODY} down T=1"]
    links[f"{BODY} down T=1"] = replace(down, args={**down.args, "x": gate_up.args["y"]})


def _weights(device: Any, links: Sequence[Link]) -> list[Any]:
    """A buffer for each link, the first of a kind its own, the others copies of that."""
    found: list[Any] = []
    for link in links:
        first = link.args[link.weight]
        if any(weight is first for weight in found):
            found.append(device.allocate(first.shape, first.dtype, f"{NAME}: a weight"))
            device.copy(first, found[-1])
        else:
            found.append(first)
    return found


def _read_once(device: Any, n_bytes: int, effort: Effort) -> Spread:
    whole = device.allocate((max(1, n_bytes // ROW_BYTES), ROW_BYTES), "u8", "as many bytes")
    fill_random(device, whole, np.random.default_rng(0))
    return _time(device, [read_of(device, whole, PART_LINES)], effort)


def _time(device: Any, launches: Sequence[Launch], effort: Effort) -> Spread:
    for launch in dict.fromkeys(launches):
        launch()
    return time_replays(device, captured(device, launches), 1, effort)
