"""Protects what only a card can show of the `cuda` device: memory, contexts, graphs, faults.

Long because one device serves all of it, as in the product.
"""

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ptx.device import DeviceError
from ptx.devices import cuda
from ptx.devices.cuda_context import FATAL
from ptx.devices.nvml import read_facts
from ptx.numerics import DTYPES
from ptx.op import Launch
from tests.cpu.cuda_cases import SCALE, TEXT, arguments, plant, scale_op
from tests.gpu import planted

pytestmark = pytest.mark.gpu

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def card():
    """One device for the file, as in the product."""
    found = cuda.available()
    if isinstance(found, str):
        pytest.skip(found)
    return cuda.CudaDevice()


@pytest.fixture
def device(card, tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch)
    return card


def scaled(x, factor=2.5, shift=-3):
    return -(x * np.float32(factor) + np.float32(shift))


def test_the_facts_are_those_of_the_management_library(card):
    facts, known = card.facts, read_facts()
    assert known is not None
    assert facts.arch in {gpu.arch for gpu in known.gpus}
    assert facts.cuda == known.cuda
    assert 0 < facts.total_bytes <= max(gpu.vram_bytes for gpu in known.gpus)
    assert facts.sm_clock_mhz > 0
    assert facts.max_shared_bytes >= 48 * 1024


@pytest.mark.parametrize("dtype", DTYPES)
def test_cells_come_back(device, dtype):
    rng = np.random.default_rng(3)
    cells = np.frombuffer(rng.bytes(1023 * 8), DTYPES[dtype])[:1023].reshape(3, 341)
    buffer, other = (device.allocate((3, 341), dtype, "x") for _ in range(2))
    device.upload(buffer, cells)
    device.clear(other, 0xA5)
    device.copy(buffer[:2], other[1:])
    assert device.download(buffer).tobytes() == cells.tobytes()
    got = device.download(other)
    assert got[0].tobytes() == b"\xa5" * got[0].nbytes
    assert got[1:].tobytes() == cells[:2].tobytes()


def test_pinned_copies_run_in_order(device):
    buffer, stage = device.allocate((1 << 20,), "f32", "x"), device.pinned((2, 1 << 20), "f32", "s")
    stage[0], stage[1] = np.arange(1 << 20), 0
    device.upload_async(buffer, stage[0])
    device.download_async(buffer, stage[1])
    device.synchronize()
    assert (stage[0] == stage[1]).all()


@pytest.mark.parametrize("n_rows", [1, 7, 70_000])
def test_a_launch_computes(device, n_rows):
    x, y = (device.allocate((n_rows, 33), "f32", name) for name in "xy")
    cells = np.random.default_rng(n_rows).normal(size=x.shape).astype(np.float32)
    device.upload(x, cells)
    device.launch(SCALE, x=x, y=y, factor=2.0, shift=-3, negate=True)
    # A factor of two is exact, so fused and separate rounding agree.
    assert (device.download(y) == scaled(cells, 2.0)).all()


def test_all_shared_memory_of_a_block_can_be_asked_for(device):
    args = arguments(device)
    op = scale_op(lambda dims: Launch(dims["T"], 32, device.facts.max_shared_bytes))
    device.launch(op, **args)
    assert (device.download(args["y"]) == scaled(device.download(args["x"]))).all()


def test_a_text_that_does_not_compile_shows_log_and_line(device):
    with pytest.raises(DeviceError) as refusal:
        device._load(TEXT.replace("fma.rn.f32 v, v, f, s", "fma.rn.f32 v, v, nowhere, s"),
                     "scale", "scale/broken.ptx")
    message = str(refusal.value)
    assert message.startswith("scale/broken.ptx: CUDA0: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX")
    assert "nowhere" in message
    assert message.splitlines()[-1].endswith("fma.rn.f32 v, v, nowhere, s;")


def test_no_room_names_the_bytes_and_leaves_the_device_well(device):
    wanted = device.memory_info().free_bytes + MIB
    with pytest.raises(DeviceError, match=f"weights: {wanted} bytes wanted, [0-9]+ free of"):
        device.allocate((wanted,), "u8", "weights")
    buffer = device.allocate((MIB,), "u8", "small")
    assert device.download(buffer).shape == (MIB,)


def test_memory_goes_back_from_any_thread(device):
    device.synchronize()
    before = device.memory_info().free_bytes
    views = [device.allocate((256, MIB), "u8", "x")[3:] for _ in range(4)]
    assert device.memory_info().free_bytes <= before - 1024 * MIB
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join()
    assert device.memory_info().free_bytes == before


# Contexts of threads


def test_every_kind_of_thread_keeps_its_context(device):
    bindings = cuda.load_bindings()
    foreign = planted.foreign_context(bindings)
    args = arguments(device)
    want = scaled(device.download(args["x"]))
    with device.capture() as graph:
        device.launch(SCALE, **args)
    problems: list[str] = []

    def work(context):
        if context is not None:
            bindings.cuCtxPushCurrent(context)
        came_with = planted.current(bindings)
        mine = arguments(device)
        for call in (graph.replay, lambda: device.launch(SCALE, **mine), device.synchronize,
                     device.memory_info, lambda: device.pinned((4,), "f32", "s")):
            call()
            if planted.current(bindings) != came_with:
                problems.append("context changed")
        if not (device.download(mine["y"]) == want).all():
            problems.append("wrong cells")

    def memory_after_all_threads():
        for context in [None, foreign] * 5:
            thread = threading.Thread(target=work, args=(context,))
            thread.start()
            thread.join()
        gc.collect()
        return device.memory_info().free_bytes

    free = memory_after_all_threads()
    assert memory_after_all_threads() == free
    assert problems == []
    bindings.cuCtxDestroy(foreign)


# Graphs


def test_a_graph_replays_what_was_recorded(device, tmp_path):
    (tmp_path / "scale" / "portable.ptx").write_text(f"{TEXT}// first loaded in a capture\n")
    args = arguments(device)
    x, y = args["x"], args["y"]
    device.clear(y)
    with device.capture("step") as graph:
        device.launch(scale_op(lambda dims: Launch(dims["T"], 64)), **args)
        device.copy(y, x)
        device.clear(device.allocate((4096,), "u8", "dropped"))
    assert not device.download(y).any()
    want = device.download(x)
    for _ in range(5):
        graph.replay()
        want = scaled(want)
    assert (device.download(y) == want).all()


def test_a_capture_survives_memory_calls_of_other_threads(device):
    args = arguments(device)
    parts = [device.allocate((MIB,), "u8", "x") for _ in range(2)]

    def elsewhere():
        parts.append(device.allocate((MIB,), "u8", "x"))
        parts.clear()

    with device.capture() as graph:
        device.launch(SCALE, **args)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        device.launch(SCALE, **args)
    graph.replay()
    assert (device.download(args["y"]) == scaled(device.download(args["x"]))).all()


def test_a_failed_capture_leaves_the_device_well(device):
    args = arguments(device)
    with pytest.raises(DeviceError, match="synchronize: not while"), device.capture():
        device.synchronize()
    device.launch(SCALE, **args)
    assert (device.download(args["y"]) == scaled(device.download(args["x"]))).all()


def programmatic(card, tmp_path, monkeypatch):
    """The op with a programmatic launch, which lets the next one begin at once."""
    if int(card.facts.arch.removeprefix("sm_")) < 90:
        pytest.skip("programmatic launches need sm_90")
    text = TEXT.replace(".version 7.0\n.target sm_70", ".version 8.0\n.target sm_90")
    begin = "    mov.u32 row, %ctaid.x;"
    assert begin in text
    plant(tmp_path, monkeypatch, text.replace(
        begin, f"    griddepcontrol.launch_dependents;\n    griddepcontrol.wait;\n{begin}"
    ))
    return scale_op(lambda dims: Launch(dims["T"], 64, programmatic=True))


def test_a_graph_brings_its_numbers_and_takes_them_back(card, tmp_path, monkeypatch):
    op = programmatic(card, tmp_path, monkeypatch)
    h = card.allocate((512, 256), "f32", "h")
    given, taken = (card.pinned((512, 256), "f32", name) for name in ("given", "taken"))
    step = {"x": h, "y": h, "factor": 2.0, "shift": 1, "negate": False}
    card.launch(op, **step)
    with card.capture() as graph:
        card.upload_async(h, given)
        for _ in range(3):
            card.launch(op, **step)
        card.download_async(h, taken)
    for value in range(20):
        given[...] = value
        graph.replay()
        card.synchronize()
        assert (taken == 8 * value + 7).all()


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_programmatic_launches_keep_their_order(card, tmp_path, monkeypatch, captured):
    op = programmatic(card, tmp_path, monkeypatch)
    h = card.allocate((512, 256), "f32", "h")
    step = {"x": h, "y": h, "factor": 1.0, "shift": 1, "negate": False}
    card.launch(op, **step)
    card.clear(h)
    if captured:
        with card.capture() as graph:
            for _ in range(50):
                card.launch(op, **step)
        graph.replay()
        graph.replay()
    else:
        for _ in range(100):
            card.launch(op, **step)
    assert (card.download(h) == 100).all()


def test_events_measure_the_device(device):
    big = device.allocate((2, 256 * MIB), "u8", "big")
    start, end = device.event(), device.event()
    start.record()
    device.copy(big[0], big[1])
    end.record()
    end.synchronize()
    assert end.milliseconds_since(start) > 0


# Faults


@pytest.mark.parametrize("fault", planted.FAULTS)
def test_a_fault_is_told_once_and_then_refuses_at_once(card, fault):
    done = subprocess.run(
        [sys.executable, planted.__file__, fault], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    first = report["first"]["message"]
    assert first.startswith("CUDA0: cuStreamSynchronize: CUDA_ERROR_"), first
    assert first.split()[2] in FATAL
    assert first.endswith("last launches not waited for: fault")
    for name, later in report["later"].items():
        assert later["message"] == (
            f"CUDA0 cannot be used until the process restarts, because of {first}"
        ), name
        assert later["seconds"] < 1, name
    assert report["foreign_kept"]
    assert report["host"] == [0, 0]
    # The card itself is well: only that process had lost it.
    assert card.download(card.allocate((4,), "f32", "x")).shape == (4,)
