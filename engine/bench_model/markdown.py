"""Owns the report of a model's benchmark as Markdown: card, runs, bars, and a table of each phase.

It must not know how anything was measured. Long because each phase has a table of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from engine.bench_model.bars import Judged, judge

Report = Mapping[str, Any]
Row = Mapping[str, Any]
# Heading, and what a cell holds, given the row and its run's read ceiling.
Column = tuple[str, Callable[[Row, float | None], str]]
NONE = "-"
WORDS = {None: "not measured", True: "holds", False: "MISSED"}
GOAL_WORDS = {None: NONE, True: "reached", False: "not yet"}


def report_text(report: Report) -> str:
    """The whole report; what was not measured is left out or a dash."""
    parts = [
        *_head(report), *_runs(report["runs"]), *_bars(report), *_load(report),
        *_memory(report), *_section(report, "prefill", "Prompts", PREFILL),
        *_section(report, "decode", "Decoding, one session, by context", DECODE),
        *_section(report, "batch", "Decoding in batches", BATCH),
        *_tables(report), *_peer(report), *_failed(report),
    ]
    # A text of the peer's may hold what no file can.
    return ("\n".join(parts) + "\n").encode("utf-8", "replace").decode()


def number(value: float | None, digits: int = 1, each: float = 1.0) -> str:
    """A number in units of `each`, with thousands apart; a dash for none."""
    return NONE if value is None else f"{value / each:,.{digits}f}"


def percent(part: float | None, whole: float | None) -> str:
    """A share; a dash where either is not known."""
    return NONE if part is None or not whole else f"{part / whole:.0%}"


def lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table, and an empty line behind it; texts cannot break it."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in row)} |"
    yield ""


def _head(report: Report) -> Iterator[str]:
    identity, model = report["identity"], report["model"] or {}
    weights = identity["artifact"] or f"random weights by {identity['recipe']}"
    name = model.get("model_id") or identity["package"] or identity["artifact"]
    yield f"# {name} on {identity['device']}"
    yield ""
    forms = ", ".join(
        f"{name} {number(n_bytes, 2, 1e9)} GB" for name, n_bytes in model.get("forms", {}).items()
    )
    yield f"Weights: {weights}{f'; {forms}' if forms else ''}."
    yield (
        f"Steps: median of {identity['steps']} behind the first ones of their shape. GB are 10^9 "
        "bytes, GiB 2^30."
    )
    yield ""


def _runs(runs: Sequence[Row]) -> Iterator[str]:
    for index, run in enumerate(runs):
        driver = f", driver {run['driver']}" if run["driver"] else ""
        yield (
            f"Run {index}: {run['started']}, Python {run['python']}{driver}, "
            f"{number(run['card_used_bytes'], 2, 2**30)} GiB in use before; pure reads "
            f"{number(run['read_rate'], 0, 1e9)} GB/s"
        )
        yield f"\n```text\n{run['command']}\n```\n"


def _bars(report: Report) -> Iterator[str]:
    judged = judge(report)
    if not judged:
        yield "Bars are for Qwen3.8-27B on a card: none applies here.\n"
        return
    yield "## Bars\n"
    yield from lines(
        ("what", "bar", "measured", "", "goal", ""), (_bar_row(one) for one in judged)
    )


def _bar_row(one: Judged) -> Sequence[str]:
    bar, sign = one.bar, "at most " if one.bar.at_most else ""
    digits = 2 if bar.unit in ("", "GiB") else 1
    goal = NONE if bar.goal is None else f"{sign}{bar.goal:,g} {bar.unit}"
    return (
        bar.name, f"{sign}{bar.bar:,g} {bar.unit}".rstrip(), number(one.value, digits),
        WORDS[one.holds], goal, GOAL_WORDS[one.reaches_goal],
    )


def _load(report: Report) -> Iterator[str]:
    if not report["load"]:
        return
    yield "## Load\n"
    yield from lines(
        ("from", "file GB", "read through s", "plan s", "all s", "GB/s"),
        ((
            row["source"], number(row["file_bytes"], 2, 1e9), number(row["read_s"], 2),
            number(row["plan_s"], 2), number(row["load_s"], 2),
            number(row["bytes_per_s"], 2, 1e9),
        ) for row in report["load"]),
    )


def _memory(report: Report) -> Iterator[str]:
    if not report["memory"]:
        return
    yield "## Memory, GiB\n"
    names = ("weights", "state", "scratch", "taken", "most", "beyond")
    yield from lines(
        ("run", "cells", "lanes", "weights, planned", "KV and state, planned", "scratch, planned",
         "taken once loaded", "taken at most", "beyond weights and state"),
        ((
            str(row["run"]), number(row["n_cells"], 0), str(row["n_lanes"]),
            *(number(row[f"{name}_bytes"], 2, 2**30) for name in names),
        ) for row in report["memory"]),
    )
    if not report["identity"]["is_card"]:
        yield "On the host device what was taken is of the machine, whoever took it.\n"


def _bound(row: Row, rate: float | None) -> float | None:
    """Tokens in a second at which the step's bytes alone would take all its time."""
    return rate and row["read_bytes"] and row["n_batch"] * rate / row["read_bytes"]


PREFILL: Sequence[Column] = (
    ("tokens", lambda row, rate: number(row["n_tokens"], 0)),
    ("tokens/s", lambda row, rate: number(row["tokens_per_s"], 0)),
    ("first s", lambda row, rate: number(row["first_s"], 3)),
)
_STEP: Sequence[Column] = (
    ("tokens/s", lambda row, rate: number(row["tokens_per_s"])),
    ("step ms", lambda row, rate: number(row["step_ms"], 3)),
    ("least .. most", lambda row, rate:
        f"{number(row['least_ms'], 3)} .. {number(row['most_ms'], 3)}"),
    ("device ms", lambda row, rate: number(row["device_ms"], 3)),
    ("host us a token", lambda row, rate: number(row["host_us_per_token"])),
    ("must read GB", lambda row, rate: number(row["read_bytes"], 2, 1e9)),
    ("bound tokens/s", lambda row, rate: number(_bound(row, rate))),
    ("of bound", lambda row, rate: percent(row["tokens_per_s"], _bound(row, rate))),
)
DECODE: Sequence[Column] = (
    ("context", lambda row, rate: number(row["n_context"], 0)), *_STEP,
)
BATCH: Sequence[Column] = (
    ("sessions", lambda row, rate: str(row["n_batch"])), *_STEP,
)


def _section(report: Report, phase: str, title: str, columns: Sequence[Column]) -> Iterator[str]:
    if not report[phase]:
        return
    yield f"## {title}\n"
    yield from lines(
        [name for name, _ in columns],
        ([cell(row, rate_of(report, row)) for _, cell in columns] for row in report[phase]),
    )


def rate_of(report: Report, row: Row) -> float | None:
    """The read ceiling of the run that a row is of."""
    rate: float | None = report["runs"][row["run"]]["read_rate"]
    return rate


def _tables(report: Report) -> Iterator[str]:
    if not report["steps"]:
        return
    yield "## Steps by op\n"
    yield (
        "All launches of an op in the order of the pass, replayed alone as one graph, beside the "
        "whole pass with its head as one graph. Launches of a pass may begin before the one ahead "
        "has ended (programmatic launches), so the sum may exceed the step; what is small stays "
        "in the cache when it alone is replayed. Read: weights, KV rows and state; written: KV "
        "rows, state, and bf16 rows of a matrix.\n"
    )
    for row in report["steps"]:
        yield from _table(row, rate_of(report, row))


def _table(row: Row, rate: float | None) -> Iterator[str]:
    what = "session" if row["n_sequences"] == 1 else "sessions"
    yield (
        f"### {row['shape']}: {row['n_rows']} rows of {row['n_sequences']} {what}, "
        f"{row['n_cells']:,} cells seen\n"
    )
    sums: Row = {
        "op": "sum of the parts", "launches": sum(op["launches"] for op in row["ops"]),
        "us": row["sum_us"], "weights_bytes": sum(op["weights_bytes"] for op in row["ops"]),
        "kv_bytes": sum(op["kv_bytes"] for op in row["ops"]),
        "state_bytes": sum(op["state_bytes"] for op in row["ops"]),
        "written_bytes": row["written_bytes"], "kernels": [],
    }
    cells = [_op_cells(op, row["step_us"], rate) for op in (*row["ops"], sums)]
    step, total, empty = row["step_us"], row["sum_us"], (NONE,) * 4
    if step is not None:
        off = ("overlap of launches (-), gaps (+)", NONE, number(step - total),
               percent(step - total, step), *empty, NONE, NONE, "")
        whole = 1e6 * row["read_bytes"] / step
        cells += [off, ("the step", NONE, number(step), "100%", *empty,
                        number(whole, 0, 1e9), percent(whole, rate), "")]
    yield from lines(
        ("op (matrix)", "launches", "us", "of step", "weights MB", "KV MB", "state MB",
         "written MB", "read GB/s", "of ceiling", "kernels"), cells,
    )


def _op_cells(op: Row, step_us: float | None, rate: float | None) -> Sequence[str]:
    n_read = op["weights_bytes"] + op["kv_bytes"] + op["state_bytes"]
    read_rate = 1e6 * n_read / op["us"] if op["us"] and n_read else None
    return (
        op["op"], str(op["launches"]), number(op["us"]), percent(op["us"], step_us),
        *(number(op[f"{name}_bytes"], 2, 1e6) for name in ("weights", "kv", "state", "written")),
        number(read_rate, 0, 1e9), percent(read_rate, rate), ", ".join(op["kernels"]),
    )


def _peer(report: Report) -> Iterator[str]:
    for row in report["peer"]:
        results = row["results"]
        yield f"## {row['peer']}, in run {row['run']}\n"
        yield (
            f"{results[0]['model']}, build {results[0]['build']}, {results[0]['card']}; "
            f"{number(row['seconds'], 0)} s for all.\n"
        )
        yield from lines(
            ("test", "depth", "its tokens/s", "+-", "ours", "ours of its"),
            (_peer_cells(report, result) for result in results),
        )


def _peer_cells(report: Report, result: Row) -> Sequence[str]:
    is_prompt = result["n_gen"] == 0
    name = f"prompt {result['n_prompt']}" if is_prompt else f"decode {result['n_gen']}"
    ours = ours_of(report, result)
    return (
        name, str(result["n_depth"]), number(result["tokens_per_s"]), number(result["stddev"]),
        number(ours), percent(ours, result["tokens_per_s"]),
    )


def ours_of(report: Report, result: Row) -> float | None:
    """Our figure for one of the peer's tests: the prompt from an empty context, or decoding at that
    context; None where it was not measured."""
    if result["n_prompt"] and result["n_gen"]:
        return None
    phase, key, wanted = (
        ("decode", "n_context", result["n_depth"]) if result["n_gen"]
        else ("prefill", "n_tokens", result["n_prompt"])
    )
    if phase == "prefill" and result["n_depth"]:
        return None
    return next((row["tokens_per_s"] for row in report[phase] if row[key] == wanted), None)


def _failed(report: Report) -> Iterator[str]:
    if report["failed"]:
        yield "## Failed\n"
        for row in report["failed"]:
            key = "" if row["key"] is None else f" {row['key']}"
            reason = row["reason"].replace("\n", " ")
            yield f"- {row['phase']}{key}, run {row['run']}: {reason}"
