"""Owns the facts of a host that a choice depends on, read from the machine or from a JSON file.

The file is one object with exactly these members:

    {"os": "linux", "arch": "x86_64", "toolkit": "12.8",
     "gpus": [{"arch": "sm_90", "driver": "570.124.06", "vram_bytes": 150754820096}]}

`os` and `arch` are words as Rust has them. `toolkit` is the newest CUDA version that the driver
speaks, null without a driver: kernels are PTX, which the driver compiles, so no toolkit need be
installed. It must not know packages.
"""

import platform
import re
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from engine.artifacts.mapped_file import PathLike
from engine.artifacts.strict_json import parse_json, read_small_file
from engine.errors import InvalidArgument, ModelError
from ptx.devices import nvml

MAX_FILE_BYTES = 1 << 20
MAX_GPUS = 1024
MAX_VRAM_BYTES = 1 << 50
WORD = re.compile(r"[a-z0-9_]{1,32}")
GPU_ARCH = re.compile(r"sm_[1-9][0-9]{1,2}[af]?")
VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}")
RUST_WORDS = {"amd64": "x86_64", "arm64": "aarch64", "darwin": "macos", "win32": "windows"}


@dataclass(frozen=True)
class Gpu:
    """One card: architecture (`sm_90`), driver version, all of its memory in bytes."""

    arch: str
    driver: str
    vram_bytes: int


@dataclass(frozen=True)
class HostProfile:
    """Operating system, processor, cards, and the CUDA version that the driver speaks."""

    os: str
    arch: str
    gpus: tuple[Gpu, ...] = ()
    toolkit: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that `parse_profile` reads."""
        return {**asdict(self), "gpus": [asdict(gpu) for gpu in self.gpus]}


def version_of(text: str) -> tuple[int, ...]:
    """A dotted version as numbers that compare; InvalidArgument for anything else."""
    if not VERSION.fullmatch(text):
        raise InvalidArgument(f"version {text!r}: not up to 4 numbers with dots between")
    return tuple(int(part) for part in text.split("."))


@lru_cache(maxsize=1)
def read_host() -> HostProfile:
    """This machine; read once."""
    machine = platform.machine().lower()
    os_name, arch = RUST_WORDS.get(sys.platform, sys.platform), RUST_WORDS.get(machine, machine)
    facts = nvml.read_facts()
    if facts is None:
        return HostProfile(os_name, arch)
    gpus = tuple(Gpu(gpu.arch, facts.driver, gpu.vram_bytes) for gpu in facts.gpus)
    return HostProfile(os_name, arch, gpus, facts.cuda)


def load_profile(path: PathLike) -> HostProfile:
    """The profile in a JSON file; InvalidArgument says what is wrong with it."""
    try:
        return parse_profile(read_small_file(path, MAX_FILE_BYTES))
    except ModelError as error:
        raise InvalidArgument(f"host facts: {error}") from None


def parse_profile(raw: bytes) -> HostProfile:
    """A profile from JSON text; InvalidArgument names the member, its value and what it must be."""
    try:
        document = parse_json(raw, "host facts")
    except ModelError as error:
        raise InvalidArgument(str(error)) from None
    table = _members(document, ("os", "arch", "gpus", "toolkit"), "host facts")
    rows = table["gpus"]
    if not isinstance(rows, list) or len(rows) > MAX_GPUS:
        raise InvalidArgument(f"host facts: gpus is not a list of at most {MAX_GPUS} objects")
    toolkit = table["toolkit"]
    return HostProfile(
        os=_text(table, "os", WORD, "host facts"),
        arch=_text(table, "arch", WORD, "host facts"),
        gpus=tuple(_gpu(row, f"host facts: gpus[{i}]") for i, row in enumerate(rows)),
        toolkit=None if toolkit is None else _text(table, "toolkit", VERSION, "host facts"),
    )


def _gpu(row: Any, where: str) -> Gpu:
    table = _members(row, ("arch", "driver", "vram_bytes"), where)
    vram = table["vram_bytes"]
    if isinstance(vram, bool) or not isinstance(vram, int) or not 0 <= vram <= MAX_VRAM_BYTES:
        raise InvalidArgument(
            f"{where}: vram_bytes {_shown(vram)} is no integer from 0 to {MAX_VRAM_BYTES}"
        )
    return Gpu(_text(table, "arch", GPU_ARCH, where), _text(table, "driver", VERSION, where), vram)


def _members(value: Any, names: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{where}: not an object")
    for name in sorted(set(names) ^ set(value)):
        problem = "is missing" if name in names else "is not a member"
        raise InvalidArgument(f"{where}: {_shown(name)} {problem}; needed: {', '.join(names)}")
    return value


def _text(table: dict[str, Any], name: str, form: re.Pattern[str], where: str) -> str:
    value = table[name]
    if not isinstance(value, str) or not form.fullmatch(value):
        raise InvalidArgument(
            f"{where}: {name} {_shown(value)} does not have the form {form.pattern}"
        )
    return value


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."
