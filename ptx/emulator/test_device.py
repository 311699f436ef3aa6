"""Protects the `emulator` device: buffers, launches of real kernels, refusals, seeds."""

import numpy as np
import pytest

from ptx.device import DeviceError
from ptx.devices.emulator import EmulatorDevice
from ptx.emulator import EmulatorError
from ptx.op import OpError
from ptx.rmsnorm.op import OP
from ptx.rmsnorm.ref import rmsnorm

RNG = np.random.default_rng(4)


def launched(device, n_tokens=3, d_model=65):
    x = RNG.standard_normal((n_tokens, d_model)).astype(np.float32)
    w = RNG.standard_normal(d_model).astype(np.float32)
    buffers = {name: device.allocate(array.shape, "f32", name) for name, array in
               (("x", x), ("w", w), ("y", x))}
    device.upload(buffers["x"], x)
    device.upload(buffers["w"], w)
    device.launch(OP, **buffers, eps=1e-5, offset=0.0)
    return device.download(buffers["y"]), rmsnorm(x.astype("f8"), w.astype("f8"), 1e-5, 0.0)


@pytest.mark.parametrize("target", ["portable", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_kernel_of_the_project(target, seed):
    got, want = launched(EmulatorDevice(target, seed))
    assert np.allclose(got, want, rtol=1e-5, atol=1e-6)


def test_inputs_nobody_wrote_are_found():
    device = EmulatorDevice()
    x, w, y = (device.allocate(shape, "f32", name) for name, shape in
               (("x", (2, 8)), ("w", (8,)), ("y", (2, 8))))
    device.upload(w, np.ones(8))
    with pytest.raises(EmulatorError, match="uninitialised: rmsnorm line"):
        device.launch(OP, x=x, w=w, y=y, eps=1e-5, offset=0.0)
    device.upload(x, np.ones((2, 8)))
    device.launch(OP, x=x, w=w, y=y, eps=1e-5, offset=0.0)
    assert np.allclose(device.download(y), 1)


def test_memory_is_counted_and_given_back():
    device = EmulatorDevice()
    before = device.memory_info()
    buffer = device.allocate((1000,), "f32", "x")
    assert device.memory_info().free_bytes == before.free_bytes - 4000
    with pytest.raises(DeviceError, match="free"):
        device.allocate((1 << 40,), "f32", "huge")
    view = buffer[10:20]
    del buffer
    assert device.memory_info().free_bytes == before.free_bytes - 4000
    del view
    assert device.memory_info() == before


def test_copies_and_foreign_buffers():
    device, other = EmulatorDevice(), EmulatorDevice()
    a, b = (device.allocate((4,), "i32", name) for name in "ab")
    device.upload(a, np.arange(4))
    device.copy(a, b)
    assert device.download(b).tolist() == [0, 1, 2, 3]
    device.copy(a[:2], b[2:])
    assert device.download(b).tolist() == [0, 1, 0, 1]
    with pytest.raises(DeviceError, match="another device"):
        other.download(a)
    x = other.allocate((1, 4), "f32", "x")
    w = device.allocate((4,), "f32", "w")
    with pytest.raises(OpError, match="another device"):
        device.launch(OP, x=x, w=w, y=x, eps=1e-5, offset=0.0)
