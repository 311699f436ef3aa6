"""Owns the tiny hybrid at engine level for tests: plan, models, parts, straight runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine import transfer
from engine.model import Model
from engine.options import RuntimeOptions
from engine.records import ModelPlan
from engine.session import Session
from engine.state_codec import PageDesc
from ptx.devices.host import HostDevice
from reference.config import TINY
from reference.synthetic import deterministic
from tests import rungs, tiny_hybrid

N_LAYERS = tiny_hybrid.DIMS.n_layers
N_VOCAB = tiny_hybrid.DIMS.n_vocab_real
Parts = tuple[PageDesc, bytes, bytes]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ModelPlan:
    """The twin with the weights of the published golden values."""
    path = tmp_path_factory.mktemp("hybrid") / "golden.mspec"
    return plan_at(tiny_hybrid.write(path, deterministic(TINY)))


def plan_at(path: Path) -> ModelPlan:
    """The plan of a tiny hybrid's file."""
    return rungs.plan_of(path, tiny_hybrid.DIMS)


def opened(plan: ModelPlan, *, n_lanes: int = 1, n_context: int = 256, **device: Any) -> Model:
    """A model on its own host device."""
    options = RuntimeOptions(
        n_context=n_context, n_lanes=n_lanes, n_batch=64, include_output=True
    )
    return Model(plan, options, HostDevice(**device))


def text(n: int, seed: int = 0) -> list[int]:
    """Some ids of the vocabulary; another seed gives other ones from the first on."""
    return [(7 * t * t + 13 * t + 5 + 31 * seed) % (N_VOCAB - 3) for t in range(n)]


def export(session: Session) -> bytes:
    """The whole sequence, empty for an empty one."""
    if not transfer.full_state_bytes(session):
        return b""
    return bytes(transfer.export_full_state(session))


def greedy(session: Session, token: int, n: int) -> list[int]:
    """Feed `token` and then each answer: n greedy tokens."""
    found = []
    for _ in range(n):
        token = session.model.decode_batch([session], [token], [None])[0]
        found.append(token)
    return found


def parts_of(session: Session) -> Parts:
    """What the host stores: the KV page from 0 to the end, then the recurrent state."""
    page = transfer.describe_page(session, 0, N_LAYERS, 0, session.cells.length)
    data = bytes(transfer.export_page(session, page))
    return page, data, bytes(transfer.export_recurrent(session))


def restore_parts(session: Session, parts: Parts) -> None:
    """The host's order of a restore."""
    page, cells, recurrent = parts
    transfer.import_page(session, page, bytearray(cells))
    transfer.import_recurrent(session, bytearray(recurrent))
    session.set_position(page.token_count)


class Judge:
    """Straight runs of one plan: what a session holds after some tokens, and says next."""

    def __init__(self, plan: ModelPlan, n_said: int = 4) -> None:
        self._n_said = n_said
        self._session = opened(plan).create_session()
        self._known: dict[tuple[int, ...], tuple[bytes, list[int]]] = {}

    def __call__(self, tokens: Sequence[int]) -> tuple[bytes, list[int]]:
        """The exported sequence, and `n_said` greedy tokens behind token 9."""
        key = tuple(tokens)
        if key not in self._known:
            self._session.reset()
            if tokens:
                self._session.prefill(tokens)
            self._known[key] = export(self._session), greedy(self._session, 9, self._n_said)
        return self._known[key]
