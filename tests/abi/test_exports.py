"""Guards what the libraries show to the linker: the ABI's names, all of them, nothing else."""

import subprocess
from pathlib import Path

import pytest

from skippy_abi import generate, table
from tests.abi.c_host import Host, Libraries


def shown(library: Path) -> set[str]:
    command = ["nm", "--dynamic", "--defined-only", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in done.stdout.splitlines()}


def dynamic_section(library: Path) -> str:
    command = ["readelf", "--dynamic", "--wide", str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("library", "place", "count"), [("skippy", 0, 72), ("stubs", 1, 26)])
def test_exports_are_exact(
    built_libraries: Libraries, library: str, place: int, count: int
) -> None:
    names = shown(built_libraries[place])
    assert names == set(generate.exported_names(table.load(), library))
    assert len(names) == count


@pytest.mark.parametrize(("library", "place"), [("skippy", 0), ("stubs", 1)])
def test_host_finds_every_name(
    built_libraries: Libraries, host: Host, library: str, place: int
) -> None:
    names = "\n".join(generate.exported_names(table.load(), library))
    assert host(built_libraries[place], "look-up", stdin=names).stdout == "all\n"


def test_host_notices_a_missing_name(built_libraries: Libraries, host: Host) -> None:
    ran = host(built_libraries.engine, "look-up", stdin="PyInit__mesh_specialize_ffi")
    assert (ran.returncode, ran.stdout) == (9, "no PyInit__mesh_specialize_ffi\n")


def test_engine_library_stays_loaded_and_ignores_the_hosts_library_path(
    built_libraries: Libraries,
) -> None:
    text = dynamic_section(built_libraries.engine)
    assert "NODELETE" in text
    assert "(RPATH)" in text
    assert "(RUNPATH)" not in text
    assert "libpython3" in text


def test_stubs_library_has_no_python_in_it(built_libraries: Libraries) -> None:
    assert "python" not in dynamic_section(built_libraries.stubs)
