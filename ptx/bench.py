"""Owns timing kernels on a card: every op at the dims of its examples, or some at other dims.

    python -m ptx.bench [OP ...] [--dims T=1,N=17408,K=5120] [--json FILE]

Launches are replayed from one captured graph, so that Python is not in the figure, over as many
sets of buffers as do not fit into the card's cache together. Not a test: figures go to KNOWLEDGE
with their card. `VALUES` knows what each parameter may hold; what it means is in `op.py`.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ptx.bench_cells import N_RANDOM, fill_random
from ptx.devices.cuda import CudaDevice, available
from ptx.fill_uniform.op import OP as FILL_UNIFORM
from ptx.inventory import ops
from ptx.numerics import DTYPES, Array
from ptx.op import Dims, Op, OpError, Param, PtxError, listed, pick

MAX_SETS, N_REPLAYS, CACHE_TIMES = 64, 21, 4
COPY_BYTES = 1 << 30
# Ops that read or write only a part of some buffer, so that bytes over time would say nothing.
IN_PART = {"embedding", "attention"}
SCALARS: dict[str, float | int | bool] = {
    "eps": 1e-6, "offset": 1.0, "chunk": 64, "interleaved": False, "low": -1.0, "high": 1.0,
    "seed_lo": 1, "seed_hi": 2, "start_lo": 0, "start_hi": 0, "n": 1,
}
Maker = Callable[[tuple[int, ...], Dims], Any]


def _counted(shape: tuple[int, ...]) -> Array:
    """0, 1, 2, ... in the given shape."""
    return np.arange(prod(shape)).reshape(shape)


# Values by parameter name, where random ones of the dtype are outside the domain. Others: random.
VALUES: dict[str, Maker] = {
    "ids": lambda shape, dims: _counted(shape) % dims.get("V", 1),
    "lanes": lambda shape, dims: _counted(shape) % dims.get("P", 1),
    "delta": lambda shape, dims: 1,
    "starts": lambda shape, dims: np.linspace(0, dims.get("T", 1), shape[0]).astype(int),
    # Rows end where the pages do, if there are pages.
    "first": lambda shape, dims: max(0, dims.get("W", 0) * dims.get("B", 0) - dims.get("T", 0)),
    "state_in": lambda shape, dims: _counted(shape),
    "state_out": lambda shape, dims: _counted(shape),
    "tickets": lambda shape, dims: 0,
    "table": lambda shape, dims: _counted(shape) % dims.get("C", 1),
    "seq_of_token": lambda shape, dims: _counted(shape) % dims.get("S", 1),
    # The last cell; where a row of W names pages, they have B cells each.
    "positions": lambda shape, dims: dims.get("W", dims.get("C", 1)) * dims.get("B", 1) - 1,
    "pages": lambda shape, dims: _counted(shape) % dims.get("P", 1),
    "arrived": lambda shape, dims: 0,
    "work": lambda shape, dims: 0,
    "slots": lambda shape, dims: _counted(shape),
    "from_rows": lambda shape, dims: _counted(shape),
    "to_rows": lambda shape, dims: _counted(shape),
    "inv_freq": lambda shape, dims: np.logspace(0, -7, shape[0]),
    "counts": lambda shape, dims: _counted(shape) % 7 == 0,
    "mask": lambda shape, dims: 2**32 - 1,
    "bias_ids": lambda shape, dims: _counted(shape) % dims.get("V", 1),
    "repeat": lambda shape, dims: 1.1,
    "frequency": lambda shape, dims: 0.1,
    "presence": lambda shape, dims: 0.1,
    "temperature": lambda shape, dims: 0.8,
    "top_k": lambda shape, dims: 0,
    "top_p": lambda shape, dims: 0.95,
    "log_min_p": lambda shape, dims: -math.inf,
    "seed": lambda shape, dims: 1,
    "draw": lambda shape, dims: _counted(shape),
    "beta": lambda shape, dims: 0.5,
    "global_scale": lambda shape, dims: 1.0,
    "g": lambda shape, dims: -0.1,
}


def buffers_for(
    device: Any, op: Op, dims: Dims, seed: int = 0, values: Mapping[str, Maker] | None = None
) -> dict[str, Any]:
    """A buffer for each of the op's, with values of its domain, and its scalars.

    `values` go before `VALUES`, where one use of a name wants others than most.
    """
    makers = {**VALUES, **(values or {})}
    rng = np.random.default_rng(seed)
    args: dict[str, Any] = {}
    for param in op.given(dims):
        if param.shape is None:
            args[param.name] = SCALARS[param.name]
            continue
        shape = tuple(dims[axis] for axis in param.shape)
        args[param.name] = device.allocate(shape, param.dtype, f"{op.name}: {param.name}")
        # Outputs too: some are read before they are written.
        if param.name in makers:
            cells = np.asarray(makers[param.name](shape, dims))
            device.upload(args[param.name], np.broadcast_to(cells, shape))
        else:
            _fill(device, args[param.name], param, rng)
    return args


def _fill(device: Any, buffer: Any, param: Param, rng: np.random.Generator) -> None:
    if param.dtype == "f32" and prod(buffer.shape) > N_RANDOM:
        device.launch(FILL_UNIFORM, y=buffer, **{n: SCALARS[n] for n in _scalars(FILL_UNIFORM)})
    else:
        fill_random(device, buffer, rng, positive="scale" in param.name)


def _scalars(op: Op) -> list[str]:
    return [p.name for p in op.params if p.shape is None and p.name in SCALARS]


def bytes_of(op: Op, dims: Dims) -> int:
    """Bytes of all the op's buffers."""
    return sum(
        prod(dims[axis] for axis in p.shape) * DTYPES[p.dtype].itemsize
        for p in op.params if p.shape is not None
    )


def measure(device: CudaDevice, op: Op, dims: Dims) -> dict[str, Any]:
    """Median microseconds of a launch, and the bytes of its buffers over that time."""
    n_bytes = bytes_of(op, dims)
    n_sets = max(1, min(MAX_SETS, -(-CACHE_TIMES * device.facts.l2_bytes // n_bytes)))
    sets = [buffers_for(device, op, dims, seed) for seed in range(n_sets)]
    device.launch(op, **sets[0])
    with device.capture(op.name) as graph:
        for args in sets:
            device.launch(op, **args)
    median = statistics.median(_milliseconds(device, graph.replay) for _ in range(N_REPLAYS))
    microseconds = median * 1e3 / n_sets
    whole = op.name not in IN_PART and not any(p.partial for p in op.params)
    return {
        "op": op.name, "kernel": pick(op, device.target, dims).target, "dims": listed(dims),
        "sets": n_sets, "us": microseconds,
        "gb_per_s": n_bytes / microseconds / 1e3 if whole else None,
    }


def copy_gb_per_s(device: CudaDevice) -> float:
    """What the card reads and writes in a copy, the ceiling of everything here."""
    pair = device.allocate((2, COPY_BYTES), "u8", "pair")
    device.clear(pair, 1)
    copies = (_milliseconds(device, lambda: device.copy(pair[0], pair[1])) for _ in range(9))
    return 2 * COPY_BYTES / statistics.median(copies) / 1e6


def _milliseconds(device: CudaDevice, call: Callable[[], None]) -> float:
    start, end = device.event(), device.event()
    start.record()
    call()
    end.record()
    end.synchronize()
    return end.milliseconds_since(start)


def _chosen(names: list[str], dims: Dims) -> Iterator[tuple[Op, Dims]]:
    """What to measure; OpError for a name that is no op, or dims that lack one of its axes."""
    known = ops()
    for name in names or known:
        if name not in known:
            raise OpError(f"no op {name!r}; known: {', '.join(known)}")
        axes = dict.fromkeys(axis for p in known[name].params for axis in p.shape or ())
        if dims and not axes.keys() <= dims.keys():
            raise OpError(f"{name}: --dims needs {', '.join(axes)}, found {listed(dims)}")
        for example in [dims] if dims else known[name].examples:
            yield known[name], example


def axis_lengths(text: str) -> dict[str, int]:
    """`T=1,N=17408` by axis; ValueError for anything else."""
    return {axis: int(length) for axis, length in (part.split("=") for part in text.split(","))}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table; 1 without a card, or when an op could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m ptx.bench", description="Time kernels.")
    parser.add_argument("ops", nargs="*", help="names of ops (default: all)")
    parser.add_argument("--dims", type=axis_lengths, default={}, help="axis lengths: T=1,N=17408")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args(arguments)
    try:
        chosen = list(_chosen(options.ops, options.dims))
    except OpError as error:
        parser.error(str(error))
    found = available()
    if isinstance(found, str):
        print(f"no card: {found}", file=sys.stderr)
        return 1
    device, rows, failed = CudaDevice(), [], 0
    ceiling = copy_gb_per_s(device)
    print(f"{device.description}; a copy reads and writes {ceiling:.0f} GB/s\n")
    print("| op | kernel | dims | us | GB/s | of a copy |\n|---|---|---|---|---|---|")
    for op, dims in chosen:
        try:
            row = measure(device, op, dims)
        except PtxError as error:
            print(f"| {op.name} | {error} |")
            failed = 1
            continue
        rows.append(row)
        rate = row["gb_per_s"]
        shown = f"{rate:.0f} | {rate / ceiling:.0%}" if rate else "- | -"
        print(f"| {row['op']} | {row['kernel']} | {row['dims']} | {row['us']:.1f} | {shown} |",
              flush=True)
    if options.json:
        report = {"card": device.description, "copy_gb_per_s": ceiling, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
