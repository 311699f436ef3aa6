"""Owns the drawing of a report: a roofline, and how far each case is from its ceiling and bar.

One SVG built as text, without a library; colours follow the reader's light or dark scheme.
"""

import math
import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from engine.bench_ops.judge import Judged
from engine.bench_ops.report import Report

WIDTH, MARGIN = 1000, 60
ROOF_HEIGHT = 520
# Pixels: of labels left of the bars, of a bar's line.
LABELS, LINE = 300, 18
# Shares are drawn up to this one.
MOST_SHARE = 1.2
COLOURS = {
    "int4": "#3b7dd8", "int8": "#7a5fd0", "bf16": "#2a9d6f", "fp8": "#c2571a",
    "attention": "#d14a6a", "recurrent": "#b08900", "small": "#7d8590", "formats": "#3aa6b9",
}
OTHER = "#7d8590"
STYLE = """\
text { font: 12px sans-serif; fill: #1f2328; } .small { font-size: 10px; }
.title { font-size: 16px; font-weight: bold; } .paper { fill: #ffffff; }
.grid { stroke: #d0d7de; stroke-width: 1; } .roof { stroke: #1f2328; stroke-width: 2; fill: none; }
.bar { stroke: #1f2328; stroke-width: 2; } .missed { fill: #cf222e; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .paper { fill: #0d1117; } .grid { stroke: #30363d; }
.roof, .bar { stroke: #e6edf3; } .missed { fill: #ff7b72; } }"""
# What XML 1.0 has no way to write.
UNWRITABLE = re.compile("[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


def draw(report: Report) -> str:
    """The drawing of a report, a whole SVG document."""
    picked = [row for row in report.rows if row.timed.picked]
    judged = [row for row in picked if row.share is not None]
    height = ROOF_HEIGHT + 2 * MARGIN + LINE * (len(judged) + 2)
    body = [*_roofline(report, picked), *_bars(judged, ROOF_HEIGHT + MARGIN)]
    return document(height, body)


def document(height: int, body: Sequence[str]) -> str:
    """A whole SVG document of WIDTH by so many pixels."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">\n<style>\n{STYLE}\n</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>\n'
        + "\n".join(body) + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, how: str = "") -> str:
    """Words whose line is at y; `how` are further attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}"{how}>{safe(words)}</text>'


def safe(words: str) -> str:
    """Words as XML can hold them."""
    return escape(UNWRITABLE.sub("\uFFFD", words), {'"': "&quot;"})


def _colour(row: Judged) -> str:
    return COLOURS.get(row.timed.case.family, OTHER)


class _Axis:
    """A logarithmic axis over whole decades, from pixel to pixel."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        logs = [math.log10(value) for value in values if value > 0] or [0.0]
        self.low, self.high = math.floor(min(logs)), math.floor(max(logs)) + 1
        self.first, self.last = first, last

    def at(self, value: float) -> float:
        """The pixel of a value above 0."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.first + (self.last - self.first) * share

    def decades(self) -> Iterator[tuple[float, float]]:
        """Powers of ten and their pixels."""
        for power in range(self.low, self.high + 1):
            yield 10.0**power, self.at(10.0**power)


def _roofline(report: Report, rows: Sequence[Judged]) -> Iterator[str]:
    """Operations in a second over operations for a byte, below the measured ceilings."""
    yield text(MARGIN, 30, f"Roofline, {report.card}", ' class="title"')
    points = [
        (case.n_flops / case.n_bytes, case.n_flops / row.timed.us.median * 1e6, row)
        for row in rows if (case := row.timed.case).n_flops
    ]
    if not points:
        yield text(MARGIN, 60, "nothing was measured")
        return
    reads, product = report.read_ceiling, report.product
    roof = [min(reads * i, product or math.inf) for i, _, _ in points] if reads else []
    roof += [product] if product else []
    ridge = [product / reads] if product and reads else []
    x = _Axis([i for i, _, _ in points] + ridge, MARGIN, WIDTH - 160)
    y = _Axis([f for _, f, _ in points] + roof, ROOF_HEIGHT - MARGIN, MARGIN)
    for value, at in x.decades():
        yield f'<path class="grid" d="M{at:.1f} {MARGIN}V{ROOF_HEIGHT - MARGIN}"/>'
        yield text(at, ROOF_HEIGHT - MARGIN + 16, f"{value:g}", ' text-anchor="middle"')
    for value, at in y.decades():
        yield f'<path class="grid" d="M{MARGIN} {at:.1f}H{WIDTH - 160}"/>'
        yield text(MARGIN - 6, at + 4, f"{value:.0e}", ' text-anchor="end" class="small"')
    yield text(MARGIN, ROOF_HEIGHT - MARGIN + 36, "FLOP / byte; upwards FLOP / s")
    yield from _roof(reads, product, x, y)
    for intensity, rate, row in points:
        yield (
            f'<circle cx="{x.at(intensity):.1f}" cy="{y.at(rate):.1f}" r="4" '
            f'fill="{_colour(row)}"><title>{safe(_hint(row))}</title></circle>'
        )
    families = dict.fromkeys(row.timed.case.family for row in rows)
    for number, family in enumerate(families):
        at = MARGIN + 20 * number
        yield f'<circle cx="{WIDTH - 140}" cy="{at}" r="5" fill="{COLOURS.get(family, OTHER)}"/>'
        yield text(WIDTH - 128, at + 4, family)


def _roof(reads: float | None, product: float | None, x: _Axis, y: _Axis) -> Iterator[str]:
    """Reads as a slope and the product as a flat line, each as far as it is the lower one."""
    left, right = 10.0**x.low, 10.0**x.high
    bottom, top = 10.0**y.low, 10.0**y.high
    if reads:
        start = max(left, bottom / reads)
        end = min(right, (product or top) / reads, top / reads)
        if start < end:
            yield (
                f'<path class="roof" d="M{x.at(start):.1f} {y.at(reads * start):.1f}'
                f'L{x.at(end):.1f} {y.at(reads * end):.1f}"/>'
            )
    if product:
        start = min(max(left, product / reads if reads else left), right)
        yield (
            f'<path class="roof" d="M{x.at(start):.1f} {y.at(product):.1f}H{x.at(right):.1f}"/>'
        )


def _bars(rows: Sequence[Judged], top: float) -> Iterator[str]:
    """A bar for each case: its share of the ceiling, and a mark where its bar is."""
    yield text(MARGIN, top, "Share of the measured ceiling; the mark is the bar",
                ' class="title"')
    width = WIDTH - LABELS - MARGIN
    for percent in range(0, 101, 25):
        at = LABELS + width * percent / 100 / MOST_SHARE
        yield f'<path class="grid" d="M{at:.1f} {top + 12}v{LINE * len(rows) + 8}"/>'
        yield text(at, top + 30 + LINE * len(rows), f"{percent}%", ' text-anchor="middle"')
    for number, row in enumerate(rows):
        at, share = top + 16 + LINE * number, row.share or 0.0
        missed = ' class="missed"' if row.holds is False else ""
        end = f'{missed} text-anchor="end"'
        length = width * min(share, MOST_SHARE) / MOST_SHARE
        yield text(LABELS - 8, at + 12, row.timed.case.label, end)
        yield (
            f'<rect x="{LABELS}" y="{at:.1f}" width="{length:.1f}" height="{LINE - 4}" '
            f'fill="{_colour(row)}"><title>{safe(_hint(row))}</title></rect>'
        )
        yield text(LABELS + length + 6, at + 11, f"{share:.0%}", ' class="small"')
        if row.limit_us:
            wanted = share * row.timed.us.median / row.limit_us
            mark = LABELS + width * min(wanted, MOST_SHARE) / MOST_SHARE
            yield f'<path class="bar" d="M{mark:.1f} {at - 1:.1f}v{LINE - 2}"/>'


def _hint(row: Judged) -> str:
    timed = row.timed
    return f"{timed.case.label}: {timed.case.op}/{timed.kernel}, {timed.us.median:.2f} us"
