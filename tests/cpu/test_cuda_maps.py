"""Protects tensor maps: what the driver is asked for, how a launch packs them, each refusal."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from ptx.device import DeviceError
from ptx.devices.cuda import CudaDevice
from ptx.devices.emulator import EmulatorDevice
from ptx.devices.tensor_maps import Tiled, fault_of
from ptx.op import Kernel, Launch, Op, OpError, Param, TensorMap, buf
from tests.cpu.cuda_cases import plant
from tests.cpu.fake_cuda import FakeCuda

# y = the box of x at row 1, column 8; outside it is zero.
TEXT = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry scale(
    .param .u64 x, .param .u64 y, .param .u32 D,
    .param .align 64 .b8 x_map[128], .param .align 64 .b8 y_map[128]
)
.maxntid 32, 1, 1
{
    .reg .pred first, more; .reg .u32 t, at, c0, c1; .reg .u64 map, py; .reg .b32 v;
    .shared .align 128 .b8 box[128]; .shared .align 8 .b8 full[8];
    mov.u32 t, %tid.x;
    setp.eq.u32 first, t, 0;
    ld.param.u64 py, [y];
    mov.u64 map, x_map;
    cvta.param.u64 map, map;
    mov.u32 c0, 8;
    mov.u32 c1, 1;
    @first mbarrier.init.shared.b64 [full], 1;
    bar.sync 0;
    mov.u32 at, box;
    @first mbarrier.arrive.expect_tx.shared.b64 _, [full], 128;
    @first cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
        [at], [map, {c0, c1}], [full];
WAIT:
    mbarrier.try_wait.parity.shared.b64 more, [full], 0;
    @!more bra WAIT;
    mad.lo.u32 at, t, 4, at;
    ld.shared.b32 v, [at];
    mad.wide.u32 py, t, 4, py;
    st.global.b32 [py], v;
    ret;
}
"""


WISHES = (TensorMap("x", (4, 8)), TensorMap("y", (4, 8), 32))


def map_op(wishes=WISHES):
    kernel = Kernel("sm_90a", lambda dims: Launch(1, 32), maps=lambda dims: wishes)
    params = (buf("x", "f32", "T D"), buf("y", "f32", "R C", out=True), Param("D", "u32"))
    return Op("scale", params, "exact", (kernel,))


def arguments(device, first=0):
    x = device.allocate((9, 12), "f32", "x")
    device.upload(x, np.arange(108).reshape(9, 12))
    return {"x": x[first:], "y": device.allocate((4, 8), "f32", "y")}


@pytest.fixture
def fake():
    return FakeCuda()


@pytest.fixture
def device(fake, tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, TEXT)
    (tmp_path / "scale" / "sm_90a.ptx").write_text(TEXT)
    return CudaDevice(bindings=fake)


def test_the_driver_is_asked_once_for_each_place(fake, device):
    op, args = map_op(), arguments(device)
    for _ in range(2):
        device.launch(op, **args)
    x, y = args["x"].address, args["y"].address
    # FLOAT32, lengths, strides and boxes innermost first, no interleave, swizzle, L2 of 256 bytes.
    assert fake.maps == [(7, x, [12, 9], [48], [8, 4], [1, 1], 0, 0, 3, 0),
                         (7, y, [8, 4], [32], [8, 4], [1, 1], 0, 1, 3, 0)]
    device.launch(op, **{**args, "x": args["x"][:8]})
    assert fake.maps[2][:4] == (7, x, [12, 8], [48])
    assert fake.calls["cuGetProcAddress"] == 1


def test_a_launch_packs_the_bytes_behind_the_numbers(fake, device):
    op, args = map_op(), arguments(device)
    device.launch(op, **args)
    assert fake.launched[-1][2] == [args["x"].address, args["y"].address, 12, b"\1" * 128,
                                    b"\2" * 128]
    # A replayed graph has the same ones.
    seen = []
    fake.kernels["scale"] = lambda *values: seen.append(values[3:])
    with device.capture() as graph:
        device.launch(op, **args)
    graph.replay()
    assert seen == [(b"\1" * 128, b"\2" * 128)]


@pytest.mark.parametrize(("wish", "message"), [
    (TensorMap("x", (4, 8), 16), "a swizzle of 16 bytes"),
    (TensorMap("x", (4, 8), 64), "rows of 32 bytes in a box, a swizzle of 64"),
    (TensorMap("x", (257, 8)), "a box of 1 to 256 cells"),
    (TensorMap("x", (4, 6)), "rows of 24 bytes in a box, needs a multiple of 16"),
    (TensorMap("x", (8,)), "1 to 5 axes"),
])
def test_maps_that_no_card_has_are_refused(device, wish, message):
    with pytest.raises(OpError, match=rf"scale: sm_90a\.ptx: a tensor map of x .*{message}"):
        device.launch(map_op((wish,)), **arguments(device))


def test_limits_of_lengths_and_strides():
    assert fault_of(Tiled("bf16", (64, 64), (64, 64), 128)) is None
    assert "multiples of 16 below 2^40" in str(fault_of(Tiled("bf16", (64, 63), (8, 8), 0)))
    assert "below 2^40" in str(fault_of(Tiled("f32", (2, 2**20, 2**20), (1, 1, 4), 0)))
    assert "axes of 1 to" in str(fault_of(Tiled("u8", (2**33,), (16,), 0)))


def test_a_place_off_its_alignment_is_refused(device):
    x = device.allocate((109,), "f32", "x")[1:]
    view = replace(x, shape=(9, 12))
    with pytest.raises(OpError, match=r"scale: x is at 0x.*, a tensor map needs a multiple of 16"):
        device.launch(map_op(), **{**arguments(device), "x": view})


def test_a_driver_that_refuses_or_lacks_it_is_told(fake, device, monkeypatch):
    monkeypatch.setattr(FakeCuda, "_cuGetProcAddress", lambda *_: (0, "none"))
    with pytest.raises(DeviceError, match="CUDA0: the driver has no cuTensorMapEncodeTiled"):
        device.launch(map_op(), **arguments(device))
    monkeypatch.undo()
    device._encoder._function = lambda *_: 1
    with pytest.raises(DeviceError, match="cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE"):
        device._encode(0x1000, Tiled("bf16", (64, 64), (64, 64), 128))
    gc.collect()


def test_the_emulator_runs_the_same_op(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch)
    (tmp_path / "scale" / "sm_90a.ptx").write_text(TEXT)
    device = EmulatorDevice()
    for first in (0, 4, 8):
        args = arguments(device, first)
        device.launch(map_op(), **args)
        want = np.zeros((4, 8))
        part = np.arange(108).reshape(9, 12)[first:][1:5, 8:]
        want[: len(part), :4] = part
        assert device.download(args["y"]).tolist() == want.tolist()
