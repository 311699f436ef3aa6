"""Guards what becomes of an open when its fallback runtime cannot be loaded, and how one is found.

A process loads one fallback for its life, so each case is a child process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import tiny
from tests.abi.c_host import Host, Libraries

if TYPE_CHECKING:
    # Left to pytest_plugins at run time, as for every module of fixtures.
    from tests.abi.provider import Build

pytest_plugins = ["tests.abi.provider"]
VARIABLE = "MESH_SPECIALIZE_FALLBACK"
REFUSED = "model not served"


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A readable model that is not served."""
    return str(tiny.write(tmp_path_factory.mktemp("foreign") / "foreign.gguf", seed=77))


def test_without_a_fallback_a_foreign_model_is_refused(
    built_libraries: Libraries, host: Host, foreign: str
) -> None:
    for env in ({}, {VARIABLE: ""}):
        lines = host(built_libraries.engine, "open", foreign, env=env).stdout.splitlines()
        assert lines[:2] == ["model (nil)", "status 3 object 3"]
        assert REFUSED in lines[2]
        assert "fallback" not in lines[2]


def test_a_native_host_gets_the_other_runtimes_model(
    built_libraries: Libraries, host: Host, foreign: str, other_built: Path
) -> None:
    ran = host(built_libraries.engine, "open", foreign, env={VARIABLE: str(other_built)})
    model, status = ran.stdout.splitlines()
    assert model.startswith("model 0x")
    assert status == "status 0 object -1"


def failure(libraries: Libraries, host: Host, foreign: str, fallback: Path) -> str:
    ran = host(libraries.engine, "open", foreign, env={VARIABLE: str(fallback)})
    model, status, *text = ran.stdout.splitlines()
    assert (model, status) == ("model (nil)", "status 7 object 7")
    message = "\n".join(text)
    # Three things: what was refused, which library, why it is no help.
    assert REFUSED in message
    assert str(fallback) in message
    return message


def test_a_library_that_is_not_there_is_named(
    built_libraries: Libraries, host: Host, foreign: str, tmp_path: Path
) -> None:
    missing = tmp_path / "libmissing.so"
    assert "No such file" in failure(built_libraries, host, foreign, missing)
    text = tmp_path / "libtext.so"
    text.write_text("no library " * 100)
    assert "invalid ELF header" in failure(built_libraries, host, foreign, text)


@pytest.mark.parametrize("version", [(0, 1, 38), (0, 2, 39), (1, 1, 39), (0, 1, 53)])
def test_another_abi_version_is_refused(
    built_libraries: Libraries, host: Host, foreign: str, tmp_path: Path, build_other: Build,
    version: tuple[int, int, int],
) -> None:
    made = build_other(tmp_path / "libold.so", version=version)
    shown = ".".join(map(str, version))
    expected = f"it speaks ABI {shown}, this runtime 0.1.39"
    assert expected in failure(built_libraries, host, foreign, made)


@pytest.mark.parametrize(
    "name", ["skippy_abi_version", "skippy_error_free", "skippy_tokenize", "skippy_model_free"]
)
def test_a_missing_function_is_named(
    built_libraries: Libraries, host: Host, foreign: str, tmp_path: Path, build_other: Build,
    name: str,
) -> None:
    made = build_other(tmp_path / "libpart.so", without=[name])
    assert f"it has no {name}" in failure(built_libraries, host, foreign, made)


def test_the_runtime_is_not_its_own_fallback(
    built_libraries: Libraries, host: Host, foreign: str, tmp_path: Path
) -> None:
    link = tmp_path / "libother.so"
    link.symlink_to(built_libraries.engine)
    for path in (built_libraries.engine, link):
        assert "it is this runtime itself" in failure(built_libraries, host, foreign, path)


def test_our_models_do_not_need_the_fallback_to_load(
    built_libraries: Libraries, host: Host, tiny_path: Path, tmp_path: Path
) -> None:
    env = {VARIABLE: str(tmp_path / "none.so"), "MESH_SPECIALIZE_SERVES": os.environ[
        "MESH_SPECIALIZE_SERVES"]}
    ran = host(built_libraries.engine, "open", str(tiny_path), env=env)
    assert ran.stdout.splitlines()[1] == "status 0 object -1"


@pytest.fixture
def installed(built_libraries: Libraries, tmp_path: Path) -> Path:
    """The engine library in a folder of its own, as in a bundle."""
    (tmp_path / "lib").mkdir()
    return Path(shutil.copy(built_libraries.engine, tmp_path / "lib"))


@pytest.mark.parametrize("is_relative", [True, False])
def test_the_manifest_may_name_it(
    installed: Path, host: Host, foreign: str, other_built: Path, is_relative: bool
) -> None:
    shutil.copy(other_built, installed.parent / "libnext.so")
    named = "libnext.so" if is_relative else str(other_built)
    manifest = {"runtime": {"id": "x", "fallback": named}}
    (installed.parents[1] / "manifest.json").write_text(json.dumps(manifest))
    ran = host(installed, "open", foreign)
    assert ran.stdout.splitlines()[1] == "status 0 object -1", ran.stdout
    # The variable wins.
    ran = host(installed, "open", foreign, env={VARIABLE: "/nowhere/x.so"})
    assert "/nowhere/x.so" in ran.stdout


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"runtime": {}}', '{"runtime": {"fallback": 5}}', "\xff", "[" * 99999,
             '{"runtime": {"fallback": ""}}', '{"runtime": {"fallback": "\\ud800"}}'],
    ids=range(9),
)
def test_a_manifest_that_names_none_changes_nothing(
    installed: Path, host: Host, foreign: str, text: str
) -> None:
    (installed.parents[1] / "manifest.json").write_text(text, encoding="latin-1")
    lines = host(installed, "open", foreign).stdout.splitlines()
    assert lines[1] == "status 3 object 3"
    assert REFUSED in lines[2]


WITHOUT_OPTIONAL = """
import sys
from pathlib import Path
from engine.errors import Status
from skippy_abi import client

host = client.Host([Path(path) for path in sys.argv[1:3]])
ffi, out = host.ffi, host.ffi.new("struct skippy_model **")
path = ffi.new("char[]", sys.argv[3].encode())
host.call("skippy_model_open_with_events", path, ffi.NULL, ffi.NULL, out)
print(host.raw("skippy_model_attach_mtp_draft_model", out[0], path, ffi.NULL))
print(host.raw("skippy_model_free", out[0]))
"""


def test_optional_functions_may_be_missing(
    built_libraries: Libraries, foreign: str, tmp_path: Path, build_other: Build
) -> None:
    made = build_other(tmp_path / "libplain.so", without=[
        "skippy_model_open_with_events", "skippy_model_attach_mtp_draft_model",
    ])
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPTIONAL, built_libraries.stubs, built_libraries.engine,
         foreign],
        env={**os.environ, VARIABLE: str(made)}, capture_output=True, text=True, check=False,
    )
    expected = "the fallback runtime does not export skippy_model_attach_mtp_draft_model"
    assert ran.stdout.splitlines() == [f"(3, '{expected}')", "(0, None)"], ran.stderr
