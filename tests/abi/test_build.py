"""Guards the build: what it needs is named when missing, and it works for any ABI table."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from engine.errors import ModelError
from skippy_abi import build, generate, table, toolchain
from tests.abi import c_host
from tests.abi.c_host import Host, Libraries

ROOT = Path(__file__).resolve().parents[2]


def run_build(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "build_ffi.py"), *words], capture_output=True, text=True,
        check=False, env={**os.environ, **env},
    )


def test_second_build_touches_nothing(built_libraries: Libraries) -> None:
    before = [path.stat().st_mtime_ns for path in built_libraries]
    ran = run_build("--out", str(built_libraries.engine.parent))
    assert ran.stdout.splitlines() == [str(path) for path in built_libraries]
    assert [path.stat().st_mtime_ns for path in built_libraries] == before
    left = {path.name for path in built_libraries.engine.parent.iterdir()}
    assert left == {path.name for path in built_libraries}


def test_changed_input_builds_again(tmp_path: Path) -> None:
    text = "int f(void) { return 1; }"
    made = toolchain.link(tmp_path / "libx.so", text, "{ global: f; };\n")
    before = made.read_bytes()
    toolchain.link(made, text.replace("1", "2"), "{ global: f; };\n")
    assert made.read_bytes() != before


def test_failed_build_keeps_the_old_library(tmp_path: Path) -> None:
    made = toolchain.link(tmp_path / "libx.so", "int f(void) { return 1; }", "{ global: f; };\n")
    before = made.read_bytes()
    with pytest.raises(toolchain.BuildError, match=r"cannot build libx\.so"):
        toolchain.link(made, "int f(void) { return g; }", "{ global: f; };\n")
    with pytest.raises(toolchain.BuildError, match="undefined"):
        toolchain.link(made, "int g(void); int f(void) { return g(); }", "{ global: f; };\n")
    assert made.read_bytes() == before


def test_missing_compiler_is_named() -> None:
    ran = run_build("--out", "/nowhere", PATH="/nowhere", CC="")
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("build_ffi: no C compiler: looked on PATH for gcc, cc, clang")


def test_missing_shared_python_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = {"INSTSONAME": "libpython9.9.a", "LDLIBRARY": "libpython9.9.a", "LIBDIR": "/nowhere"}
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: known.get(name, ""))
    monkeypatch.setattr(sysconfig, "get_python_version", lambda: "9.9")
    with pytest.raises(toolchain.BuildError, match=r"libpython9\.9\.so in /nowhere,.*shared"):
        build.build_engine(tmp_path)


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(toolchain.BuildError, match=r"Python\.h is missing: looked in"):
        toolchain.python_headers()


@pytest.mark.parametrize("boot", ["", "a b", "a;import os", "a.", "1a", "a\nb", 'a"'])
def test_boot_module_must_be_a_name(boot: str, tmp_path: Path) -> None:
    with pytest.raises(toolchain.BuildError, match="not a dotted module name"):
        build.build_engine(tmp_path, boot=boot)


def test_output_folder_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    ran = run_build("--out", str(tmp_path / "file"))
    assert ran.returncode == 1
    assert ran.stderr.startswith("build_ffi: ")
    assert "Traceback" not in ran.stderr


def test_installed_copy_builds_into_the_users_cache(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("skippy_abi", "abi_stubs", "engine", "ptx", "packages"):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "build_ffi.py", site)
    ran = subprocess.run(
        [sys.executable, "-m", "build_ffi"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        cwd="/",
    )
    assert ran.returncode == 0, ran.stderr
    paths = [Path(line) for line in ran.stdout.splitlines()]
    assert [path.name for path in paths] == [build.LIBRARY, "libmesh_specialize_abi_stubs.so"]
    assert all(path.is_file() and tmp_path / "cache" in path.parents for path in paths)
    assert os.fsencode(site) in paths[0].read_bytes()


def other_version() -> table.Abi:
    """A table of a version that never was: another number, a grown struct, a new symbol."""
    text = table.path_of(table.PINNED).read_text(encoding="utf-8")
    text = re.sub(r"^version = .*$", "version = [9, 8, 7]", text, flags=re.MULTILINE)
    grown = '"   8: const char * message",\n    "  16: uint64_t trace",'
    text = text.replace('"   8: const char * message",', grown, 1)
    head = 'name = "skippy_error"\ntotal_bytes = '
    text = text.replace(f"{head}16", f"{head}24")
    return table.parse(
        text + '\n[[symbols]]\nname = "skippy_new_question"\nlibrary = "skippy"\n'
        'need = "required"\nused_for = ["chat"]\nreturns = "bool"\nneutral = "false"\n'
        'params = ["const struct skippy_model * model"]\n'
    )


def test_generator_serves_whatever_version_the_table_has(tmp_path: Path, host: Host) -> None:
    abi = other_version()
    library = build.build_engine(tmp_path, abi=abi)
    assert host(library, "version").stdout.startswith("9.8.7 ")
    names = "\n".join(generate.exported_names(abi, "skippy"))
    assert "skippy_new_question" in names
    assert host(library, "look-up", stdin=names).stdout == "all\n"


def test_symbol_that_c_should_answer_and_cannot_stops_the_build(tmp_path: Path) -> None:
    text = table.path_of(table.PINNED).read_text(encoding="utf-8")
    text = text.replace('neutral = "0"', 'neutral = "0"\nin_c = true', 1)
    with pytest.raises(ModelError, match="skippy_session_batch_size"):
        build.build_engine(tmp_path, abi=table.parse(text))


@pytest.mark.parametrize("value", [b"", b"plain/path", bytes(range(1, 256)), b"??/", b"%s%n", b"9"])
def test_c_string_holds_any_bytes(value: bytes, tmp_path: Path) -> None:
    text = f"static const char s[] = {generate.c_string(value)};"
    main = "int main(void) { fwrite(s, 1, sizeof s - 1, stdout); return 0; }"
    program = c_host.compile_program(f"#include <stdio.h>\n{text}\n{main}\n", tmp_path / "program")
    assert subprocess.run([program], capture_output=True, check=True).stdout == value
