"""The signed sidecar of a manifest: what is signed, who is trusted, each refusal by its kind."""

import base64
import builtins
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package import ed25519, signatures
from packages.layer_package.errors import ManifestError, SignatureError
from packages.layer_package.signatures import SIDECAR_NAME, sign, verify_signature

pytest.importorskip("cryptography", reason="the extra `signing`")

ALICE, BOB = bytes(range(32)), bytes(range(1, 33))
# RFC 8032, 7.1, test 1: the key made from this seed, judged by nobody here.
RFC_SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
RFC_PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
RFC_EMPTY = bytes.fromhex(
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b4"
    "6bd25bf5f0595bbe24655141438e7a100b"
)
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "model-package.json").write_bytes(b'{"schema_version": 1}\n')
    sign(tmp_path, ALICE)
    return tmp_path


def trusted(*seeds: bytes) -> set[bytes]:
    return {ed25519.public_key_of(seed) for seed in seeds}


def kind_of(root: Path, *seeds: bytes) -> str:
    with pytest.raises(SignatureError) as caught:
        verify_signature(root, trusted(*seeds))
    assert str(root) not in str(caught.value)
    return caught.value.kind


def change_sidecar(root: Path, change: Change) -> None:
    path = root / SIDECAR_NAME
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def test_the_scheme_is_that_of_the_standard() -> None:
    assert ed25519.public_key_of(RFC_SEED) == RFC_PUBLIC
    assert ed25519.sign(RFC_SEED, b"") == RFC_EMPTY
    assert ed25519.is_signed(RFC_PUBLIC, RFC_EMPTY, b"")
    assert not ed25519.is_signed(RFC_PUBLIC, RFC_EMPTY, b"x")
    assert not ed25519.is_signed(bytes(31), RFC_EMPTY, b"")


def test_a_trusted_signature_holds(root: Path) -> None:
    found = verify_signature(root, trusted(BOB, ALICE))
    manifest = (root / "model-package.json").read_bytes()
    assert found.manifest_sha256 == hashlib.sha256(manifest).hexdigest()
    assert found.public_key == ed25519.public_key_of(ALICE)


def test_the_sidecar_is_what_its_contract_says(root: Path) -> None:
    document = json.loads((root / SIDECAR_NAME).read_bytes())
    digest = hashlib.sha256((root / "model-package.json").read_bytes())
    signature = base64.b64decode(document["signature"])
    message = b"mesh-layer-package-signature-1\0" + digest.digest()
    assert ed25519.is_signed(base64.b64decode(document["public_key"]), signature, message)
    assert document["manifest_sha256"] == digest.hexdigest()
    assert (document["format_version"], document["algorithm"]) == (1, "ed25519")
    # The same manifest and key give the same file.
    before = (root / SIDECAR_NAME).read_bytes()
    sign(root, ALICE)
    assert (root / SIDECAR_NAME).read_bytes() == before
    assert sorted(os.listdir(root)) == ["model-package.json", SIDECAR_NAME]


def test_every_byte_of_the_manifest_counts(root: Path) -> None:
    with (root / "model-package.json").open("ab") as out:
        out.write(b" ")
    assert kind_of(root, ALICE) == "signature_digest_mismatch"


def test_a_sidecar_does_not_vouch_for_itself(root: Path) -> None:
    assert kind_of(root, BOB) == "untrusted_signature_key"
    assert kind_of(root) == "untrusted_signature_key"
    sign(root, BOB)
    assert kind_of(root, ALICE) == "untrusted_signature_key"

    def claims_alice(document: dict[str, Any]) -> None:
        document["public_key"] = base64.b64encode(ed25519.public_key_of(ALICE)).decode()

    change_sidecar(root, claims_alice)
    assert kind_of(root, ALICE) == "invalid_signature"


def test_a_signature_for_something_else_does_not_count(root: Path) -> None:
    digest = hashlib.sha256((root / "model-package.json").read_bytes()).digest()
    for message in (digest, digest.hex().encode(), b"mesh-layer-package-signature-1" + digest):
        raw = base64.b64encode(ed25519.sign(ALICE, message)).decode()
        change_sidecar(root, lambda d, raw=raw: d.update(signature=raw))
        assert kind_of(root, ALICE) == "invalid_signature"


def flipped(name: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        raw = bytearray(base64.b64decode(document[name]))
        raw[5] ^= 1
        document[name] = base64.b64encode(raw).decode()

    return change


def odd_bits(text: str) -> str:
    """Other base64 of the same 64 bytes: the last character before the padding has 4 bits over."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = text[:-3] + alphabet[alphabet.index(text[-3]) + 1] + "=="
    assert base64.b64decode(other) == base64.b64decode(text)
    return other


@pytest.mark.parametrize(("change", "kind"), [
    (flipped("signature"), "invalid_signature"),
    (flipped("public_key"), "untrusted_signature_key"),
    (lambda d: d.update(manifest_sha256="0" * 64), "signature_digest_mismatch"),
    (lambda d: d.update(manifest_sha256=d["manifest_sha256"].upper()), "invalid_signature_file"),
    (lambda d: d.update(manifest_sha256=7), "invalid_signature_file"),
    (lambda d: d.update(format_version=2), "unsupported_signature_version"),
    (lambda d: d.update(format_version=True), "invalid_signature_file"),
    (lambda d: d.pop("format_version"), "invalid_signature_file"),
    (lambda d: d.update(algorithm="rsa"), "invalid_signature_file"),
    (lambda d: d.pop("public_key"), "invalid_signature_file"),
    (lambda d: d.update(signature=d["signature"][:-4]), "invalid_signature_file"),
    (lambda d: d.update(signature=d["signature"] + "\n"), "invalid_signature_file"),
    (lambda d: d.update(signature="é" * 88), "invalid_signature_file"),
    (lambda d: d.update(signature=odd_bits(d["signature"])), "invalid_signature_file"),
    (lambda d: d.update(note="readers ignore it"), None),
], ids=lambda x: x if isinstance(x, str) else "")  # fmt: skip
def test_changed_sidecars(root: Path, change: Change, kind: str | None) -> None:
    change_sidecar(root, change)
    if kind is None:
        verify_signature(root, trusted(ALICE))
    else:
        assert kind_of(root, ALICE) == kind


@pytest.mark.parametrize("data", [
    b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"format_version": 1, "format_version": 1}',
    b"[" * 100_000,
], ids=lambda data: repr(data[:12]))
def test_what_is_no_sidecar(root: Path, data: bytes) -> None:
    (root / SIDECAR_NAME).write_bytes(data)
    assert kind_of(root, ALICE) == "invalid_signature_file"


def test_the_limit_of_a_sidecar(root: Path) -> None:
    path = root / SIDECAR_NAME
    room = signatures.MAX_SIDECAR_BYTES - path.stat().st_size
    path.write_bytes(path.read_bytes() + b" " * room)
    verify_signature(root, trusted(ALICE))
    path.write_bytes(path.read_bytes() + b" ")
    assert kind_of(root, ALICE) == "invalid_signature_file"


def test_no_sidecar_and_odd_files(root: Path, tmp_path: Path) -> None:
    (root / SIDECAR_NAME).rename(root / "elsewhere")
    assert kind_of(root, ALICE) == "missing_signature"
    (root / SIDECAR_NAME).symlink_to(root / "elsewhere")
    assert kind_of(root, ALICE) == "missing_signature"
    (root / SIDECAR_NAME).unlink()
    os.mkfifo(root / SIDECAR_NAME)
    assert kind_of(root, ALICE) == "missing_signature"


def test_nothing_to_sign(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        sign(tmp_path, ALICE)
    assert caught.value.kind == "missing_manifest"
    assert os.listdir(tmp_path) == []


def test_key_files() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric import ed25519 as theirs

    key = theirs.Ed25519PrivateKey.from_private_bytes(ALICE)
    form = serialization.PrivateFormat.PKCS8
    pem, clear = serialization.Encoding.PEM, serialization.NoEncryption()
    assert ed25519.read_private_key(key.private_bytes(pem, form, clear)) == ALICE
    public = key.public_key()
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    raw = public.public_bytes_raw()
    assert ed25519.read_public_key(public.public_bytes(pem, spki)) == raw
    assert ed25519.read_public_key(base64.b64encode(raw) + b"\n") == raw
    locked = key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"secret"))
    other = ec.generate_private_key(ec.SECP256R1())
    for text in (b"", b"x", locked, other.private_bytes(pem, form, clear)):
        with pytest.raises(SignatureError) as caught:
            ed25519.read_private_key(text)
        assert caught.value.kind == "invalid_signing_key"
    for text in (b"", b"AAAA", other.public_key().public_bytes(pem, spki)):
        with pytest.raises(SignatureError) as caught:
            ed25519.read_public_key(text)
        assert caught.value.kind == "invalid_public_key"


def test_without_the_library_all_else_works(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = trusted(ALICE)
    real = builtins.__import__

    def fails(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError("No module named 'cryptography'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fails)
    with pytest.raises(SignatureError) as caught:
        verify_signature(root, keys)
    assert caught.value.kind == "signing_unavailable"
    assert "signing" in (caught.value.issue.hint or "")
    with pytest.raises(SignatureError) as caught:
        verify_signature(root, set())
    assert caught.value.kind == "untrusted_signature_key"
