"""Owns Ed25519 keys and signatures through `cryptography`, which is optional (extra `signing`).

It must not know what is signed. The library is imported when a key is first used, so that all else
works without it. Keys are 32 raw bytes; key files are PEM, or for public keys base64 of the bytes.
"""

import base64
import binascii
from typing import Any, NamedTuple

from packages.layer_package.errors import SignatureError

KEY_BYTES, SIGNATURE_BYTES = 32, 64


class _Library(NamedTuple):
    """The parts of `cryptography` that are used."""

    ed25519: Any
    serialization: Any
    invalid_signature: type[Exception]
    unsupported: type[Exception]


def sign(private_key: bytes, message: bytes) -> bytes:
    """The signature, 64 bytes, by a private key of 32 bytes. SignatureError
    `signing_unavailable`."""
    key = _library().ed25519.Ed25519PrivateKey.from_private_bytes(private_key)
    return bytes(key.sign(message))


def is_signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the key's owner signed the message. SignatureError `signing_unavailable`."""
    library = _library()
    try:
        key = library.ed25519.Ed25519PublicKey.from_public_bytes(public_key)
        key.verify(signature, message)
    except (library.invalid_signature, ValueError):
        return False
    return True


def public_key_of(private_key: bytes) -> bytes:
    """The public key, 32 bytes, of a private key."""
    key = _library().ed25519.Ed25519PrivateKey.from_private_bytes(private_key)
    return bytes(key.public_key().public_bytes_raw())


def read_private_key(text: bytes) -> bytes:
    """The 32 bytes of an unencrypted PEM key. SignatureError `invalid_signing_key`."""
    library = _library()
    try:
        key = library.serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError, library.unsupported):
        key = None
    if not isinstance(key, library.ed25519.Ed25519PrivateKey):
        raise SignatureError(
            "invalid_signing_key", "the private key is not an unencrypted Ed25519 key in PEM",
            hint="openssl genpkey -algorithm ed25519 makes one",
        )  # fmt: skip
    return bytes(key.private_bytes_raw())


def read_public_key(text: bytes) -> bytes:
    """The 32 bytes of a public key in PEM, or in base64. SignatureError `invalid_public_key`."""
    raw = decoded(text.decode("ascii", "replace").strip(), KEY_BYTES)
    if raw is not None:
        return raw
    library = _library()
    try:
        key = library.serialization.load_pem_public_key(text)
    except (ValueError, TypeError, library.unsupported):
        key = None
    if not isinstance(key, library.ed25519.Ed25519PublicKey):
        raise SignatureError(
            "invalid_public_key", "the public key is neither Ed25519 in PEM nor base64 of 32 bytes"
        )
    return bytes(key.public_bytes_raw())


def decoded(text: str, n_bytes: int) -> bytes | None:
    """The bytes of strict base64, padding and all; None when it is not that or not that long."""
    try:
        raw = base64.b64decode(text)
    except (binascii.Error, ValueError):
        return None
    # Decoding passes over foreign characters and odd last bits; one text says one thing here.
    is_canonical = base64.b64encode(raw).decode() == text
    return raw if is_canonical and len(raw) == n_bytes else None


def _library() -> _Library:
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise SignatureError(
            "signing_unavailable", f"signatures need the package `cryptography`: {error}",
            hint="pip install 'mesh-specialize[signing]'",
        ) from None  # fmt: skip
    return _Library(ed25519, serialization, InvalidSignature, UnsupportedAlgorithm)
