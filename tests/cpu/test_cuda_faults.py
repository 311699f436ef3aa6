"""Protects the `cuda` device on a stand-in: contexts of threads, graphs and events, faults.

Long because every public call is tried on every kind of thread and after every kind of fault.
"""

import gc
import threading

import numpy as np
import pytest

from ptx.device import DeviceError
from ptx.devices.cuda_context import FATAL, N_RECENT
from ptx.op import OpError
from tests.cpu.cuda_cases import SCALE, adding, arguments, new_device
from tests.cpu.fake_cuda import RESULTS, FakeCuda


@pytest.fixture
def fake():
    return FakeCuda()


@pytest.fixture
def device(fake, tmp_path, monkeypatch):
    return new_device(fake, tmp_path, monkeypatch)


# Contexts of threads


def every_call(device, args):
    """One of each public call, as (name, call)."""
    stage = device.pinned((3, 4), "f32", "stage")
    event = device.event()
    with device.capture() as graph:
        device.launch(SCALE, **args)
    x = args["x"]
    return [
        ("memory_info", device.memory_info), ("synchronize", device.synchronize),
        ("allocate", lambda: device.allocate((3, 4), "f32", "x")),
        ("upload", lambda: device.upload(x, np.ones((3, 4)))),
        ("download", lambda: device.download(x)),
        ("copy", lambda: device.copy(x[:1], x[1:2])), ("clear", lambda: device.clear(x)),
        ("launch", lambda: device.launch(SCALE, **args)),
        ("pinned", lambda: device.pinned((4,), "f32", "stage")),
        ("upload_async", lambda: device.upload_async(x, stage)),
        ("download_async", lambda: device.download_async(x, stage)),
        ("replay", graph.replay), ("event", device.event), ("record", event.record),
        ("wait", event.synchronize), ("elapsed", lambda: event.milliseconds_since(event)),
        ("capture", lambda: device.capture().__enter__()),
    ]


@pytest.mark.parametrize("before", [[], ["foreign"], ["foreign", "other card"]])
def test_a_thread_keeps_the_context_it_came_with(fake, device, before):
    calls = every_call(device, arguments(device))
    found = {}

    def work():
        fake.stack().extend(before)
        for name, call in calls[:-1]:
            call()
            found[name] = list(fake.stack())
        fake.fail["cuMemGetInfo"] = "INVALID_VALUE"
        with pytest.raises(DeviceError, match="CUDA0: cuMemGetInfo"):
            device.memory_info()
        found["failure"] = list(fake.stack())

    for _ in range(10):
        found.clear()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        fake.fail.clear()
        assert len(found) == len(calls)
        assert all(stack == before for stack in found.values()), found
    assert fake.stack() == []


def test_a_context_held_for_a_step_is_pushed_once(fake, device):
    args = arguments(device)
    device.launch(SCALE, **args)
    before = fake.calls["cuCtxPushCurrent"]
    with device.context:
        for _ in range(5):
            device.launch(SCALE, **args)
    assert fake.calls["cuCtxPushCurrent"] == fake.calls["cuCtxPopCurrent"] == before + 1


# Graphs and events


def test_a_graph_runs_when_it_is_replayed(fake, device):
    adding(fake)
    args = arguments(device)
    device.clear(args["y"])
    with device.capture("decode") as graph:
        for _ in range(3):
            device.launch(SCALE, **args)
        with pytest.raises(DeviceError, match="decode: its capture has not ended"):
            graph.replay()
    assert device.download(args["y"]).max() == 0
    graph.replay()
    graph.replay()
    assert (device.download(args["y"]) == 6).all()


def test_a_graph_keeps_its_buffers(fake, device):
    adding(fake)
    args = arguments(device)
    address = args["y"].address
    with device.capture() as graph:
        device.launch(SCALE, **args)
        device.clear(device.allocate((8,), "f32", "dropped"))
    args.clear()
    gc.collect()
    assert address in fake.memory
    graph.replay()
    del graph
    gc.collect()
    assert fake.memory == {}


@pytest.mark.parametrize("call", ["synchronize", "upload", "download", "capture"])
def test_what_cannot_be_recorded_is_refused_and_the_capture_goes_on(fake, device, call):
    adding(fake)
    args = arguments(device)
    device.clear(args["y"])
    calls = {
        "synchronize": device.synchronize,
        "upload": lambda: device.upload(args["x"], np.ones((3, 4))),
        "download": lambda: device.download(args["x"]),
        "capture": lambda: device.capture().__enter__(),
    }
    with device.capture("step") as graph:
        with pytest.raises(DeviceError, match=f"{call}: not while step is captured"):
            calls[call]()
        device.launch(SCALE, **args)
    graph.replay()
    assert (device.download(args["y"]) == 1).all()


def test_a_body_that_fails_leaves_the_device_as_it_was(fake, device):
    args, graphs = arguments(device), []

    def failing():
        with device.capture() as graph:
            graphs.append(graph)
            device.launch(SCALE, **args)
            device.launch(SCALE, **args, unknown=1)

    with pytest.raises(OpError, match="unknown"):
        failing()
    assert fake.capturing is None
    with pytest.raises(DeviceError, match="has not ended well"):
        graphs[0].replay()
    device.synchronize()
    gc.collect()
    assert fake.live["graph"] == 0


@pytest.mark.parametrize(("name", "result"), [
    ("cuStreamEndCapture", "STREAM_CAPTURE_INVALIDATED"), ("cuGraphInstantiate", "OUT_OF_MEMORY"),
    ("cuGraphUpload", "OUT_OF_MEMORY"),
])
def test_a_graph_that_cannot_be_made_says_why(fake, device, name, result):
    fake.fail[name] = result
    with pytest.raises(DeviceError, match=f"CUDA0: {name}: CUDA_ERROR_{result}"):
        with device.capture():
            device.clear(device.allocate((4,), "f32", "x"))
    fake.fail.clear()
    gc.collect()
    assert fake.live["graph"] == fake.live["executable"] == 0
    assert fake.memory == {}
    device.synchronize()


def test_events_measure(device):
    start, end = device.event(), device.event()
    start.record()
    end.record()
    end.synchronize()
    assert end.milliseconds_since(start) == 1.5


# Faults


def test_a_fault_is_told_once_and_then_refuses_everything(fake, device):
    args = arguments(device)
    calls = every_call(device, args)
    device.synchronize()
    with device.capture():
        device.launch(SCALE, **args)
    device.launch(SCALE, **args)
    device.launch(SCALE, **args)
    fake.fail["cuStreamSynchronize"] = "ILLEGAL_ADDRESS"
    told = (
        "CUDA0: cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700): words for 700; "
        "last launches not waited for: scale, scale"
    )
    with pytest.raises(DeviceError) as first:
        device.synchronize()
    assert str(first.value) == told
    fake.fail.clear()
    made = sum(fake.calls.values())
    for _ in range(2):
        for name, call in calls:
            with pytest.raises(DeviceError) as refusal:
                call()
            assert str(refusal.value) == (
                f"CUDA0 cannot be used until the process restarts, because of {told}"
            ), name
    args.clear()
    calls.clear()
    gc.collect()
    assert sum(fake.calls.values()) == made
    assert fake.stack() == []


@pytest.mark.parametrize("name", sorted(FATAL & set(RESULTS)))
def test_results_that_end_a_device(fake, device, name):
    fake.fail["cuLaunchKernel"] = name.removeprefix("CUDA_ERROR_")
    with pytest.raises(DeviceError, match=f"scale/portable.ptx: cuLaunchKernel: {name}"):
        device.launch(SCALE, **arguments(device))
    fake.fail.clear()
    with pytest.raises(DeviceError, match="cannot be used until the process restarts"):
        device.memory_info()


@pytest.mark.parametrize("result", ["INVALID_VALUE", "OUT_OF_MEMORY", "NOT_FOUND"])
def test_results_that_do_not(fake, device, result):
    args = arguments(device)
    fake.fail["cuLaunchKernel"] = result
    with pytest.raises(DeviceError, match=result):
        device.launch(SCALE, **args)
    fake.fail.clear()
    device.launch(SCALE, **args)


def test_a_context_that_somebody_else_destroyed(fake, device):
    fake.fail["cuCtxPushCurrent"] = "INVALID_CONTEXT"
    with pytest.raises(DeviceError, match="CUDA0: cuCtxPushCurrent: CUDA_ERROR_INVALID_CONTEXT"):
        device.synchronize()
    with pytest.raises(DeviceError, match="cannot be used until"):
        device.synchronize()


def test_a_free_that_meets_the_fault_is_silent_and_remembered(fake, device):
    buffer = device.allocate((4,), "f32", "x")
    fake.fail["cuMemFree"] = "LAUNCH_FAILED"
    del buffer
    gc.collect()
    with pytest.raises(DeviceError, match="because of CUDA0: cuMemFree: CUDA_ERROR_LAUNCH_FAILED"):
        device.synchronize()


def test_the_last_launches_alone_are_named(fake, device):
    args = arguments(device)
    with device.capture("decode") as graph:
        device.launch(SCALE, **args)
    device.synchronize()
    for _ in range(N_RECENT):
        device.launch(SCALE, **args)
    graph.replay()
    fake.fail["cuStreamSynchronize"] = "LAUNCH_FAILED"
    with pytest.raises(DeviceError) as told:
        device.synchronize()
    named = str(told.value).rpartition(": ")[2].split(", ")
    assert named == ["scale"] * (N_RECENT - 1) + ["decode"]


def test_a_function_that_the_driver_lacks(fake, device, monkeypatch):
    monkeypatch.delattr(FakeCuda, "_cuFuncLoad")
    with pytest.raises(DeviceError, match="cuFuncLoad"):
        device.launch(SCALE, **arguments(device))
