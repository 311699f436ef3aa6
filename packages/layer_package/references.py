"""Owns the text forms of package references and model coordinates: parse, canonical, how fixed.

It must not know caches, downloads or manifests. A reference is untrusted text: whatever it holds is
refused as RefError before it becomes part of a path or an address. A RefError's message shows at
most 80 characters of it.
"""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import RefError
from packages.layer_package.model import MANIFEST_NAME

SCHEME = "hf://"
DEFAULT_REVISION = "main"
MAX_NAME, MAX_REVISION_BYTES, MAX_SELECTOR = 96, 255, 255
MOVING_REVISIONS = frozenset(("main", "master", "latest", "dev", "develop", "development"))

_WORD = re.compile(r"[A-Za-z0-9._-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# No reference that can be right is longer: the scheme, two names, a revision, two separators.
_MAX_HF = len(SCHEME) + 2 * MAX_NAME + MAX_REVISION_BYTES + 2
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class PackageRef:
    """Which package: `hf` (namespace, repo, revision; None is `main`), a `local` folder, or a
    direct `gguf` file, which is no package. `colon_form` remembers that the revision was written
    after `:`; it does not make another package of it. RefError when a part of `hf` is no name.
    """

    kind: Literal["hf", "local", "gguf"]
    namespace: str = ""
    repo: str = ""
    revision: str | None = None
    path: Path | None = None
    colon_form: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what `parse` would not make, since folders are named after these parts."""
        kind = "invalid_package_ref"
        if self.kind == "hf":
            _check_name(self.namespace, "namespace", kind)
            _check_name(self.repo, "repository", kind)
            if self.revision is not None:
                _check_revision(self.revision, kind)
        elif self.path is None:
            raise RefError(kind, f"a {self.kind} reference needs a path")

    @classmethod
    def parse(cls, text: str) -> "PackageRef":
        """The reference that `text` writes.

        RefError `invalid_package_ref` for a broken `hf://`; `not_a_package_ref` for anything else
        that is neither a folder with a regular file `model-package.json` (links are followed here,
        opening them is judged later) nor a path ending in `.gguf` (any case).
        """
        if text.startswith(SCHEME):
            return _parse_hf(text)
        # A folder of that name with a manifest is a package; its suffix proves nothing.
        if _holds_manifest(text):
            return cls("local", path=Path(text))
        if text.lower().endswith(".gguf") and "://" not in text and "\0" not in text:
            return cls("gguf", path=Path(text))
        raise RefError("not_a_package_ref", f"{printable(text, _SHOWN)} is neither {SCHEME}"
                       f"namespace/repo[@revision] nor a folder with {MANIFEST_NAME}",
                       hint=_hint(text))  # fmt: skip

    @classmethod
    def local(cls, path: Path) -> "PackageRef":
        """A local folder, whether or not it holds a manifest: reading that is what tells."""
        return cls("local", path=path)

    @property
    def canonical(self) -> str:
        """The text form that is written: `@` before a revision; a path as pathlib writes it."""
        if self.kind != "hf":
            return str(self.path)
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{SCHEME}{self.namespace}/{self.repo}{revision}"

    @property
    def effective_revision(self) -> str:
        """The revision that is meant: `main` when none is named."""
        return self.revision or DEFAULT_REVISION

    @property
    def is_immutable(self) -> bool:
        """Whether the revision is a commit: 40 lower-case hex digits."""
        return self.kind == "hf" and _COMMIT.fullmatch(self.effective_revision) is not None

    @property
    def is_moving(self) -> bool:
        """Whether the revision is a name that is known to move; none named is `main`."""
        return self.kind == "hf" and self.effective_revision.lower() in MOVING_REVISIONS

    def is_pinned(self, *, allow_named_revisions: bool = False) -> bool:
        """Whether the content may be taken as fixed; other names than commits only if allowed."""
        named = allow_named_revisions and self.kind == "hf" and not self.is_moving
        return self.is_immutable or named

    @property
    def is_transfer_eligible(self) -> bool:
        """Whether a peer may be asked for it: `hf`, the `@` form, a revision that does not move."""
        explicit = self.kind == "hf" and self.revision is not None and not self.colon_form
        return explicit and not self.is_moving


@dataclass(frozen=True, slots=True)
class ModelCoordinate:
    """A model on a hub, `org/repo[@revision][:selector]`: what the writer takes as `model_id`."""

    namespace: str
    repo: str
    revision: str | None = None
    selector: str | None = None

    @classmethod
    def parse(cls, text: str, *, local_paths: bool = True) -> "ModelCoordinate":
        """The coordinate. RefError `invalid_model_coordinate`.

        With `local_paths` text that names an existing path is refused too. Readers of a manifest
        pass False: what it holds must not be looked up on this machine.
        """
        kind = "invalid_model_coordinate"
        shown = printable(text, _SHOWN)
        if text.startswith((".", "/", "~")) or "\\" in text or text.lower().endswith(".gguf"):
            raise RefError(kind, f"{shown} is written like a path, not org/repo[@revision][:dist]")
        before, colon, selector = text.partition(":")
        names, at, revision = before.partition("@")
        namespace, slash, repo = names.partition("/")
        if not slash or "/" in repo or "/" in revision:
            raise RefError(kind, f"{shown} needs exactly one '/' before its selector")
        _check_name(namespace, "organisation", kind)
        _check_name(repo, "repository", kind)
        if at:
            _check_revision(revision, kind)
        if colon:
            _check_path_like(selector, "selector", MAX_SELECTOR, kind)
        if local_paths and os.path.lexists(text):
            raise RefError(kind, f"{shown} is a local path, not a model coordinate")
        return cls(namespace, repo, revision if at else None, selector if colon else None)

    @property
    def canonical(self) -> str:
        """The text form."""
        revision = "" if self.revision is None else f"@{self.revision}"
        selector = "" if self.selector is None else f":{self.selector}"
        return f"{self.namespace}/{self.repo}{revision}{selector}"


def is_model_coordinate(text: str) -> bool:
    """Whether text has the form of a coordinate; looks at nothing but the text."""
    try:
        ModelCoordinate.parse(text, local_paths=False)
    except RefError:
        return False
    return True


def _parse_hf(text: str) -> PackageRef:
    if len(text) > _MAX_HF:
        raise RefError("invalid_package_ref", f"{printable(text, _SHOWN)} has {len(text)}"
                       f" characters, at most {_MAX_HF} are a reference")  # fmt: skip
    names, at, revision = text[len(SCHEME) :].partition("@")
    colon = ""
    if not at and ":" in names:
        names, colon, revision = names.rpartition(":")
    namespace, slash, repo = names.partition("/")
    if not slash:
        raise RefError("invalid_package_ref", f"{printable(text, _SHOWN)} names no repository:"
                       f" {SCHEME}namespace/repo[@revision]")  # fmt: skip
    return PackageRef(
        "hf", namespace, repo, revision if at or colon else None, colon_form=bool(colon)
    )


def _check_name(name: str, what: str, kind: str) -> None:
    shown = f"{what} {printable(name, _SHOWN)}"
    if len(name) > MAX_NAME or _WORD.fullmatch(name) is None:
        raise RefError(kind, f"{shown} is not 1 to {MAX_NAME} of A-Z, a-z, 0-9, '-', '_', '.'")
    if name[0] in ".-" or name[-1] in ".-" or "--" in name or ".." in name:
        raise RefError(kind, f"{shown} begins or ends with '-' or '.', or repeats one")


def _check_revision(revision: str, kind: str) -> None:
    _check_path_like(revision, "revision", MAX_REVISION_BYTES, kind)


def _check_path_like(text: str, what: str, limit: int, kind: str) -> None:
    """Segments between '/', each of the characters of a name, none '.' or '..'."""
    shown = f"{what} {printable(text, _SHOWN)}"
    if not 1 <= len(text) <= limit:
        raise RefError(kind, f"{shown} has {len(text)} bytes, needs 1 to {limit}")
    for segment in text.split("/"):
        if _WORD.fullmatch(segment) is None or segment in (".", ".."):
            raise RefError(kind, f"{shown} holds {printable(segment, _SHOWN)}, which is no segment"
                           " of A-Z, a-z, 0-9, '-', '_', '.'")  # fmt: skip


def _holds_manifest(text: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(os.path.join(text, MANIFEST_NAME)).st_mode)
    except (OSError, ValueError):
        # ValueError: a NUL, or text that no file name can spell
        return False


def _hint(text: str) -> str:
    if text.lower().startswith(SCHEME):
        return f"the scheme is written {SCHEME}"
    if is_model_coordinate(text):
        return "a model coordinate is what a package is written from; a package has a reference"
    return f"give a folder that holds {MANIFEST_NAME}, or {SCHEME}namespace/repo@revision"
