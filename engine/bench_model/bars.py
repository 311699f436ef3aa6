"""Owns the bars that the whole model is held to on a card, and what a report says of each.

They are for Qwen3.8-27B on one H200; the report of a twin, or of another device, is held to none.
A bar whose figure was not measured is neither kept nor missed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.bench_model.load import PAGE_CACHE

Report = Mapping[str, Any]
MODEL_IDS = ("Qwen/Qwen3.8-27B", "synthetic qwen3_8_27b")
# The context of a decode row up to which it counts as short.
SHORT_CONTEXT = 64


@dataclass(frozen=True)
class Bar:
    """A figure's bar and goal in `unit`. `weights` are those that it is for, "" for any."""

    name: str
    unit: str
    bar: float
    goal: float | None
    weights: str
    value: Callable[[Report], float | None]
    at_most: bool = False


@dataclass(frozen=True)
class Judged:
    """A bar with what was measured; None where it was not."""

    bar: Bar
    value: float | None

    @property
    def holds(self) -> bool | None:
        """Whether the bar is kept."""
        return self._reaches(self.bar.bar)

    @property
    def reaches_goal(self) -> bool | None:
        """Whether the goal is reached."""
        return self._reaches(self.bar.goal)

    def _reaches(self, limit: float | None) -> bool | None:
        if self.value is None or limit is None:
            return None
        return self.value <= limit if self.bar.at_most else self.value >= limit


def judge(report: Report) -> list[Judged]:
    """Every bar that the report's model and weights are held to."""
    model = report["model"]
    if not model or model["model_id"] not in MODEL_IDS or not report["identity"]["is_card"]:
        return []
    return [
        Judged(bar, bar.value(report)) for bar in BARS if bar.weights in ("", model["weights"])
    ]


def _of(phase: str, key: str, wanted: Any, value: str) -> Callable[[Report], float | None]:
    """A value of the row of a phase whose key is the wanted one."""

    def find(report: Report) -> float | None:
        return next((row[value] for row in report[phase] if row[key] == wanted), None)

    return find


def short(report: Report, value: str = "tokens_per_s") -> float | None:
    """A value of decoding one token at the shortest context measured, if that is short."""
    rows = [row for row in report["decode"] if row["n_context"] <= SHORT_CONTEXT]
    return min(rows, key=lambda row: row["n_context"])[value] if rows else None


def _kept_at_8192(report: Report) -> float | None:
    far, near = _of("decode", "n_context", 8192, "tokens_per_s")(report), short(report)
    return far / near if far and near else None


def _beyond_gib(report: Report) -> float | None:
    found = [row["beyond_bytes"] for row in report["memory"]]
    return max(found) / 2**30 if found else None


def _host_us(report: Report) -> float | None:
    """None too where the step took less than its device time measured next: clocks moved."""
    found = short(report, "host_us_per_token")
    return found if found is not None and found >= 0 else None


BARS = (
    Bar("decode, short context", "tokens/s", 170.0, 270.0, "int4", short),
    Bar("decode, short context", "tokens/s", 65.0, 78.0, "bf16", short),
    Bar("decode at 8,192, of the short context's", "", 0.95, None, "int4", _kept_at_8192),
    Bar("prefill of 2,048", "tokens/s", 5000.0, 11500.0, "",
        _of("prefill", "n_tokens", 2048, "tokens_per_s")),
    Bar("batch of 8", "tokens/s", 700.0, 1600.0, "int4",
        _of("batch", "n_batch", 8, "tokens_per_s")),
    Bar("load from the page cache", "s", 10.0, None, "int4",
        _of("load", "source", PAGE_CACHE, "load_s"), at_most=True),
    Bar("memory beyond weights and state", "GiB", 2.0, 0.5, "", _beyond_gib, at_most=True),
    Bar("host time a token", "us", 50.0, 15.0, "", _host_us, at_most=True),
)
