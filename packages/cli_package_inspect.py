"""Owns the commands that say what a package holds and who signed it: inspect, sign, verify."""

import argparse
import base64
from pathlib import Path
from typing import Any

from engine.artifacts.strict_json import read_small_file
from packages.cli_package_common import VALID, add_package, emit, guarded, resolved, say
from packages.layer_package import ed25519
from packages.layer_package.errors import Report, SignatureError
from packages.layer_package.model import Artifact
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.report_file import read_report
from packages.layer_package.signatures import Signature, read_signature, sign, verify_signature

MAX_KEY_FILE_BYTES = 64 << 10


def add(commands: Any) -> None:
    """Add the commands to the subcommands of `package`."""
    seen = commands.add_parser("inspect", help="say what a package holds, from its manifest")
    add_package(seen)
    seen.set_defaults(run=guarded(_inspect))
    signed = commands.add_parser("sign", help="write a signature of the manifest beside it")
    add_package(signed)
    signed.add_argument("--key", type=Path, required=True, metavar="PEM", help="Ed25519 key")
    signed.set_defaults(run=guarded(_sign))
    judged = commands.add_parser("verify-signature", help="check that a trusted key has signed")
    add_package(judged)
    judged.add_argument(
        "--trust", type=Path, action="append", default=[], metavar="FILE", required=True,
        help="a public key, PEM or base64; repeatable",
    )
    judged.set_defaults(run=guarded(_verify_signature))


def _inspect(options: argparse.Namespace) -> int:
    report = Report()
    package = resolved(options, "manifest", report=report)
    for issue in report:
        say(issue)
    facts = facts_of(package)
    source = facts["source_model"]
    lines = [
        f"{facts['model_id']}: {facts['layer_count']} layers, width {facts['activation_width']}",
        f"manifest  sha256:{facts['manifest_sha256']}, ABI {facts['skippy_abi_version']}",
        f"source    {source['canonical_ref'] or source['path']}, sha256:{source['sha256']}",
        *(f"{a['role']:<10} {a['artifact_bytes']:>14,} bytes {a['tensor_count']:>5} tensors"
          f"  {a['path']}" for a in facts["artifacts"]),
        f"in all     {facts['artifact_bytes']:>14,} bytes",
        f"signature {facts['signature'] or 'none'}",
        f"report    {facts['validation_report'] or 'none'}",
    ]  # fmt: skip
    emit(options, facts, lines)
    return VALID


def facts_of(package: PackageDir) -> dict[str, Any]:
    """What the manifest says, and which sidecars lie beside it; nothing is verified."""
    manifest, source = package.manifest, package.manifest.source_model
    return {
        "package_ref": package.ref.canonical,
        "model_id": manifest.model_id,
        "manifest_sha256": manifest.sha256,
        "layer_count": manifest.layer_count,
        "activation_width": manifest.activation_width,
        "skippy_abi_version": manifest.skippy_abi_version,
        "created_at_unix_secs": manifest.created_at_unix_secs,
        "source_model": {
            "path": source.path, "sha256": source.sha256, "canonical_ref": source.canonical_ref,
            "distribution_id": source.distribution_id,
        },
        "artifact_bytes": sum(a.artifact_bytes for a in manifest.artifacts),
        "artifacts": [_artifact(a) for a in manifest.artifacts],
        "generation": manifest.generation,
        "signature": _signature(package),
        "validation_report": _stored(package),
    }  # fmt: skip


def _artifact(artifact: Artifact) -> dict[str, Any]:
    names = ("role", "layer_index", "kind", "path", "tensor_count", "tensor_bytes",
             "artifact_bytes", "sha256")  # fmt: skip
    return {name: getattr(artifact, name) for name in names}


def _signature(package: PackageDir) -> dict[str, Any] | None:
    """Who says to have signed, unverified; the reason where the sidecar is none."""
    try:
        return _shown(read_signature(package.root, repository=package.repository))
    except SignatureError as error:
        return None if error.kind == "missing_signature" else {"error": error.kind}


def _stored(package: PackageDir) -> dict[str, Any] | None:
    found = read_report(package)
    if found is None:
        return None
    is_current = found.get("manifest_sha256") == package.manifest.sha256
    names = ("scope", "valid", "checked_at_unix_secs")
    return {**{name: found.get(name) for name in names}, "is_of_this_manifest": is_current}


def _sign(options: argparse.Namespace) -> int:
    package = resolved(options, "manifest")
    if package.is_hub:
        raise SignatureError(
            "signature_not_storable", "a package in the hub's cache is signed where it is made"
        )
    key = ed25519.read_private_key(read_small_file(options.key, MAX_KEY_FILE_BYTES))
    made = _shown(sign(package.root, key))
    emit(options, made, [f"signed by {made['public_key']}"])
    return VALID


def _verify_signature(options: argparse.Namespace) -> int:
    trusted = {
        ed25519.read_public_key(read_small_file(path, MAX_KEY_FILE_BYTES))
        for path in options.trust
    }
    package = resolved(options, "manifest")
    found = verify_signature(package.root, trusted, repository=package.repository)
    facts = {"valid": True, **_shown(found)}
    emit(options, facts, [f"{options.package}: signed by {facts['public_key']}, who is trusted"])
    return VALID


def _shown(signature: Signature) -> dict[str, Any]:
    return {
        "manifest_sha256": signature.manifest_sha256,
        "public_key": base64.b64encode(signature.public_key).decode(),
    }


