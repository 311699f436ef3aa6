"""Owns what the tests of the `cuda` device share: an op with a text, and a device that runs it."""

from ctypes import c_float

import numpy as np

from ptx.devices.cuda import CudaDevice
from ptx.op import Kernel, Launch, Op, Param, buf

# y[t,d] = factor x[t,d] + shift, negated if asked; one block for each row.
TEXT = """\
.version 7.0
.target sm_70
.address_size 64
.visible .entry scale(
    .param .u64 x,     // f32 [T, D], see (1)
    .param .u64 y,
    .param .u32 D, .param .f32 factor, .param .u32 shift, .param .u32 negate
)
{
    .reg .pred done, flip;
    .reg .u32 row, d, n, step, sign;
    .reg .s32 whole;
    .reg .u64 first, at, from, to, px, py;
    .reg .f32 v, f, s;
    ld.param.u64 px, [x];
    ld.param.u64 py, [y];
    ld.param.u32 n, [D];
    ld.param.f32 f, [factor];
    ld.param.s32 whole, [shift];
    ld.param.u32 sign, [negate];
    cvt.rn.f32.s32 s, whole;
    setp.ne.u32 flip, sign, 0;
    mov.u32 row, %ctaid.x;
    mov.u32 d, %tid.x;
    mov.u32 step, %ntid.x;
    mul.wide.u32 first, row, n;
LOOP:
    setp.ge.u32 done, d, n;
    @done bra END;
    cvt.u64.u32 at, d;
    add.u64 at, at, first;
    shl.b64 at, at, 2;
    add.u64 from, px, at;
    add.u64 to, py, at;
    ld.global.f32 v, [from];
    fma.rn.f32 v, v, f, s;
    @flip neg.f32 v, v;
    st.global.f32 [to], v;
    add.u32 d, d, step;
    bra LOOP;
END:
    ret;
}
"""


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


def plant(folder, monkeypatch, text=TEXT):
    """Let the ops' sources lie in `folder`, which has the text of `scale` alone."""
    (folder / "scale").mkdir()
    (folder / "scale" / "portable.ptx").write_text(text)
    monkeypatch.setattr("ptx.template.PTX", folder)


def new_device(fake, folder, monkeypatch):
    """A device on the stand-in that finds the text of `scale`."""
    plant(folder, monkeypatch)
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
