"""Guards choices over the C ABI against weights and states that are not finite."""

import hashlib
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel, OpenSession
from tests import tiny
from tests.abi.steps import (
    batch,
    export,
    greedy,
    load,
    load_page,
    page,
    raw,
    refused,
    straight,
    trim,
    verify,
    verify_sampled,
)

N_VOCAB = 320
PROMPT = [10, 20, 30, 40]
INF, NAN = math.inf, math.nan
INVALID = Status.INVALID_ARGUMENT


@pytest.fixture
def session(tiny_model: OpenModel) -> Iterator[OpenSession]:
    made = tiny_model.session()
    made.prefill(PROMPT)
    yield made
    made.free()


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("tensor", ["token_embd.weight", "output_norm.weight",
                                    "blk.1.attn_norm.weight", "blk.0.ffn_down.weight"])
def test_broken_weights_are_named_when_the_model_opens(
    runtime: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tensor: str, value: float
) -> None:
    def change(name: str, values: np.ndarray) -> np.ndarray:
        changed = values.copy()
        changed.flat[7] = value if name == tensor else changed.flat[7]
        return changed

    path = tiny.write(tmp_path / "broken.gguf", seed=1, change=change)
    table = tiny.serve(tmp_path / "serves.toml", path)
    monkeypatch.setenv("MESH_SPECIALIZE_SERVES", str(table))
    with pytest.raises(AbiError, match=tensor) as error:
        OpenModel(runtime, path, ctx_size=64)
    assert error.value.status == Status.MODEL_ERROR


@pytest.mark.parametrize("attempt", [
    lambda s, seeded: s.decode(9), lambda s, seeded: s.decode(9, seeded),
    lambda s, seeded: s.prefill_sampled([9, 10]), lambda s, seeded: verify(s, [9, 10]),
    lambda s, seeded: verify_sampled(s, [9, 10], seeded),
], ids=["greedy", "sampled", "prefill", "verify", "verify sampled"])
def test_broken_logits_never_choose_a_token(
    session: OpenSession, runtime: Host, attempt: Any
) -> None:
    assert load(session, poisoned(export(session)))[0] == Status.OK
    state = export(session)
    with pytest.raises(AbiError, match="not finite") as error:
        attempt(session, runtime.sampling(seed=3))
    assert error.value.status == Status.RUNTIME_ERROR
    assert (session.position, export(session)) == (4, state)
    signal = runtime.ffi.new("struct skippy_token_signal *")
    refused(raw(session, "trim_session", 4), Status.RUNTIME_ERROR, "needs a reset")
    refused(raw(session, "session_last_token_signal", signal), INVALID)
    session.reset()
    session.prefill(PROMPT)
    assert greedy(session, 9, 4) == straight(session.model, PROMPT)[1]


def poisoned(data: bytes) -> bytes:
    """A state whose rows are all NaN, with a right digest."""
    rows = np.full((len(data) - 96) // 4, NAN, np.float32).tobytes()
    return data[:80] + hashlib.sha256(data[:80] + data[88:96] + rows).digest()[:8] + (
        data[88:96] + rows
    )


def test_only_the_sessions_that_hit_a_nan_need_a_reset(tiny_model: OpenModel) -> None:
    sessions = [tiny_model.session() for _ in range(4)]
    for session in sessions:
        session.prefill(PROMPT)
    broken, fine = sessions[:2], sessions[2:]
    for session in broken:
        assert load(session, poisoned(export(session)))[0] == Status.OK
    before = [export(s) for s in fine]
    status, message, out = batch(sessions, [9] * 4)
    refused((status, message), Status.RUNTIME_ERROR, "lane 0", "lane 1", "not finite")
    assert out == [-7] * 4
    assert [s.position for s in sessions] == [4] * 4
    assert [export(s) for s in fine] == before
    for session in broken:
        refused(batch([fine[0], session], [9, 9])[:2], Status.RUNTIME_ERROR, "needs a reset")
        with pytest.raises(AbiError, match="needs a reset"):
            session.prefill([1])
        session.reset()
        session.prefill(PROMPT)
    wanted = straight_ids(tiny_model, sessions[0])
    assert [greedy(s, 9, 4) for s in sessions] == [wanted] * 4
    for session in sessions:
        session.free()


def straight_ids(model: OpenModel, session: OpenSession) -> list[int]:
    found = greedy(session, 9, 4)
    trim(session, 4)
    return found


def test_poison_left_in_freed_cells_reaches_nobody(tiny_model: OpenModel) -> None:
    wanted = straight(tiny_model, PROMPT)
    first = tiny_model.session()
    first.prefill(list(range(60)))
    assert load(first, poisoned(export(first)))[0] == Status.OK
    beside = tiny_model.session()
    beside.prefill(PROMPT)
    assert (export(beside), greedy(beside, 9, 4)) == wanted
    first.free()
    after = tiny_model.session()
    after.prefill(PROMPT)
    assert (export(after), greedy(after, 9, 4)) == wanted
    after.free()
    beside.free()


def test_a_page_with_a_nan_is_only_felt_by_its_session(tiny_model: OpenModel) -> None:
    a, b = tiny_model.session(), tiny_model.session()
    a.prefill(PROMPT)
    desc, data = page(a, 0, 4)
    bad = bytearray(data)
    bad[96:100] = struct.pack("<f", NAN)
    bad[80:88] = hashlib.sha256(bytes(bad[:80] + bad[88:])).digest()[:8]
    assert load_page(b, desc, bytes(bad))[0] == Status.OK
    with pytest.raises(AbiError, match="not finite"):
        b.decode(9)
    assert greedy(a, 9, 4) == straight(tiny_model, PROMPT)[1]
    a.free()
    b.free()
