"""Protects the `cuda` device on a stand-in for the driver: which cards, memory, launches.

Long because it is all that needs no card (`tests/gpu` has the rest) and one device serves it.
"""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

from ptx.device import DeviceError
from ptx.devices import cuda
from ptx.devices.cuda_facts import target_for
from ptx.devices.cuda_kernel import parameters
from ptx.inventory import targets
from ptx.numerics import DTYPES
from ptx.op import Launch, OpError
from tests.cpu.cuda_cases import SCALE, TEXT, arguments, new_device, scale_op
from tests.cpu.fake_cuda import FakeCuda


@pytest.fixture
def fake():
    return FakeCuda()


@pytest.fixture
def device(fake, tmp_path, monkeypatch):
    return new_device(fake, tmp_path, monkeypatch)


# Which cards there are


def test_facts_of_every_card(fake):
    fake.n_devices = 2
    found = cuda.available(fake)
    assert [(f.ordinal, f.name, f.arch, f.cuda, f.pci) for f in found] == [
        (ordinal, "Card of Paper", "sm_90", "13.0", "0000:4f:00.0") for ordinal in range(2)
    ]
    assert (found[0].sm_clock_mhz, found[0].memory_clock_mhz) == (1980, 3201)
    assert found[0].description == "Card of Paper, sm_90, 0.0 GiB, CUDA 13.0"
    assert fake.live["context"] == 0


@pytest.mark.parametrize("result", ["NO_DEVICE", "UNKNOWN"])
def test_a_driver_that_does_not_start_is_a_reason(fake, result):
    fake.fail["cuInit"] = result
    assert f"CUDA_ERROR_{result}" in cuda.available(fake)
    with pytest.raises(DeviceError, match=result):
        cuda.CudaDevice(bindings=fake)


def test_no_card_no_driver_and_no_bindings_are_reasons(fake, monkeypatch):
    fake.n_devices = 0
    assert cuda.available(fake) == "the CUDA driver shows no GPU"
    monkeypatch.setattr(FakeCuda, "_cuInit", lambda *_: _raise(RuntimeError("no libcuda.so.1")))
    assert cuda.available(fake) == "cuInit: no libcuda.so.1"
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert "`gpu` extra" in cuda.available()
    with pytest.raises(DeviceError, match="cuda-python is not installed"):
        cuda.CudaDevice()


def _raise(error):
    raise error


def test_a_card_that_is_not_there_and_one_too_old(fake):
    with pytest.raises(DeviceError, match="cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"):
        cuda.CudaDevice(3, bindings=fake)
    fake.attributes["COMPUTE_CAPABILITY_MAJOR"] = 6
    with pytest.raises(DeviceError, match="sm_60: kernels are written for sm_70"):
        cuda.CudaDevice(bindings=fake)
    gc.collect()
    assert +fake.live == {}


@pytest.mark.parametrize(("arch", "row"), [
    ("sm_70", "portable"), ("sm_75", "portable"), ("sm_80", "sm_80"), ("sm_86", "sm_80"),
    ("sm_89", "sm_89"), ("sm_90", "sm_90a"), ("sm_100", "sm_89"), ("sm_120", "sm_120a"),
    ("sm_121", "sm_89"),
])
def test_the_row_of_a_card(arch, row):
    assert target_for(arch, targets()).name == row


# Memory


def test_cells_come_back_for_every_dtype_and_view(device):
    for dtype, cells in DTYPES.items():
        buffer = device.allocate((3, 5), dtype, "b")
        want = np.arange(15).reshape(3, 5).astype(cells)
        device.upload(buffer, want)
        assert device.download(buffer).tobytes() == want.tobytes()
        assert device.download(buffer[1:]).tobytes() == want[1:].tobytes()
        device.copy(buffer[0], buffer[2])
        assert device.download(buffer[2]).tobytes() == want[0].tobytes()
        device.clear(buffer[1], 0xFF)
        assert device.download(buffer[1]).tobytes() == b"\xff" * want[1].nbytes
    assert device.download(device.allocate((0, 5), "f32", "none")).shape == (0, 5)


def test_poison_fills_new_memory(fake):
    device = cuda.CudaDevice(poison=True, bindings=fake)
    assert np.isnan(device.download(device.allocate((2, 3), "f32", "x"))).all()


def test_no_room_names_the_bytes_and_takes_nothing(fake, device):
    kept = device.allocate((1 << 18,), "u8", "kept")
    free = device.memory_info().free_bytes
    for n_bytes in (free + 1, 1 << 70):
        with pytest.raises(DeviceError) as refusal:
            device.allocate((n_bytes,), "u8", "weights")
        assert str(refusal.value) == (
            f"weights: {n_bytes} bytes wanted, {free} free of {1 << 20} on CUDA0"
        )
    with pytest.raises(DeviceError, match="stage: 1048577 pinned bytes: CUDA0: cuMemHostAlloc"):
        device.pinned((1 << 20 | 1,), "u8", "stage")
    assert device.memory_info().free_bytes == free
    assert device.download(kept).shape == (1 << 18,)


def test_memory_goes_back_with_the_last_view_on_any_thread(fake, device):
    views = [device.allocate((4, 4), "f32", "x")[1:][0]]
    assert len(fake.memory) == 1

    def drop():
        views.clear()
        gc.collect()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert fake.memory == {}
    assert device.context.lost is None


def test_everything_goes_back_in_whatever_order(fake, tmp_path, monkeypatch):
    device = new_device(fake, tmp_path, monkeypatch)
    buffer, stage = device.allocate((4,), "f32", "x"), device.pinned((4,), "f32", "stage")
    event, part = device.event(), stage[1:]
    with device.capture() as graph:
        device.copy(buffer[:2], buffer[2:])
    device.launch(SCALE, **arguments(device))
    del device, stage
    graph.replay()
    gc.collect()
    assert fake.live["context"] == fake.live["pinned"] == 1
    del part, event, graph, buffer
    gc.collect()
    assert (+fake.live, fake.memory) == ({}, {})


def test_at_exit_the_driver_is_left_alone():
    script = (
        "from tests.cpu.fake_cuda import FakeCuda\n"
        "from ptx.devices.cuda import CudaDevice\n"
        "for name in ('cuMemFree', 'cuStreamDestroy', 'cuDevicePrimaryCtxRelease'):\n"
        "    setattr(FakeCuda, '_' + name, lambda *_, n=name: print(n, flush=True))\n"
        "device = CudaDevice(bindings=FakeCuda())\n"
        "cycle = [device.allocate((4,), 'f32', 'x')]\n"
        "cycle.append(cycle)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_pinned_copies(fake, device):
    buffer, stage = device.allocate((2, 3), "f32", "x"), device.pinned((4, 3), "f32", "stage")
    stage[...] = np.arange(12).reshape(4, 3)
    device.upload_async(buffer, stage[1:3])
    stage[...] = 0
    device.download_async(buffer, stage[2:])
    device.synchronize()
    assert stage[2:].tolist() == [[3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize(("change", "message"), [
    (lambda stage: np.zeros((2, 3), np.float32), "needs a contiguous array that `pinned` made"),
    (lambda stage: stage[:, ::2][:2], "needs a contiguous array"),
    (lambda stage: stage[:2], r"array is float32 \[2, 6\], buffer is f32 \[2, 3\]"),
    (lambda stage: stage.view(np.int32).reshape(-1)[:6].reshape(2, 3), "array is int32"),
])
def test_other_arrays_do_not_copy_alone(device, change, message):
    buffer, stage = device.allocate((2, 3), "f32", "x"), device.pinned((4, 6), "f32", "stage")
    for copy in (device.upload_async, device.download_async):
        with pytest.raises(DeviceError, match=message):
            copy(buffer, change(stage))


# Launches


def test_a_launch_packs_values_by_their_types(fake, device):
    args = arguments(device)
    for _ in range(2):
        device.launch(SCALE, **args)
    want = ("scale", (3, 1, 1, 32, 1, 1, 64),
            [args["x"].address, args["y"].address, 4, 2.5, 2**32 - 3, 1], False)
    assert fake.launched == [("limit", 64), want, want]
    assert fake.calls["cuModuleLoadDataEx"] == 1
    device.launch(SCALE, **{**args, "factor": float("inf"), "shift": 2**31 - 1, "negate": False})
    assert fake.launched[-1][2][3:] == [float("inf"), 2**31 - 1, 0]


def test_a_number_past_float32_is_refused_before_it_runs(fake, device):
    with pytest.raises(OpError, match=r"scale/portable.ptx: arguments .*1e\+39"):
        device.launch(SCALE, **arguments(device, factor=1e39))
    assert fake.calls["cuLaunchKernel"] == 0


def test_a_programmatic_launch_says_so(fake, device):
    op = scale_op(lambda dims: Launch((dims["T"], 2), (8, 4), programmatic=True))
    device.launch(op, **arguments(device))
    name, extents, _, programmatic = fake.launched[-1]
    assert (name, extents, programmatic) == ("scale", (3, 2, 1, 8, 4, 1, 0), True)


@pytest.mark.parametrize(("launch", "message"), [
    (Launch(1, 513), "513 threads in a block, at most 512 fit with 32 registers each"),
    (Launch(1, 32, 232_448), "233472 bytes of shared memory in a block, CUDA0 has 232448"),
])
def test_what_the_card_cannot_hold_is_refused(fake, device, launch, message):
    with pytest.raises(OpError, match=message):
        device.launch(scale_op(lambda dims: launch), **arguments(device))
    assert fake.calls["cuLaunchKernel"] == 0


def test_shared_memory_is_asked_for_when_it_grows(fake, device):
    for n_bytes in (64, 32, 128):
        device.launch(scale_op(lambda dims, n=n_bytes: Launch(1, 32, n)), **arguments(device))
    assert [size for name, size, *_ in fake.launched if name == "limit"] == [64, 128]


def test_a_kernel_that_does_not_compile_shows_log_and_line(fake, device):
    fake.log = b"ptxas application ptx input, line 7; error : Unknown symbol 'D'"
    with pytest.raises(DeviceError) as refusal:
        device.launch(SCALE, **arguments(device))
    assert str(refusal.value).splitlines() == [
        "scale/portable.ptx: CUDA0: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218): "
        "words for 218",
        "ptxas application ptx input, line 7; error : Unknown symbol 'D'",
        "line 7: .param .u32 D, .param .f32 factor, .param .u32 shift, .param .u32 negate",
    ]
    fake.log = b""
    device.launch(SCALE, **arguments(device))


def test_a_text_without_the_entry_gives_its_module_back(fake, device):
    with pytest.raises(DeviceError, match="cuModuleGetFunction: CUDA_ERROR_NOT_FOUND"):
        device._load(TEXT, "other", "scale/portable.ptx")
    gc.collect()
    assert fake.live["module"] == 0


def test_parameters_of_an_entry():
    assert parameters(TEXT, "scale") == ["u64", "u64", "u32", "f32", "u32", "u32"]
    assert parameters(".entry a() .entry b(.param .align 64 .b8 map[128])", "b") == ["b8[128]"]
    pointers = ".entry b(.param .u64 .ptr .global .align 16 x, .param .align 64 .b8 x_map[128])"
    assert parameters(pointers, "b") == ["u64", "b8[128]"]
    assert parameters(".entry a()", "a") == parameters("", "a") == []
