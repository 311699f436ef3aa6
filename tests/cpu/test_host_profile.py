"""Guards the facts of a host: what is read from the machine, and what a JSON file may say."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidArgument
from packages.host_profile import Gpu, HostProfile, load_profile, parse_profile, read_host
from ptx.devices import nvml

GOOD = {"os": "linux", "arch": "x86_64", "toolkit": "12.8",
        "gpus": [{"arch": "sm_90", "driver": "570.1", "vram_bytes": 5}]}


def test_a_profile_reads_what_it_writes() -> None:
    profile = parse_profile(json.dumps(GOOD).encode())
    assert profile == HostProfile("linux", "x86_64", (Gpu("sm_90", "570.1", 5),), "12.8")
    assert profile.as_json() == GOOD
    here = read_host()
    assert parse_profile(json.dumps(here.as_json()).encode()) == here


def changed(**members: Any) -> bytes:
    return json.dumps({**GOOD, **members}).encode()


def gpu(**members: Any) -> bytes:
    return changed(gpus=[{"arch": "sm_90", "driver": "1", "vram_bytes": 1, **members}])


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON"), (b"\xff", "not UTF-8"), (b"[]", "not an object"),
        (b"{}", "'arch' is missing"), (b"[" * 99999, "nested too deeply"),
        (b'{"os": 1, "os": 2}', "occurs twice"), (changed(cpu=1), "'cpu' is not a member"),
        (changed(os=""), "os ''"), (changed(os="Linux"), "os 'Linux'"),
        (changed(arch=None), "arch None"), (changed(gpus=None), "gpus is not a list"),
        (changed(gpus=[1]), "gpus[0]: not an object"), (changed(gpus=[GOOD["gpus"]]), "gpus[0]"),
        (changed(gpus=[{}] * 1025), "at most 1024"), (changed(toolkit=12.8), "toolkit 12.8"),
        (changed(toolkit="12.x"), "toolkit '12.x'"), (changed(toolkit="1.2.3.4.5"), "toolkit"),
        (changed(toolkit="9" * 5000), "toolkit"), (gpu(arch="90"), "gpus[0]: arch '90'"),
        (gpu(arch="sm_90 "), "arch"), (gpu(driver=570), "driver 570"), (gpu(driver=""), "driver"),
        (gpu(vram_bytes=True), "vram_bytes True"), (gpu(vram_bytes=-1), "vram_bytes -1"),
        (gpu(vram_bytes=1.5), "vram_bytes 1.5"), (gpu(vram_bytes=2**60), "vram_bytes"),
        (gpu(name="H200"), "'name' is not a member"),
        (changed(**{"\ud800": 1}), "is not a member"), (changed(os="x\n"), "os"),
    ],
)
def test_a_bad_profile_is_refused_in_words(raw: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_profile(raw)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="host facts: cannot open"):
        load_profile(tmp_path / "none.json")


DRIVER_C = """
#include <string.h>
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { strcpy(text, "570.124.06"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out) { *out = (void *)(long)i; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor)
{
    *major = gpu ? 12 : 9; *minor = 0;
    return gpu == (void *)2 ? 15 : 0; /* a card that fell off the bus */
}
int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long *memory)
{
    memory[0] = gpu ? 5 : 4; memory[1] = 1; memory[2] = 2;
    return 0;
}
"""


def driver(folder: Path, init: int) -> str:
    """A management library of two and a half cards."""
    text, made = folder / "driver.c", folder / "libdriver.so"
    text.write_text(DRIVER_C)
    command = ["gcc", "-shared", "-fPIC", f"-DINIT={init}", "-o", str(made), str(text)]
    subprocess.run(command, check=True)
    return str(made)


def test_the_machine_is_read_from_the_drivers_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", driver(tmp_path, init=0))
    read_host.cache_clear()
    profile = read_host()
    read_host.cache_clear()
    assert profile.gpus == (Gpu("sm_90", "570.124.06", 4), Gpu("sm_120", "570.124.06", 5))
    assert profile.toolkit == "12.8"
    assert parse_profile(json.dumps(profile.as_json()).encode()) == profile


def test_a_machine_without_a_driver_has_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("libthere-is-none.so.1", driver(tmp_path, init=9), "libc.so.6"):
        monkeypatch.setattr(nvml, "LIBRARY", library)
        assert nvml.read_facts() is None
