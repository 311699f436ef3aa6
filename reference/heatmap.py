"""Owns the picture of a comparison: an SVG with tensors down, layers across, errors as colour.

It takes numbers and returns text; it must not know models or tolerances.
"""

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

CELL_WIDTH, CELL_HEIGHT, LEFT, TOP, LEGEND = 26, 18, 120, 64, 64
# log10 of the relative error at the two ends of the colour scale.
BEST, WORST = -16.0, 0.0
# From nothing to everything: pale blue, yellow, orange, dark red.
STOPS = ((222, 235, 247), (255, 237, 160), (253, 141, 60), (128, 0, 38))

Cell = tuple[float, bool, str]


def draw(cells: Mapping[str, Cell], title: str) -> str:
    """SVG text; cells: dump name -> (relative error, passed, text shown on pointing at it)."""
    places = {name: _place(name) for name in cells}
    rows = list(dict.fromkeys(row for row, _ in places.values()))
    columns = sorted({column for _, column in places.values()}, key=_column_order)
    width = max(LEFT + CELL_WIDTH * len(columns) + 20, 620)
    height = TOP + CELL_HEIGHT * len(rows) + LEGEND
    failed = sum(not passed for _, passed, _ in cells.values())
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">relative L2 error, tolerance {escape(title)}: '
        f"{failed} of {len(cells)} tensors past it (framed)</text>",
    ]
    for at, column in enumerate(columns):
        x = LEFT + CELL_WIDTH * at + CELL_WIDTH / 2
        body.append(f'<text x="{x}" y="{TOP - 8}" text-anchor="middle">{escape(column)}</text>')
    for at, row in enumerate(rows):
        y = TOP + CELL_HEIGHT * at + 13
        body.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{escape(row)}</text>')
    for name, (error, passed, text) in cells.items():
        row, column = places[name]
        x = LEFT + CELL_WIDTH * columns.index(column)
        y = TOP + CELL_HEIGHT * rows.index(row)
        frame = "" if passed else ' stroke="black" stroke-width="2"'
        body.append(
            f'<rect x="{x + 1}" y="{y + 1}" width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}" '
            f'fill="{colour(error)}"{frame}><title>{escape(text)}</title></rect>'
        )
    return "\n".join([*body, *_legend(TOP + CELL_HEIGHT * len(rows) + 16), "</svg>"]) + "\n"


def colour(error: float) -> str:
    """Colour of a relative error; exact equality is white, anything not finite is black."""
    if error == 0.0:
        return "rgb(255,255,255)"
    if not math.isfinite(error):
        return "rgb(0,0,0)"
    at = min(max((math.log10(error) - BEST) / (WORST - BEST), 0.0), 1.0) * (len(STOPS) - 1)
    low = min(int(at), len(STOPS) - 2)
    mixed = (
        round(a + (b - a) * (at - low)) for a, b in zip(STOPS[low], STOPS[low + 1], strict=True)
    )
    return f"rgb({','.join(map(str, mixed))})"


def _place(name: str) -> tuple[str, str]:
    """Row and column: a layer's state stands in its own column, below its taps."""
    scope, _, tap = name.rpartition(".")
    kind, _, index = scope.partition(".")
    return (f"state {tap}" if kind == "state" else tap), index or kind


def _column_order(column: str) -> tuple[int, int]:
    return (1, int(column)) if column.isdigit() else (0 if column == "model" else 2, 0)


def _legend(y: int) -> list[str]:
    found = [f'<text x="10" y="{y + 13}">log10 of error</text>']
    for step, power in enumerate(range(int(BEST), int(WORST) + 1, 2)):
        x = LEFT + 36 * step
        found.append(
            f'<rect x="{x}" y="{y}" width="34" height="16" fill="{colour(10.0**power)}"/>'
            f'<text x="{x + 17}" y="{y + 32}" text-anchor="middle">{power}</text>'
        )
    return found
