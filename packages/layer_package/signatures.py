"""Owns signing a manifest and judging its signature: the sidecar `model-package.json.sig.json`.

Additive to schema version 1: the manifest never names the sidecar, and a reader without it loses
nothing. The manifest has every file's digest, so its signature covers the package. It must not
know whose keys are good: trust is the set of public keys that the caller gives. The sidecar's own
key only says which of them to take.

    {"format_version": 1, "algorithm": "ed25519", "manifest_sha256": HEX of the manifest's bytes,
     "public_key": BASE64 of 32 bytes, "signature": BASE64 of 64 bytes}

What is signed is `mesh-layer-package-signature-1`, a zero byte and the 32 bytes of the digest: the
words keep a signature that was made for anything else from counting here.
"""

import base64
import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from engine.artifacts.output_file import new_file
from packages.layer_package import ed25519
from packages.layer_package.errors import ArtifactError, ManifestError, SignatureError
from packages.layer_package.json_text import parse_json
from packages.layer_package.manifest_file import read_manifest_file
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.opened_file import open_below

SIDECAR_NAME = f"{MANIFEST_NAME}.sig.json"
FORMAT_VERSION = 1
ALGORITHM = "ed25519"
MAX_SIDECAR_BYTES = 64 << 10
_DOMAIN = b"mesh-layer-package-signature-1\0"
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Signature(NamedTuple):
    """A sidecar: the manifest's SHA-256 in hex, the signer's key and the signature, raw bytes."""

    manifest_sha256: str
    public_key: bytes
    signature: bytes


def sign(root: Path, private_key: bytes) -> Signature:
    """Sign the manifest at `root` as it is with a key of 32 bytes, and write the sidecar beside it.

    SignatureError `signing_unavailable`; ManifestError `missing_manifest`, `manifest_too_large`;
    IoFailure when the sidecar cannot be written.
    """
    digest = _manifest_sha256(root, None)
    made = Signature(
        digest, ed25519.public_key_of(private_key), ed25519.sign(private_key, _message(digest))
    )
    with new_file(root / SIDECAR_NAME) as out:
        out.write(sidecar_bytes(made))
    return made


def sidecar_bytes(signature: Signature) -> bytes:
    """The sidecar's text."""
    document = {
        "format_version": FORMAT_VERSION,
        "algorithm": ALGORITHM,
        "manifest_sha256": signature.manifest_sha256,
        "public_key": base64.b64encode(signature.public_key).decode(),
        "signature": base64.b64encode(signature.signature).decode(),
    }
    return json.dumps(document, indent=2).encode() + b"\n"


def verify_signature(
    root: Path, trusted: Collection[bytes], *, repository: Path | None = None
) -> Signature:
    """The sidecar at `root`, when one of the `trusted` keys (32 bytes each) signed the manifest
    that lies there; `repository` as for `paths.open_artifact`.

    SignatureError, in this order: `missing_signature`, `invalid_signature_file`,
    `unsupported_signature_version`, `signature_digest_mismatch` (of another manifest),
    `untrusted_signature_key`, `signing_unavailable`, `invalid_signature`.
    """
    found = read_signature(root, repository=repository)
    digest = _manifest_sha256(root, repository)
    if found.manifest_sha256 != digest:
        raise _error(
            "signature_digest_mismatch",
            f"signed was a manifest with SHA-256 {found.manifest_sha256}, this one has {digest}",
        )
    if found.public_key not in trusted:
        raise _error(
            "untrusted_signature_key",
            f"signed by key {base64.b64encode(found.public_key).decode()}, which is none of the"
            f" {len(trusted)} trusted ones",
        )
    if not ed25519.is_signed(found.public_key, found.signature, _message(digest)):
        raise _error("invalid_signature", "its key did not make this signature over this manifest")
    return found


def read_signature(root: Path, *, repository: Path | None = None) -> Signature:
    """The sidecar at `root`; neither its signature nor who signed is judged.

    SignatureError `missing_signature`, and those of `read_sidecar`.
    """
    try:
        with open_below(root, SIDECAR_NAME, repository) as opened:
            with open(opened.fd, "rb", closefd=False) as file:
                data = file.read(MAX_SIDECAR_BYTES + 1)
    except ArtifactError as error:
        raise _error("missing_signature", f"no signature to read: {error.issue.message}") from None
    if len(data) > MAX_SIDECAR_BYTES:
        raise _not_a_sidecar(f"more than {MAX_SIDECAR_BYTES} bytes")
    return read_sidecar(data)


def read_sidecar(data: bytes) -> Signature:
    """The sidecar of that text; who signed is not judged.

    SignatureError `invalid_signature_file`, `unsupported_signature_version`.
    """
    try:
        document = parse_json(data)
    except ManifestError as error:
        raise _not_a_sidecar(error.issue.message) from None
    if not isinstance(document, dict) or type(document.get("format_version")) is not int:
        raise _not_a_sidecar("no object with a number `format_version`")
    if document["format_version"] != FORMAT_VERSION:
        raise _error(
            "unsupported_signature_version",
            f"format_version {document['format_version']}, this reader has {FORMAT_VERSION}",
        )
    if document.get("algorithm") != ALGORITHM:
        raise _not_a_sidecar(f"algorithm {document.get('algorithm')!r:.40}, not {ALGORITHM!r}")
    digest = document.get("manifest_sha256")
    if not isinstance(digest, str) or not _HEX.fullmatch(digest):
        raise _not_a_sidecar("`manifest_sha256` is not 64 hex digits in lower case")
    return Signature(
        digest,
        _bytes(document, "public_key", ed25519.KEY_BYTES),
        _bytes(document, "signature", ed25519.SIGNATURE_BYTES),
    )


def _bytes(document: dict[str, Any], name: str, n_bytes: int) -> bytes:
    value = document.get(name)
    raw = ed25519.decoded(value, n_bytes) if isinstance(value, str) else None
    if raw is None:
        raise _not_a_sidecar(f"`{name}` is not base64 of {n_bytes} bytes")
    return raw


def _message(manifest_sha256: str) -> bytes:
    return _DOMAIN + bytes.fromhex(manifest_sha256)


def _manifest_sha256(root: Path, repository: Path | None) -> str:
    return hashlib.sha256(read_manifest_file(root, repository)).hexdigest()


def _error(kind: str, message: str) -> SignatureError:
    return SignatureError(kind, message, artifact=SIDECAR_NAME)


def _not_a_sidecar(message: str) -> SignatureError:
    return _error("invalid_signature_file", f"not a signature: {message}")
