"""Owns whether this node gives files to a peer, and which features it says it has.

It must not know requests. The mode comes from MESH_LLM_ARTIFACT_TRANSFER; anything that is not one
of its words is off, so that a typing error never opens a node.
"""

import enum
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from packages.layer_package.errors import TransferError

VARIABLE = "MESH_LLM_ARTIFACT_TRANSFER"
FEATURE = "artifact-transfer"
# What a peer of stage generation 7 has: control, generation, status and content identity.
STAGE_FEATURES = ("stage-control", "stage-generation-7", "status-list", "local-gguf-content-id-v1")


class TransferMode(enum.Enum):
    """Whom this node serves: nobody, verified owners it trusts, any admitted peer."""

    OFF = "off"
    TRUSTED = "trusted"
    OPEN = "open"


_WORDS = {
    **dict.fromkeys(
        ("trusted", "trust", "owner", "owners", "same-owner", "allowlist"), TransferMode.TRUSTED
    ),
    **dict.fromkeys(("open", "1", "true", "on", "yes", "any", "public"), TransferMode.OPEN),
}


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a node; only a `verified` one counts."""

    owner_id: str
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Trust:
    """This node's side of the decision: mode, its own owner, and the owners in its trust store."""

    mode: TransferMode = TransferMode.OFF
    owner: Owner | None = None
    trusted_owners: frozenset[str] = frozenset()

    def check(self, peer_owner: Owner | None) -> None:
        """TransferError `transfer_disabled` unless a peer of that owner may be served."""
        if self.mode is TransferMode.OPEN:
            return
        if self.mode is TransferMode.OFF:
            raise TransferError("transfer_disabled", f"{VARIABLE} is off")
        mine, theirs = _verified(self.owner), _verified(peer_owner)
        if mine is None or theirs is None:
            whose = "this node's" if mine is None else "the peer's"
            raise TransferError("transfer_disabled", f"{whose} owner is not verified")
        if theirs != mine and theirs not in self.trusted_owners:
            raise TransferError(
                "transfer_disabled", "the peer's owner is neither ours nor in the trust store"
            )

    def features(self) -> tuple[str, ...]:
        """What to advertise under `skippy-stage/2`: stage features, and `artifact-transfer` unless
        off, or trusted without a verified owner of our own. Never inventory, paths or tokens."""
        serves = self.mode is TransferMode.OPEN or (
            self.mode is TransferMode.TRUSTED and _verified(self.owner) is not None
        )
        return (*STAGE_FEATURES, FEATURE) if serves else STAGE_FEATURES


def transfer_mode(environment: Mapping[str, str] = os.environ) -> TransferMode:
    """The mode that the environment asks for; off when unset, empty or not recognised."""
    return _WORDS.get(environment.get(VARIABLE, "").strip().lower(), TransferMode.OFF)


def check_features(features: Collection[str]) -> None:
    """TransferError `transfer_not_advertised` unless a peer with these can be asked for files."""
    missing = [name for name in (*STAGE_FEATURES, FEATURE) if name not in features]
    if missing:
        raise TransferError(
            "transfer_not_advertised", f"the coordinator does not advertise {', '.join(missing)}"
        )


def _verified(owner: Owner | None) -> str | None:
    return owner.owner_id if owner is not None and owner.verified and owner.owner_id else None
