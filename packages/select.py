"""Owns which artifact is at a path and which are served; `selection.py` chooses between them.

The artifact must be on this machine: it is known by the digest of its file, or of its content when
it comes in parts; the parts of one stage are known by the artifact's table of tensors
(`tensor_table.py`). Nothing is downloaded, and a name never matches. MESH_SPECIALIZE_SERVES may
name a TOML file with more artifacts of known packages, one `[[artifact]]` each: `package`
("smollm2_135m" or "smollm2_135m:tiny"), `content_sha256`, and optionally `tensors`, a table beside
that file.
"""

import importlib
import os
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from engine.artifacts.content_digest import digest_with, tensor_digests
from engine.artifacts.gguf import GgufFile, open_gguf
from engine.artifacts.mapped_file import MappedFile, printable
from engine.artifacts.mspec import MspecFile, open_mspec
from engine.artifacts.mspec_format import MAGIC
from engine.artifacts.slices import open_parts
from engine.devices import DeviceEntry, find, inventory
from engine.errors import InvalidArgument, ModelError
from engine.records import ModelPlan
from packages import KNOWN
from packages.host_profile import HostProfile, read_host
from packages.package import HOST, Artifact, Container, Identity, Package, Target
from packages.selection import NoArtifact, NotSelected, Requested, Selection, evaluate
from packages.tensor_table import holds_part

SERVES_VARIABLE = "MESH_SPECIALIZE_SERVES"
FILE_ENDINGS = (".gguf", ".mspec")
# A model's name as registries write it: "name", "owner/name", "name:tag".
NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(:[\w.-]+)?")


def known_packages() -> list[Package]:
    """Every package of this tree."""
    return [importlib.import_module(f"packages.{key}").PACKAGE for key in KNOWN]


def served_artifacts() -> list[Artifact]:
    """Every artifact that may be opened: the packages' own tables, then the operator's."""
    packages = known_packages()
    artifacts = [artifact for package in packages for artifact in package.served()]
    extra = os.environ.get(SERVES_VARIABLE)
    return artifacts + (_operator_artifacts(Path(extra), packages) if extra else [])


def _operator_artifacts(path: Path, packages: list[Package]) -> list[Artifact]:
    by_key = {package.key: package for package in packages}
    try:
        rows = tomllib.loads(path.read_text())["artifact"]
        found = []
        for row in rows:
            key, _, twin = row["package"].partition(":")
            tensors = path.parent / row["tensors"] if "tensors" in row else None
            found.append(by_key[key].artifact(twin, None, row["content_sha256"], tensors))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{SERVES_VARIABLE}: {path.name} is not usable: {error}") from None
    return found


def open_plan(paths: list[bytes], device: str | None = None) -> ModelPlan:
    """The plan of an artifact in one file, or in parts, for a device of the inventory; without a
    name the plan says which.

    NoArtifact for files that nobody here can read; NotSelected, naming the requested and the served
    identities, for a model that is not one of ours or not for that device; ModelError for a damaged
    file of ours.
    """
    wanted = None if device is None else find(device)
    source, selection = _select(paths, read_host, wanted)
    if selection.match is None:
        raise NotSelected(selection)
    plan = selection.match.artifact.plan(source)
    return replace(plan, device=device_for(selection.match.target) if device is None else device)


def device_for(target: Target) -> str | None:
    """The first device of the inventory that a target is for."""
    fitting = (entry for entry in inventory() if entry.kind == target.device)
    return next((e.name for e in fitting if _suits(e.arch, target.gpu_arch)), None)


def _suits(arch: str, wanted: str) -> bool:
    """Whether a card is of an architecture; the letter says what a kernel uses of it."""
    return arch.rstrip("af") == wanted.rstrip("af")


def select(path: str, host: Callable[[], HostProfile] = read_host) -> Selection:
    """What would serve the file at `path`, with all reasons; nothing is loaded.

    InvalidArgument for a model's name in the place of a file's; ModelError for a damaged .mspec.
    """
    if _is_bare_name(path):
        raise InvalidArgument(
            f"{printable(path)}: a model name without a concrete weight identity;"
            " name a file on this host"
        )
    return select_files([Path(path)], host)


def select_files(paths: Sequence[Path], host: Callable[[], HostProfile] = read_host) -> Selection:
    """The same for the file or the parts at `paths`; ModelError for a damaged .mspec."""
    try:
        return _select([os.fsencode(path) for path in paths], host)[1]
    except NoArtifact as error:
        return error.selection


def _is_bare_name(path: str) -> bool:
    is_file_name = path.endswith(FILE_ENDINGS) or os.path.lexists(path)
    return not is_file_name and NAME.fullmatch(path) is not None


def _select(
    paths: list[bytes], host: Callable[[], HostProfile], wanted: DeviceEntry | None = None
) -> tuple[Container, Selection]:
    source, artifacts = _open(paths), served_artifacts()
    requested = _identify(source, artifacts)
    entries = [wanted] if wanted and wanted.kind == HOST else inventory()
    devices = {entry.kind for entry in entries}

    def profile() -> HostProfile:
        """Of the cards those that are like the one that was asked for."""
        found = host()
        if wanted is None or not wanted.is_gpu:
            return found
        return replace(found, gpus=tuple(g for g in found.gpus if _suits(g.arch, wanted.arch)))

    return source, evaluate(requested, artifacts, devices, profile)


def _open(paths: list[bytes]) -> Container:
    """The open container. What cannot be read at all, or only by others, is NoArtifact."""
    try:
        is_ours = len(paths) == 1 and is_mspec(paths[0])
        if not is_ours:
            return open_gguf(paths[0]) if len(paths) == 1 else open_parts(paths)
    except ModelError as error:
        is_there = all(map(os.path.exists, paths))
        reason = "ArtifactNotReadable" if is_there else "ArtifactNotPresent"
        raise NoArtifact(reason, str(error)) from None
    return open_mspec(paths[0])


def is_mspec(path: bytes) -> bool:
    """Whether a file begins as a .mspec does; ModelError when it cannot be read."""
    file = MappedFile(path)
    try:
        return bytes(file.view[: len(MAGIC)]) == MAGIC
    finally:
        file.close()


def _identify(source: Container, artifacts: list[Artifact]) -> Requested:
    """Who an artifact is, every digest that it may be known by, and its bytes."""
    if isinstance(source, MspecFile):
        weights_id = source.identity.weights_id
        identity = Identity(source.identity.model_id, f"sha256:{weights_id}")
        return Requested(identity, frozenset({weights_id}), source.n_bytes)
    n_bytes = sum(file.n_bytes for file in source.files)
    name = str(source.get("general.name") or "unnamed")
    if not any(_may_be(source, artifact.package) for artifact in artifacts):
        # Said without hashing: a large foreign model is refused at once.
        name = f"{name} ({source.get('general.architecture')})"
        return Requested(Identity(name, "not computed"), frozenset(), n_bytes)
    tensors = tensor_digests(source)
    file_sha256, content = source.sha256(), digest_with(source, tensors)
    wholes = {
        artifact.content_sha256 for artifact in artifacts
        if artifact.content_sha256 != content and holds_part(artifact, source, tensors)
    }
    identity = Identity(name, f"sha256:{file_sha256}")
    return Requested(identity, frozenset({file_sha256, content} | wholes), n_bytes, content)


def _may_be(source: GgufFile, package: Package) -> bool:
    """Whether a GGUF states the numbers of a package or of one of its twins."""
    if source.get("general.architecture") != package.architecture or package.read_dims is None:
        return False
    try:
        return package.read_dims(source) in package.dims.values()
    except ModelError:
        return False
