"""Owns holding a policy profile that a package names against its tensors and metadata.

It must not know the contract of a profile (`glm_dsa.py`). A profile that this reader does not know
was reported with the manifest and is left alone here.
"""

from collections.abc import Mapping

from packages.layer_package.errors import Report
from packages.layer_package.fragments import Fragment
from packages.layer_package.glm_dsa import PROFILE, check_glm_dsa
from packages.layer_package.model import Artifact, Manifest

# No value of a contract is larger; what is need not be decoded to know that it is none.
_MAX_VALUE_BYTES = 1 << 20


def check_profile(
    manifest: Manifest, headers: Mapping[Artifact, Fragment], report: Report
) -> None:
    """The profile part of check 24. GenerationError `profile_contract_failed`.

    Needs the headers of all fragments; without one of them, which was reported, it says nothing.
    """
    policy = None if manifest.generation is None else manifest.generation.get("policy")
    if not isinstance(policy, Mapping) or policy.get("profile") != PROFILE:
        return
    if any(fragment not in headers for fragment in manifest.fragments):
        return
    metadata = headers[manifest.metadata]
    values = {
        pair.key: _plain(metadata.value(pair.key)) for pair in metadata.pairs
        if len(pair.payload) <= _MAX_VALUE_BYTES and not pair.key.startswith("tokenizer.")
    }  # fmt: skip
    names = {tensor.name for header in headers.values() for tensor in header.tensors}
    check_glm_dsa(values, names).add_to(report)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return [_plain(item) for item in value] if isinstance(value, list) else value
