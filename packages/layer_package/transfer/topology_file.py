"""Owns a topology as a JSON file, for the command line and for tests.

It must not know streams. A mesh host has topologies of its own and needs no such file.
"""

import re
from typing import Any

from packages.layer_package.errors import TransferError
from packages.layer_package.json_text import parse_json
from packages.layer_package.transfer.authorise import StageAssignment, Topology

_PEER = re.compile(r"[0-9a-f]{64}", re.ASCII)


def read_topology(data: bytes) -> Topology:
    """The topology of that text: ids, package_ref, manifest_sha256, and stages of `stage_id`,
    `peer` (64 hex digits) and `layers` [start, end], in their order.

    TransferError `invalid_topology_file` naming the member; ManifestError `invalid_manifest_json`
    for what is no JSON.
    """
    document = parse_json(data)
    stages = document.get("stages") if isinstance(document, dict) else None
    if not isinstance(stages, list) or not stages:
        raise _invalid("stages", "a list of at least one")
    texts = {name: _text(document, name) for name in
             ("topology_id", "run_id", "package_ref", "manifest_sha256")}  # fmt: skip
    found = tuple(_stage(stage, index) for index, stage in enumerate(stages))
    if len({stage.stage_id for stage in found}) != len(found):
        raise _invalid("stages", "stages of different ids")
    return Topology(**texts, stages=found)


def _stage(stage: Any, index: int) -> StageAssignment:
    where = f"stages[{index}]"
    if not isinstance(stage, dict):
        raise _invalid(where, "an object")
    layers, peer = stage.get("layers"), _text(stage, "peer", where)
    if not isinstance(layers, list) or [type(n) for n in layers] != [int, int]:
        raise _invalid(f"{where}.layers", "two numbers")
    if not _PEER.fullmatch(peer):
        raise _invalid(f"{where}.peer", "64 hex digits in lower case")
    return StageAssignment(
        _text(stage, "stage_id", where), index, bytes.fromhex(peer), layers[0], layers[1]
    )


def _text(document: dict[str, Any], name: str, where: str = "") -> str:
    found = document.get(name)
    if not isinstance(found, str) or not found.strip():
        raise _invalid(f"{where}.{name}".lstrip("."), "a text that is not blank")
    return found


def _invalid(member: str, needed: str) -> TransferError:
    return TransferError("invalid_topology_file", f"`{member}` needs to be {needed}")
