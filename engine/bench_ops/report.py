"""Owns what the benchmark writes: lines of a table, and a report as JSON.

The report is an object. Times are microseconds, rates bytes or operations in a second, shares
fractions; null is "not known".

    schema     1
    card, target, quick
    ceilings   reads: [{bytes, part_bytes, us, rate}], the largest first; copy and product: rates
    rows       [{case, family, op, kernel, dims, kind, bytes, flops, us, rate, share, bar, limit_us,
               holds, peer: {name, us} or null, picked, registers, local_bytes, shared_bytes,
               occupancy, sets}]; `picked` is the kernel that a launch takes
    chain      {us, plain_us, read_us, read_each_us, weight_bytes, launches, kernels, limit_us,
               holds}, or null
    failed     [{case, kernel, reason}];  missing: [names of ops];  notes: [sentences]

Every `us` is {median, least, low, high, replays, launches}: low and high are the quartiles over
replays of a graph of that many launches, each divided by them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.bench_ops.ceilings import Reads
from engine.bench_ops.chain import LIMIT_US, Chain
from engine.bench_ops.judge import Judged
from engine.bench_ops.measure import Failed
from engine.bench_ops.peers import Peer
from engine.bench_ops.timing import Spread

SCHEMA = 1
HEAD = (
    "| case | kernel | us | quartiles | rate | of ceiling | bar | peer us | registers | shared |"
    " local | warps |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass
class Report:
    """What one run found."""

    card: str
    target: str
    quick: bool
    reads: Sequence[Reads] = ()
    copy: float | None = None
    product: float | None = None
    rows: Sequence[Judged] = ()
    chain: Chain | None = None
    failed: list[Failed] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def read_ceiling(self) -> float | None:
        """Bytes in a second of the largest run of pure reads."""
        return self.reads[0].rate if self.reads else None


def to_json(report: Report) -> dict[str, Any]:
    """The report by the schema that this file begins with."""
    return {
        "schema": SCHEMA, "card": report.card, "target": report.target, "quick": report.quick,
        "ceilings": {
            "reads": [
                {"bytes": r.n_bytes, "part_bytes": r.part_bytes, "us": _us(r.us), "rate": r.rate}
                for r in report.reads
            ],
            "copy": report.copy, "product": report.product,
        },
        "rows": [_row(judged) for judged in report.rows],
        "chain": report.chain and _chain(report.chain),
        "failed": [
            {"case": f.label, "kernel": f.kernel, "reason": f.reason} for f in report.failed
        ],
        "missing": list(report.missing), "notes": list(report.notes),
    }


def _us(us: Spread) -> dict[str, float | int]:
    return {"median": us.median, "least": us.least, "low": us.low, "high": us.high,
            "replays": us.n_replays, "launches": us.n_launches}


def _peer(peer: Peer | None) -> dict[str, Any] | None:
    return {"name": peer.name, "us": _us(peer.us)} if peer else None


def _row(judged: Judged) -> dict[str, Any]:
    timed = judged.timed
    case, takes = timed.case, timed.takes
    return {
        "case": case.label, "family": case.family, "op": case.op, "kernel": timed.kernel,
        "dims": dict(timed.dims), "kind": case.kind, "bytes": case.n_bytes,
        "flops": case.n_flops, "us": _us(timed.us), "rate": timed.rate, "share": judged.share,
        "bar": str(case.bar) if case.bar else None, "limit_us": judged.limit_us,
        "holds": judged.holds, "peer": _peer(judged.peer), "picked": timed.picked,
        "registers": takes.registers, "local_bytes": takes.local_bytes,
        "shared_bytes": takes.shared_bytes, "occupancy": takes.occupancy, "sets": timed.n_sets,
    }


def _chain(chain: Chain) -> dict[str, Any]:
    return {
        "us": _us(chain.us), "plain_us": chain.plain and _us(chain.plain),
        "read_us": _us(chain.read_us), "read_each_us": _us(chain.read_each_us),
        "weight_bytes": chain.weight_bytes, "launches": chain.n_launches,
        "kernels": dict(chain.kernels), "limit_us": LIMIT_US, "holds": chain.holds,
    }


def line_of(judged: Judged) -> str:
    """A row of the table."""
    timed, takes = judged.timed, judged.timed.takes
    us, unit = timed.us, "GB/s" if timed.case.kind == "bytes" else "TFLOP/s"
    rate = timed.rate / (1e9 if timed.case.kind == "bytes" else 1e12)
    cells = [
        timed.case.label, timed.kernel + ("" if timed.picked else " (not picked)"),
        f"{us.median:.2f}", f"{us.low:.2f} .. {us.high:.2f}", f"{rate:.0f} {unit}",
        _percent(judged.share), _bar(judged),
        f"{judged.peer.us.median:.2f} {judged.peer.name}" if judged.peer else "-",
        str(takes.registers), str(takes.shared_bytes),
        f"{takes.local_bytes} !" if takes.local_bytes else "0", _percent(takes.occupancy),
    ]
    return f"| {' | '.join(cells)} |"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _bar(judged: Judged) -> str:
    if judged.timed.case.bar is None:
        return "-"
    words = {None: "unknown", True: "holds", False: "MISSED"}
    limit = f" ({judged.limit_us:.2f} us)" if judged.limit_us is not None else ""
    return f"{judged.timed.case.bar}{limit}: {words[judged.holds]}"


def ceilings_text(report: Report) -> str:
    """The card and its ceilings."""
    lines = [f"{report.card}, kernels of {report.target}"]
    lines += [
        f"reads of {r.n_bytes >> 20} MiB: {r.rate / 1e9:.0f} GB/s ({r.us.low:.1f} .. "
        f"{r.us.high:.1f} us, parts of {r.part_bytes >> 10} KiB)" for r in report.reads
    ]
    if report.copy:
        lines.append(f"a copy reads and writes {report.copy / 1e9:.0f} GB/s")
    if report.product:
        lines.append(f"torch's bf16 product of 8192^3: {report.product / 1e12:.0f} TFLOP/s")
    return "\n".join(lines)


def chain_text(chain: Chain) -> str:
    """The chain beside pure reads."""
    us = chain.us
    plain = f"; without programmatic launches {chain.plain.median / 1e3:.3f}" if chain.plain else ""
    return (
        f"chain: {chain.n_launches} linears, {chain.weight_bytes / 1e9:.2f} GB of weights: "
        f"{us.median / 1e3:.3f} ms ({us.low / 1e3:.3f} .. {us.high / 1e3:.3f}){plain}; reads of as "
        f"much by one kernel {chain.read_us.median / 1e3:.3f} ms, by one a weight "
        f"{chain.read_each_us.median / 1e3:.3f}; bar {LIMIT_US / 1e3:.1f} ms: "
        f"{'holds' if chain.holds else 'MISSED'}"
    )


def failed_text(failed: Failed) -> str:
    """Why a case or one of its kernels has no figure."""
    kernel = f" {failed.kernel}" if failed.kernel else ""
    return f"| {failed.label}{kernel} | failed: {failed.reason} |"


