"""Owns the Rust host of `tests/host` for the tests: compiled once, run in a child process.

The child's environment is empty but for what a test gives it, so that no test depends on the
developer's own.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "host" / "host.rs"
TIMEOUT_S = 60
Ran = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class NativeHost:
    """The program. `run` takes libraries in load order and the words of one command."""

    program: Path

    def run(
        self, libraries: Sequence[Path], *words: str | Path, env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Ran:
        """The finished child; text that is not UTF-8 comes as surrogates."""
        return subprocess.run(
            self.command(libraries, *words), env=environment(env), cwd=cwd, capture_output=True,
            text=True, encoding="utf-8", errors="surrogateescape", timeout=TIMEOUT_S, check=False,
        )

    def command(self, libraries: Sequence[Path], *words: str | Path) -> list[str | Path]:
        return [self.program, *libraries, "--", *words]

    def seconds_to_leave(self, libraries: Sequence[Path], *words: str | Path) -> tuple[float, Ran]:
        """How long the child lived after it said that it is leaving, and how it ended."""
        command = self.command(libraries, *words)
        with subprocess.Popen(
            command, env=environment(None), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            said = child.stdout.readline()
            started = time.monotonic()
            try:
                out, err = child.communicate(timeout=TIMEOUT_S)
            finally:
                child.kill()
            seconds = time.monotonic() - started
        return seconds, Ran(command, child.returncode, said + out, err)


def environment(changes: Mapping[str, str] | None) -> dict[str, str]:
    """What a child gets: the table that serves the tiny model, and the test's own changes."""
    kept = {name: os.environ[name] for name in ("MESH_SPECIALIZE_SERVES",) if name in os.environ}
    return {**kept, **(changes or {})}


@pytest.fixture(scope="session")
def native_host(tmp_path_factory: pytest.TempPathFactory) -> NativeHost:
    """The compiled host; a machine without rustc skips."""
    compiler = shutil.which("rustc")
    if compiler is None:
        pytest.skip("no rustc on PATH: the native host cannot be compiled")
    program = tmp_path_factory.mktemp("native-host") / "host"
    done = subprocess.run(
        [compiler, "-O", "--edition", "2021", str(SOURCE), "-o", str(program)],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    return NativeHost(program)
