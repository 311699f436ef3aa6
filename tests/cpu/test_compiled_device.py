"""Protects what every device that runs PTX shares: buffers, checks before a launch, packing.

Past 250 lines because it holds the whole list of what is refused, for buffers and for launches.
"""

import gc
from dataclasses import replace

import numpy as np
import pytest

from ptx.device import DeviceError, MemoryInfo
from ptx.devices import compiled
from ptx.devices.buffer import DeviceBuffer
from ptx.devices.compiled import CompiledDevice
from ptx.devices.launch_checks import axes
from ptx.inventory import targets
from ptx.linear.op import OP as LINEAR
from ptx.op import Kernel, Launch, Op, OpError, Param, buf
from ptx.rmsnorm.op import OP as RMSNORM
from ptx.rope_append_kv.op import OP as ROPE

PAGE = 256


class RecordingDevice(CompiledDevice):
    """Memory in one byte array; a launch is only written down."""

    def __init__(self):
        super().__init__(targets()["sm_90a"])
        self.bytes = np.zeros(1 << 16, np.uint8)
        self.top, self.freed, self.loads, self.runs = PAGE, [], [], []

    def memory_info(self):
        return MemoryInfo(len(self.bytes) - self.top, len(self.bytes))

    def synchronize(self):
        pass

    def _load(self, text, entry, shown):
        self.loads.append((text, shown))
        return entry

    def _run(self, kernel, launch, values, outputs, name):
        self.runs.append((kernel, launch, values, outputs, name))

    def _encode(self, address, tiled):
        raise DeviceError("no tensor maps")

    def _allocate(self, n_bytes, name):
        if self.top + n_bytes > len(self.bytes):
            raise DeviceError(f"{name}: {n_bytes} bytes, {self.memory_info().free_bytes} free")
        address, self.top = self.top, self.top + -(-n_bytes // PAGE) * PAGE
        return address

    def _free(self, address):
        self.freed.append(address)

    def _write(self, address, cells):
        self.bytes[address : address + cells.nbytes] = np.frombuffer(cells.tobytes(), np.uint8)

    def _read(self, address, cells):
        cells.reshape(-1).view(np.uint8)[:] = self.bytes[address : address + cells.nbytes]

    def _move(self, source, target, n_bytes):
        self.bytes[target : target + n_bytes] = self.bytes[source : source + n_bytes]


@pytest.fixture
def device():
    return RecordingDevice()


def _arguments(device, n_tokens=3, d_model=5):
    x, y = (device.allocate((n_tokens, d_model), "f32", name) for name in "xy")
    return {"x": x, "w": device.allocate((d_model,), "f32", "w"), "y": y, "eps": 1e-5,
            "offset": 0.0}


# Buffers


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i8", "u8", "i32", "u32", "i64"])
def test_cells_come_back_as_they_were(device, dtype):
    buffer = device.allocate((2, 3), dtype, "x")
    device.upload(buffer, np.arange(6).reshape(2, 3))
    cells = device.download(buffer)
    assert cells.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (cells.nbytes, len(buffer)) == (buffer.nbytes, 2)
    cells[:] = 9
    assert device.download(buffer).max() == 5, "a download is a copy"


def test_bf16_travels_as_bits(device):
    buffer = device.allocate((2,), "bf16", "w")
    device.upload(buffer, np.array([0x3FC0, 0xC000], np.uint16))
    assert device.download(buffer).tolist() == [0x3FC0, 0xC000]
    with pytest.raises(DeviceError, match="bf16 cells are given as uint16 bits, not float32"):
        device.upload(buffer, np.ones(2, np.float32))


def test_slices_are_those_of_an_array(device):
    array = np.arange(24).reshape(4, 3, 2)
    buffer = device.allocate(array.shape, "i32", "x")
    device.upload(buffer, array)
    for rows in (0, 3, -1, -4, np.int64(2), slice(1, 3), slice(None), slice(-2, None), slice(2, 9),
                 slice(3, 1), slice(9, 12)):
        assert np.array_equal(device.download(buffer[rows]), array[rows]), rows
    assert device.download(buffer[2][1:]).tolist() == [[14, 15], [16, 17]]
    assert [device.download(row).tolist() for row in buffer] == array.tolist()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (4, r"row 4 of i32 \[4, 3\]"),
        (-5, r"row -5 of i32 \[4, 3\]"),
        (slice(None, None, 2), r"rows 0:4:2 of i32 \[4, 3\]: step must be 1"),
        (slice(0, 3, 0), "rows slice"),
        (slice("a", None), "rows slice"),
        ((1, 2), r"i32 \[4, 3\] has no rows \(1, 2\)"),
        (1.0, "has no rows 1.0"),
        (None, "has no rows None"),
    ],
    ids=str,
)
def test_other_rows_are_refused(device, rows, message):
    with pytest.raises(DeviceError, match=message):
        device.allocate((4, 3), "i32", "x")[rows]


def test_a_single_cell_has_no_rows(device):
    with pytest.raises(DeviceError, match="without axes has no rows"):
        device.allocate((4,), "i32", "x")[1][0]


def test_memory_goes_back_with_the_last_view(device):
    buffer = device.allocate((4, 3), "f32", "x")
    row, address = buffer[1][1:], buffer.address
    del buffer
    gc.collect()
    assert device.freed == []
    del row
    gc.collect()
    assert device.freed == [address]


def test_refusals_of_memory_name_what_was_asked(device):
    with pytest.raises(DeviceError, match="h: 4194304 bytes, "):
        device.allocate((1 << 20,), "f32", "h")
    with pytest.raises(DeviceError, match="h: dtype 'bf17', known: f32, "):
        device.allocate((1,), "bf17", "h")
    with pytest.raises(DeviceError, match=r"h: shape \[2, -1\] has a negative axis"):
        device.allocate((2, -1), "f32", "h")


def test_copies_need_the_same_kind_of_cells(device):
    a, b = device.allocate((2, 3), "f32", "a"), device.allocate((2, 3), "f32", "b")
    device.upload(a, np.arange(6).reshape(2, 3))
    device.upload(b, np.zeros((2, 3)))
    device.copy(a[1:], b[:1])
    assert device.download(b).tolist() == [[3, 4, 5], [0, 0, 0]]
    device.copy(a[:0], b[:0])
    with pytest.raises(DeviceError, match=r"copy: source is \[2, 3\], target is \[1, 3\]"):
        device.copy(a, b[:1])
    with pytest.raises(DeviceError, match="copy: source is f32, target is i32"):
        device.copy(a, device.allocate((2, 3), "i32", "c"))
    with pytest.raises(DeviceError, match=r"upload: source is \[3\], target is \[2, 3\]"):
        device.upload(a, np.zeros(3))
    other = RecordingDevice().allocate((2, 3), "f32", "a")
    for call in (lambda: device.copy(other, a), lambda: device.copy(a, other),
                 lambda: device.download(other), lambda: device.upload(other, np.zeros((2, 3)))):
        with pytest.raises(DeviceError, match="is of another device"):
            call()
    with pytest.raises(DeviceError, match="download: ndarray is not a device buffer"):
        device.download(np.zeros(3))


# Launches


def test_values_are_in_the_order_of_the_entry(device):
    arguments = _arguments(device)
    device.launch(RMSNORM, **dict(reversed(arguments.items())))
    ((kernel, launch, values, outputs, name),) = device.runs
    x, w, y = (arguments[name] for name in "xwy")
    assert (kernel, name) == ("rmsnorm", "rmsnorm")
    assert launch == Launch(grid=3, block=32)
    assert values == [x.address, w.address, y.address, 5, 1e-5, 0.0]
    assert outputs == [(y.address, 60, True)]
    assert device.loads[0][1] == "rmsnorm/portable.ptx"


def test_trailing_axes_fold_and_views_are_launched_where_they_are(device):
    x, w = device.allocate((4, 2, 3), "f32", "x"), device.allocate((7, 6), "f32", "w")
    y = device.allocate((2, 7), "f32", "y")
    device.launch(LINEAR, x=x[1:3], w=w, y=y)
    assert device.runs[0][2] == [x.address + 24, w.address, y.address, 7, 6]


def test_a_text_is_loaded_once(device):
    for n_tokens in (1, 2, 1, 3):
        device.launch(RMSNORM, **_arguments(device, n_tokens))
    assert len(device.loads) == 1
    assert [run[1].grid for run in device.runs] == [1, 2, 1, 3]


def test_more_signatures_than_are_remembered(device, monkeypatch):
    monkeypatch.setattr(compiled, "MAX_PLANS", 2)
    for n_tokens in (1, 2, 3, 1):
        device.launch(RMSNORM, **_arguments(device, n_tokens))
    assert [run[1].grid for run in device.runs] == [1, 2, 3, 1]


def test_a_record_with_other_kernels_is_another_op(device):
    arguments = _arguments(device)
    device.launch(RMSNORM, **arguments)
    with pytest.raises(OpError, match="rmsnorm: no kernel fits target sm_90a at T=3 D=5"):
        device.launch(replace(RMSNORM, kernels=()), **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": (4,)}, r"rmsnorm: w is \[4\], expected \[5\]"),
        ({"y": (0, 5)}, r"rmsnorm: y is \[0, 5\], expected \[3, 5\] with every axis at least 1"),
        ({"x": "f64"}, "rmsnorm: x is f64, expected f32"),
        ({"x": np.ones((3, 5), np.float32)}, "rmsnorm: x is ndarray, expected a device buffer"),
        ({"x": None}, "rmsnorm: x is NoneType, expected a device buffer"),
        ({"eps": "1e-5"}, "rmsnorm: eps is '1e-5', expected f32"),
        ({"eps": True}, "rmsnorm: eps is True, expected f32"),
        ({"D": 5}, r"rmsnorm: arguments \['D', 'eps', 'offset', 'w', 'x', 'y'\], expected "),
        ({"y": "misplaced"}, "rmsnorm: y is at 0x[0-9a-f]+1, f32 needs a multiple of 4"),
        ({"y": "stranger"}, "rmsnorm: y is a buffer of another device"),
    ],
    ids=str,
)
@pytest.mark.parametrize("known", [False, True], ids=["first", "known"])
def test_a_launch_that_does_not_match_is_refused_before_it_starts(device, change, message, known):
    arguments = _arguments(device)
    if known:
        device.launch(RMSNORM, **arguments)
        device.runs.clear()
    ((name, value),) = change.items()
    y = arguments["y"]
    made = {
        "f64": lambda: device.allocate((3, 5), "f64", "x"),
        "misplaced": lambda: replace(y, address=y.address + 1),
        "stranger": lambda: RecordingDevice().allocate((3, 5), "f32", "y"),
    }
    if isinstance(value, tuple):
        value = device.allocate(value, "f32", name)
    elif isinstance(value, str) and value in made:
        value = made[value]()
    with pytest.raises(OpError, match=message):
        device.launch(RMSNORM, **{**arguments, name: value})
    assert device.runs == []


def test_what_an_op_requires_is_asked_for(device):
    arguments = {
        p.name: device.allocate(tuple({"E": 4, "J": 3}.get(a, 1) for a in p.shape), p.dtype, p.name)
        for p in ROPE.params
        if p.shape
    }
    with pytest.raises(OpError, match=r"rope_append_kv: needs E = 2 J, found .*E=4.*J=3"):
        device.launch(ROPE, **arguments, interleaved=False)


def test_more_rows_than_a_grid_holds_are_refused(device):
    # No memory lies behind these: the launch must not come so far.
    n_tokens = 2**31
    x = DeviceBuffer(device, PAGE, (n_tokens, 1), "f32", None)
    arguments = {**_arguments(device, 1, 1), "x": x, "y": x}
    with pytest.raises(OpError, match=r"rmsnorm: portable\.ptx at T=2147483648 D=1 needs grid "):
        device.launch(RMSNORM, **arguments)
    w = DeviceBuffer(device, PAGE, (8 * 65_536, 1), "f32", None)
    y = DeviceBuffer(device, PAGE, (1, 8 * 65_536), "f32", None)
    with pytest.raises(OpError, match="linear: no kernel fits target sm_90a at T=1 K=1 N=524288"):
        device.launch(LINEAR, x=device.allocate((1, 1), "f32", "x"), w=w, y=y)


@pytest.mark.parametrize(
    ("block", "message"), [(1025, r"blocks \[1025, 1, 1\]"), ((32, 64), r"\[32, 64, 1\]"), (0, "0")]
)
def test_a_block_that_no_gpu_takes_is_refused(device, block, message):
    op = Op("rmsnorm", (buf("x", "f32", "T D"),), "exact",
            (Kernel("portable", lambda dims: Launch(1, block)),))
    with pytest.raises(OpError, match=message):
        device.launch(op, x=device.allocate((1, 1), "f32", "x"))


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("u32", [0, 2**32 - 1], [-1, 2**32, 1.0, True]),
        ("i32", [-(2**31), 2**31 - 1], [2**31, -(2**31) - 1, 0.5]),
        ("bool", [True, False], [1, None]),
        ("f32", [1, 0.5, np.float32(2)], ["1", None, False]),
        ("f64", [1, 0.5], [1j]),
    ],
)
def test_scalars_are_checked(device, dtype, good, bad):
    op = replace(RMSNORM, params=(buf("x", "f32", "T D"), Param("scale", dtype)))
    x = device.allocate((1, 1), "f32", "x")
    for value in good:
        device.launch(op, x=x, scale=value)
        assert device.runs[-1][2][1] == value
    for value in bad:
        with pytest.raises(OpError, match=f"rmsnorm: scale is .*, expected {dtype}"):
            device.launch(op, x=x, scale=value)


def test_a_grid_has_three_axes():
    assert axes(7) == (7, 1, 1)
    assert axes((7, 2)) == (7, 2, 1)
    assert axes((7, 2, 3)) == (7, 2, 3)


def test_an_axis_past_32_bits_is_refused(device):
    w = DeviceBuffer(device, PAGE, (2**32, 1), "f32", None)
    arguments = {"x": device.allocate((1, 1), "f32", "x"), "w": w,
                 "y": DeviceBuffer(device, PAGE, (1, 2**32), "f32", None)}
    with pytest.raises(OpError, match="linear: N is 4294967296, a kernel takes up to 4294967295"):
        device.launch(LINEAR, **arguments)
