"""Owns what the tests of the `cuda` device share: an op with a text, and a device that runs it."""

from ctypes import c_float

import numpy as np

from ptx.devices.cuda import CudaDevice
from ptx.op import Kernel, Launch, Op, Param, buf

TEXT = """\
.version 7.0
.target sm_70
.visible .entry scale(
    .param .u64 x,     // f32 [T, D], see (1)
    .param .u64 y,
    .param .u32 D, .param .f32 factor, .param .u32 shift, .param .u32 negate
)
{ ret; }
"""


class FakeLaunch(Launch):
    """A launch that may begin before the one ahead of it has ended."""

    programmatic = True


def scale_op(launch=lambda dims: Launch(dims["T"], 32, 64)):
    return Op(
        name="scale",
        params=(
            buf("x", "f32", "T D"), buf("y", "f32", "T D", out=True), Param("D", "u32"),
            Param("factor", "f32"), Param("shift", "i32"), Param("negate", "bool"),
        ),
        tolerance="exact",
        kernels=(Kernel("portable", launch),),
    )


SCALE = scale_op()


def new_device(fake, folder, monkeypatch):
    """A device on the stand-in whose ops lie in `folder`, with the text of `scale` there."""
    (folder / "scale").mkdir()
    (folder / "scale" / "portable.ptx").write_text(TEXT)
    monkeypatch.setattr("ptx.template.PTX", folder)
    return CudaDevice(bindings=fake)


def arguments(device, **changes):
    x = device.allocate((3, 4), "f32", "x")
    device.upload(x, np.arange(12).reshape(3, 4))
    y = device.allocate((3, 4), "f32", "y")
    return {"x": x, "y": y, "factor": 2.5, "shift": -3, "negate": True, **changes}


def adding(fake, n_cells=12):
    """Let `scale` add 1 to its output, which is its input here, so that runs can be counted."""
    def run(x, y, *_):
        cells = np.ctypeslib.as_array((c_float * n_cells).from_address(y))
        cells += 1

    fake.kernels["scale"] = run
