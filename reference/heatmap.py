"""Owns the picture of a comparison: an SVG with tensors down, layers across, errors as colour.

It takes numbers and returns text; it must not know models or tolerances.
"""

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

CELL_WIDTH, CELL_HEIGHT, LEFT, TOP, LEGEND = 26, 18, 120, 76, 64
# log10 of the relative error -> red, green, blue; finer where BF16 paths lie.
STOPS = (
    (-16.0, (235, 243, 250)),
    (-12.0, (158, 202, 225)),
    (-8.0, (120, 198, 121)),
    (-5.0, (255, 237, 120)),
    (-3.0, (253, 174, 97)),
    (-1.5, (215, 48, 39)),
    (0.0, (84, 0, 40)),
)

Cell = tuple[float, bool, str]


def draw(cells: Mapping[str, Cell], title: str) -> str:
    """SVG text; cells: dump name -> (relative error, passed, text shown on pointing at it).

    Rows keep the order in which their tensors first come in `cells`.
    """
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
        turned = f"rotate(-50 {x} {TOP - 6})"
        body.append(f'<text x="{x}" y="{TOP - 6}" transform="{turned}">{escape(column)}</text>')
    for at, row in enumerate(rows):
        y = TOP + CELL_HEIGHT * at + 13
        body.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{escape(row)}</text>')
    for name, (error, passed, text) in cells.items():
        row, column = places[name]
        x = LEFT + CELL_WIDTH * columns.index(column)
        y = TOP + CELL_HEIGHT * rows.index(row)
        # Every cell has an edge, so that an exact one differs from none.
        frame = 'stroke="#bbb"' if passed else 'stroke="black" stroke-width="2.5"'
        body.append(
            f'<rect x="{x + 1}" y="{y + 1}" width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}" '
            f'fill="{colour(error)}" {frame}><title>{escape(text)}</title></rect>'
        )
    return "\n".join([*body, *_legend(TOP + CELL_HEIGHT * len(rows) + 16), "</svg>"]) + "\n"


def colour(error: float) -> str:
    """Colour of a relative error; exact equality is white, anything not finite is black."""
    if error == 0.0:
        return "rgb(255,255,255)"
    if not math.isfinite(error):
        return "rgb(0,0,0)"
    power = min(max(math.log10(error), STOPS[0][0]), STOPS[-1][0])
    index = max(i for i, (at, _) in enumerate(STOPS[:-1]) if at <= power)
    (low, pale), (high, deep) = STOPS[index : index + 2]
    share = (power - low) / (high - low)
    mixed = (round(a + (b - a) * share) for a, b in zip(pale, deep, strict=True))
    return f"rgb({','.join(map(str, mixed))})"


def _place(name: str) -> tuple[str, str]:
    """Row and column: a layer's state stands in its own column, below its taps."""
    scope, _, tap = name.rpartition(".")
    kind, _, index = scope.partition(".")
    return (f"state {tap}" if kind == "state" else tap), index or kind


def _column_order(column: str) -> tuple[int, int]:
    return (1, int(column)) if column.isdigit() else (0 if column == "model" else 2, 0)


def _legend(y: int) -> list[str]:
    powers = (-16, -12, -8, -6, -5, -4, -3, -2, -1, 0)
    shown = [("equal", 0.0), *((str(p), 10.0**p) for p in powers), ("NaN", math.nan)]
    found = [f'<text x="10" y="{y + 13}">log10 of error</text>']
    for step, (text, error) in enumerate(shown):
        x = LEFT + 36 * step
        found.append(
            f'<rect x="{x}" y="{y}" width="34" height="16" fill="{colour(error)}" stroke="#bbb"/>'
            f'<text x="{x + 17}" y="{y + 32}" text-anchor="middle">{text}</text>'
        )
    return found
