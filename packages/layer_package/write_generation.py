"""Owns the `generation` block that the writer gives a package: its defaults, and the caller's part.

It must not know files. A profile is only named when its contract holds; native MTP is only
advertised for one prediction layer. The caller's object is merged member by member, his values win.
"""

from collections.abc import Mapping
from typing import Any

from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import GenerationError, Report, WriterError
from packages.layer_package.fragments import Fragment
from packages.layer_package.generation import check_generation
from packages.layer_package.glm_dsa import ARCHITECTURE, PROFILE, check_glm_dsa
from packages.layer_package.roles import is_prediction
from packages.layer_package.source_model import Source
from packages.layer_package.write_options import WriteOptions

_ONE_TOKEN = {"default": "fixed", "initial_window": 1, "min_window": 1, "max_window": 1}
_AUTO, _NONE = "auto", "none"
_SHOWN = 80


def prediction_layers(source: Source) -> list[int]:
    """The layers with prediction tensors, ascending.

    WriterError `mtp_metadata_conflict` where `nextn_predict_layers` says otherwise.
    """
    layers = sorted({
        item.role.layer_index for item in source.tensors
        if item.role.layer_index is not None and is_prediction(item.tensor.name)
    })  # fmt: skip
    claimed = source.first.integer(f"{source.architecture}.nextn_predict_layers")
    last = list(range(source.layer_count - len(layers), source.layer_count))
    if claimed is not None and (claimed != len(layers) or layers != last):
        raise WriterError(
            "mtp_metadata_conflict",
            f"nextn_predict_layers is {claimed}, layers with prediction tensors are"
            f" {layers[:8]} of {source.layer_count}",
        )
    return layers


def generation_of(source: Source, options: WriteOptions, report: Report) -> dict[str, Any] | None:
    """The block, or None when there is nothing to say.

    WriterError `mtp_metadata_conflict`; GenerationError of the block's own rules, strict ones too
    where the options ask, `unsupported_policy_profile`, `profile_contract_failed`; warning
    `multi_layer_mtp_not_advertised`.
    """
    layers = prediction_layers(source)
    block: dict[str, Any] = {}
    profile = _profile(source, options.policy_profile)
    if profile is not None:
        block["policy"] = {"profile": profile}
    if len(layers) == 1:
        block["speculative_decoding"] = _native_mtp(layers)
    elif layers:
        report.warn(
            "multi_layer_mtp_not_advertised",
            f"{len(layers)} layers predict; only a single one is advertised for native MTP",
            pointer="/generation/speculative_decoding",
        )
    if options.generation is not None:
        block = _merged(block, options.generation)
    if not block:
        return None
    judge = Report(fail_fast=True)
    check_generation(block, source.layer_count, judge, strict=options.strict, writer=True)
    report.issues.extend(judge.issues)
    return block


def _native_mtp(layers: list[int]) -> dict[str, Any]:
    proposer = {"type": "native-mtp", "prediction_depth": 1, "layer_indices": layers}
    strategy = {"type": "native-mtp", "proposer": "mtp", "window_policy": dict(_ONE_TOKEN)}
    return {"default": "mtp", "proposers": {"mtp": proposer}, "strategies": {"mtp": strategy}}


def _profile(source: Source, wanted: str) -> str | None:
    if wanted == _NONE or (wanted == _AUTO and source.architecture != ARCHITECTURE):
        return None
    if wanted not in (_AUTO, PROFILE):
        raise GenerationError(
            "unsupported_policy_profile",
            f"profile {printable(wanted, _SHOWN)} is none of {_AUTO}, {_NONE}, {PROFILE}",
            pointer="/generation/policy/profile",
        )
    names = {item.tensor.name for item in source.tensors}
    contract = check_glm_dsa(plain_values(source.first), names)
    if wanted == PROFILE:
        contract.add_to(Report(fail_fast=True))
    return PROFILE if contract.holds else None


def plain_values(fragment: Fragment) -> dict[str, object]:
    """Values by key as plain Python, text as str; large token tables are left out."""
    return {
        pair.key: _plain(fragment.value(pair.key)) for pair in fragment.pairs
        if not pair.key.startswith("tokenizer.")
    }  # fmt: skip


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Objects member by member, anything else replaced. Ours is a few levels deep, so this is."""
    merged = dict(ours)
    for name, value in theirs.items():
        mine = merged.get(name)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(mine or {}, value) if both else value
    return merged
