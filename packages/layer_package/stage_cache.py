"""Owns the folder of materialised stages: its place, its names, its records and its locks.

It must not know how a stage is composed (`compose.py`), nor who uses it (`pins.py`). Layout below
the root, mode 0700:

    <model>-<stage>-<start>-<end>-<key>.gguf    and  <the same>.cache.json   a stage and its record
    <key>.lock                                  held while a stage of that key is made or removed
    .staging/<name>.gguf.tmp-<pid>-<n>          a stage in the making
    pins/<key>-<pid>-<n>.json                   a use of a stage

The lock is by key and not by name: two stage names of equal content share one file. Everything
here is derived and may be deleted at any time while nobody uses it.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.artifacts.output_file import new_file
from packages.layer_package.cache_roots import user_cache_folder
from packages.layer_package.errors import CacheError
from packages.layer_package.file_lock import held

ROOT_VARIABLE = "SKIPPY_MATERIALIZED_DIR"
FORCE_VARIABLE = "SKIPPY_FORCE_MATERIALIZE"
LOCK_SECONDS = 600.0
MAX_RECORD_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9_-]+-[0-9]+-[0-9]+-([0-9a-f]{24})\.gguf", re.ASCII)
STAGING = re.compile(r"[A-Za-z0-9_-]+-([0-9a-f]{24})\.gguf\.tmp-[0-9]+-[0-9]+", re.ASCII)
_MODEL_CHARACTERS, _STAGE_CHARACTERS = 96, 48


def cache_root(root: Path | None = None) -> Path:
    """The argument, else SKIPPY_MATERIALIZED_DIR, else `skippy-stages` of the user's cache."""
    if root is not None:
        return root
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named) if named else user_cache_folder() / "skippy-stages"


def is_forced() -> bool:
    """Whether SKIPPY_FORCE_MATERIALIZE asks to make every stage anew."""
    return os.environ.get(FORCE_VARIABLE, "").lower() not in ("", "0", "false")


def prepare(root: Path) -> None:
    """Make the folder and those in it; CacheError `cache_not_writable` when that is refused."""
    try:
        for folder in (root, root / ".staging", root / "pins"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise not_writable(error) from None


def not_writable(error: OSError) -> CacheError:
    """The refusal of a cache that the system does not let us write; `insufficient_space` when it
    is full, else `cache_not_writable`."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return CacheError(
        "insufficient_space" if is_full else "cache_not_writable",
        f"the cache of materialised stages: {error.strerror}",
        hint=f"name another folder with {ROOT_VARIABLE}",
    )


def file_name(model: str, stage: str, layer_start: int, layer_end: int, key: str) -> str:
    """A stage's file name; model and stage keep letters, digits, `_` and `-`."""
    parts = (_reduced(model, _MODEL_CHARACTERS), _reduced(stage, _STAGE_CHARACTERS))
    return "-".join((*parts, str(layer_start), str(layer_end), f"{key}.gguf"))


def _reduced(text: str, limit: int) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:limit] or "_"


def files_of(root: Path, key: str | None = None) -> list[Path]:
    """The stages here, those of one key or all, by name; what is not ours is not listed."""
    with contextlib.suppress(FileNotFoundError):
        found = (NAME.fullmatch(entry.name) for entry in os.scandir(root))
        names = sorted(m[0] for m in found if m is not None and key in (None, m[1]))
        return [root / name for name in names]
    return []


def record_path(path: Path) -> Path:
    """Where a stage's record is."""
    return path.with_name(f"{path.name}.cache.json")


def file_facts(path: Path) -> dict[str, int] | None:
    """What tells whether a file is the one that was recorded; a link is another one. None where
    nothing is."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return {
        "file_len": found.st_size, "modified_unix_nanos": found.st_mtime_ns,
        "changed_unix_nanos": found.st_ctime_ns, "device": found.st_dev, "inode": found.st_ino,
    }


def read_record(path: Path) -> dict[str, Any] | None:
    """A stage's record; None when there is none, or it is oversized or not one."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with open(os.open(record_path(path), flags), "rb") as file:
            raw = file.read(MAX_RECORD_BYTES + 1)
        record = json.loads(raw) if len(raw) <= MAX_RECORD_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a stage's record, whole or not at all."""
    with new_file(record_path(path)) as out:
        out.write(json.dumps(record, indent=1).encode() + b"\n")


@contextlib.contextmanager
def locked(
    root: Path, key: str, *, seconds: float = LOCK_SECONDS,
    ask: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Hold the lock of a key; `ask` is called while waiting and may raise.

    CacheError `materialize_lock_timeout` after `seconds`.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held(root / f"{key}.lock", seconds=seconds, ask=ask))
        except TimeoutError:
            raise CacheError(
                "materialize_lock_timeout",
                f"another process has been making stage {key} for more than {seconds:g} s",
            ) from None
        except OSError as error:
            raise not_writable(error) from None
        yield
