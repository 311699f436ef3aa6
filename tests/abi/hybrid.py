"""Owns the hybrid's session calls for tests: served files, state in and out, straight runs.

Short spellings beside `steps.py`, whose calls serve here too; a state is the whole sequence.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.artifacts.mspec import open_mspec
from engine.errors import Status
from packages.qwen3_8_27b import PACKAGE
from reference.config import TINY
from reference.synthetic import deterministic, lively
from reference.weights import DictWeights, tensor
from skippy_abi.client import Host, OpenModel, OpenSession
from tests import rungs, tiny_hybrid
from tests.abi import steps
from tests.abi.steps import call, greedy, raw

N_LAYERS = tiny_hybrid.DIMS.n_layers
ALL = (0, N_LAYERS)
Parts = tuple[Any, bytes, bytes]


def write_all(folder: Path) -> None:
    """golden.mspec, other.mspec of the same shape, and padded.mspec; all served from now on."""
    tiny_hybrid.write(folder / "golden.mspec", deterministic(TINY))
    tiny_hybrid.write(folder / "other.mspec", lively(TINY, seed=8))
    dims = PACKAGE.dims["padded"]
    tiny_hybrid.write(folder / "padded.mspec", loud_padding(), dims)
    table = Path(os.environ["MESH_SPECIALIZE_SERVES"])
    rows = [table.read_text()]
    for path in sorted(folder.glob("*.mspec")):
        twin = "padded" if path.stem == "padded" else "tiny"
        with open_mspec(path) as file:
            digest = file.identity.weights_id
        rows.append(
            f'[[artifact]]\npackage = "qwen3_8_27b:{twin}"\ncontent_sha256 = "{digest}"\n'
        )
    table.write_text("\n".join(rows))


def loud_padding() -> DictWeights:
    """Weights of the padded twin, with padding rows that would win nearly every row."""
    dims = PACKAGE.dims["padded"]
    weights = lively(rungs.config_of(dims), seed=4)
    arrays = {name: tensor(weights, name) for name in weights.names()}
    head = np.array(arrays["lm_head.weight"])
    head[dims.n_vocab_real :] = 50 * head[:3] * np.array([[1], [-1], [1]])
    return DictWeights({**arrays, "lm_head.weight": head})


def opened(
    runtime: Host, hybrids: Path, name: str = "golden", *, n_lanes: int = 1, ctx: int = 256
) -> OpenModel:
    return OpenModel(
        runtime, hybrids / f"{name}.mspec", lane_count=n_lanes, ctx_size=ctx, n_batch=64
    )


def text(n: int, seed: int = 0) -> list[int]:
    """Some ids; another seed gives other ones from the first on."""
    return [(7 * t * t + 13 * t + 5 + 31 * seed) % 317 for t in range(n)]


def export(session: OpenSession) -> bytes:
    """The whole sequence."""
    return bytes(session.host.sized("skippy_export_full_state", session.handle, *ALL))


def recurrent(session: OpenSession) -> bytes:
    return bytes(session.host.sized("skippy_export_recurrent_state", session.handle))


def load(session: OpenSession, data: bytes, name: str = "full_state") -> tuple[int, str | None]:
    source = session.host.ffi.new("char[]", data)
    return raw(session, f"import_{name}", *ALL, source, len(data))


def load_recurrent(session: OpenSession, data: bytes) -> tuple[int, str | None]:
    source = session.host.ffi.new("char[]", data)
    return raw(session, "import_recurrent_state", source, len(data))


def page(
    session: OpenSession, start: int, count: int, layers: tuple[int, int] = ALL
) -> tuple[Any, bytes]:
    return steps.page(session, start, count, layers)


def parts_of(session: OpenSession, n_tokens: int) -> Parts:
    """What the host stores, in its order: the KV page from 0, then the recurrent state."""
    return (*page(session, 0, n_tokens), recurrent(session))


def restore_parts(session: OpenSession, parts: Parts) -> None:
    """The host's order of a restore."""
    desc, cells, state = parts
    outcome = steps.load_page(session, desc, cells)
    assert outcome[0] == Status.OK, outcome
    outcome = load_recurrent(session, state)
    assert outcome[0] == Status.OK, outcome
    call(session, "session_set_position", desc.token_count)


class Judge:
    """What fresh sessions of a file hold after some tokens, and n greedy tokens behind token 9."""

    def __init__(self, model: OpenModel, n_said: int = 4) -> None:
        self.model, self._n_said = model, n_said
        self._session = model.session()
        self._known: dict[tuple[int, ...], tuple[bytes, list[int]]] = {}

    def __call__(self, tokens: Sequence[int]) -> tuple[bytes, list[int]]:
        key = tuple(tokens)
        if key not in self._known:
            self._session.reset()
            if tokens:
                self._session.prefill(tokens)
            self._known[key] = export(self._session), greedy(self._session, 9, self._n_said)
        return self._known[key]
