"""Owns the one command for a GPU host: `PYTHONPATH=. python tests/gpu/run_on_device.py`.

Arguments go to pytest instead of the folders. It runs every test marked `gpu` of the ops and of
this folder, and prints what the card does in some seconds: copies, launches, replays. Numbers
are printed, never judged. The exit code is that of the tests. It needs numpy, jinja2, pytest,
pytest-timeout, tokenizers and cuda-bindings.
"""

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from ptx.device import DeviceError
from ptx.devices import cuda
from ptx.devices.cuda import CudaDevice
from ptx.devices.nvml import read_facts
from ptx.op import Launch

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
GIB = 1 << 30
N_LAUNCHES, N_NODES, N_REPEATS = 20_000, 600, 20
EMPTY = ".visible .entry empty(.param .u64 x, .param .u32 n)\n{ ret; }\n"
FOLDERS = ("tests/gpu", "ptx")


def main(arguments: list[str]) -> int:
    """Measure, run the tests, print what was measured; 1 without a card."""
    found = cuda.available()
    if isinstance(found, str):
        print(f"no card: {found}")
        return 1
    # First, because a test that faults takes the process's card away; printed last, to be seen.
    rows = measured()
    code = pytest.main(
        ["-m", "gpu", "-p", "no:cacheprovider", "-rfEs", *(arguments or FOLDERS)]
    )
    known = read_facts()
    print(f"\ndriver {known.driver if known else 'unknown'}; {'; '.join(map(str, found))}")
    for name, value in rows:
        print(f"{name:60} {value}")
    return int(code)


def measured() -> list[tuple[str, str]]:
    """Rows of the table; what could not be measured says why."""
    rows = []
    try:
        device = CudaDevice()
        for part in (compiling, copying, launching):
            rows += part(device)
    except DeviceError as error:
        rows.append(("measuring ended", str(error)))
    return rows


def compiling(device: CudaDevice) -> list[tuple[str, str]]:
    rows = []
    for nth in ("first", "second"):
        start = time.perf_counter()
        device._load(f"{HEAD}// {nth} {time.time_ns()}\n{EMPTY}", "empty", "empty")
        milliseconds = (time.perf_counter() - start) * 1e3
        rows.append((f"compile a small text, {nth}", f"{milliseconds:.1f} ms"))
    return rows


def copying(device: CudaDevice) -> list[tuple[str, str]]:
    big = device.allocate((2, GIB), "u8", "big")
    stage = device.pinned((GIB // 4,), "u8", "stage")
    stage.fill(1)
    part = big[0][: GIB // 4]
    cases: list[tuple[str, int, Callable[[], None]]] = [
        ("copy on the card, read and written", 2 * GIB, lambda: device.copy(big[0], big[1])),
        ("clear on the card, written", GIB, lambda: device.clear(big[0], 1)),
        ("pinned to card", GIB // 4, lambda: device.upload_async(part, stage)),
        ("card to pinned", GIB // 4, lambda: device.download_async(part, stage)),
    ]
    rows = []
    for name, n_bytes, call in cases:
        call()
        times = sorted(timed(device, call) for _ in range(N_REPEATS))
        spread = f"{n_bytes / times[-1] / 1e6:.0f} to {n_bytes / times[0] / 1e6:.0f}"
        rows.append((name, f"{n_bytes / statistics.median(times) / 1e6:.0f} GB/s ({spread})"))
    return rows


def timed(device: CudaDevice, call: Callable[[], None]) -> float:
    """Milliseconds of device time between two events around a call."""
    start, end = device.event(), device.event()
    start.record()
    call()
    end.record()
    end.synchronize()
    return end.milliseconds_since(start)


def launching(device: CudaDevice) -> list[tuple[str, str]]:
    kernel = device._load(HEAD + EMPTY, "empty", "empty")
    x = device.allocate((1,), "f32", "x")
    launch = Launch(1, 32)

    def run() -> None:
        device._run(kernel, launch, [x.address, 1], [], "empty")

    rows = []
    holds = {"context pushed each time": nullcontext(), "context held": device.context}
    for name, held in holds.items():
        run()
        device.synchronize()
        with held:
            start = time.perf_counter()
            for _ in range(N_LAUNCHES):
                run()
            device.synchronize()
            microseconds = (time.perf_counter() - start) / N_LAUNCHES * 1e6
        rows.append((f"packed launch of an empty kernel, {name}", f"{microseconds:.2f} us"))
    with device.capture() as graph:
        for _ in range(N_NODES):
            run()
    graph.replay()
    replays = statistics.median(timed(device, graph.replay) for _ in range(N_REPEATS))
    start = time.perf_counter()
    graph.replay()
    host = (time.perf_counter() - start) * 1e6
    device.synchronize()
    rows.append((f"replay of {N_NODES} empty kernels", f"{replays * 1e3:.0f} us on the card"))
    rows.append(("the same, until the call returns", f"{host:.0f} us"))
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
