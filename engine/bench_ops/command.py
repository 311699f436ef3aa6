"""Owns the command `python -m engine.bench ops`: which cases run, in which order, and what is told.

    python -m engine.bench ops [OP ...] [--json FILE] [--svg FILE] [--quick] [--no-peers] [--list]

Ceilings first, then every case of the named ops (default: all) and its peer, then the chain.
Figures go to KNOWLEDGE with their card; nothing here is a test.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.bench_ops import ceilings, chain
from engine.bench_ops.case import Case, Kind
from engine.bench_ops.cases import CASES
from engine.bench_ops.judge import judge
from engine.bench_ops.measure import Failed, Timed, measure_case
from engine.bench_ops.peers import Peer, Peers, find_torch
from engine.bench_ops.report import (
    HEAD,
    Report,
    ceilings_text,
    chain_text,
    failed_text,
    line_of,
    to_json,
)
from engine.bench_ops.svg import draw
from engine.bench_ops.timing import FULL, QUICK
from ptx.devices.cuda import CudaDevice, available
from ptx.inventory import ops
from ptx.op import Op, OpError, PtxError


def main(arguments: Sequence[str]) -> int:
    """Measure and tell; 1 for an op without a case, without a card, or when something failed."""
    options = _parser().parse_args(arguments)
    known = ops()
    try:
        cases = chosen(options.ops, options.quick)
    except OpError as error:
        print(error, file=sys.stderr)
        return 1
    if options.list:
        print("\n".join(_listed(case, known) for case in cases))
        return 0
    found = available()
    if isinstance(found, str):
        print(f"no card: {found}", file=sys.stderr)
        return 1
    report = run(CudaDevice(), known, cases, options)
    if options.json:
        options.json.write_text(json.dumps(to_json(report), indent=1), encoding="utf-8")
    if options.svg:
        options.svg.write_text(draw(report), encoding="utf-8")
    return 1 if report.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="engine.bench ops", description="Time tuned kernels.")
    parser.add_argument("ops", nargs="*", metavar="OP", help="names of ops, or chain")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--svg", type=Path, help="draw them here")
    parser.add_argument("--quick", action="store_true",
                        help="fewer cases and replays, only the kernels that a launch picks")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True,
                        help="measure torch too, where it is there (default)")
    parser.add_argument("--list", action="store_true", help="only list the cases")
    return parser


def chosen(names: Sequence[str], quick: bool) -> list[Case]:
    """The cases of the named ops, or all; OpError for a name that has none."""
    have = dict.fromkeys(case.op for case in CASES)
    for name in names:
        if name not in have and name != chain.NAME:
            raise OpError(f"no case for {name!r}; there are {', '.join(have)}, {chain.NAME}")
    return [
        case for case in CASES
        if (not names or case.op in names) and (case.quick or not quick)
    ]


def _listed(case: Case, known: Mapping[str, Op]) -> str:
    bar = f"; bar: {case.bar}" if case.bar else ""
    gone = "" if case.op in known else "; not there"
    return (
        f"{case.label}: {case.op}, {case.n_bytes / 1e6:.3g} MB, {case.n_flops / 1e9:.3g} GFLOP"
        f"{bar}{gone}"
    )


def run(
    device: Any, known: Mapping[str, Op], cases: Sequence[Case], options: argparse.Namespace
) -> Report:
    """Measure `cases` on a device, and print each as soon as it is there."""
    effort = QUICK if options.quick else FULL
    report = Report(device.description, device.target.name, options.quick)
    peers = _peers(device, report, options)
    report.reads = ceilings.measure_reads(device, effort)
    report.copy = ceilings.measure_copy(device)
    report.product = peers.product_flops() if peers else None
    print(f"{ceilings_text(report)}\n\n{HEAD}", flush=True)
    timed: list[Timed] = []
    theirs: dict[str, Peer] = {}
    limits: dict[Kind, float | None] = {
        "bytes": report.read_ceiling, "flops": report.product,
    }
    for case in cases:
        op = known.get(case.op)
        if op is None:
            _miss(report, case.op)
            continue
        peer = peers.measure(case) if peers else None
        if peer:
            theirs[case.label] = peer
        for one in measure_case(device, case, op, effort, not options.quick):
            if isinstance(one, Failed):
                report.failed.append(one)
                print(failed_text(one), flush=True)
                continue
            timed.append(one)
            report.rows = judge(timed, limits, theirs)
            print(line_of(report.rows[-1]), flush=True)
        if device.context.lost:
            report.notes.append(f"ended early: {device.context.lost}")
            break
    if not options.ops or chain.NAME in options.ops:
        _measure_chain(device, known, report, effort)
    report.notes += peers.notes if peers else []
    print("\n".join(["", *report.notes]))
    return report


def _peers(device: Any, report: Report, options: argparse.Namespace) -> Peers | None:
    if not options.peers:
        return None
    torch = find_torch()
    if isinstance(torch, str):
        report.notes.append(f"no peers: {torch}")
        return None
    return Peers(torch, device.facts.l2_bytes, QUICK if options.quick else FULL)


def _miss(report: Report, name: str) -> None:
    if name not in report.missing:
        report.missing.append(name)
        print(f"| {name} | not there |", flush=True)


def _measure_chain(
    device: Any, known: Mapping[str, Op], report: Report, effort: Any
) -> None:
    absent = [name for name in chain.op_names() if name not in known]
    if absent:
        print(f"\nchain: not there: {', '.join(absent)}")
        report.missing += [name for name in absent if name not in report.missing]
        return
    try:
        report.chain = chain.measure_chain(device, known, effort)
    except PtxError as error:
        failed = Failed(chain.NAME, "", str(error))
        report.failed.append(failed)
        print(f"\n{failed_text(failed)}")
        return
    print(f"\n{chain_text(report.chain)}", flush=True)
