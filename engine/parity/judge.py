"""Owns the rules: how far off a run may be, which ids count as equal, what NLL may differ.

Every bound comes from the peer alone: what it differs from itself, run another way, never from the
runs that are judged (KNOWLEDGE/pitfalls/a-bound-made-of-the-errors-cannot-fail.md). It must not
know where arrays come from.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from engine.parity.records import F32, F64, NOISE, Report, Trace, Way

# Times the peer's own noise: two runs that are each off by it are at most twice as far apart.
FACTOR = 2.0
# The worst of many rows is less steady than their norm.
ROW_FACTOR = 3.0
# Nor may ours be further from float32 than the peer's bf16 is: of rounding it has less, for its
# residual stream is float32. On references of the kernels it is at 0.35 to 0.5 of that.
NEARER, ROW_NEARER = 1.0, 1.5
# What is always allowed: a residual stream of float32 beside one of bf16, half a unit 2^-9.
ABSOLUTE, ROW_ABSOLUTE = 2e-3, 4e-3
# Near ties, in root mean squares of the peer's noise in a logit. Ours has that noise too, a choice
# compares two logits of each: a standard deviation of 2, four times that.
TIE_FACTOR = 8.0
# And the peer's own logits are bf16: each of two is off by up to 2^-8 of itself.
TIE_OF_BEST = 2.0**-7
# Below this share of choices that are sure equal ids would say nothing.
LEAST_SURE = 0.1
# Nats that always count as equal, in a token's NLL and in the mean.
NLL_ABSOLUTE, NLL_MEAN_ABSOLUTE = 0.01, 2e-3
MAX_SHOWN = 20
# Rows that are widened at once.
ROWS = 16


def error(found: F32, want: F32) -> tuple[float, float]:
    """Relative L2 error of the whole, and of the worst row, whose scale is at least the typical."""
    off, size = _row_norms(found, want), _row_norms(want, None)
    typical = float(np.sqrt(np.mean(size**2)))
    if not typical:
        return (0.0, 0.0) if not off.any() else (np.inf, np.inf)
    worst = float((off / np.maximum(size, typical)).max())
    norm = float(np.linalg.norm(off) / np.linalg.norm(size))
    return (norm, worst) if np.isfinite(norm) else (np.inf, np.inf)


def _row_norms(x: F32, minus: F32 | None) -> F64:
    norms = np.empty(len(x))
    for at in range(0, len(x), ROWS):
        part = x[at : at + ROWS].astype(np.float64)
        if minus is not None:
            part -= minus[at : at + ROWS]
        norms[at : at + ROWS] = np.linalg.norm(part, axis=1)
    return norms


def judge_place(place: str, ours: F32, theirs: Mapping[Way, F32]) -> Report:
    """Errors at one place of the model, the peer's own, the limits, and whether ours keeps them.

    Ours is near the plain run, and no further from the wide one than the plain run is.
    """
    plain, wide = theirs["plain"], theirs["wide"]
    noise = [error(theirs[way], plain) for way in NOISE]
    floor, floor_row = (max(pair[i] for pair in noise) for i in (0, 1))
    found, found_row = error(ours, plain)
    to_wide, to_wide_row = error(ours, wide)
    plain_wide, plain_wide_row = error(plain, wide)
    limit, limit_row = FACTOR * floor + ABSOLUTE, ROW_FACTOR * floor_row + ROW_ABSOLUTE
    return {
        "place": place, "error": found, "floor": floor, "limit": limit,
        "row_error": found_row, "row_floor": floor_row, "row_limit": limit_row,
        "error_to_float32": to_wide, "peer_to_float32": plain_wide,
        "passed": bool(
            found <= limit and found_row <= limit_row
            and to_wide <= NEARER * plain_wide + ABSOLUTE
            and to_wide_row <= ROW_NEARER * plain_wide_row + ROW_ABSOLUTE
        ),
    }


def judge_alone(key: int, ours: Mapping[int, F32], plain: F32, wide: F32) -> Report:
    """One layer on our own rows before it: what it adds to them, against what the peer's adds in
    float32, and the peer's error of that in bf16. So neither noise of the layers before it nor the
    peer's rounding of a large residual stream hides anything."""
    found, found_row = error(ours[key] - ours[key - 1], wide)
    floor, floor_row = error(plain, wide)
    return {
        "alone_error": found, "alone_floor": floor,
        "alone_row_error": found_row, "alone_row_floor": floor_row,
        "alone_passed": bool(
            found <= NEARER * floor + ABSOLUTE
            and found_row <= ROW_NEARER * floor_row + ROW_ABSOLUTE
        ),
    }


def judge_traces(
    ours: Trace, theirs: Mapping[Way, Trace], alone: Mapping[Way, Mapping[int, F32]]
) -> tuple[list[Report], Report]:
    """The judgement of every kept layer, and of the logits."""
    layers = []
    for key in sorted(ours.hidden):
        place = "embedding" if key == 0 else f"layer {key - 1}"
        by_way = {way: trace.hidden[key] for way, trace in theirs.items()}
        found = judge_place(place, ours.hidden[key], by_way)
        if key in alone["plain"]:
            found |= judge_alone(key, ours.hidden, alone["plain"][key], alone["wide"][key])
            found["passed"] = found["passed"] and found["alone_passed"]
        layers.append(found)
    logits = judge_place("logits", ours.logits, {way: t.logits for way, t in theirs.items()})
    return layers, {**logits, "noise_of_a_logit": noise_of_a_logit(theirs)}


def noise_of_a_logit(theirs: Mapping[Way, Trace]) -> float:
    """Root mean square of what the peer's logits differ from its plain ones."""
    plain = theirs["plain"].logits
    return max(
        float(np.linalg.norm(_row_norms(theirs[way].logits, plain)) / np.sqrt(plain.size))
        for way in NOISE
    )


def judge_ids(
    rows: F32, wide: F32, chosen: Sequence[int], noise: float, prompt: int
) -> Report:
    """One prompt: our ids against the peer's rows after the same ids. Counts of ids that are its
    best, within a near tie of it, or wrong; how many choices were sure; and how many the peer
    itself makes otherwise in float32."""
    best, wide_best = rows.argmax(axis=1), wide.argmax(axis=1)
    second, first = np.partition(rows, -2, axis=1)[:, -2:].T
    lead = first - rows[np.arange(len(rows)), chosen]
    tie = TIE_FACTOR * noise + TIE_OF_BEST * np.abs(first)
    equal = best == np.asarray(chosen)
    # A lead that is no number is wrong as well.
    wrong = ~equal & ~(lead < tie)
    return {
        "ids": len(rows), "equal": int(equal.sum()), "wrong": int(wrong.sum()),
        "near_ties": int((~equal & ~wrong).sum()), "sure": int((first - second >= tie).sum()),
        "peer_differs_in_float32": int((best != wide_best).sum()),
        "first_wrong": [
            {"prompt": prompt, "step": int(step), "ours": int(chosen[step]),
             "theirs": int(best[step]), "lead": float(lead[step]), "near_tie": float(tie[step])}
            for step in np.flatnonzero(wrong)[:MAX_SHOWN]
        ],
    }


def judge_all_ids(found: Sequence[Report]) -> Report:
    """All prompts together."""
    counts = ("ids", "equal", "near_ties", "wrong", "sure", "peer_differs_in_float32")
    total: Report = {key: sum(one[key] for one in found) for key in counts}
    wrong = [entry for one in found for entry in one["first_wrong"]]
    enough = total["sure"] >= LEAST_SURE * total["ids"]
    return {
        **total, "first_wrong": wrong[:MAX_SHOWN], "enough_sure": enough,
        "passed": not total["wrong"] and enough,
    }


def nll_of(rows: F32, targets: Sequence[int]) -> F64:
    """Minus the log-probability of each row's target, in nats; sums in float64."""
    found = np.empty(len(targets))
    for at in range(0, len(targets), ROWS):
        part = rows[at : at + ROWS]
        best = part.max(axis=1, keepdims=True)
        total = np.exp(part - best).sum(axis=1, dtype=np.float64)
        aims = np.asarray(targets[at : at + ROWS])
        picked = part[np.arange(len(part)), aims].astype(np.float64)
        found[at : at + ROWS] = np.log(total) + best[:, 0] - picked
    return found


def judge_nll(ours: F64, plain: F64, wide: F64) -> Report:
    """Our NLL of every token against the peer's on the same weights and text."""
    off, noise = ours - plain, wide - plain
    rms, floor = (float(np.sqrt(np.mean(d**2))) for d in (off, noise))
    mean, mean_floor = float(off.mean()), float(noise.mean())
    limit = FACTOR * floor + NLL_ABSOLUTE
    spread = 4 * floor / np.sqrt(len(off))
    mean_limit = FACTOR * abs(mean_floor) + spread + NLL_MEAN_ABSOLUTE
    return {
        "peer": float(plain.mean()), "peer_float32": float(wide.mean()),
        "rms": rms, "rms_floor": floor, "rms_limit": limit,
        "mean_off": mean, "mean_limit": float(mean_limit),
        "passed": bool(rms <= limit and abs(mean) <= mean_limit),
    }
