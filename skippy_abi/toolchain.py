"""Owns finding and running what a build needs: the compiler, libpython, and the recorded paths.

Knows nothing of the ABI. Both libraries are linked through `link`, which replaces the file only
when its inputs changed, and then in one step.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.errors import RuntimeFailure
from skippy_abi.generate import Home

NEEDED = ("cffi", "_cffi_backend", "numpy", "tokenizers", "jinja2", "cuda")
FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-fvisibility=hidden", "-pthread", "-Wall",
         "-Wno-unused-function", "-Wl,-z,nodelete", "-Wl,-z,defs")


class BuildError(RuntimeFailure):
    """A library cannot be built here; the message names what is missing."""


def compiler() -> str:
    """The C compiler's path: `CC` when set, else gcc, cc or clang."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "cc", "clang"]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise BuildError(f"no C compiler: looked on PATH for {', '.join(names)}; install gcc")
    return found


def _recorded(name: str) -> str:
    return str(sysconfig.get_config_var(name) or "")


def python_library() -> Path:
    """The shared libpython of the running interpreter."""
    plain = f"libpython{sysconfig.get_python_version()}{getattr(sys, 'abiflags', '')}.so"
    names = dict.fromkeys((_recorded("INSTSONAME"), _recorded("LDLIBRARY"), plain + ".1.0", plain))
    names = {name: None for name in names if ".so" in name}
    system = Path("/usr/lib") / _recorded("MULTIARCH")
    folders = dict.fromkeys(
        Path(f) for f in (_recorded("LIBDIR"), _recorded("LIBPL"), Path(sys.base_prefix, "lib"),
                          Path(sys.base_exec_prefix, "lib"), system) if str(f)
    )
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return (folder / name).resolve()
    for name in names:  # the compiler answers with the bare name when it does not know the file
        known = subprocess.run([compiler(), f"-print-file-name={name}"], capture_output=True,
                               text=True, check=False).stdout.strip()
        if os.path.isabs(known):
            return Path(known).resolve()
    raise BuildError(
        f"{sys.executable} has no shared libpython: looked for {', '.join(names)} in "
        f"{', '.join(map(str, folders))}; use a Python built with --enable-shared"
    )


def python_headers() -> Path:
    """The folder of Python.h."""
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").is_file():
        raise BuildError(f"Python.h is missing: looked in {folder}; install Python's headers")
    return folder


def _module_root(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    for place in spec.submodule_search_locations or ():
        return str(Path(place).parent)
    return str(Path(spec.origin).parent) if spec.origin else None


def recorded_home(source_root: Path, extra_paths: Sequence[Path] = ()) -> Home:
    """What the running interpreter tells a library about itself, its packages and our source.

    A relative `source_root` is one that moves with the library: relative to the library's folder.
    """
    base = sys.base_prefix
    roots = [_module_root(name) for name in NEEDED]
    sites = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *filter(None, roots)]
    folders = dict.fromkeys([*map(str, extra_paths), str(source_root), *sites])
    # A virtual environment's own scheme names its site folder, never its standard library.
    stdlib = os.path.relpath(sysconfig.get_path("stdlib"), base)
    return Home(
        home=os.fsencode(base),
        stdlib=os.fsencode(stdlib),
        dynload=os.fsencode(os.path.join(stdlib, "lib-dynload")),
        executable=os.fsencode(sys.executable),
        paths=tuple(
            os.fsencode(f) for f in folders if not os.path.isabs(f) or os.path.isdir(f)
        ),
    )


def link(out: Path, source: str, exports: str, arguments: Sequence[str] = ()) -> Path:
    """Compiles `source` into the shared library `out`; the linker list `exports` names its symbols.

    Does nothing when `out` was made from the same text by the same command and Python.
    """
    command = [compiler(), *FLAGS, *arguments]
    inputs = "\0".join([*command, sys.version, source, exports])
    key = hashlib.sha256(inputs.encode("utf-8", "surrogateescape")).hexdigest()
    # The key is inside the library, so no two files can disagree about what was built.
    if out.is_file() and key.encode() in out.read_bytes():
        return out
    source += f'\n__attribute__((used)) static const char ms_inputs[] = "{key}";\n'
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".build-") as name:
        folder = Path(name)
        (folder / "front.c").write_text(source, encoding="utf-8", errors="surrogateescape")
        (folder / "exports.map").write_text(exports)
        result = subprocess.run(
            [command[0], "front.c", *command[1:], "-Wl,--version-script=exports.map",
             f"-Wl,-soname,{out.name}", "-o", out.name],
            cwd=folder, capture_output=True, text=True, check=False, errors="replace",
        )
        if result.returncode != 0:
            raise BuildError(f"{command[0]} cannot build {out.name}:\n{result.stderr[-4000:]}")
        os.replace(folder / out.name, out)
    return out
