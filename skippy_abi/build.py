"""Owns the build of the engine library: the table and the start-up text in, a shared library out.

Knows nothing of what answers the calls: the module that the embedded Python imports first is a
parameter. cffi is used here for its C generator alone; the compiler is run by `toolchain`.
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import cffi
from cffi import recompiler

from skippy_abi import generate, table, toolchain

LIBRARY = "libmesh_specialize.so"
BOOT = "packages.boot"
SOURCE_ROOT = Path(__file__).resolve().parent.parent

# cffi locks its own start of Python with a field of PyCapsule_Type that it takes for always zero.
# In a process whose Python has looked up an attribute of a capsule it is not, and cffi aborts, or
# waits for ever where assertions are off. Our front starts Python under its own lock.
START_LOCK_C = """
#include <Python.h>
static PyTypeObject ms_start_lock;
#define PyCapsule_Type ms_start_lock
"""


def engine_source(abi: table.Abi, home: generate.Home, boot: str) -> str:
    """The whole C source: cffi's embedding, with our front inside."""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", boot, re.ASCII):
        raise toolchain.BuildError(f"boot module {boot!r} is not a dotted module name")
    ffi = cffi.FFI()
    ffi.cdef(generate.cdef(abi))
    ffi.embedding_init_code(generate.init_code(boot))
    front = generate.front(abi, home, boot)
    ffi.set_source(generate.MODULE, front)
    text = io.StringIO()
    text.write(START_LOCK_C)
    writer = recompiler.Recompiler(ffi, generate.MODULE)
    writer.collect_type_table()
    writer.collect_step_tables()
    writer.write_source_to_f(text, front)
    return text.getvalue()


def build_engine(
    out: Path, boot: str = BOOT, extra_paths: Sequence[Path] = (), abi: table.Abi | None = None,
    source_root: Path = SOURCE_ROOT,
) -> Path:
    """Builds the engine library in the folder `out` and returns its path.

    `boot` is the module the embedded Python imports first; `extra_paths` stand before our own on
    its path. A relative `source_root` starts at the library's folder, so that both move together.
    Raises BuildError when the machine lacks a compiler, headers or a shared libpython.
    """
    abi = abi or table.load()
    library = toolchain.python_library()
    home = toolchain.recorded_home(source_root, extra_paths)
    # The old kind of run path wins over LD_LIBRARY_PATH: the host's must not choose our Python.
    arguments = [
        f"-I{toolchain.python_headers()}", str(library), "-ldl",
        "-Wl,--disable-new-dtags", "-Xlinker", "-rpath", "-Xlinker", str(library.parent),
    ]
    exports = generate.version_script(generate.exported_names(abi, "skippy"))
    source = engine_source(abi, home, boot)
    return toolchain.link(Path(out).resolve() / LIBRARY, source, exports, arguments)
