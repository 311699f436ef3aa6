"""Owns short spellings of session calls for tests: states, spans, prefixes, greedy runs."""

from collections.abc import Sequence
from typing import Any

from engine.errors import Status
from skippy_abi.client import OpenModel, OpenSession

N_LAYERS = 2
PENALISED = {"seed": 5, "repeat_penalty": 1.5, "presence_penalty": 0.5, "penalty_last_n": -1}


def raw(session: OpenSession, name: str, *args: Any) -> tuple[int, str | None]:
    """Status and message of a `skippy_` call on the session."""
    return session.host.raw(f"skippy_{name}", session.handle, *args)


def call(session: OpenSession, name: str, *args: Any) -> None:
    """A `skippy_` call on the session that must answer OK."""
    session.host.call(f"skippy_{name}", session.handle, *args)


def ids(session: OpenSession, tokens: Sequence[int]) -> Any:
    return session.host.ffi.new("int32_t[]", list(tokens))


def export(session: OpenSession) -> bytes:
    """The exported state."""
    sized = session.host.sized("skippy_export_state", session.handle, 0, N_LAYERS)
    return bytes(sized)


def load(session: OpenSession, data: bytes, name: str = "import_state") -> tuple[int, str | None]:
    """Import a state."""
    source = session.host.ffi.new("char[]", data)
    return raw(session, name, 0, N_LAYERS, source, len(data))


def page(session: OpenSession, start: int, count: int, layers: tuple[int, int] = (0, N_LAYERS),
         ) -> tuple[Any, bytes]:
    """Descriptor and bytes of a KV page."""
    ffi = session.host.ffi
    desc, counter = ffi.new("struct skippy_kv_page_desc *"), ffi.new("size_t *")
    args = [*layers, start, count, desc]
    status, message = raw(session, "export_kv_page", *args, ffi.NULL, 0, counter)
    assert status == Status.BUFFER_TOO_SMALL, message
    room = ffi.new("char[]", counter[0])
    call(session, "export_kv_page", *args, room, counter[0], counter)
    return desc, bytes(ffi.buffer(room, counter[0]))


def load_page(session: OpenSession, desc: Any, data: bytes) -> tuple[int, str | None]:
    """Import a KV page."""
    return raw(session, "import_kv_page", desc, session.host.ffi.new("char[]", data), len(data))


def verify(session: OpenSession, tokens: Sequence[int]) -> list[int]:
    """Greedy next token after each."""
    ffi = session.host.ffi
    out, counter = ffi.new("int32_t[]", len(tokens)), ffi.new("size_t *")
    call(session, "verify_tokens", ids(session, tokens), len(tokens), out, len(tokens), counter)
    assert counter[0] == len(tokens)
    return list(out)


def verify_sampled(session: OpenSession, tokens: Sequence[int], sampling: Any = None) -> list[int]:
    """The frame form with a sampler: as many tokens as it looked at."""
    ffi, null = session.host.ffi, session.host.ffi.NULL
    out, counter = ffi.new("int32_t[]", len(tokens)), ffi.new("size_t *")
    call(session, "verify_tokens_frame_sampled", ids(session, tokens), len(tokens),
         sampling or null, null, null, null, null, 0, null, out, len(tokens), counter, 0, null)
    return list(out)[: counter[0]]


def trim(session: OpenSession, n: int) -> None:
    call(session, "trim_session", n)


def save(session: OpenSession, sequence_id: int, n: int) -> None:
    call(session, "session_save_prefix", sequence_id, n)


def restore(session: OpenSession, sequence_id: int, tokens: Sequence[int]) -> None:
    call(session, "session_restore_prefix", sequence_id, ids(session, tokens), len(tokens))


def made_from_prefix(model: OpenModel, sequence_id: int, tokens: list[int]) -> OpenSession:
    out = model.host.ffi.new("struct skippy_session **")
    tokens_c = model.host.ffi.new("int32_t[]", tokens)
    model.host.call("skippy_session_create_from_resident_prefix", model.handle, sequence_id,
                    tokens_c, len(tokens), out)
    return OpenSession(model, out[0])


def batch(
    sessions: Sequence[OpenSession], tokens: Sequence[int], configs: Sequence[Any] | None = None
) -> tuple[int, str | None, list[int]]:
    """Status, message and tokens of one batch decode."""
    host, n = sessions[0].host, len(sessions)
    ffi = host.ffi
    out = ffi.new("int32_t[]", [-7] * n)
    chosen = ffi.NULL
    if configs is not None:
        chosen = ffi.new("struct skippy_sampling_config *[]", [c or ffi.NULL for c in configs])
    status, message = host.raw(
        "skippy_decode_batch_sampled", ffi.new("struct skippy_session *[]",
        [s.handle for s in sessions]), ffi.new("int32_t[]", list(tokens)), chosen, n, out, n,
    )
    return status, message, list(out)


def greedy(session: OpenSession, token: int, n: int) -> list[int]:
    """Feed `token` and then each answer: n greedy tokens."""
    return decoded(session, token, n, None)


def decoded(session: OpenSession, token: int, n: int, sampling: Any) -> list[int]:
    """Feed `token` and then each answer: n tokens of a sampler."""
    found = []
    for _ in range(n):
        token = session.decode(token, sampling)
        found.append(token)
    return found


def with_and_without_a_span(
    model: OpenModel, fed: Sequence[int], n_right: int, n_vocab: int
) -> tuple[OpenSession, OpenSession]:
    """Two sessions with the same 12 penalised tokens: fed one by one, and behind a wrong draft.

    The draft is right for `n_right` of its four tokens, then wrong, and trimmed to what is right.
    """
    sampling = model.host.sampling(**PENALISED)
    plain, spanned = model.session(), model.session()
    plain.prefill(fed)
    spanned.prefill(fed)
    wanted, found = decoded(plain, 9, 12, sampling), decoded(spanned, 9, 3, sampling)
    right, wrong = wanted[3 : 3 + n_right], wanted[3 + n_right : 7]
    draft = [found[-1], *right, *[(token + 1) % n_vocab for token in wrong]]
    seen = verify_sampled(spanned, draft, sampling)
    assert seen == wanted[3 : 4 + n_right]
    assert spanned.position == len(fed) + 3 + len(draft)
    trim(spanned, len(fed) + 3 + len(seen))
    found += seen
    found += decoded(spanned, found[-1], 12 - len(found), sampling)
    assert found == wanted
    return plain, spanned


def straight(model: OpenModel, tokens: Sequence[int]) -> tuple[bytes, list[int]]:
    """What a fresh session holds after these tokens, and 4 greedy tokens behind token 9."""
    session = model.session()
    if tokens:
        session.prefill(tokens)
    state = export(session)
    found = greedy(session, 9, 4)
    session.free()
    return state, found


def refused(outcome: tuple[int, str | None], status: Status, *words: str) -> None:
    """Assert a status, and words of its message."""
    assert outcome[0] == status, outcome
    for word in words:
        assert word in (outcome[1] or ""), outcome
