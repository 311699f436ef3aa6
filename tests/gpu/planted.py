"""Owns what the GPU tests plant: kernels that fault, and the process that lives through a fault.

`python planted.py <fault>` runs one on the first card and prints, as JSON, what the process was
told at the fault and after it. A process of its own, because the card's context is lost.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ptx.device import DeviceError
from ptx.devices.cuda import CudaDevice, load_bindings
from ptx.devices.host import HostDevice
from ptx.op import Launch

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
FAULTS = {
    "address": "    mov.u64 at, 64;\n    st.global.u32 [at], 1;\n",
    "alignment": "    ld.param.u64 at, [x];\n    add.u64 at, at, 1;\n    st.global.u32 [at], 1;\n",
    "trap": "    trap;\n",
}


def faulty(body: str) -> str:
    """The text of a kernel `fault` of one buffer."""
    return (
        f"{HEAD}.visible .entry fault(.param .u64 x)\n{{\n    .reg .u64 at;\n{body}    ret;\n}}\n"
    )


def foreign_context(bindings: Any) -> Any:
    """A second context of the first card, current on no thread when this returns."""
    device = bindings.cuDeviceGet(0)[1]
    try:
        code, context = bindings.cuCtxCreate(None, 0, device)
    except TypeError:
        # Before CUDA 13 there were no creation parameters.
        code, context = bindings.cuCtxCreate(0, device)
    assert not code, code
    assert not bindings.cuCtxPopCurrent()[0]
    return context


def current(bindings: Any) -> int:
    """The context that is current on this thread, 0 for none."""
    return int(bindings.cuCtxGetCurrent()[1])


def told(call: Callable[[], Any]) -> dict[str, Any]:
    """What a call says, and how long it takes to say it."""
    start = time.perf_counter()
    try:
        call()
        message = ""
    except DeviceError as error:
        message = str(error)
    return {"message": message, "seconds": time.perf_counter() - start}


def live_through(fault: str) -> dict[str, Any]:
    """Meet the fault beside a foreign context and other work on the device; report."""
    bindings, device = load_bindings(), CudaDevice()
    foreign = foreign_context(bindings)
    buffers = [device.allocate((1024,), "f32", "x") for _ in range(3)]
    with device.capture("step") as graph:
        device.copy(buffers[0], buffers[1])
    kernel = device._load(faulty(FAULTS[fault]), "fault", "planted/fault")
    bindings.cuCtxPushCurrent(foreign)
    device._run(kernel, Launch(1, 32), [buffers[0].address], [], "fault")
    report: dict[str, Any] = {"first": told(device.synchronize)}
    calls = {
        "synchronize": device.synchronize, "memory_info": device.memory_info,
        "download": lambda: device.download(buffers[1]),
        "upload": lambda: device.upload(buffers[1], np.ones(1024)),
        "allocate": lambda: device.allocate((4,), "f32", "x"), "replay": graph.replay,
        "run": lambda: device._run(kernel, Launch(1, 32), [buffers[0].address], [], "fault"),
    }
    report["later"] = {name: told(call) for name, call in calls.items()}
    report["foreign_kept"] = current(bindings) == int(foreign)
    thread = threading.Thread(target=buffers.clear)
    thread.start()
    thread.join()
    host = HostDevice()
    report["host"] = host.download(host.allocate((2,), "f32", "x")).tolist()
    return report


if __name__ == "__main__":
    print(json.dumps(live_through(sys.argv[1])))
