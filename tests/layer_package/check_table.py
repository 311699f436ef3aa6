"""Owns the table of changed packages and what each scope of a validation says of them.

The ids M.. are those of the malformed cases. Changes are made on disk, to a copy of one package
that has every kind of file.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from packages.layer_package.checks import Scope
from packages.layer_package.selection import StageRequest
from tests.layer_package.check_cases import flip, stage
from tests.layer_package.package_cases import (
    change_manifest,
    fragment_bytes,
    made,
    replace_artifact,
    string,
    tiny_model,
)

LAYER = "layers/layer-00001.gguf"
TOWER = "projectors/mmproj-TinyDemo.gguf"
FIRST, MIDDLE, LAST = stage(0, 1), stage(1, 2), stage(2, 3)
SEEING = stage(0, 1, multimodal=True)
SEEING_MIDDLE = stage(1, 2, multimodal=True)
SOUND: dict[str, Any] = {"mtp": True, "projector": True, "rope_table": True, "repeat_common": True}

Change = Callable[[Path], object]


class Case(NamedTuple):
    """One change of a sound package, and what a scope says of it."""

    change: Change
    scope: Scope
    stage: StageRequest | None
    kinds: list[str]
    choices: Mapping[str, Any] = MappingProxyType({})


def remove(path: str) -> Change:
    return lambda root: (root / path).unlink()


def instead(path: str, make: Change) -> Change:
    def change(root: Path) -> None:
        (root / path).unlink()
        make(root / path)

    return change


def outside(path: Path) -> None:
    target = path.parents[2] / "outside.gguf"
    target.write_bytes(b"x")
    path.symlink_to(target)


def folder_outside(root: Path) -> None:
    (root / "layers").rename(root.parent / "elsewhere")
    (root / "layers").symlink_to(root.parent / "elsewhere")


def count_off(root: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["layers"][1]["tensor_count"] += 1

    change_manifest(root, change)


def bytes_off(root: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["layers"][1]["tensor_bytes"] -= 1

    change_manifest(root, change)


def other_architecture(root: Path) -> None:
    model = tiny_model(mtp=True, rope_table=True)
    pairs = [string("general.architecture", "other"), *model.pairs[1:]]
    data = fragment_bytes(model._replace(pairs=pairs), "metadata", 3)
    replace_artifact(root, "shared/metadata.gguf", data, [made("rope_freqs.weight", (16,))])


def other_rope(root: Path) -> None:
    """The last bytes of the metadata fragment are those of its only tensor."""
    path = root / "shared/metadata.gguf"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    replace_artifact(root, "shared/metadata.gguf", bytes(data))


def reversed_layers(root: Path) -> None:
    change_manifest(root, lambda manifest: manifest["layers"].reverse())


def upper_digests(root: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        for entry in manifest["layers"]:
            entry["sha256"] = entry["sha256"].upper()

    change_manifest(root, change)


def hint(member: str, value: object) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        manifest["selection_hints"][member] = value

    return lambda root: change_manifest(root, change)


def advertise(layer: int) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        proposer = manifest["generation"]["speculative_decoding"]["proposers"]["mtp"]
        proposer["layer_indices"] = [layer]

    return lambda root: change_manifest(root, change)


def profile(root: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["generation"] = {"policy": {"profile": "glm-dsa-v1"}}

    change_manifest(root, change)


def nothing(_: Path) -> None:
    pass


CASES = {
    "manifest": Case(nothing, "manifest", None, []),
    "metadata": Case(nothing, "metadata", None, []),
    "package": Case(nothing, "package", None, []),
    "package, digests": Case(nothing, "package", None, [], {"verify": True}),
    "stage, digests": Case(nothing, "stage", SEEING, [], {"verify": True}),
    "no range": Case(nothing, "stage", None, ["missing_layer_range"]),
    "M28": Case(reversed_layers, "stage", MIDDLE, []),
    "M40": Case(upper_digests, "stage", MIDDLE, [], {"verify": True}),
    "M47 empty": Case(nothing, "stage", stage(3, 3), ["empty_layer_range"]),
    "M47 reversed": Case(nothing, "stage", stage(5, 2), ["empty_layer_range"]),
    "M48": Case(nothing, "stage", stage(2, 4), ["layer_range_out_of_bounds"]),
    "M49": Case(remove(LAYER), "stage", MIDDLE, ["missing_artifact"]),
    "M50 stage": Case(remove(LAYER), "stage", FIRST, []),
    "M50 package": Case(remove(LAYER), "package", None, ["missing_artifact"]),
    "M50 metadata": Case(remove(LAYER), "metadata", None, []),
    "M51 directory": Case(instead(LAYER, Path.mkdir), "stage", MIDDLE, ["artifact_not_file"]),
    "M51 FIFO": Case(instead(LAYER, os.mkfifo), "stage", MIDDLE, ["artifact_not_file"]),
    "M52": Case(instead(LAYER, outside), "stage", MIDDLE, ["artifact_escapes_root"]),
    "M52 folder": Case(folder_outside, "stage", MIDDLE, ["artifact_escapes_root"]),
    "M55": Case(lambda r: os.truncate(r / LAYER, (r / LAYER).stat().st_size - 1), "stage",
                MIDDLE, ["artifact_size_mismatch"]),
    "M57 no switch": Case(lambda r: flip(r / LAYER), "stage", MIDDLE, []),
    "M57 switch": Case(lambda r: flip(r / LAYER), "stage", MIDDLE, ["artifact_sha256_mismatch"],
                       {"verify": True}),
    "M57 header": Case(lambda r: flip(r / LAYER, 0), "stage", MIDDLE, ["gguf_bad_magic"]),
    "M59": Case(nothing, "stage", MIDDLE, ["manifest_sha256_mismatch"],
                {"expected_manifest_sha256": "ab" * 32}),
    "M67": Case(count_off, "stage", MIDDLE, ["tensor_count_mismatch"]),
    "M67 bytes": Case(bytes_off, "stage", MIDDLE, ["tensor_bytes_mismatch"]),
    "M67 elsewhere": Case(count_off, "stage", FIRST, []),
    "M70 equal": Case(nothing, "package", None, []),
    "M70 different": Case(other_rope, "package", None, ["conflicting_tensor"] * 5),
    "M74": Case(other_architecture, "stage", MIDDLE,
                ["architecture_mismatch"]),
    "M75 multimodal": Case(remove(TOWER), "stage", SEEING, ["missing_artifact"]),
    "M75 downstream": Case(remove(TOWER), "stage", SEEING_MIDDLE, []),
    "M75 text": Case(remove(TOWER), "stage", FIRST, []),
    "M75 package": Case(remove(TOWER), "package", None, ["missing_artifact"]),
    "M84": Case(advertise(0), "package", None, ["missing_native_mtp_tensors"]),
    "profile": Case(profile, "package", None, ["profile_contract_failed"]),
    "hint of tying": Case(hint("tied_output", True), "package", None,
                          ["selection_hints_mismatch"]),
    "hint of prediction": Case(hint("prediction_layers", []), "package", None,
                               ["selection_hints_mismatch"]),
    "hint of an embedding": Case(hint("prediction_needs_embeddings", False), "package", None,
                                 ["selection_hints_mismatch"]),
    "hint of the table": Case(hint("per_layer_embedding_layers", "all"), "package", None,
                              ["selection_hints_mismatch"]),
    "hint that costs a stage its embeddings": Case(
        hint("prediction_layers", []), "stage", LAST, ["selection_hints_mismatch"]),
    "hint that costs nothing": Case(hint("per_layer_embedding_layers", "all"), "stage", MIDDLE, []),
    "hint that the caller overrides": Case(
        hint("prediction_layers", []), "stage", stage(2, 3, embeddings="boundary"), []),
}
