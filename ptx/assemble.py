"""Owns the assembly gate: ptxas on every kernel's text, and what it says of registers and spills.

It must not know ops by name. ptxas is a tool for tests and for the inventory, never needed to run:
a driver assembles the text by itself. What it said is remembered by content, in the folder for
temporary files, so that only changed kernels cost time.
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from ptx.op import PtxError, Target

# Where the wheel `nvidia-cuda-nvcc` keeps it, in the namespace package `nvidia`.
WHEEL_PLACES = ("cu13/bin/ptxas", "cuda_nvcc/bin/ptxas")
MAX_SECONDS = 120
WARP = 32
# Registers are given to a warp in units of this many.
REGISTER_UNIT = 256
SM_REGISTERS = 65_536


class AssemblyError(PtxError):
    """ptxas is not there, or cannot be run."""


@dataclass(frozen=True)
class Arch:
    """What one multiprocessor holds; shared bytes that each block pays on top of its own."""

    threads: int
    blocks: int
    shared_bytes: int
    block_extra_bytes: int = 1024


# Every architecture that the gate assembles for. Numbers: CUDA programming guide, compute
# capabilities.
ARCHS = {
    "sm_75": Arch(1024, 16, 64 << 10, 0),
    "sm_80": Arch(2048, 32, 164 << 10),
    "sm_86": Arch(1536, 16, 100 << 10),
    "sm_89": Arch(1536, 24, 100 << 10),
    "sm_90a": Arch(2048, 32, 228 << 10),
    "sm_100a": Arch(2048, 32, 228 << 10),
    "sm_120a": Arch(1536, 24, 100 << 10),
}


@dataclass(frozen=True)
class Report:
    """What ptxas said of one text on one architecture; `error` is its log when it refused."""

    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0
    error: str = ""

    @property
    def clean(self) -> bool:
        """Assembled, and nothing lives in local memory."""
        return not (self.error or self.spill_bytes or self.stack_bytes)


def archs_of(target: Target) -> tuple[str, ...]:
    """The gate's architectures that a target's kernels claim to run on."""
    if target.arch.endswith("a"):
        return tuple(arch for arch in ARCHS if arch == target.arch)
    return tuple(arch for arch in ARCHS if _number(arch) >= _number(target.arch))


def resident_warps(report: Report, threads: int, dynamic_bytes: int, arch: str) -> float:
    """Share of a multiprocessor's warps that run at once when its blocks are like this one."""
    limits = ARCHS[arch]
    warps = -(-threads // WARP)
    warp_registers = -(-report.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    block_bytes = report.shared_bytes + dynamic_bytes + limits.block_extra_bytes
    blocks = min(
        limits.blocks,
        limits.threads // (warps * WARP),
        SM_REGISTERS // (warp_registers * warps),
        limits.shared_bytes // block_bytes if block_bytes else limits.blocks,
    )
    return blocks * warps / (limits.threads // WARP)


@cache
def find_ptxas() -> Path | None:
    """ptxas on the search path, or from the wheel `nvidia-cuda-nvcc`, or None."""
    found = shutil.which("ptxas")
    if found:
        return Path(found)
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for place in WHEEL_PLACES:
            if (Path(folder) / place).is_file():
                return Path(folder) / place
    return None


@cache
def version() -> str:
    """ptxas's own version, `13.0.88`; AssemblyError when it is not there."""
    text = _run(["--version"])
    number = re.search(r"V(\d+\.\d+\.\d+)", text.stdout)
    if number is None:
        raise AssemblyError(f"ptxas --version says {text.stdout!r}")
    return number[1]


def assemble_all(jobs: Sequence[tuple[str, str]]) -> list[Report]:
    """One report for each (text, arch), in order; AssemblyError only when ptxas cannot run."""
    version()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: _remembered(*job), jobs))


def _remembered(text: str, arch: str) -> Report:
    folder = _memory()
    if folder is None:
        return _assemble(text, arch)
    key = hashlib.sha256("\0".join((version(), arch, text)).encode()).hexdigest()
    entry = folder / f"{key}.json"
    try:
        return Report(**json.loads(entry.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        report = _assemble(text, arch)
    # Renamed into place, because tests may run side by side.
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
        json.dump(asdict(report), file)
    os.replace(file.name, entry)
    return report


@cache
def _memory() -> Path | None:
    """A folder that is this user's alone, or None: a stranger's answers are not to be believed."""
    folder = Path(tempfile.gettempdir()) / f"mesh-specialize-ptxas-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        owner = folder.lstat()
    except OSError:
        return None
    return folder if owner.st_uid == os.getuid() and not owner.st_mode & 0o077 else None


def _assemble(text: str, arch: str) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(text, encoding="utf-8")
        done = _run(["-v", "-arch", arch, str(source), "-o", str(Path(folder) / "kernel.cubin")])
        log = (done.stderr + done.stdout).replace(f"{source}", "kernel.ptx")
    return Report(error=log.strip()) if done.returncode else read_log(log)


def read_log(log: str) -> Report:
    """The numbers in what `ptxas -v` prints for a module with one entry."""

    def largest(pattern: str) -> int:
        return max((int(number) for number in re.findall(pattern, log)), default=0)

    registers = largest(r"Used (\d+) registers")
    if not registers:
        return Report(error=f"ptxas said nothing of registers: {log.strip()}")
    return Report(
        registers=registers,
        shared_bytes=largest(r"(\d+) bytes smem"),
        stack_bytes=largest(r"(\d+) bytes stack frame"),
        spill_bytes=largest(r"(\d+) bytes spill stores") + largest(r"(\d+) bytes spill loads"),
    )


def _run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    ptxas = find_ptxas()
    if ptxas is None:
        raise AssemblyError("no ptxas on the search path and no wheel nvidia-cuda-nvcc")
    try:
        return subprocess.run(
            [str(ptxas), *arguments],
            capture_output=True, text=True, check=False, timeout=MAX_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AssemblyError(f"{ptxas}: {error}") from error


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))
