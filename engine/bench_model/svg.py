"""Owns the drawing of a model's benchmark: decoding by context below the bound of its memory, and
what each measured step is made of.

One SVG built as text, in the manner of `engine/bench_ops/svg.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.bench_model.markdown import rate_of
from engine.bench_ops.svg import MARGIN, WIDTH, document, safe, text

Report = Mapping[str, Any]
Row = Mapping[str, Any]
# Pixels: of the upper picture, of a bar of it, of a stacked bar, of its labels and legend.
RATES_HEIGHT, RATE_WIDTH, STEP_HEIGHT, LABELS, LEGEND_LINE = 340, 70, 34, 130, 18
RATES_COLOUR = "#3b7dd8"
# Degrees from one op's hue to the next: neighbours differ, and none comes twice.
HUE_STEP = 137.5
GRID_LINES = 5


def draw(report: Report) -> str:
    """The drawing of a report, a whole SVG document."""
    timed = [row for row in report["steps"] if row["sum_us"]]
    names = list(dict.fromkeys(op["op"] for row in timed for op in row["ops"]))
    top = RATES_HEIGHT + 40
    legend = top + 30 + STEP_HEIGHT * len(timed)
    height = legend + LEGEND_LINE * (len(names) // 2 + 1) + 30
    return document(height, [
        *_rates(report), *_steps(timed, names, top), *_legend(names, legend),
    ])


def _rates(report: Report) -> Iterator[str]:
    """A bar for each context, and a line where reading alone would be."""
    yield text(MARGIN, 30, f"Decoding, {report['identity']['device']}", ' class="title"')
    rows = sorted(report["decode"], key=lambda row: row["n_context"])
    if not rows:
        yield text(MARGIN, 60, "nothing was measured")
        return
    bounds = [_bound(report, row) for row in rows]
    most = 1.1 * max([row["tokens_per_s"] for row in rows] + [b for b in bounds if b])
    foot = RATES_HEIGHT - 30
    scale = (foot - MARGIN) / most
    for step in range(GRID_LINES + 1):
        value = most * step / GRID_LINES
        at = foot - value * scale
        yield f'<path class="grid" d="M{MARGIN} {at:.1f}H{WIDTH - MARGIN}"/>'
        yield text(MARGIN - 6, at + 4, f"{value:.0f}", ' text-anchor="end" class="small"')
    room = (WIDTH - 2 * MARGIN) / len(rows)
    places = [MARGIN + room * (index + 0.5) for index in range(len(rows))]
    for row, bound, at in zip(rows, bounds, places, strict=True):
        top = foot - row["tokens_per_s"] * scale
        share = f", {row['tokens_per_s'] / bound:.0%} of the bound" if bound else ""
        yield (
            f'<rect x="{at - RATE_WIDTH / 2:.1f}" y="{top:.1f}" width="{RATE_WIDTH}" '
            f'height="{foot - top:.1f}" fill="{RATES_COLOUR}"><title>'
            f'{safe(_hint(row))}{share}</title></rect>'
        )
        yield text(at, top - 5, f"{row['tokens_per_s']:.1f}", ' text-anchor="middle"')
        yield text(at, foot + 16, f"{row['n_context']:,}", ' text-anchor="middle"')
    points = [
        f"{at:.1f} {foot - bound * scale:.1f}"
        for at, bound in zip(places, bounds, strict=True) if bound
    ]
    if points:
        yield f'<path class="roof" d="M{" L".join(points)}"/>'
    yield text(MARGIN, 48, "tokens/s by context; the line: the step's bytes at the rate of pure "
               "reads of the same run", ' class="small"')


def _bound(report: Report, row: Row) -> float | None:
    rate = rate_of(report, row)
    return rate / row["read_bytes"] if rate and row["read_bytes"] else None


def _hint(row: Row) -> str:
    rate, step = f"{row['tokens_per_s']:.1f} tokens/s", f"{row['step_ms']:.3f} ms"
    return f"context {row['n_context']}: {rate}, {step}"


def _steps(rows: Sequence[Row], names: Sequence[str], top: float) -> Iterator[str]:
    """A bar for each table, as long as its parts' shares of their sum."""
    yield text(MARGIN, top, "What a step is made of: time of each op alone, of their sum",
               ' class="title"')
    if not rows:
        yield text(MARGIN, top + 20, "not measured here")
    width = WIDTH - LABELS - MARGIN - 90
    for number, row in enumerate(rows):
        at, y = float(LABELS), top + 14 + STEP_HEIGHT * number
        yield text(LABELS - 8, y + 17, row["shape"], ' text-anchor="end"')
        for op in row["ops"]:
            length = width * op["us"] / row["sum_us"]
            hint = f"{op['op']}: {op['us']:.1f} us, {op['us'] / row['sum_us']:.1%}"
            yield (
                f'<rect x="{at:.1f}" y="{y:.1f}" width="{length:.1f}" '
                f'height="{STEP_HEIGHT - 10}" fill="{_colour(names, op["op"])}">'
                f'<title>{safe(hint)}</title></rect>'
            )
            at += length
        yield text(at + 6, y + 17, f"{row['step_us'] / 1e3:.3f} ms", ' class="small"')


def _legend(names: Sequence[str], top: float) -> Iterator[str]:
    for number, name in enumerate(names):
        x = MARGIN + (number % 2) * (WIDTH - 2 * MARGIN) / 2
        y = top + LEGEND_LINE * (number // 2)
        yield f'<rect x="{x:.1f}" y="{y}" width="10" height="10" fill="{_colour(names, name)}"/>'
        yield text(x + 16, y + 9, name, ' class="small"')


def _colour(names: Sequence[str], name: str) -> str:
    number = names.index(name)
    return f"hsl({number * HUE_STEP % 360:.0f},55%,{45 + 12 * (number % 2)}%)"
