"""Owns where a package of a reference lies in the managed repository cache, and which may travel.

It must not know requests or streams. Only `hf://namespace/repo@revision` may: the form with `@`, a
revision that is stated and is not a moving name. A revision that is no commit is looked up as the
resolver does it; where nothing is cached yet its own name is the snapshot's, as the resolver finds
it there, and one with a slash cannot be taken.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from packages.layer_package.errors import PackageError, TransferError
from packages.layer_package.hub_cache import HubRepository
from packages.layer_package.references import PackageRef


@dataclass(frozen=True, slots=True)
class Place:
    """`repository` is the folder `models--ns--repo`, `snapshot` the name of one in it."""

    repository: Path
    snapshot: str

    @property
    def root(self) -> Path:
        """The snapshot's folder."""
        return self.repository / "snapshots" / self.snapshot


def eligible_ref(text: str) -> PackageRef:
    """The reference that `text` writes. TransferError `transfer_ref_not_eligible`."""
    try:
        ref = PackageRef.parse(text)
    except PackageError as e:
        raise _not_eligible(text) from e
    if not ref.is_transfer_eligible or ref.canonical != text:
        raise _not_eligible(text)
    return ref


def place_of(cache_root: Path, ref: PackageRef) -> Place:
    """Where the snapshot of an eligible reference is, or would be.

    CacheError `corrupt_cache_ref`; TransferError `transfer_ref_not_eligible`,
    `artifact_escapes_root` for a repository or snapshot that is a link.
    """
    repository = HubRepository.of(ref, cache_root)
    assert ref.revision is not None
    found = repository.locate(ref.revision)
    name = found.name if found is not None else repository.commit_of(ref.revision) or ref.revision
    if "/" in name:
        raise _not_eligible(ref.canonical)
    place = Place(repository.folder, name)
    inside = os.path.join(os.path.realpath(repository.cache), repository.name, "snapshots", name)
    if os.path.realpath(place.root) != inside:
        raise TransferError(
            "artifact_escapes_root", f"snapshot {name!r} of {repository.repo_id} is a link"
        )
    return place


def _not_eligible(text: str) -> TransferError:
    return TransferError(
        "transfer_ref_not_eligible",
        f"{text!r:.200} is not hf://namespace/repo@revision with a revision that stays",
    )
