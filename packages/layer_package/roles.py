"""Owns the role map, version 1: what a tensor is for and which fragment owns it, by name alone.

It must not know files or manifests. Changing the map changes ownership and needs a new schema
version. Layer numbers are u32 in decimal without sign or leading zero.
"""

import re
from typing import Literal, NamedTuple

from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import ContentError

ROLE_MAP_VERSION = 1

RoleName = Literal["layer", "embedding", "output", "final_norm", "common"]
FragmentRole = Literal["metadata", "embeddings", "output", "layer"]

_SHOWN_NAME = 80
_MAX_U32_DIGITS = 10
_LAYER = re.compile(r"blk\.([0-9]+)\..*|cache_.*_l([0-9]+)", re.DOTALL)
_PREDICTION = re.compile(r"blk\.[0-9]+\.nextn\.")
_BY_NAME: dict[str, RoleName] = {
    "token_embd.weight": "embedding",
    "per_layer_token_embd.weight": "embedding",
    "output.weight": "output",
    "output.bias": "output",
    "output_norm.weight": "final_norm",
    "output_norm.bias": "final_norm",
}
_FRAGMENTS: dict[RoleName, FragmentRole] = {
    "layer": "layer",
    "embedding": "embeddings",
    "output": "output",
    "final_norm": "output",
    "common": "metadata",
}


class TensorRole(NamedTuple):
    """A role, and the layer's index where the role is `layer`."""

    role: RoleName
    layer_index: int | None = None

    @property
    def fragment(self) -> FragmentRole:
        """The role of the fragment that owns such a tensor; `metadata` for a common one."""
        return _FRAGMENTS[self.role]

    @property
    def is_owned(self) -> bool:
        """Whether exactly one fragment may hold the tensor."""
        return self.role != "common"


def role_of(name: str) -> TensorRole:
    """The first rule that matches the name.

    ContentError `invalid_layer_name` where a layer's number has a leading zero or is above 2^32-1.
    """
    found = _LAYER.fullmatch(name)
    if not found:
        return TensorRole(_BY_NAME.get(name, "common"))
    digits = found[1] or found[2]
    if len(digits) > _MAX_U32_DIGITS or str(int(digits)) != digits or int(digits) >= 1 << 32:
        raise ContentError(
            "invalid_layer_name",
            f"tensor {printable(name, _SHOWN_NAME)} has layer {printable(digits, _SHOWN_NAME)};"
            f" it needs 0 to {(1 << 32) - 1} without leading zeros",
        )
    return TensorRole("layer", int(digits))


def is_prediction(name: str) -> bool:
    """Whether the tensor belongs to the multi-token prediction part of its block."""
    return _PREDICTION.match(name) is not None
