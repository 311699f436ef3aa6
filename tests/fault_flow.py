"""Owns a host's calls before and after a kernel faults in the middle of a request.

`python -m tests.fault_flow DEVICE FOLDER` prints, as JSON, what each call answered: CUDA0 runs a
planted kernel that writes to a bad address, LOST0 is a device whose launch fails by itself. A
process of its own, because a card's context is lost for the process.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine import devices
from engine.devices import DeviceEntry
from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel
from tests import device_models, tiny_hybrid
from tests.gpu import planted
from tests.lost_device import LostDevice

ROOT = Path(__file__).resolve().parents[1]
PROMPT = [11, 40, 7]
N_BEFORE = 4
N_LAYERS = tiny_hybrid.DIMS.n_layers
# What needs the device, and what does not.
REFUSED = ("same session", "other session", "export", "open on the device")
SERVED = ("create", "reset", "tokenize", "template", "free sessions", "free the model", "host ids")
LOST = LostDevice()


def lost_entries() -> Iterator[DeviceEntry]:
    """In the place of the machine's cards: one that can be told to fail."""
    text = "a device that fails when told to"
    yield DeviceEntry("LOST0", text, "lost", lambda: LOST, "sm_90")


def fault_next(device: Any) -> None:
    """Let the device's next launch be the one that faults."""
    if isinstance(device, LostDevice):
        device.arm(0)
        return
    launch, at = device.launch, device.allocate((1,), "f32", "at").address
    kernel = device._load(planted.faulty(planted.FAULTS["address"]), "fault", "planted/fault")

    def planted_launch(op: Any, **args: Any) -> None:
        device.launch = launch
        device._run(kernel, planted.Launch(1, 32), [at], [], "fault")
        launch(op, **args)

    device.launch = planted_launch


def told(call: Callable[[], Any]) -> dict[str, Any]:
    """Status, message and value of a call, and how long it took."""
    start = time.perf_counter()
    try:
        status, message, value = int(Status.OK), "", call()
    except AbiError as error:
        status, message, value = int(error.status), str(error), None
    seconds = time.perf_counter() - start
    shown = value if isinstance(value, (int, list, str)) else None
    return {"status": status, "message": message, "value": shown, "seconds": seconds}


def free_bytes(host: Host, device: str) -> int:
    """What the inventory says of a device's free memory."""
    count, found = host.ffi.new("size_t *"), host.ffi.new("struct skippy_backend_device *")
    host.call("skippy_backend_device_count", count)
    for index in range(count[0]):
        host.call("skippy_backend_device_at", index, found)
        if host.ffi.string(found.name).decode() == device:
            return int(found.memory_free)
    raise AssertionError(f"no device {device} in the inventory")


def flow(host: Host, path: Path, device: str) -> dict[str, Any]:
    """Every answer by the name of its call."""
    name = host.ffi.new("char[]", device.encode())

    def opened(where: Any = name) -> OpenModel:
        return OpenModel(host, path, ctx_size=64, lane_count=3, selected_backend_device=where)

    model = opened()
    first, second = model.session(), model.session()
    token = first.prefill_sampled(PROMPT)
    for _ in range(N_BEFORE):
        token = first.decode(token)
    second.prefill(PROMPT)
    before = free_bytes(host, device)
    fault_next(devices.find(device).device)
    position = first.position
    answers = {"fault": told(lambda: first.decode(token))}
    answers["position"] = told(lambda: first.position - position)
    later: dict[str, Callable[[], Any]] = {
        "same session": lambda: first.decode(token),
        "other session": lambda: second.decode(token),
        "export": lambda: host.sized("skippy_export_full_state", second.handle, 0, N_LAYERS),
        "open on the device": opened,
        "create": lambda: model.session().free(),
        "reset": first.reset,
        "tokenize": lambda: model.tokenize("the end"),
        "template": lambda: model.template(json.dumps([{"role": "user", "content": "hi"}]))[0],
        "free bytes": lambda: free_bytes(host, device),
        "free sessions": lambda: [first.free(), second.free()],
        "free the model": model.free,
    }
    answers |= {key: told(call) for key, call in later.items()}
    answers["host ids"] = told(lambda: device_models.answers(host, path, "CPU", 4))
    return {"before": before, "answers": answers}


def check(device: str, folder: Path, code: str) -> None:
    """Run the flow in a process and judge it; `code` is what the driver's text must begin with."""
    command = [sys.executable, "-m", "tests.fault_flow", device, str(folder)]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    answers = report["answers"]
    fault = answers["fault"]
    assert fault["status"] == Status.RUNTIME_ERROR
    assert code in fault["message"], fault
    assert answers["position"]["value"] == 0, "the failed step moved the session"
    for name in REFUSED:
        answer = answers[name]
        assert answer["status"] == Status.RUNTIME_ERROR, (name, answer)
        assert code in answer["message"], (name, answer)
        assert answer["seconds"] < 5, (name, "hangs")
    for name in SERVED:
        assert answers[name]["status"] == Status.OK, (name, answers[name])
    assert report["before"] > 0
    assert answers["free bytes"]["value"] == 0, "the inventory does not say that it is lost"
    assert all(len(ids) == 5 for ids in answers["host ids"]["value"])


def main(device: str, folder: Path) -> None:
    """Print the flow on the tiny hybrid model."""
    if device == "LOST0":
        # Before the first look at the inventory, which is made once for a process.
        devices._cuda_entries = lost_entries
    host = device_models.libraries(folder)
    print(json.dumps(flow(host, device_models.served(folder)["hybrid"], device)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
