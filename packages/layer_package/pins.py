"""Owns who uses a materialised stage, and removing those that nobody uses.

It must not know what is in a stage. A pin is a file for each use, `<key>-<pid>-<n>.json`:
one file for all users could not say that one of two has gone. It goes with `close`; a pin whose
process is gone counts for nothing, also when another process has its number now.
"""

import contextlib
import itertools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from packages.layer_package.errors import CacheError
from packages.layer_package.stage_cache import (
    NAME,
    STAGING,
    cache_root,
    file_facts,
    files_of,
    locked,
    not_writable,
    read_record,
    record_path,
)

_PIN = re.compile(r"([0-9a-f]{24})-([0-9]{1,10})-[0-9]+\.json", re.ASCII)
_PRUNE_LOCK_SECONDS = 0.0
_MAX_PIN_BYTES = 4096
_count = itertools.count()


class Pin:
    """A use of a stage: `path` is not pruned until `close`. A context manager."""

    def __init__(self, root: Path, key: str, path: Path) -> None:
        """Pin a stage; the caller holds the key's lock. CacheError `cache_not_writable`."""
        self.path = path
        self.key = key
        pid = os.getpid()
        self._file = root / "pins" / f"{key}-{pid}-{next(_count)}.json"
        text = json.dumps({"key": key, "file": path.name, "pid": pid, "started": started(pid)})
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open(os.open(self._file, flags, 0o600), "w", encoding="utf-8") as out:
                out.write(text)
        except OSError as error:
            raise not_writable(error) from None

    def close(self) -> None:
        """Let go of the stage; the file stays until somebody prunes."""
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()

    def __enter__(self) -> "Pin":
        """The pin itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went: names of files, and their bytes; `busy` names were pinned or being made."""

    removed: tuple[str, ...]
    freed_bytes: int
    busy: tuple[str, ...]
    kept_bytes: int


def prune(root: Path | None = None, *, max_bytes: int = 0) -> Pruned:
    """Remove stages that nobody uses, those used longest ago first, until `max_bytes` are left.

    Also what killed processes left behind: pins, half-made stages, records without a stage.
    """
    folder = cache_root(root)
    _sweep_staging(folder)
    stages = sorted(files_of(folder), key=_last_use)
    sizes = {path: (file_facts(path) or {"file_len": 0})["file_len"] for path in stages}
    kept_bytes, freed_bytes = sum(sizes.values()), 0
    removed, busy = [], []
    for path in stages:
        if kept_bytes <= max_bytes:
            break
        if _remove(folder, path):
            removed.append(path.name)
            kept_bytes, freed_bytes = kept_bytes - sizes[path], freed_bytes + sizes[path]
        else:
            busy.append(path.name)
    _sweep_records(folder)
    return Pruned(tuple(removed), freed_bytes, tuple(busy), kept_bytes)


def _remove(root: Path, path: Path) -> bool:
    """Remove an unpinned stage; False when it is in use. Pins are made under the lock, too."""
    key = _key(path)
    try:
        with locked(root, key, seconds=_PRUNE_LOCK_SECONDS):
            if key in _pinned_keys(root):
                return False
            for gone in (path, record_path(path)):
                gone.unlink(missing_ok=True)
    except CacheError as error:
        if error.kind == "materialize_lock_timeout":
            return False
        raise
    except OSError as error:
        raise not_writable(error) from None
    return True


def _key(path: Path) -> str:
    found = NAME.fullmatch(path.name)
    return "" if found is None else found[1]


def _last_use(path: Path) -> tuple[int, str]:
    """A hit touches the record; a stage without one is the first to go."""
    facts = file_facts(record_path(path))
    is_whole = facts is not None and read_record(path) is not None
    return (facts["modified_unix_nanos"] if facts and is_whole else 0), path.name


def _pinned_keys(root: Path) -> set[str]:
    """Keys of the pins whose processes live; the pins of others are removed."""
    found = set()
    for name in _names(root / "pins"):
        pin = _PIN.fullmatch(name)
        if pin is None:
            continue
        if _holds(root / "pins" / name, int(pin[2])):
            found.add(pin[1])
        else:
            with contextlib.suppress(OSError):
                (root / "pins" / name).unlink()
    return found


def _holds(path: Path, pid: int) -> bool:
    if not is_alive(pid):
        return False
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)) as pin:
            then = json.loads(pin.read(_MAX_PIN_BYTES)).get("started")
    except (OSError, ValueError, AttributeError, RecursionError):
        # Being written just now, or damaged: its process lives, so it counts.
        return True
    now = started(pid)
    return then is None or now is None or then == now


def _sweep_staging(root: Path) -> None:
    """Whoever makes a stage holds its lock, so what is half made under a free lock is abandoned."""
    for name in _names(root / ".staging"):
        found = STAGING.fullmatch(name)
        if found is not None:
            with contextlib.suppress(OSError, CacheError):
                with locked(root, found[1], seconds=_PRUNE_LOCK_SECONDS):
                    (root / ".staging" / name).unlink()


def _sweep_records(root: Path) -> None:
    for name in _names(root):
        stage = name.removesuffix(".cache.json")
        is_record = stage != name and NAME.fullmatch(stage) is not None
        if is_record and not os.path.lexists(root / stage):
            with contextlib.suppress(OSError):
                (root / name).unlink()


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs; when in doubt, yes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def started(pid: int) -> str | None:
    """When a process was started, in ticks since the machine's start; None where that is unknown.

    A number is given out again after its process is gone; number and start together are not.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in parentheses may hold anything; the 20th field after it is the start.
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
