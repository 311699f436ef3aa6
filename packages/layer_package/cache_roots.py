"""Owns where caches lie on this machine and whether the network may be used: the environment.

It must not know what a cache holds. An empty variable counts as unset. Order everywhere: the
caller's argument, the variable, the per-user default.
"""

import os
from pathlib import Path

from packages.layer_package.errors import CacheError

HUB_CACHE_VARIABLE = "HF_HUB_CACHE"
HUB_HOME_VARIABLE = "HF_HOME"
OFFLINE_VARIABLE = "HF_HUB_OFFLINE"
CHECKSUM_CACHE_VARIABLE = "SKIPPY_PACKAGE_VERIFY_CACHE_DIR"
CHECKSUM_CACHE_NAME = "skippy-package-integrity"
# The words that the hub's own client takes for yes, so that both agree on one machine.
_YES = {"1", "ON", "YES", "TRUE"}


def user_cache_folder() -> Path:
    """`XDG_CACHE_HOME`, else `.cache` in the home folder. CacheError `no_cache_folder`."""
    given = _variable("XDG_CACHE_HOME")
    if given is not None:
        return given
    try:
        return Path.home() / ".cache"
    except RuntimeError as e:
        raise CacheError(
            "no_cache_folder",
            "this user has no home folder to keep a cache in",
            hint=f"set XDG_CACHE_HOME, or {HUB_CACHE_VARIABLE} for the hub's cache alone",
        ) from e


def hub_cache_root(folder: Path | None = None) -> Path:
    """Root of the Hugging Face cache: `folder`, `HF_HUB_CACHE`, `HF_HOME/hub`, the default.

    Absolute; variables and `~` inside the values are expanded as the hub's client does.
    """
    found = folder or _variable(HUB_CACHE_VARIABLE)
    if found is None:
        home = _variable(HUB_HOME_VARIABLE) or user_cache_folder() / "huggingface"
        found = home / "hub"
    return found.absolute()


def checksum_cache_folder(folder: Path | None = None) -> Path:
    """Folder of the checksum cache, absolute."""
    found = folder or _variable(CHECKSUM_CACHE_VARIABLE)
    return (found or user_cache_folder() / CHECKSUM_CACHE_NAME).absolute()


def is_offline(offline: bool | None = None) -> bool:
    """Whether nothing may be downloaded: the argument, else `HF_HUB_OFFLINE`."""
    if offline is not None:
        return offline
    return os.environ.get(OFFLINE_VARIABLE, "").upper() in _YES


def _variable(name: str) -> Path | None:
    value = os.environ.get(name, "")
    return Path(os.path.expandvars(os.path.expanduser(value))) if value.strip() else None
