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
from engine.artifacts.gguf import GgufFile, open_gguf
from engine.artifacts.slices import open_parts
from engine.chat.template import ChatTemplate
from engine.errors import InvalidArgument, ModelError, Unsupported
from engine.records import ModelPlan
from engine.tokenizer import Tokenizer
from packages import KNOWN
from packages.package import Artifact, Identity, Package

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
    file = open_gguf(paths[0]) if len(paths) == 1 else open_parts(paths)
    artifact = _match(file)
    stated = artifact.package.read_dims(file)
    if stated != artifact.dims:
        raise ModelError(f"{file.shown}: states {stated}, its package has {artifact.dims}")
    tokenizer = _tokenizer(file, artifact.dims.n_vocab)
    return ModelPlan(
        model_id=artifact.identity.model_id,
        weights_id=artifact.content_sha256,
        dims=artifact.dims,
        schedule=artifact.package.schedule(artifact.dims),
        weights=artifact.package.bind(file, artifact.dims),
        tokenizer=tokenizer,
        chat_template=_chat_template(file, tokenizer),
        display_path=file.shown,
    )


def _match(file: GgufFile) -> Artifact:
    artifacts = served_artifacts()
    name = str(file.get("general.name") or "unnamed")
    architecture = file.get("general.architecture")
    if architecture not in {artifact.package.architecture for artifact in artifacts}:
        # Said without hashing: a large foreign model is refused at once.
        requested = Identity(f"{name} ({architecture})", "not computed")
        raise Unsupported(_not_served(requested, artifacts))
    file_sha256 = file.sha256()
    for artifact in artifacts:
        if artifact.file_sha256 == file_sha256:
            return artifact
    content = content_digest(file)
    for artifact in artifacts:
        if artifact.content_sha256 == content:
            return artifact
    requested = Identity(name, f"sha256:{file_sha256} (content sha256:{content})")
    raise Unsupported(_not_served(requested, artifacts))


def _not_served(requested: Identity, artifacts: list[Artifact]) -> str:
    serves = ", ".join(str(artifact.identity) for artifact in artifacts)
    return f"model not served: requested {requested}; serves [{serves}]"


def _tokenizer(file: GgufFile, n_vocab: int) -> Tokenizer:
    tokenizer = Tokenizer.from_metadata(file.get)
    if tokenizer.n_vocab != n_vocab:
        raise ModelError(
            f"{file.shown}: {tokenizer.n_vocab} tokens in its vocabulary, {n_vocab} rows"
        )
    return tokenizer


def _chat_template(file: GgufFile, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The file's own chat template, if it has one."""
    source = file.get("tokenizer.chat_template")
    if source is None:
        return None
    return ChatTemplate(
        source, bos_text=tokenizer.bos_text, eos_text=tokenizer.eos_text,
        adds_bos=tokenizer.adds_bos,
    )
