"""Owns the cycles of an endurance run: the same requests again and again in changing order, each
output compared with the first of its name, and counts taken behind every cycle.

Every other cycle one session more is open, so that lanes, slots and pages are others. It must not
know how the model was opened.
"""

import random
import sys
import time
from collections.abc import Callable, Sequence

from engine.bench_endurance.growth import LIMITS, Sample, growth, sample, too_much
from engine.bench_endurance.requests import Request, carry_out, difference, to_json
from engine.bench_endurance.state import State
from engine.errors import EngineError
from engine.model import Model
from ptx.device import MemoryInfo
from ptx.op import PtxError

WARM_CYCLES = 2


def endure(
    model: Model, requests: Sequence[Request], state: State, seconds: float,
    n_cycles: int = 0, memory_info: Callable[[], MemoryInfo] | None = None,
    n_warm: int = WARM_CYCLES,
) -> dict[str, int]:
    """Cycles for so long, or `n_cycles` of them, but one more than the warm-up at least; how much
    each count has grown since the warm-up. Failures are in `state`, which is saved behind each
    cycle. `memory_info` None: the device's memory is not judged.
    """
    started, samples = time.monotonic(), list[Sample]()
    judged = [name for name in LIMITS if memory_info or name != "device bytes"]
    counted = memory_info or (lambda: MemoryInfo(0, 0))
    while True:
        before = time.monotonic()
        goes_on = _cycle(model, requests, state)
        samples.append(sample(model, counted))
        state.sampled(samples[-1])
        state.data["cycles"] += 1
        state.data["seconds"] += time.monotonic() - before
        state.save()
        _tell(state, samples, n_warm)
        enough = len(samples) >= n_cycles if n_cycles else (
            time.monotonic() - started >= seconds
        )
        if not goes_on or (enough and len(samples) > n_warm):
            break
    grown = growth(samples, n_warm)
    for sentence in too_much(grown, judged):
        state.fail(f"process {state.process}: {sentence}")
    state.save()
    return {name: value for name, value in grown.items() if name in judged}


def _cycle(model: Model, requests: Sequence[Request], state: State) -> bool:
    """Carry all requests out and compare; False when one was refused, which ends the run."""
    cycle = state.data["cycles"]
    order, rng = list(requests), random.Random(cycle)
    rng.shuffle(order)
    bystander = model.create_session() if cycle % 2 else None
    try:
        for request in order:
            found = to_json(carry_out(model, request))
            held = state.data["outputs"].setdefault(request.name, found)
            off = difference(held, found)
            if off:
                state.fail(f"cycle {cycle}: {request.name}: {off}")
            state.data["requests"] += 1
            state.data["tokens"] += sum(map(len, found["tokens"])) + sum(request.lengths)
    except (EngineError, PtxError) as error:
        state.fail(f"cycle {cycle}: {request.name}: {type(error).__name__}: {error}")
        return False
    finally:
        if bystander is not None:
            bystander.free()
    return True


def _tell(state: State, samples: Sequence[Sample], n_warm: int) -> None:
    """One line on standard error: the run may be ended before its report."""
    grown = growth(samples, n_warm)
    more = ", ".join(f"{name} +{value}" for name, value in grown.items() if value > 0)
    print(
        f"cycle {state.data['cycles']}: {state.data['requests']} requests, "
        f"{state.data['n_failures']} failures; {more or 'nothing has grown'}"
        f"{'' if grown else ' (warm-up)'}", file=sys.stderr, flush=True,
    )
