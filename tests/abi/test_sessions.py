"""Guards sessions over the C ABI: lanes, room, positions, bad ids, external decode.

Long because each rule of the life of a session has its test here.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel, OpenSession
from tests.abi.steps import (
    batch,
    call,
    export,
    greedy,
    ids,
    raw,
    refused,
    restore,
    save,
    verify,
    verify_sampled,
)

PROMPT = [10, 20, 30, 40, 50, 60]
N_VOCAB = 320
BAD_IDS = [-1, N_VOCAB, 2**31 - 1, -(2**31)]


@pytest.fixture
def small(runtime: Host, tiny_path: Path) -> Iterator[OpenModel]:
    """One lane of 32 cells."""
    model = OpenModel(runtime, tiny_path, lane_count=1, ctx_size=32, n_batch=64)
    yield model
    model.free()


def attempt(session: OpenSession, tokens: list[int]) -> tuple[int, str | None]:
    null = session.host.ffi.NULL
    return raw(session, "prefill_chunk", ids(session, tokens), len(tokens), null, 0, null, 0, null)


# Lanes


def test_lanes_are_claimed_lowest_first_and_given_back(tiny_model: OpenModel) -> None:
    sessions = [tiny_model.session() for _ in range(4)]
    with pytest.raises(AbiError, match="4 lanes") as error:
        tiny_model.session()
    assert error.value.status == Status.RUNTIME_ERROR
    sessions[1].free()
    again = tiny_model.session()
    assert again.position == 0
    with pytest.raises(AbiError):
        tiny_model.session()
    for session in (*sessions[:1], *sessions[2:], again):
        session.free()


@pytest.mark.parametrize(("lanes", "served"), [(0, 1), (-3, 1), (1, 1), (16, 16), (256, 256)])
def test_lane_counts(runtime: Host, tiny_path: Path, lanes: int, served: int) -> None:
    model = OpenModel(runtime, tiny_path, lane_count=lanes, ctx_size=16)
    for _ in range(served):
        model.session()
    with pytest.raises(AbiError):
        model.session()
    model.free()


@pytest.mark.parametrize(
    ("ctx", "n_batch", "effective"),
    [(64, 16, 16), (64, 0, 64), (64, -1, 64), (64, 2048, 64), (0, 0, 512), (-5, 100, 100)],
)
def test_batch_size_is_the_effective_one(
    runtime: Host, tiny_path: Path, ctx: int, n_batch: int, effective: int
) -> None:
    model = OpenModel(runtime, tiny_path, ctx_size=ctx, n_batch=n_batch)
    session = model.session()
    assert runtime.symbol("skippy_session_batch_size")(session.handle) == effective
    model.free()


def test_an_absent_config_is_512_cells_and_one_lane(runtime: Host, tiny_path: Path) -> None:
    out = runtime.ffi.new("struct skippy_model **")
    runtime.call("skippy_model_open", runtime.text(str(tiny_path)), runtime.ffi.NULL, out)
    session = runtime.ffi.new("struct skippy_session **")
    runtime.call("skippy_session_create", out[0], session)
    assert runtime.symbol("skippy_session_batch_size")(session[0]) == 512
    assert runtime.raw("skippy_session_create", out[0], session)[0] == Status.RUNTIME_ERROR
    runtime.call("skippy_model_free", out[0])


@pytest.mark.parametrize("lanes", [257, 2**31 - 1])
def test_absurd_lane_counts_are_refused(runtime: Host, tiny_path: Path, lanes: int) -> None:
    with pytest.raises(AbiError, match=f"lane_count {lanes}") as error:
        OpenModel(runtime, tiny_path, lane_count=lanes)
    assert error.value.status == Status.INVALID_ARGUMENT


def test_an_absurd_context_is_refused_with_the_arithmetic(runtime: Host, tiny_path: Path) -> None:
    with pytest.raises(AbiError, match=r"needs .* GiB .* free on host") as error:
        OpenModel(runtime, tiny_path, ctx_size=2**31 - 1)
    assert error.value.status == Status.RUNTIME_ERROR


# Room


def test_the_last_position_is_reached_and_none_beyond(small: OpenModel) -> None:
    session = small.session()
    session.prefill(range(31))
    token = session.decode(31)
    assert session.position == 32
    state = export(session)
    for outcome in (attempt(session, [token]), batch([session], [token])[:2]):
        refused(outcome, Status.RUNTIME_ERROR, "32 cells used", "1 more wanted", "32 in total")
    assert (session.position, export(session)) == (32, state)
    session.reset()
    session.prefill([1, 2, 3])
    assert export(session) == straight_bytes(small, session, [1, 2, 3])
    session.free()


def straight_bytes(model: OpenModel, session: OpenSession, tokens: list[int]) -> bytes:
    """On a single lane a fresh session is the same one, reset."""
    session.reset()
    session.prefill(tokens)
    return export(session)


@pytest.mark.parametrize("pieces", [[33], [16, 17], [32, 1], [31, 2]])
def test_one_token_too_many_is_refused_whole(small: OpenModel, pieces: list[int]) -> None:
    session = small.session()
    for n in pieces[:-1]:
        session.prefill(range(n))
    before = session.position, export(session)
    refused(attempt(session, list(range(pieces[-1]))), Status.RUNTIME_ERROR, "32 in total")
    assert (session.position, export(session)) == before
    if session.position < 32:
        session.prefill(range(32 - session.position))
    assert session.position == 32
    session.free()


def test_a_verify_that_does_not_fit_is_refused_whole(small: OpenModel) -> None:
    session = small.session()
    session.prefill(range(30))
    state = export(session)
    for function in (verify, verify_sampled):
        with pytest.raises(AbiError, match="30 cells used, 4 more wanted, 32 in total"):
            function(session, [1, 2, 3, 4])
        assert (session.position, export(session)) == (30, state)
    assert len(verify(session, [1, 2])) == 2
    session.free()


def test_sessions_share_the_cells_and_a_batch_is_all_or_none(
    runtime: Host, tiny_path: Path
) -> None:
    model = OpenModel(runtime, tiny_path, lane_count=2, ctx_size=32)
    a, b = model.session(), model.session()
    a.prefill(range(20))
    b.prefill(range(11))
    before = export(a), export(b)
    refused(batch([a, b], [1, 2])[:2], Status.RUNTIME_ERROR, "31 cells used", "2 more wanted")
    assert (a.position, b.position, export(a), export(b)) == (20, 11, *before)
    assert batch([a], [1])[0] == Status.OK
    refused(attempt(b, [1]), Status.RUNTIME_ERROR)
    a.free()
    b.prefill(range(21))
    assert b.position == 32
    model.free()


@pytest.mark.parametrize("ctx", [1, 15, 16, 17, 31, 33])
def test_every_context_length_is_used_to_the_last_cell(
    runtime: Host, tiny_path: Path, ctx: int
) -> None:
    model = OpenModel(runtime, tiny_path, lane_count=2, ctx_size=ctx)
    a, b = model.session(), model.session()
    for position in range(ctx):
        (a if position % 3 else b).prefill([position])
    assert a.position + b.position == ctx
    for session in (a, b):
        refused(attempt(session, [1]), Status.RUNTIME_ERROR, f"{ctx} in total")
    model.free()


# Position


def test_position_counts_what_was_fed(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill(PROMPT)
    assert session.position == 6
    token = session.decode(7)
    assert session.position == 7
    session.decode(token)
    verify(session, [1, 2, 3])
    assert session.position == 11
    session.reset()
    assert session.position == 0
    session.free()


def test_set_position_is_bookkeeping(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill(PROMPT)
    state = export(session)
    refused(raw(session, "session_set_position", -1), Status.INVALID_ARGUMENT, "-1")
    for position in (100, 3, 0, 2**31 - 1, 6):
        call(session, "session_set_position", position)
        assert session.position == position
        assert export(session) == state
    assert greedy(session, 9, 3) == greedy_after(tiny_model, PROMPT)
    session.free()


def greedy_after(model: OpenModel, prompt: list[int], n: int = 3) -> list[int]:
    other = model.session()
    other.prefill(prompt)
    found = greedy(other, 9, n)
    other.free()
    return found


def test_a_position_ahead_of_its_cells_cannot_run(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill(PROMPT)
    call(session, "session_set_position", 9)
    refused(attempt(session, [1]), Status.RUNTIME_ERROR, "position 9", "6")
    assert session.position == 9
    call(session, "session_set_position", 6)
    assert greedy(session, 9, 3) == greedy_after(tiny_model, PROMPT)
    session.free()


def test_a_step_behind_a_lowered_position_replaces_what_was_there(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    session.prefill([*PROMPT, 1, 2, 3])
    call(session, "session_set_position", 6)
    assert greedy(session, 9, 3) == greedy_after(tiny_model, PROMPT)
    session.free()


def test_a_refused_step_behind_a_lowered_position_changes_nothing(
    runtime: Host, tiny_path: Path
) -> None:
    model = OpenModel(runtime, tiny_path, lane_count=2, ctx_size=32)
    a, b = model.session(), model.session()
    a.prefill(PROMPT)
    state = export(a)
    call(a, "session_set_position", 2)
    b.prefill(range(26))
    refused(batch([a, b], [1, N_VOCAB])[:2], Status.INVALID_ARGUMENT)
    refused(attempt(a, list(range(9))), Status.RUNTIME_ERROR)
    call(a, "session_set_position", 6)
    assert export(a) == state
    model.free()


# Bad ids


@pytest.mark.parametrize("bad", BAD_IDS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_bad_ids_are_named_and_move_nothing(tiny_model: OpenModel, bad: int, place: int) -> None:
    session = tiny_model.session()
    session.prefill(PROMPT)
    save(session, 8, 6)
    state = export(session)
    tokens = [1, 2, 3]
    tokens[place] = bad
    for function in (session.prefill, session.prefill_sampled, lambda t: verify(session, t),
                     lambda t: verify_sampled(session, t), lambda t: restore(session, 8, t)):
        with pytest.raises(AbiError, match=f"{bad} at index {place}") as error:
            function(tokens)
        assert error.value.status == Status.INVALID_ARGUMENT
        assert (session.position, export(session)) == (6, state)
    assert greedy(session, 9, 3) == greedy_after(tiny_model, PROMPT)
    session.free()


@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_bad_id_of_one_request_stops_the_batch(tiny_model: OpenModel, bad: int) -> None:
    a, b = tiny_model.session(), tiny_model.session()
    a.prefill(PROMPT)
    b.prefill(PROMPT)
    for tokens in ([9, bad], [bad, 9]):
        status, message, out = batch([a, b], tokens)
        refused((status, message), Status.INVALID_ARGUMENT, str(bad))
        assert out == [-7, -7]
    refused(raw(a, "decode_step_sampled", bad, *[a.host.ffi.NULL] * 2, 0, a.host.ffi.NULL, 0,
                *[a.host.ffi.NULL] * 2), Status.INVALID_ARGUMENT, str(bad))
    assert (a.position, b.position) == (6, 6)
    assert greedy(a, 9, 3) == greedy(b, 9, 3) == greedy_after(tiny_model, PROMPT)
    a.free()
    b.free()


@pytest.mark.parametrize("bad", BAD_IDS)
def test_bad_ids_in_text_calls(tiny_model: OpenModel, bad: int) -> None:
    assert not tiny_model.is_eog(bad)
    for tokens in ([bad], [1, bad], [bad, 1, 2]):
        with pytest.raises(AbiError, match=str(bad)) as error:
            tiny_model.detokenize(tokens)
        assert error.value.status == Status.INVALID_ARGUMENT


def test_a_session_in_a_batch_twice_is_refused(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    refused(batch([session, session], [1, 2])[:2], Status.INVALID_ARGUMENT, "twice")
    assert session.position == 0
    session.free()


def test_a_batch_over_two_models_is_refused(
    tiny_model: OpenModel, runtime: Host, tiny_path: Path
) -> None:
    other = OpenModel(runtime, tiny_path, ctx_size=32)
    sessions = [tiny_model.session(), other.session()]
    refused(batch(sessions, [1, 2])[:2], Status.INVALID_ARGUMENT, "another model")
    assert [s.position for s in sessions] == [0, 0]
    other.free()
    sessions[0].free()


# External decode


def test_external_decode_brackets(tiny_model: OpenModel) -> None:
    a, b = tiny_model.session(), tiny_model.session()
    call(a, "session_begin_external_decode")
    call(a, "session_begin_external_decode")
    refused(raw(b, "session_begin_external_decode"), Status.RUNTIME_ERROR, "another session")
    call(b, "session_end_external_decode")
    refused(raw(b, "session_begin_external_decode"), Status.RUNTIME_ERROR)
    call(a, "session_end_external_decode")
    call(a, "session_end_external_decode")
    call(b, "session_begin_external_decode")
    b.free()
    call(a, "session_begin_external_decode")
    call(a, "session_end_external_decode")
    a.free()


def test_batch_refusals_name_zero_requests(tiny_model: OpenModel) -> None:
    session = tiny_model.session()
    null = tiny_model.host.ffi.NULL
    status = tiny_model.host.raw("skippy_decode_batch_sampled", null, null, null, 0, null, 0)
    refused(status, Status.INVALID_ARGUMENT, "at least 1")
    refused(attempt(session, []), Status.INVALID_ARGUMENT, "at least 1")
    session.free()
