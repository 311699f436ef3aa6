"""Owns the record of a package that lies in a folder: where, whence, and its manifest.

It must not know how it came there (`resolve.py`) nor whether its files are sound (`checks.py`).
"""

from dataclasses import dataclass
from pathlib import Path

from packages.layer_package.model import Manifest
from packages.layer_package.references import PackageRef


@dataclass(frozen=True, slots=True)
class PackageDir:
    """A package on this machine.

    `root` holds `model-package.json`; `repository` is the hub cache's `models--ns--repo` folder
    when `root` is a snapshot of it, None for a local package.
    """

    root: Path
    ref: PackageRef
    repository: Path | None
    manifest: Manifest

    @property
    def is_hub(self) -> bool:
        """Whether digests are always verified and snapshot links are followed."""
        return self.ref.kind == "hf"
