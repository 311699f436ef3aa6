"""Guards the start of the embedded Python inside a host that opened us with local symbols.

A start that fails must be an answer with a cause, and nothing of the host's process may change.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.abi.c_host import Host


def test_version_and_features_need_no_python(tiny_library: Path, host: Host) -> None:
    # The interpreter's symbols are visible, so it was reopened as global, and it is not running.
    ran = host(tiny_library, "version", env={"MESH_SPECIALIZE_PYTHONHOME": "/nowhere"})
    assert ran.stdout == "0.1.39 5edfff9 python 0\n"
    assert ran.stderr == ""


def test_registered_function_answers(tiny_library: Path, host: Host) -> None:
    ran = host(tiny_library, "eog")
    assert (ran.stdout, ran.stderr) == ("status 0 object -1\n", "")


def test_unregistered_functions_refuse_instead_of_answering_zero(
    tiny_library: Path, host: Host
) -> None:
    ran = host(tiny_library, "call", "skippy_session_free")
    assert ran.stdout == (
        "status 3 object 3\nskippy_session_free is not implemented by this runtime\n"
    )
    # Position is registered; the batch size, the pointer and the n-gram status are refusals, and
    # the n-gram call left its error pointer alone.
    assert host(tiny_library, "neutral").stdout == "77 0 0 3 1\n"


def test_failure_without_an_error_object_gets_one(tiny_library: Path, host: Host) -> None:
    ran = host(tiny_library, "call", "skippy_session_reset")
    assert ran.stdout.startswith("status 4 object 4\nthe call failed without a message")


def test_number_outside_the_enum_becomes_error(tiny_library: Path, host: Host) -> None:
    ran = host(tiny_library, "trim")
    assert ran.stdout.startswith("status 1 object 1\n")


def test_exception_past_the_boundary_is_an_error_and_clears_the_handle(
    tiny_library: Path, host: Host
) -> None:
    ran = host(tiny_library, "open", "model.gguf")
    assert ran.stdout.startswith("model (nil)\nstatus 1 object 1\n")
    assert "on purpose" in ran.stderr


@pytest.mark.parametrize(
    "name", ["skippy_model_free", "skippy_session_free", "skippy_model_info_free",
             "skippy_slice_plan_free"],
)
def test_freeing_null_needs_no_python(tiny_library: Path, host: Host, name: str) -> None:
    env = {"MESH_SPECIALIZE_PYTHONHOME": "/nowhere"}
    assert host(tiny_library, "free-null", name, env=env).stdout == "0 1\n"


def test_sixteen_first_calls_at_once_start_python_once(tiny_library: Path, host: Host) -> None:
    assert host(tiny_library, "threads").stdout == "failed 0\n"


def fake_home(folder: Path) -> Path:
    """A home with the right folders and nothing in them: only Python itself can notice."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for inside in ("lib-dynload", "encodings"):
        (folder / "lib" / name / inside).mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("variable", "value", "cause"),
    [
        ("MESH_SPECIALIZE_PYTHONHOME", "/nowhere", "standard library is missing: /nowhere/lib/"),
        ("MESH_SPECIALIZE_PYTHONPATH", "/nowhere:/tmp", "No module named '_cffi_backend'"),
    ],
)
def test_broken_path_is_a_runtime_error_with_its_cause(
    tiny_library: Path, host: Host, variable: str, value: str, cause: str
) -> None:
    ran = host(tiny_library, "eog", env={variable: value})
    assert ran.returncode == 0
    assert ran.stdout.startswith("status 7 object 7\nthe embedded Python did not start: ")
    assert cause in ran.stdout
    assert "/nowhere  (missing)" in ran.stdout


def test_python_that_cannot_initialise_does_not_end_the_process(
    tiny_library: Path, host: Host, tmp_path: Path
) -> None:
    ran = host(tiny_library, "eog", env={"MESH_SPECIALIZE_PYTHONHOME": str(fake_home(tmp_path))})
    assert ran.returncode == 0
    assert ran.stdout.startswith("status 7 object 7\nthe embedded Python did not start: ")
    assert "encod" in ran.stdout.splitlines()[1]


def test_a_failed_start_answers_every_later_call(tiny_library: Path, host: Host) -> None:
    ran = host(tiny_library, "neutral", env={"MESH_SPECIALIZE_PYTHONHOME": "/nowhere"})
    assert ran.stdout == "-1 0 0 7 1\n"
    ran = host(tiny_library, "threads", env={"MESH_SPECIALIZE_PYTHONHOME": "/nowhere"})
    assert ran.stdout == "failed 16\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import missing_module", "ModuleNotFoundError(\"No module named 'missing_module'\")"),
        ("raise SystemExit(5)", "SystemExit(5)"),
        ("x = 1", "tiny_boot did not finish the registration"),
        ("def broken(:", "SyntaxError"),
    ],
    ids=["missing import", "exit", "not finished", "syntax"],
)
def test_boot_module_that_fails_is_explained(
    build_with_boot: Callable[[str], Path], host: Host, text: str, cause: str
) -> None:
    ran = host(build_with_boot(text), "eog")
    assert ran.stdout.startswith("status 7 object 7\n")
    assert cause in ran.stdout.splitlines()[1]


def test_hosts_python_variables_change_nothing(tiny_library: Path, host: Host) -> None:
    names = ("HOME", "PATH", "MALLOC", "HASHSEED", "UTF8", "DEVMODE", "STARTUP", "INSPECT")
    hostile = {f"PYTHON{name}": "/nowhere" for name in names}
    assert host(tiny_library, "eog", env=hostile).stdout == "status 0 object -1\n"


def test_host_process_is_as_it_was(tiny_library: Path, host: Host) -> None:
    ran = host(tiny_library, "process", env={"LC_ALL": "C", "TZ": "UTC", "X": "1"})
    assert ran.stdout == "status 0 same\n"


def test_interrupt_still_ends_the_host(tiny_library: Path, host: Host) -> None:
    assert host(tiny_library, "interrupt").returncode == -2


def test_python_shut_down_by_its_owner_is_an_error(tiny_library: Path, host: Host) -> None:
    ran = host(tiny_library, "shut-down")
    assert ran.stdout == (
        "first 0\nstatus 7 object 7\n"
        "the Python that served this call has been shut down by its owner\n"
    )


@pytest.mark.parametrize("how", ["return", "exit", "_exit"])
def test_host_leaves_while_a_thread_is_inside(tiny_library: Path, host: Host, how: str) -> None:
    ran = host(tiny_library, "leave", how)
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "", "")


def test_closed_standard_streams_do_not_matter(tiny_library: Path, host_program: Path) -> None:
    script = '"$0" "$1" status-as-exit <&- >&- 2>&-'
    ran = subprocess.run(["sh", "-c", script, host_program, tiny_library], check=False)
    assert ran.returncode == 40, "status 0"


@pytest.mark.parametrize(
    "used", ["", "import datetime; datetime.datetime_CAPI.__class__"], ids=["fresh", "capsules"]
)
def test_inside_a_python_that_already_runs(tiny_library: Path, used: str) -> None:
    # A looked-up attribute changes PyCapsule_Type, where cffi keeps the lock of its start.
    script = used + """
import ctypes, sys
before = list(sys.path)
library = ctypes.CDLL(sys.argv[1])
print(library.skippy_session_position(None), sys.path[:len(before)] == before)
print("tiny_boot" in sys.modules)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tiny_library)], capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": ""}, cwd="/", timeout=60,
    )
    assert (ran.stdout, ran.stderr) == ("77 True\nTrue\n", "")
