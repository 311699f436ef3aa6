"""Protects the endurance run: that it passes on a sound model, and fails for one bit that changed
once, for anything that grows, and for what a state file of another run holds. Long because every
count is made to grow.
"""

import gc
import json
import threading
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from engine import bench
from engine.bench_endurance import command, growth, requests, run
from engine.bench_endurance.requests import KINDS, cells_for, difference, mixed
from engine.bench_endurance.run import endure
from engine.bench_endurance.state import MAX_FAILURES, State
from engine.model import Model
from engine.options import RuntimeOptions
from packages.synthetic import synthetic_plan
from ptx.device import MemoryInfo
from ptx.devices.host import HostDevice
from tests import compiled_hybrid as mini

# A prompt, a batch, a window, ...: short, for references take their time for every row.
REQUESTS = mixed(1, len(KINDS), 4, 1, 2)
ARGUMENTS = ["endurance", "--package", "qwen3_8_27b:tiny", "--device", "host", "--cycles", "3",
             "--max-prompt", "4", "--steps", "1", "--max-batch", "2", "--requests", "6"]


@pytest.fixture(scope="module")
def plan():
    return synthetic_plan("qwen3_8_27b:mini", recipe="bf16")


def opened(plan, device):
    options = RuntimeOptions(
        n_context=cells_for(4, 1, 3), n_lanes=3, n_batch=64, include_output=True
    )
    return Model(plan, options, device)


@pytest.fixture
def model(plan):
    """The compiled schedule on references."""
    return opened(plan, mini.KernelHost())


@pytest.fixture
def plain():
    """A plain schedule of small widths, which is quicker."""
    return opened(synthetic_plan("qwen3_8_27b:tiny"), HostDevice())


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    """What pytest itself holds need not be looked through behind every cycle."""
    gc.freeze()
    yield
    gc.unfreeze()


def still():
    return MemoryInfo(1 << 30, 1 << 31)


def failures(model, n_cycles=3, memory_info=still, state=None, n_requests=1):
    state = state or State(None, {})
    endure(model, REQUESTS[:n_requests], state, 0.0, n_cycles, memory_info)
    return state.data["failures"]


# A sound model


def test_a_sound_model_passes(model, monkeypatch):
    monkeypatch.setattr(requests, "ROUNDS", 2)
    monkeypatch.setattr(requests, "WINDOWS", (2,))
    state = State(None, {})
    grown = endure(model, REQUESTS, state, 0.0, 3, still)
    assert state.data["failures"] == []
    assert set(grown) == set(growth.LIMITS)
    assert [grown[name] for name in ("device bytes", "sessions", "prefixes", "KV cells")] == [0] * 4
    assert state.data["requests"] == 3 * len(KINDS)
    assert {one["cycle"] for one in state.data["samples"]} == {0, 1, 2}
    assert len({json.dumps(one) for one in state.data["outputs"].values()}) == len(KINDS)


def test_time_that_is_up_still_leaves_a_cycle_behind_the_warm_up(plain):
    state = State(None, {})
    endure(plain, REQUESTS[:1], state, 0.0)
    assert state.data["cycles"] == run.WARM_CYCLES + 1


def test_requests_come_from_the_seed():
    assert mixed(1, 12, 4096, 32, 8) == mixed(1, 12, 4096, 32, 8)
    assert mixed(1, 12, 4096, 32, 8) != mixed(2, 12, 4096, 32, 8)
    many = mixed(3, 300, 4096, 32, 8)
    assert {request.kind for request in many} == set(KINDS)
    assert len({request.name for request in many}) == 300
    lengths = [n for request in many for n in request.lengths]
    assert (min(lengths), max(lengths) <= 4096) == (1, True)
    assert {len(r.lengths) for r in many if r.kind == "batch"} == set(range(2, 9))


# One that is not


def test_a_bit_that_changes_once_is_found(model, monkeypatch):
    """In the recurrent state of one session, behind its prompt, in the second cycle."""
    calls, per_cycle, real = count(), [], model.program.run
    cycle = run._cycle

    def counted(*arguments):
        found = cycle(*arguments)
        per_cycle.append(next(calls))
        return found

    def flipping(chunk):
        out = real(chunk)
        if next(calls) == per_cycle[0] + 1 if per_cycle else False:
            cells = model.program.states["delta.0"][int(chunk.state_out[0])].view(np.uint32)
            at = np.unravel_index(np.argmax(cells & 0x7FFF_FFFF), cells.shape)
            cells[at] ^= 1 << 22
        return out

    monkeypatch.setattr(run, "_cycle", counted)
    monkeypatch.setattr(model.program, "run", flipping)
    (found,) = failures(model, n_requests=2)
    assert found.startswith("cycle 1: ")
    assert " was " in found or "the bits of its last logits are not" in found


@pytest.mark.parametrize(("name", "leak"), [
    ("sessions", lambda model, kept: model.create_session()),
    ("threads", lambda model, kept: kept.append(sleeper())),
    ("open files", lambda model, kept: kept.append(open(__file__))),  # noqa: SIM115
    ("host bytes", lambda model, kept: kept.append(b"x" * (40 << 20))),
])
def test_whatever_grows_is_found(plain, monkeypatch, name, leak):
    kept, cycle = [], run._cycle

    def leaking(*arguments):
        # Not in the first ones: three lanes are soon taken.
        if arguments[2].data["cycles"] == 2:
            leak(plain, kept)
        return cycle(*arguments)

    monkeypatch.setattr(run, "_cycle", leaking)
    found = failures(plain)
    for thing in kept:
        getattr(thing, "close", getattr(thing, "stop", lambda: None))()
    assert any(one.startswith(f"process 0: {name}: ") for one in found), found
    assert f"at most {growth.LIMITS[name]} allowed" in " ".join(found)


def sleeper():
    done = threading.Event()
    thread = threading.Thread(target=done.wait, daemon=True)
    thread.start()

    def stop():
        done.set()
        thread.join()

    return SimpleNamespace(stop=stop)


def test_memory_of_the_device_that_goes_is_found(plain):
    free = count(1 << 30, -(5 << 20))
    assert failures(plain, 3, lambda: MemoryInfo(next(free), 1 << 31)) == [
        f"process 0: device bytes: {5 << 20} more than after the warm-up, at most {4 << 20} allowed"
    ]
    within = count(1 << 30, -(4 << 20))
    assert failures(plain, 3, lambda: MemoryInfo(next(within), 1 << 31)) == []
    assert failures(plain, 3, None) == []


def test_a_refusal_ends_the_run():
    options = RuntimeOptions(n_context=2, n_lanes=3, n_batch=64, include_output=True)
    state = State(None, {})
    model = Model(synthetic_plan("qwen3_8_27b:tiny"), options, HostDevice())
    endure(model, REQUESTS, state, 60.0, 0, still)
    assert state.data["cycles"] == 1
    (found,) = state.data["failures"]
    assert "RuntimeFailure: KV cache: " in found


def test_where_outputs_differ_is_said():
    held = {"tokens": [[1, 2], [3]], "digest": "a"}
    assert difference(held, held) == ""
    assert difference(held, {**held, "tokens": [[1, 2], [4]]}) == "token 0 of session 1 is 4, was 3"
    assert "another number" in difference(held, {**held, "tokens": [[1, 2], [3, 4]]})
    assert "bits of its last logits" in difference(held, {**held, "digest": "b"})


# Going on


def test_a_later_process_goes_on(tmp_path, plain):
    path = tmp_path / "state.json"
    assert failures(plain, 3, state=State(path, {"seed": 1})) == []
    first = json.loads(path.read_text())
    later = State(path, {"seed": 1})
    assert failures(plain, 3, state=later) == []
    assert later.data["cycles"] == 6
    assert later.data["outputs"] == first["outputs"]
    assert [one["process"] for one in later.data["samples"]] == [0, 0, 0, 1, 1, 1]
    first["outputs"][REQUESTS[0].name]["tokens"][0][0] ^= 1
    path.write_text(json.dumps(first))
    found = failures(plain, 3, state=State(path, {"seed": 1}))
    assert [one.partition(": token 0 of")[0] for one in found] == [
        f"cycle {cycle}: {REQUESTS[0].name}" for cycle in (3, 4, 5)
    ]


def test_failures_are_counted_and_the_first_are_kept():
    state = State(None, {})
    for number in range(MAX_FAILURES + 3):
        state.fail(str(number))
    assert (state.data["n_failures"], len(state.data["failures"])) == (53, 50)


# The command


def test_the_command_says_what_it_found(tmp_path, capsys, monkeypatch):
    path = tmp_path / "state.json"
    assert bench.main([*ARGUMENTS, "--state", str(path)]) == 0
    out = capsys.readouterr().out
    assert "3 cycles of 6 requests" in out
    assert "| sessions | 0 | 0 |" in out
    assert "device bytes" not in out
    assert bench.main([*ARGUMENTS, "--state", str(path), "--seed", "2"]) == 2
    assert capsys.readouterr().err == "state: seed is 2 here, 0 in state.json\n"
    assert bench.main([*ARGUMENTS, "--state", str(tmp_path / "gone" / "state.json")]) == 2
    assert "cannot write" in capsys.readouterr().err
    monkeypatch.setattr(command, "endure", lambda *given: given[2].fail("broken") or {})
    assert bench.main([*ARGUMENTS, "--state", str(path)]) == 1
    assert "- broken" in capsys.readouterr().out


@pytest.mark.parametrize(("content", "reason"), [
    ("{", "state.json: Expecting"),
    ("[]", "has schema None, 1 is needed"),
    ('{"schema": 1}', "lacks a part"),
    ('{"schema": 1, "identity": {}, "outputs": {}, "cycles": "3"}', "lacks a part"),
])
def test_a_state_that_is_none_is_refused(tmp_path, capsys, content, reason):
    path = tmp_path / "state.json"
    path.write_text(content)
    assert bench.main([*ARGUMENTS, "--state", str(path)]) == 2
    assert reason in capsys.readouterr().err
    assert path.read_text() == content
