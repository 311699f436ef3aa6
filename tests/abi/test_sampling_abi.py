"""Guards choices over the C ABI: hostile numbers, broken logits, random state, chat, signals."""

import hashlib
import json
import math
import os
import random
import struct
import subprocess
import sys
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
    call,
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
GREEDY = "greedy"
# fields -> INVALID and the name in the message, or GREEDY: the best token, or None: any token.
TABLE: list[tuple[dict[str, Any], Any]] = [
    ({"logit_bias": [(-1, 1.0)]}, "logit_bias[0].token"),
    ({"logit_bias": [(5, 1.0), (N_VOCAB, 1.0)]}, "logit_bias[1].token"),
    ({"logit_bias": [(2**31 - 1, 1.0)]}, "logit_bias[0].token"),
    ({"logit_bias": [(-(2**31), 1.0)]}, "logit_bias[0].token"),
    ({"logit_bias": [(5, NAN)]}, "logit_bias[0].bias"),
    ({"logit_bias": [(5, INF)]}, "logit_bias[0].bias"),
    ({"logit_bias": [(5, INF), (6, INF)]}, "logit_bias[0].bias"),
    ({"logit_bias": [(5, 3e38), (5, 3e38)], "temperature": 0.0}, None),
    ({"logit_bias": [(5, -3e38), (5, -3e38)], "temperature": 0.0}, GREEDY),
    ({"logit_bias": [(5, 1.0)] * 256}, None),
    ({"top_k": N_VOCAB + 1, "temperature": 0.0}, GREEDY),
    ({"top_k": 2**31 - 1, "temperature": 0.0}, GREEDY),
    ({"top_k": -5, "temperature": 0.0}, GREEDY),
    ({"top_k": 1}, GREEDY),
    ({"top_p": 0.0}, None),
    ({"top_p": 1.0}, None),
    ({"top_p": NAN}, "top_p"),
    ({"top_p": INF}, "top_p"),
    ({"top_p": 1e-30}, GREEDY),
    ({"min_p": 1.0}, None),
    ({"min_p": 0.9999999}, None),
    ({"min_p": NAN}, "min_p"),
    ({"min_p": -INF}, "min_p"),
    ({"temperature": 1e-6}, GREEDY),
    ({"temperature": 1e-38}, GREEDY),
    ({"temperature": 1e-45}, GREEDY),
    ({"temperature": NAN}, "temperature"),
    ({"temperature": INF}, "temperature"),
    ({"temperature": -1.0}, GREEDY),
    ({"temperature": 3e38}, None),
    ({"repeat_penalty": NAN}, "repeat_penalty"),
    ({"repeat_penalty": -2.0}, "repeat_penalty"),
    ({"repeat_penalty": 0.0, "temperature": 0.0}, GREEDY),
    ({"repeat_penalty": 3e38, "temperature": 0.0}, None),
    ({"repeat_penalty": 1e-45, "temperature": 0.0}, None),
    ({"presence_penalty": NAN}, "presence_penalty"),
    ({"frequency_penalty": -INF}, "frequency_penalty"),
    ({"frequency_penalty": 3e38, "temperature": 0.0}, None),
    ({"penalty_last_n": -2}, "penalty_last_n"),
    ({"penalty_last_n": 2**31 - 1, "repeat_penalty": 1.1}, None),
    ({"seed": 0}, None),
    ({"seed": 2**32 - 1}, None),
    ({"version": 2}, "version"),
    ({"version": 2**32 - 1}, "version"),
    ({"version": 0, "temperature": NAN}, GREEDY),
    ({"flags": 0, "temperature": NAN, "repeat_penalty": -1.0}, GREEDY),
    ({"flags": 2**31, "temperature": 0.0}, GREEDY),
]


def step(session: OpenSession, token: int, sampling: Any) -> tuple[int, str | None, int]:
    """Status, message and token of `skippy_decode_step_sampled`."""
    null, out = session.host.ffi.NULL, session.host.ffi.new("int32_t *", -7)
    status, message = raw(session, "decode_step_sampled", token, sampling, null, 0, null, 0, null,
                          out)
    return status, message, int(out[0])


@pytest.fixture
def session(tiny_model: OpenModel) -> Iterator[OpenSession]:
    made = tiny_model.session()
    made.prefill(PROMPT)
    yield made
    made.free()


# Hostile numbers


@pytest.mark.parametrize(("fields", "wanted"), TABLE, ids=[str(f) for f, _ in TABLE])
def test_hostile_numbers(
    session: OpenSession, runtime: Host, fields: dict[str, Any], wanted: Any
) -> None:
    best = session.decode(9)
    trim(session, 4)
    before = export(session)
    config = runtime.sampling(**fields)
    status, message, token = step(session, 9, config)
    if wanted in (GREEDY, None):
        assert status == Status.OK, message
        assert 0 <= token < N_VOCAB
        assert wanted is None or token == best
        trim(session, 4)
    else:
        assert (status, token) == (INVALID, -7)
        assert wanted in (message or "")
        assert (session.position, export(session)) == (4, before)
    assert step(session, 9, runtime.ffi.NULL)[2] == best


@pytest.mark.parametrize("count", [257, 300, 2**31, 2**32 - 1])
def test_only_the_first_256_biases_count(session: OpenSession, runtime: Host, count: int) -> None:
    config = runtime.sampling(temperature=0.0, logit_bias=[(5, 1e4)] + [(6, 0.0)] * 255)
    config.logit_bias_count = count
    assert step(session, 9, config)[::2] == (Status.OK, 5)


def test_duplicates_add_up(session: OpenSession, runtime: Host) -> None:
    once = runtime.sampling(temperature=0.0, logit_bias=[(5, 2e4), (6, 3e4)])
    twice = runtime.sampling(temperature=0.0, logit_bias=[(5, 2e4), (6, 3e4), (5, 2e4)])
    assert [step(session, 9, config)[2] for config in (once, twice)] == [6, 5]


def test_the_best_ids_can_be_banned_one_after_another(
    session: OpenSession, runtime: Host, tiny_model: OpenModel
) -> None:
    """320 ids and 256 biases: some token is always left."""
    best = session.decode(9)
    trim(session, 4)
    before = export(session)
    banned: list[tuple[int, float]] = []
    for _ in range(256):
        banned.append((best, -INF))
        config = runtime.sampling(temperature=0.0, logit_bias=banned)
        status, message, token = step(session, 9, config)
        assert status == Status.OK, message
        assert token not in {t for t, _ in banned}
        best = token
        trim(session, 4)
    assert export(session) == before
    assert greedy(session, 9, 4) == straight(tiny_model, PROMPT)[1]


def test_a_null_struct_is_greedy_and_a_bad_one_is_refused(session: OpenSession) -> None:
    ffi = session.host.ffi
    for number in (8, 2**47, 2**64 - 8):
        place = ffi.cast("struct skippy_sampling_config *", number)
        assert step(session, 9, place)[0] == INVALID
    assert session.position == 4


def test_random_structs_never_crash(session: OpenSession) -> None:
    ffi, rng = session.host.ffi, random.Random(11)
    n_bytes = ffi.sizeof("struct skippy_sampling_config")
    seen = set()
    for _ in range(300):
        config = ffi.new("struct skippy_sampling_config *")
        ffi.buffer(config)[:] = rng.randbytes(n_bytes)
        config.version = rng.choice([0, 1, config.version])
        config.logit_bias_count = rng.choice([0, config.logit_bias_count])
        status, _, token = step(session, 9, config)
        seen.add(status)
        assert status in (Status.OK, INVALID, Status.RUNTIME_ERROR)
        assert (status == Status.OK) == (token != -7)
        trim(session, 4)
    assert seen >= {Status.OK, INVALID}


def test_the_table_leaves_standard_error_empty(
    built_libraries: Any, tiny_path: Path, tmp_path: Path
) -> None:
    """numpy would print its warnings there."""
    script = tmp_path / "table.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from skippy_abi.client import Host, OpenModel\n"
        "from tests.abi.test_sampling_abi import TABLE, step\n"
        "host = Host([Path(sys.argv[2]), Path(sys.argv[3])])\n"
        "model = OpenModel(host, Path(sys.argv[4]), ctx_size=256)\n"
        "session = model.session()\n"
        "for fields, _ in TABLE:\n"
        "    step(session, 9, host.sampling(**fields))\n"
        "model.free()\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, str(script), root, *map(str, built_libraries[::-1]), str(tiny_path)],
        capture_output=True, text=True, check=False, env=dict(os.environ), timeout=120,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


# Broken logits


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


# Random state


def drawn(session: OpenSession, sampling: Any, n: int = 10) -> list[int]:
    token, found = 9, []
    for _ in range(n):
        token = session.decode(token, sampling)
        found.append(token)
    return found


def test_a_seed_repeats_and_seed_zero_does_not(tiny_model: OpenModel, runtime: Host) -> None:
    runs = []
    for seed in (7, 7, 8, 0, 0):
        session = tiny_model.session()
        session.prefill(PROMPT)
        runs.append(drawn(session, runtime.sampling(seed=seed), 16))
        session.free()
    assert runs[0] == runs[1]
    assert len({tuple(r) for r in runs[1:]}) == 4


def test_an_equal_config_continues_and_another_starts_again(
    tiny_model: OpenModel, runtime: Host
) -> None:
    session = tiny_model.session()
    session.prefill(PROMPT)
    one = drawn(session, runtime.sampling(seed=7), 12)
    session.reset()
    session.prefill(PROMPT)
    noise = runtime.sampling(seed=7)
    found = drawn(session, runtime.sampling(seed=7), 6)
    # What lies behind the used bias entries is no part of the config.
    noise.logit_bias[5].token = 77
    token = found[-1]
    for _ in range(6):
        token = session.decode(token, noise)
        found.append(token)
    assert found == one
    session.free()


def test_a_refused_call_leaves_the_random_state_alone(
    tiny_model: OpenModel, runtime: Host
) -> None:
    sampling, other = runtime.sampling(seed=7), runtime.sampling(seed=8, top_k=5)
    session, partner = tiny_model.session(), tiny_model.session()
    session.prefill(PROMPT)
    wanted = drawn(session, sampling, 12)
    session.reset()
    session.prefill(PROMPT)
    token, found = 9, []
    bad = runtime.sampling(temperature=NAN)
    for _ in range(12):
        token = session.decode(token, sampling)
        found.append(token)
        assert batch([session, partner], [1, N_VOCAB], [other, None])[0] == INVALID
        assert batch([session, partner], [1, 1], [sampling, bad])[0] == INVALID
        assert batch([session, partner], [1, 1], [other, bad])[0] == INVALID
        with pytest.raises(AbiError):
            verify_sampled(session, [1, 2, N_VOCAB], other)
    assert found == wanted
    assert partner.position == 0
    session.free()
    partner.free()


def test_sample_current_does_not_advance(session: OpenSession, runtime: Host) -> None:
    ffi, out = runtime.ffi, runtime.ffi.new("int32_t *")
    refused(raw(session, "session_sample_current", ffi.NULL, out), Status.RUNTIME_ERROR)
    token = session.decode(9)
    for _ in range(3):
        call(session, "session_sample_current", ffi.NULL, out)
        assert (out[0], session.position) == (token, 5)
    refused(raw(session, "session_sample_current", ffi.NULL, ffi.NULL), INVALID)
    trim(session, 4)
    refused(raw(session, "session_sample_current", ffi.NULL, out), Status.RUNTIME_ERROR)


# Chat sampling


def test_chat_sampling_overrides_until_reset_or_trim(session: OpenSession, runtime: Host) -> None:
    ban = session.decode(9)
    trim(session, 4)
    chat = runtime.sampling(temperature=0.0, logit_bias=[(ban, -INF)])
    session.configure_chat("{}", 4, chat)
    assert session.decode(9) != ban
    trim(session, 5)
    session.configure_chat("{}", 4, chat)
    trim(session, 4)
    assert session.decode(9) == ban
    trim(session, 4)
    session.configure_chat("{}", 4, chat)
    session.reset()
    session.prefill(PROMPT)
    assert session.decode(9) == ban


@pytest.mark.parametrize("metadata", [
    None, b"", b"no json", b"[1]", b"null", b"5", b"\xff\xfe{}", b'{"grammar":5}', b"{" * 5000,
    b'{"a":' + b"9" * 5000 + b"}",
])
def test_metadata_that_is_none_forgets_chat_sampling(
    session: OpenSession, runtime: Host, metadata: bytes | None
) -> None:
    ban = session.decode(9)
    trim(session, 4)
    session.configure_chat("{}", 4, runtime.sampling(temperature=0.0, logit_bias=[(ban, -INF)]))
    given = runtime.ffi.NULL if metadata is None else runtime.ffi.new("char[]", metadata)
    call(session, "session_configure_chat_sampling", runtime.ffi.NULL, given, 2**64 - 1)
    assert session.decode(9) == ban


def test_a_bad_config_of_a_chat_changes_nothing(session: OpenSession, runtime: Host) -> None:
    ban = session.decode(9)
    trim(session, 4)
    session.configure_chat("{}", 4, runtime.sampling(temperature=0.0, logit_bias=[(ban, -INF)]))
    with pytest.raises(AbiError, match="temperature") as error:
        session.configure_chat("{}", 4, runtime.sampling(temperature=NAN))
    assert error.value.status == INVALID
    assert session.decode(9) != ban


def test_exact_seeds_of_our_own_metadata(tiny_model: OpenModel, runtime: Host) -> None:
    runs = []
    for seed in (2**64 - 1, 2**64 - 1, 2**63):
        session = tiny_model.session()
        session.prefill(PROMPT)
        metadata = json.dumps({"sampler": {"seed": str(seed), "temperature": 1.5}})
        session.configure_chat(metadata, 4, runtime.sampling(seed=1))
        runs.append(drawn(session, None))
        session.free()
    assert runs[0] == runs[1] != runs[2]


# Signals


def logits_of(session: OpenSession) -> np.ndarray:
    """The engine's last row: the library shares this process's Python."""
    from engine.session import Session
    from skippy_abi import handles
    from skippy_abi.cffi_module import ffi

    number = int(session.host.ffi.cast("uintptr_t", session.handle))
    inner = handles.take(ffi.cast("struct skippy_session *", number), Session, "session")
    return np.asarray(inner.last_row, np.float64)


def expected_signal(row: np.ndarray) -> dict[str, float]:
    log_p = row - row.max()
    log_p = log_p - math.log(math.fsum(np.exp(log_p)))
    first, second = np.argsort(-row, kind="stable")[:2]
    entropy = -math.fsum(np.exp(log_p) * log_p)
    return {"entropy": entropy, "top_logprob": log_p[first], "second_logprob": log_p[second],
            "margin": log_p[first] - log_p[second], "top_token": first, "second_token": second}


def test_signals_and_windows_are_the_arithmetic(session: OpenSession) -> None:
    ffi = session.host.ffi
    signal = ffi.new("struct skippy_token_signal *")
    window = ffi.new("struct skippy_generation_signal_window *")
    refused(raw(session, "session_signal_window", 4, window), INVALID, "0 signals")
    token, kept, fed = 9, [], [*PROMPT]
    for n in range(1, 8):
        fed.append(token)
        token = session.decode(token if n != 3 else fed[-2])
        fed[-1] = fed[-1] if n != 3 else fed[-2]
        kept.append(expected_signal(logits_of(session)))
        for size in (1, 3, 16, 2**32 - 1):
            call(session, "session_signal_window", size, window)
            last = kept[-size:]
            entropies = [s["entropy"] for s in last]
            margins = [s["margin"] for s in last]
            found = [window.token_count, window.mean_entropy, window.max_entropy,
                     window.mean_margin, window.min_margin, window.high_entropy_count,
                     window.repetition_count]
            tail = fed[-size:]
            wanted = [len(last), np.mean(entropies), max(entropies), np.mean(margins),
                      min(margins), sum(e > 4.0 for e in entropies),
                      sum(a == b for a, b in zip(tail, tail[1:], strict=False))]
            assert found == pytest.approx(wanted, rel=1e-5)
    call(session, "session_last_token_signal", signal)
    for name, value in kept[-1].items():
        assert getattr(signal, name) == pytest.approx(value, rel=1e-5), name
    refused(raw(session, "session_signal_window", 0, window), INVALID)


def test_a_signal_comes_after_any_step_with_logits(session: OpenSession) -> None:
    ffi = session.host.ffi
    signal = ffi.new("struct skippy_token_signal *")
    refused(raw(session, "session_last_token_signal", signal), INVALID)
    token = session.prefill_sampled([5, 6])
    call(session, "session_last_token_signal", signal)
    assert signal.top_token == token
    verify(session, [1, 2])
    call(session, "session_last_token_signal", signal)
    assert signal.top_token == expected_signal(logits_of(session))["top_token"]
    session.reset()
    refused(raw(session, "session_last_token_signal", signal), INVALID)


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
