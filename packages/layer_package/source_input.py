"""Owns which file the writer reads, and under which identity that is recorded.

A local file needs its identity from flags or from the hub cache that it lies in; a coordinate is
looked up in the hub cache. It must not know what the file holds. Nothing is downloaded here: a
coordinate that is not in the cache is `not_cached`, with what to do about it.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import CacheError, RefError, WriterError
from packages.layer_package.hub_cache import HubRepository, is_commit
from packages.layer_package.paths import check_path
from packages.layer_package.references import DEFAULT_REVISION, ModelCoordinate, PackageRef
from packages.layer_package.shard_names import distribution_of, first_of
from packages.layer_package.write_options import WriteOptions

_SHOWN = 120
_MAX_LISTED = 8
_FLAGS = {
    "model_id": "--model-id",
    "source_repo": "--source-repo",
    "source_revision": "--source-revision",
    "source_file": "--source-file",
}


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """What the manifest says of the source: `primary_file` relative to its repository."""

    model_id: str
    repo: str
    revision: str
    primary_file: str
    distribution_id: str

    @property
    def canonical_ref(self) -> str:
        """`repo@revision/primary_file`."""
        return f"{self.repo}@{self.revision}/{self.primary_file}"


@dataclass(frozen=True, slots=True)
class SourceInput:
    """The file to read (any shard of a set) and its identity."""

    path: Path
    identity: SourceIdentity


def resolve_input(model: str | Path, options: WriteOptions) -> SourceInput:
    """The source that `model` names: an existing file, else a coordinate.

    WriterError `missing_source_identity` (naming the flag), `unexpected_source_identity`,
    `missing_source`; RefError `invalid_model_coordinate`, `model_selector_not_found`,
    `model_selector_ambiguous`; ManifestError `unsafe_source_file_path`; CacheError `not_cached`.
    """
    text = os.fspath(model)
    if os.path.lexists(text):
        return _local(Path(text), options)
    if isinstance(model, Path) or text.lower().endswith(".gguf") or text[:1] in ("", ".", "/", "~"):
        raise WriterError(
            "missing_source", f"there is no file {printable(os.path.basename(text), _SHOWN)}"
        )
    coordinate = ModelCoordinate.parse(text)
    given = [flag for name, flag in _FLAGS.items() if getattr(options, name) is not None]
    if given:
        raise WriterError(
            "unexpected_source_identity",
            f"{', '.join(given)} given with the coordinate {coordinate.canonical},"
            " which has its own identity",
        )
    return _cached(coordinate, options)


def _local(path: Path, options: WriteOptions) -> SourceInput:
    if options.model_id is None:
        raise _missing("model_id", "a local file says nothing of the model it is")
    coordinate = ModelCoordinate.parse(options.model_id)
    place = _place_in_cache(path)
    repo = options.source_repo or (place and place[0])
    repo = repo or f"{coordinate.namespace}/{coordinate.repo}"
    revision = options.source_revision or (place and place[1])
    if not revision:
        raise _missing("source_revision", "the file does not lie in a hub cache that names it")
    file = options.source_file or (place and place[2])
    if not file:
        raise _missing("source_file", "the file does not lie in a hub cache that names it")
    return SourceInput(path, _identity(options.model_id, repo, revision, file, coordinate.selector))


def _identity(
    model_id: str, repo: str, revision: str, file: str, selector: str | None
) -> SourceIdentity:
    for name, value in (("source_repo", repo), ("source_revision", revision)):
        if not value.strip() or not value.isprintable():
            raise WriterError(
                "empty_source_identity", f"{_FLAGS[name]} {printable(value, _SHOWN)} is no name"
            )
    primary = first_of(check_path(file, "/source_model/primary_file", "unsafe_source_file_path"))
    return SourceIdentity(model_id, repo, revision, primary, selector or distribution_of(primary))


def _missing(name: str, why: str) -> WriterError:
    flag = _FLAGS[name]
    return WriterError("missing_source_identity", f"{flag} is missing: {why}", hint=f"give {flag}")


def _place_in_cache(path: Path) -> tuple[str, str, str] | None:
    """Repository, commit and path in it of a file that lies in a hub cache's snapshot."""
    # the path as given: resolving its link would lead to a blob without a name
    found = re.fullmatch(
        r".*/models--([^/]+?)--([^/]+)/snapshots/([^/]+)/(.+)", os.path.abspath(path), re.DOTALL
    )
    if found is None or not is_commit(found[3]):
        return None
    return f"{found[1]}/{found[2]}", found[3], found[4]


def _cached(coordinate: ModelCoordinate, options: WriteOptions) -> SourceInput:
    """The one distribution in the cache that the selector names."""
    ref = PackageRef("hf", coordinate.namespace, coordinate.repo)
    repository = HubRepository.of(ref, options.hub_cache)
    revision = coordinate.revision or DEFAULT_REVISION
    commit = revision if is_commit(revision) else repository.commit_of(revision)
    snapshot = None if commit is None else repository.snapshot(commit)
    if commit is None or snapshot is None or not snapshot.is_dir():
        raise CacheError(
            "not_cached",
            f"{repository.repo_id} at {revision} is not in the hub cache",
            hint=f"download it first: hf download {repository.repo_id} --revision {revision}",
        )
    file = _selected(_distributions(snapshot), coordinate)
    repo = repository.repo_id
    identity = _identity(coordinate.canonical, repo, commit, file, coordinate.selector)
    return SourceInput(snapshot / file, identity)


def _distributions(snapshot: Path) -> list[str]:
    """The GGUF models of a snapshot, relative: single files and first shards, no projectors."""
    found = []
    for folder, _, names in os.walk(snapshot):
        for name in names:
            is_model = name.endswith(".gguf") and "mmproj" not in name.lower()
            if is_model and first_of(name) == name:
                found.append(os.path.relpath(os.path.join(folder, name), snapshot))
    return sorted(found)


def _selected(files: list[str], coordinate: ModelCoordinate) -> str:
    wanted = coordinate.selector
    fitting = [file for file in files if wanted is None or _fits(file, wanted)]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(printable(file, _SHOWN) for file in (fitting or files)[:_MAX_LISTED])
    if not fitting:
        raise RefError(
            "model_selector_not_found",
            f"no model in the cache fits {coordinate.canonical}; there are: {listed or 'none'}",
        )
    raise RefError(
        "model_selector_ambiguous",
        f"{len(fitting)} models in the cache fit {coordinate.canonical}: {listed}",
    )


def _fits(file: str, selector: str) -> bool:
    """By the whole name of the distribution, its last part, or the folder that it lies in."""
    name, wanted = distribution_of(file).lower(), selector.lower()
    folder = os.path.basename(os.path.dirname(file)).lower()
    return wanted in (name, folder) or name.endswith((f"-{wanted}", f".{wanted}"))
