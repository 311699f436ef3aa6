"""Owns the choice of a package for an artifact, or the refusal that names both sides.

Matching needs a concrete artifact on this machine: the digest of its file, or of its content when
it comes in parts. Nothing is downloaded, and a name never matches. MESH_SPECIALIZE_SERVES may name
a TOML file with more artifacts of known packages, one `[[artifact]]` each: `package`
("smollm2_135m" or "smollm2_135m:tiny") and `content_sha256`.
"""

import importlib
import os
import tomllib
from pathlib import Path

from engine.artifacts.content_digest import content_digest
from engine.artifacts.gguf import open_gguf
from engine.artifacts.mapped_file import MappedFile
from engine.artifacts.mspec import MspecFile, open_mspec
from engine.artifacts.mspec_format import MAGIC
from engine.artifacts.slices import open_parts
from engine.errors import InvalidArgument, Unsupported
from engine.records import ModelPlan
from packages import KNOWN
from packages.package import Artifact, Container, Identity, Package

SERVES_VARIABLE = "MESH_SPECIALIZE_SERVES"


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
            found.append(by_key[key].artifact(twin, None, row["content_sha256"]))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{SERVES_VARIABLE}: {path.name} is not usable: {error}") from None
    return found


def open_plan(paths: list[bytes]) -> ModelPlan:
    """The plan of an artifact in one file, or in parts.

    ModelError for files that are no model; Unsupported, naming the requested and the served
    identities, for a model that is not one of ours.
    """
    source = _open(paths)
    return _match(source).plan(source)


def _open(paths: list[bytes]) -> Container:
    if len(paths) == 1 and is_mspec(paths[0]):
        return open_mspec(paths[0])
    return open_gguf(paths[0]) if len(paths) == 1 else open_parts(paths)


def is_mspec(path: bytes) -> bool:
    """Whether a file begins as a .mspec does; ModelError when it cannot be read."""
    file = MappedFile(path)
    try:
        return bytes(file.view[: len(MAGIC)]) == MAGIC
    finally:
        file.close()


def _match(source: Container) -> Artifact:
    artifacts = served_artifacts()
    requested, digests = _identify(source, artifacts)
    for artifact in artifacts:
        if artifact.file_sha256 in digests or artifact.content_sha256 in digests:
            return artifact
    serves = ", ".join(str(artifact.identity) for artifact in artifacts)
    raise Unsupported(f"model not served: requested {requested}; serves [{serves}]")


def _identify(source: Container, artifacts: list[Artifact]) -> tuple[Identity, set[str]]:
    """Who an artifact is, and every digest that it may be known by."""
    if isinstance(source, MspecFile):
        weights_id = source.identity.weights_id
        return Identity(source.identity.model_id, f"sha256:{weights_id}"), {weights_id}
    name = str(source.get("general.name") or "unnamed")
    architecture = source.get("general.architecture")
    if architecture not in {artifact.package.architecture for artifact in artifacts}:
        # Said without hashing: a large foreign model is refused at once.
        return Identity(f"{name} ({architecture})", "not computed"), set()
    file_sha256, content = source.sha256(), content_digest(source)
    shown = f"sha256:{file_sha256} (content sha256:{content})"
    return Identity(name, shown), {file_sha256, content}
