"""Protects the `host` device (launches, copies, memory) and the comparison op tests lean on."""

import numpy as np
import pytest

from ptx.device import DeviceError
from ptx.devices import host
from ptx.linear.op import OP as LINEAR
from ptx.numerics import mismatch
from ptx.op import OpError
from ptx.rmsnorm.op import OP as RMSNORM


def _arguments(device, n_tokens=3, d_model=5):
    x = device.allocate((n_tokens, d_model), "f32", "x")
    w = device.allocate((d_model,), "f32", "w")
    device.upload(x, np.ones(x.shape))
    device.upload(w, np.full(w.shape, 2.0))
    y = device.allocate(x.shape, "f32", "y")
    return {"x": x, "w": w, "y": y, "eps": 1e-5, "offset": 0.0}


def test_launch_on_new_and_known_signatures():
    device = host.HostDevice()
    for n_tokens in (1, 3, 1, 3):
        arguments = _arguments(device, n_tokens)
        device.launch(RMSNORM, **arguments)
        device.synchronize()
        assert device.download(arguments["y"]) == pytest.approx(np.full((n_tokens, 5), 2), 1e-4)


def test_trailing_axes_fold_into_the_last_letter():
    device = host.HostDevice()
    y = device.allocate((2, 2, 3), "f32", "y")
    x, w = device.allocate((2, 4), "f32", "x"), device.allocate((6, 4), "f32", "w")
    device.upload(x, np.ones((2, 4)))
    device.upload(w, np.arange(24).reshape(6, 4))
    device.launch(LINEAR, x=x, w=w, y=y)
    assert y.tolist() == [[[6, 22, 38], [54, 70, 86]]] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": np.ones(4, np.float32)}, r"rmsnorm: w is \[4\], expected \[5\]"),
        ({"y": np.ones((3, 4), np.float32)}, r"rmsnorm: y is \[3, 4\], expected \[3, 5\]"),
        ({"x": np.ones((3, 5))}, "rmsnorm: x is float64, expected f32"),
        ({"x": np.ones((3, 10), np.float32)[:, ::2]}, r"rmsnorm: x \[3, 5\] is not contiguous"),
        ({"x": [[1.0] * 5] * 3}, "rmsnorm: x is list, expected a host buffer"),
        ({"eps": "1e-5"}, "rmsnorm: eps is '1e-5', expected f32"),
        ({"d": 5}, r"rmsnorm: arguments \['d', 'eps', 'offset', 'w', 'x', 'y'\], expected "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_launch_refuses_by_name(change, message):
    device = host.HostDevice()
    arguments = _arguments(device)
    device.launch(RMSNORM, **arguments)
    with pytest.raises(OpError, match=message):
        device.launch(RMSNORM, **{**arguments, **change})


def test_a_missing_argument_is_refused():
    device = host.HostDevice()
    arguments = _arguments(device)
    del arguments["w"]
    with pytest.raises(OpError, match="rmsnorm: w is NoneType, expected a host buffer"):
        device.launch(RMSNORM, **arguments)
    arguments = _arguments(device)
    del arguments["eps"]
    with pytest.raises(OpError, match=r"rmsnorm: arguments \['offset', 'w', 'x', 'y'\], expected"):
        device.launch(RMSNORM, **arguments)


def test_more_signatures_than_are_remembered(monkeypatch):
    monkeypatch.setattr(host, "MAX_PLANS", 2)
    device = host.HostDevice()
    for n_tokens in (1, 2, 3, 4, 1):
        arguments = _arguments(device, n_tokens)
        device.launch(RMSNORM, **arguments)
        assert arguments["y"] == pytest.approx(np.full((n_tokens, 5), 2), 1e-4)


def test_buffers_start_as_zeros_or_as_poison():
    assert not host.HostDevice().allocate((2, 3), "f32", "x").any()
    poisoned = host.HostDevice(poison=True)
    assert np.isnan(poisoned.allocate((2, 3), "f64", "x")).all()
    assert (poisoned.allocate((4,), "i32", "ids") == -(2**31)).all()


def test_allocation_refusals_name_buffer_and_bytes():
    device = host.HostDevice()
    with pytest.raises(DeviceError, match=rf"h: {2**62} bytes for f32 \[{2**60}\], \d+ free"):
        device.allocate((2**60,), "f32", "h")
    with pytest.raises(DeviceError, match="h: dtype 'bf17', known: f32, f64, i32, "):
        device.allocate((1,), "bf17", "h")


def test_copies_need_equal_shapes():
    device = host.HostDevice()
    a, b = device.allocate((2, 3), "f32", "a"), device.allocate((2, 3), "f32", "b")
    device.upload(a, np.arange(6).reshape(2, 3))
    device.copy(a[1:], b[:1])
    assert b.tolist() == [[3, 4, 5], [0, 0, 0]]
    taken = device.download(b)
    device.upload(b, np.zeros((2, 3)))
    assert taken.any(), "a download is a copy"
    with pytest.raises(DeviceError, match=r"copy: source is \[2, 3\], target is \[1, 3\]"):
        device.copy(a, b[:1])
    with pytest.raises(DeviceError, match=r"upload: source is \[3\], target is \[2, 3\]"):
        device.upload(a, np.zeros(3))


def test_memory_info_reads_the_system(tmp_path, monkeypatch):
    info = host.HostDevice().memory_info()
    assert 0 < info.free_bytes <= info.total_bytes
    text = tmp_path / "meminfo"
    text.write_text("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\nHugePages: 0\n")
    monkeypatch.setattr(host, "MEMINFO", text)
    info = host.HostDevice().memory_info()
    assert (info.free_bytes, info.total_bytes) == (2**20, 2**21)


@pytest.mark.parametrize("content", [None, "", "MemTotal: x kB\n", "MemTotal:\n"])
def test_memory_info_has_a_fallback(tmp_path, monkeypatch, content):
    text = tmp_path / "meminfo"
    if content is not None:
        text.write_text(content)
    monkeypatch.setattr(host, "MEMINFO", text)
    info = host.HostDevice().memory_info()
    assert 0 < info.free_bytes <= info.total_bytes


@pytest.mark.parametrize(
    ("got", "tolerance", "same"),
    [
        ([1, 2, 3], "exact", True),
        ([1, 2, np.nextafter(3, 4)], "exact", False),
        ([1, 2, 3 + 7e-7], "f32_elementwise", True),
        ([1, 2, 3 + 2e-6], "f32_elementwise", False),
        ([1, 2, 3 + 5e-6], "f32_reduction", True),
        ([1, 2, np.nan], "f32_reduction", False),
        ([1, 2, np.inf], "f32_reduction", False),
        ([1, 2], "f32_reduction", False),
    ],
)
def test_mismatch(got, tolerance, same):
    report = mismatch(np.array(got, float), np.array([1.0, 2, 3]), tolerance)
    assert (report is None) == same
    if len(got) == 3 and not same:
        assert "at (2,)" in report


def test_many_small_errors_do_not_hide_below_the_cap():
    want = np.ones(1000)
    report = mismatch(want + 4e-7, want, "f32_elementwise")
    assert "0 of 1000 cells past the cap, norm of the difference" in report
