"""Protects the op benchmark: timing, ceilings, cases and peers on stand-ins, and the command.

Long because one stand-in serves it all; the chain and the report have files of their own.
"""

import json
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from engine import bench
from engine.bench_ops import ceilings, command, peers
from engine.bench_ops.ceilings import measure_reads, part_of, read_of
from engine.bench_ops.measure import Failed, measure_case, n_sets_for
from engine.bench_ops.peers import Peers, find_torch
from engine.bench_ops.report import to_json
from engine.bench_ops.svg import draw
from engine.bench_ops.timing import (
    MAX_LAUNCHES,
    captured,
    spread,
    time_launches,
    time_replays,
)
from ptx.bench_cells import fill_random
from ptx.device import DeviceError
from ptx.devices.emulator import EmulatorDevice
from ptx.inventory import ops
from tests.cpu.bench_ops_cases import EFFORT, card, norm_case, options

OPS = ops()


# Timing


def test_quartiles_of_one_launch():
    us = spread([4.0, 1.0, 2.0, 3.0, 5.0], 10)
    assert (us.least, us.low, us.median, us.high) == (100, 200, 300, 400)
    assert (us.n_replays, us.n_launches) == (5, 10)
    one = spread([2.0], 1)
    assert (one.least, one.low, one.median, one.high) == (2000, 2000, 2000, 2000)


class Clock:
    """A device whose launches take what the test says, with a start that costs 10 us."""

    def __init__(self, launch_ms):
        self.now, self.launch_ms, self.recording = 0.0, launch_ms, None
        self.graphs, self.n_runs = [], 0

    def launch(self):
        if self.recording is None:
            self.now += self.launch_ms
            self.n_runs += 1
        else:
            self.recording.append(self.launch_ms)

    def capture(self, name):
        clock = self

        class Capture:
            def __enter__(self):
                clock.recording = found = []
                clock.graphs.append(found)

                def replay():
                    clock.now += 0.01 + sum(found)
                    clock.n_runs += len(found)

                return SimpleNamespace(replay=replay)

            def __exit__(self, *_):
                clock.recording = None

        return Capture()

    def event(self):
        event = SimpleNamespace(synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.now)
        event.milliseconds_since = lambda earlier: event.at - earlier.at
        return event


def test_a_short_launch_is_repeated_until_its_graph_is_long():
    clock = Clock(0.02)
    us = time_launches(clock, [clock.launch] * 3, EFFORT)
    assert us.n_launches == len(clock.graphs[-1]) == 3 * int(4 / 0.07)
    assert us.n_replays == 5
    assert us.median == pytest.approx(20 + 10 / us.n_launches)
    tiny = Clock(1e-6)
    assert time_launches(tiny, [tiny.launch], EFFORT).n_launches <= MAX_LAUNCHES


def test_a_slow_launch_is_run_a_few_times():
    clock = Clock(400.0)
    us = time_launches(clock, [clock.launch] * 64, EFFORT)
    assert (us.n_launches, us.n_replays, clock.n_runs) == (1, 3, 4)
    assert us.median == pytest.approx(400_000)
    clock = Clock(1500.0)
    us = time_launches(clock, [clock.launch] * 64, EFFORT)
    assert (us.n_launches, us.n_replays, clock.n_runs) == (1, 1, 2)
    assert clock.graphs == []
    # One that is not so slow is run from a graph, of as many sets as there is time for.
    clock = Clock(100.0)
    us = time_launches(clock, [clock.launch] * 64, EFFORT)
    assert (us.n_launches, us.n_replays) == (3, 4)


def test_replays_are_never_too_few():
    clock = Clock(2000.0)
    us = time_replays(clock, captured(clock, [clock.launch]), 1, EFFORT)
    assert us.n_replays == 3


def test_sets_of_buffers_go_past_the_cache():
    assert n_sets_for(92_000_000, 60 << 20) == 3
    assert n_sets_for(1 << 40, 60 << 20) == 1
    assert n_sets_for(0, 60 << 20) == n_sets_for(1, 60 << 20) == 64


# Ceilings


def test_every_byte_of_a_buffer_is_read():
    device = EmulatorDevice(target="sm_80")
    buffer = device.allocate((32, 8, 528), "u8", "w")
    fill_random(device, buffer, np.random.default_rng(0))
    launch = read_of(device, buffer)
    launch()
    n_words = device.download(buffer).view("u4")
    sums = device.download(launch.keywords["sums"])
    assert len(sums) == 32 * 8 * 33 // part_of(32 * 8 * 33)
    assert sums.sum(dtype="u4") == n_words.sum(dtype="u4")


@pytest.mark.parametrize(("n_lines", "part"), [
    (34816 // 8 * 40 * 33, 1024), (31040 * 40 * 65, 1280), (256 * 17, 256), (257, 0),
])
def test_parts_divide_the_lines(n_lines, part):
    assert part_of(n_lines) == part


def test_bytes_that_are_no_parts_are_refused():
    device = EmulatorDevice()
    with pytest.raises(DeviceError, match="100 bytes are no whole parts"):
        read_of(device, device.allocate((100,), "u8", "w"))
    with pytest.raises(DeviceError, match="4096 bytes are no whole parts of 1024 lines"):
        read_of(device, device.allocate((4096,), "u8", "w"), 1024)


def test_reads_of_every_size_that_there_is_room_for(monkeypatch):
    monkeypatch.setattr(ceilings, "SIZES", (1 << 40, 8 << 20, 1 << 20))
    device = card()
    reads = measure_reads(device, EFFORT)
    assert [r.n_bytes for r in reads] == [8 << 20, 1 << 20]
    whole = reads[0]
    assert whole.rate == pytest.approx(whole.n_bytes / whole.us.median * 1e6)
    # Reads of the smaller size walk through all of the large one.
    n_blocks = {extents[0] for name, extents, *_ in device.context.bindings.launched
                if name == "read_bytes"}
    assert n_blocks >= {(8 << 20) // (1024 * 16), (1 << 20) // (1024 * 16)}
    monkeypatch.setattr(ceilings, "SIZES", (1 << 40,))
    assert measure_reads(device, EFFORT) == []


# Cases


def test_a_case_is_measured_with_every_kernel_that_fits():
    found = list(measure_case(card(), norm_case(), OPS["rmsnorm"], EFFORT, True))
    fitting = [k for k in OPS["rmsnorm"].kernels if k.target != "sm_120a"]
    assert [one.kernel for one in found] == [k.stem for k in fitting]
    assert [one.picked for one in found] == [True] + [False] * (len(fitting) - 1)
    # The stand-in says 1.5 ms whatever runs, 32 registers, 1024 static bytes.
    assert found[0].takes.registers == 32
    assert found[0].takes.local_bytes == 0
    assert found[0].takes.shared_bytes >= 1024
    assert 0 < found[0].takes.occupancy <= 1
    assert found[0].us.median == pytest.approx(1500 / found[0].us.n_launches)
    assert found[0].n_sets == 64
    (only,) = measure_case(card(), norm_case(), OPS["rmsnorm"], EFFORT, False)
    assert only.picked
    large = norm_case(flops_each={"T D": 1e12})
    found = list(measure_case(card(), large, OPS["rmsnorm"], EFFORT, True))
    assert [one.kernel for one in found] == [k.stem for k in fitting if k.stem != "portable"]


def test_a_card_that_the_gate_does_not_know_has_no_occupancy():
    device = card()
    device.facts = replace(device.facts, arch="sm_121")
    (one,) = measure_case(device, norm_case(), OPS["rmsnorm"], EFFORT, False)
    assert one.takes.occupancy is None


@pytest.mark.parametrize(("case", "reason"), [
    (norm_case(dims={"T": 1 << 30, "D": 64}), "bytes wanted"),
    (norm_case(op="sample", dims={"T": 1, "V": 1 << 20}), "sample: needs V < 2^19"),
])
def test_what_cannot_be_measured_says_why(case, reason):
    (failed,) = measure_case(card(), case, OPS[case.op], EFFORT, True)
    assert isinstance(failed, Failed)
    assert reason in failed.reason


def test_a_kernel_that_does_not_load_leaves_the_others(monkeypatch):
    device = card()
    load = device.loaded

    def loaded(op, dims):
        if op.kernels[0].stem == "portable":
            raise DeviceError("no such kernel")
        return load(op, dims)

    monkeypatch.setattr(device, "loaded", loaded)
    found = list(measure_case(device, norm_case(op="argmax", dims={"T": 1, "V": 64}),
                              OPS["argmax"], EFFORT, True))
    assert [f.reason for f in found if isinstance(f, Failed)] == ["no such kernel"]


# Peers


def test_without_torch_there_is_a_reason(monkeypatch):
    def missing(name):
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(peers, "importlib", SimpleNamespace(import_module=missing))
    assert find_torch() == "no torch: no module torch"
    sees = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setattr(peers, "importlib", SimpleNamespace(import_module=lambda name: sees))
    assert find_torch() == "torch sees no card"


def test_a_peer_that_fails_is_a_note_and_is_asked_once():
    asked = []

    def randn(*_, **__):
        asked.append(1)
        raise RuntimeError("CUDA error: out of memory\nmore")

    torch = SimpleNamespace(randn=randn, bfloat16="bf16", inference_mode=Context,
                            nn=SimpleNamespace(functional=SimpleNamespace(
                                scaled_dot_product_attention=None)))
    theirs = Peers(torch, 1 << 20, EFFORT)
    case = norm_case(dims={"T": 1, "N": 8, "K": 128}, peer="matmul", bytes_each={"N K": 2})
    assert theirs.measure(case) is None
    assert theirs.measure(case) is None
    assert len(asked) == 1
    assert theirs.notes == ["torch.mm bf16: RuntimeError: CUDA error: out of memory"]
    other = replace(case, dims={**case.dims, "T": 2})
    assert theirs.measure(other) is None
    assert len(theirs.notes) == 1
    assert theirs.measure(norm_case()) is None
    dims = {"T": 1, "H": 4, "G": 2, "E": 8, "W": 2, "B": 16}
    assert theirs.measure(norm_case(peer="attention", dims=dims, bytes_each={"T": 1})) is None
    assert [note.partition(":")[0] for note in theirs.notes[1:]] == [
        "sdpa, enable_gqa", "sdpa, heads as rows",
    ]
    assert theirs.product_flops() is None


class Context:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


# The command


def test_a_run_measures_prints_and_reports(monkeypatch, capsys):
    monkeypatch.setattr(ceilings, "SIZES", (1 << 20,))
    monkeypatch.setattr(ceilings, "copy_gb_per_s", lambda device: 4300.0)
    monkeypatch.setattr(command.chain, "op_names", lambda: ["not_there"])
    cases = [norm_case(), norm_case("gone", op="gone"), norm_case("big", dims={"T": 1 << 30,
                                                                             "D": 64})]
    report = command.run(card(), OPS, cases, options())
    out = capsys.readouterr().out
    assert "Card of Paper" in out
    assert "a copy reads and writes 4300 GB/s" in out
    assert "| norm | " in out
    assert "| portable (not picked) |" in out.replace("norm | ", "norm |\n| ")
    assert "| gone | not there |" in out
    assert "| big | failed: rmsnorm: x: " in out
    assert "chain: not there: not_there" in out
    assert report.missing == ["gone", "not_there"]
    assert [f.label for f in report.failed] == ["big"]
    written = json.loads(json.dumps(to_json(report)))
    assert written["ceilings"]["copy"] == 4.3e12
    assert written["rows"][0]["share"] == pytest.approx(
        written["rows"][0]["rate"] / written["ceilings"]["reads"][0]["rate"])
    ElementTree.fromstring(draw(report))


def test_a_quick_run_takes_the_picked_kernels_alone(monkeypatch, capsys):
    monkeypatch.setattr(ceilings, "SIZES", ())
    monkeypatch.setattr(ceilings, "copy_gb_per_s", lambda device: 1.0)
    monkeypatch.setattr("engine.bench_ops.command.find_torch", lambda: "no torch: none")
    report = command.run(card(), OPS, [norm_case()], options("rmsnorm", quick=True, peers=True))
    assert len(report.rows) == 1
    assert report.chain is None
    assert report.rows[0].share is None
    assert report.notes == ["no peers: no torch: none"]
    assert "no peers: no torch: none" in capsys.readouterr().out


def test_a_lost_card_ends_the_run(monkeypatch, capsys):
    monkeypatch.setattr(ceilings, "SIZES", ())
    monkeypatch.setattr(ceilings, "copy_gb_per_s", lambda device: 1.0)
    device = card()
    device.context.bindings.fail["cuGraphLaunch"] = "ILLEGAL_ADDRESS"
    report = command.run(device, OPS, [norm_case("a"), norm_case("b")], options("rmsnorm"))
    assert {failed.label for failed in report.failed} == {"a"}
    assert "ended early: " in report.notes[0]
    assert "ILLEGAL_ADDRESS" in capsys.readouterr().out


def test_the_command_refuses_with_a_sentence(monkeypatch, capsys):
    assert bench.main(["ops", "nothing"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("no case for 'nothing'; there are norm_linear_int4_tiles_swiglu, ")
    assert error.rstrip().endswith(", chain")
    monkeypatch.setattr(command, "available", lambda: "the CUDA driver shows no GPU")
    assert bench.main(["ops"]) == 1
    assert capsys.readouterr().err == "no card: the CUDA driver shows no GPU\n"
    with pytest.raises(SystemExit) as ended:
        bench.main(["--package", "smollm2_135m", "ops"])
    assert ended.value.code == 2
    assert "ops comes first" in capsys.readouterr().err


def test_the_list_needs_no_card(monkeypatch, capsys):
    monkeypatch.setattr(command, "ops", lambda: {"rmsnorm": OPS["rmsnorm"]})
    assert bench.main(["ops", "--list", "rmsnorm", "argmax"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rmsnorm T=1: rmsnorm, 0.0614 MB, 2.05e-05 GFLOP"
    assert lines[-1] == "argmax T=8: argmax, 7.95 MB, 0.00199 GFLOP; not there"
    assert len(command.chosen([], True)) < len(command.chosen([], False)) == len(command.CASES)


def test_the_command_writes_its_files(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "available", lambda: ())
    monkeypatch.setattr(command, "CudaDevice", card)
    monkeypatch.setattr(ceilings, "SIZES", (1 << 20,))
    monkeypatch.setattr(ceilings, "copy_gb_per_s", lambda device: 1.0)
    monkeypatch.setattr(command, "CASES", (norm_case(),))
    files = {"json": tmp_path / "a.json", "svg": tmp_path / "a.svg"}
    arguments = ["ops", "rmsnorm", "--no-peers", "--quick"]
    for kind, path in files.items():
        arguments += [f"--{kind}", str(path)]
    assert bench.main(arguments) == 0
    assert json.loads(files["json"].read_text())["schema"] == 1
    assert ElementTree.parse(files["svg"]).getroot().tag.endswith("svg")
    monkeypatch.setattr(command, "CASES", (norm_case(dims={"T": 1 << 30, "D": 64}),))
    assert bench.main(arguments) == 1
