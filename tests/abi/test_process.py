"""Guards that the host's process stays the host's: its state while we work, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.abi.c_host import Libraries

if TYPE_CHECKING:
    # Left to pytest_plugins at run time, so that pytest rewrites its assertions.
    from tests.abi.native_host import NativeHost

pytest_plugins = ["tests.abi.native_host"]
# It takes parts of a second; on cores that other work has, some. Hanging is what must show.
LEAVE_LIMIT_S = 10.0


@pytest.fixture(scope="session")
def libraries(built_libraries: Libraries) -> list[Path]:
    return [built_libraries.stubs, built_libraries.engine]


@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_process_is_as_it_was(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path, threads: str
) -> None:
    env = {"MESH_SPECIALIZE_THREADS": threads, "LC_ALL": "C", "TZ": "UTC", "X": "1"}
    ran = native_host.run(libraries, "process", tiny_path, "state", env=env)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "92 compared\n"


def test_closing_a_model_closes_its_file(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path
) -> None:
    ran = native_host.run(libraries, "process", tiny_path, "reopen")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "8 times, the same descriptors\n"


def test_the_starting_thread_may_end(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path
) -> None:
    ran = native_host.run(libraries, "process", tiny_path, "born")
    assert ran.stdout.endswith(" tokens\n"), ran.stderr


def test_closed_standard_descriptors_stay_closed(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path
) -> None:
    ran = native_host.run(libraries, "process", tiny_path, "closed")
    assert (ran.returncode, ran.stdout, ran.stderr) == (40, "", "")


@pytest.mark.parametrize("how", ["return", "exit", "_exit"])
def test_the_host_leaves_at_once_while_a_thread_decodes(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path, how: str
) -> None:
    seconds, ran = native_host.seconds_to_leave(libraries, "process", tiny_path, how)
    assert (ran.returncode, ran.stdout) == (3, "leaving\n"), ran.stderr
    assert not [line for line in ran.stderr.splitlines() if not line.startswith("event: ")]
    assert seconds < LEAVE_LIMIT_S


def test_an_interrupt_kills_at_once(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path
) -> None:
    seconds, ran = native_host.seconds_to_leave(libraries, "process", tiny_path, "interrupt")
    assert (ran.returncode, ran.stdout) == (-2, "leaving\n"), ran.stderr
    assert seconds < LEAVE_LIMIT_S


@pytest.mark.parametrize(
    "how", [("exit", "0"), ("return", "0"), ("exit", "480")], ids=["exit", "return", "in a prompt"]
)
def test_the_real_model_lets_go_in_the_middle_of_a_step(
    native_host: NativeHost, libraries: list[Path], smollm2_path: Path, how: tuple[str, str]
) -> None:
    # Long native steps: KNOWLEDGE/pitfalls/blas-destructor-crashes-a-busy-thread.md.
    seconds, ran = native_host.seconds_to_leave(libraries, "process", smollm2_path, *how)
    assert (ran.returncode, ran.stdout) == (3, "leaving\n"), ran.stderr
    assert not [line for line in ran.stderr.splitlines() if not line.startswith("event: ")]
    assert seconds < LEAVE_LIMIT_S
