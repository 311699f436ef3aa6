"""Owns what a figure is worth: its share of a ceiling, and whether it keeps its bar.

Everything is measured in one run. It must not know devices; a bar whose ceiling, peer or first
case was not measured is neither kept nor missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.bench_ops.case import Bar, Kind
from engine.bench_ops.measure import Timed
from engine.bench_ops.peers import Peer


@dataclass(frozen=True)
class Judged:
    """A timed kernel with its share of the ceiling, the microseconds that its bar allows, and its
    peer; None where that is not known."""

    timed: Timed
    share: float | None
    limit_us: float | None
    peer: Peer | None

    @property
    def holds(self) -> bool | None:
        """Whether it keeps its bar."""
        return None if self.limit_us is None else self.timed.us.median <= self.limit_us


def judge(
    timed: Sequence[Timed], ceilings: Mapping[Kind, float | None], peers: Mapping[str, Peer]
) -> list[Judged]:
    """Every figure beside what it is held to; `peers` are by the label of their case."""
    picked = {t.case.label: t.us.median for t in timed if t.picked}
    found = []
    for one in timed:
        ceiling, peer = ceilings[one.case.kind], peers.get(one.case.label)
        share = one.rate / ceiling if ceiling else None
        found.append(Judged(one, share, limit_us(one, ceiling, picked, peer), peer))
    return found


def limit_us(
    one: Timed, ceiling: float | None, picked: Mapping[str, float], peer: Peer | None
) -> float | None:
    """Microseconds that the bar of a case allows; None without a bar, or what it refers to."""
    bar: Bar | None = one.case.bar
    if bar is None:
        return None
    if bar.kind == "us":
        return bar.value
    if bar.kind == "share":
        return one.case.amount / (bar.value * ceiling) * 1e6 if ceiling else None
    if bar.kind == "times":
        return bar.value * picked[bar.of] if bar.of in picked else None
    return peer.us.median / bar.value if peer else None
