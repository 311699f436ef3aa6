"""Owns which runtime opens the models that are refused here, and handing an open over to it.

MESH_SPECIALIZE_FALLBACK names a library with the same ABI version as the loader takes it; without
it, the manifest of our bundle may: `runtime.fallback`, relative to the folder of our library. It is
loaded at the first refusal and stays for the life of the process. What of the other runtime does
not come through: its log lines (the host's callback is in the stubs library), media, and its
devices, of which the host's inventory knows nothing. How calls reach it is in `fallback_c.py`.
"""

import json
import logging
import os
from typing import Any

from engine.artifacts.mapped_file import printable
from engine.errors import EngineError, RuntimeFailure
from skippy_abi.cffi_module import ffi, lib

FALLBACK_VARIABLE = "MESH_SPECIALIZE_FALLBACK"
MANIFEST = "manifest.json"
REASON_BYTES = 2000

log = logging.getLogger("mesh_specialize.abi")


def path() -> bytes | None:
    """The configured library, or None."""
    return os.environb.get(FALLBACK_VARIABLE.encode()) or _of_manifest()


def take_over(refusal: EngineError) -> bool:
    """Let the fallback answer the running call, which must return at once; False without one.

    RuntimeFailure names the refusal, the library and the reason when it cannot be loaded.
    """
    library = path()
    if library is None:
        return False
    reason = ffi.new("char[]", REASON_BYTES)
    if not lib.ms_fallback_load(library, reason, REASON_BYTES):
        text = ffi.string(reason).decode("utf-8", "replace")
        raise RuntimeFailure(f"{refusal}; the fallback {printable(library)} is no help: {text}")
    log.info("%s; forwarded to %s", refusal, printable(library))
    ask()
    return True


def ask() -> None:
    """Let the loaded fallback answer the running call, which must return at once."""
    lib.ms_ask_fallback()


def has_models() -> bool:
    """Whether the fallback has a model open."""
    return bool(lib.ms_has_foreign())


def _of_manifest() -> bytes | None:
    folder = os.path.dirname(ffi.string(lib.ms_library_path()))
    if not folder:
        return None
    manifest = os.path.join(folder, b"..", MANIFEST.encode())
    try:
        with open(manifest, "rb") as stream:
            given: Any = json.load(stream)["runtime"]["fallback"]
        return os.path.join(folder, given.encode()) if given else None
    except FileNotFoundError:
        return None
    except KeyError:
        # A manifest that names none.
        return None
    except (OSError, ValueError, RecursionError, TypeError, AttributeError) as error:
        # Our own models must open all the same.
        log.warning("%s: no fallback can be read from it: %r", printable(manifest), error)
        return None
