"""Guards sessions over the C ABI: lanes, room, positions, batches, bad ids, equal forms of a step."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel, OpenSession
from tests.abi.steps import (
    batch,
    call,
    export,
    greedy,
    ids,
    load,
    raw,
    refused,
    restore,
    save,
    straight,
    trim,
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


# Equal forms


def decode_forms(session: OpenSession, sampling: Any) -> dict[str, Any]:
    """Every way to feed one token and get the next."""
    null, out = session.host.ffi.NULL, session.host.ffi.new("int32_t *")
    draft = session.host.ffi.new("struct skippy_native_mtp_draft *")
    chosen = sampling or null
    frame = [null, null, null, null, 0, null]

    def answer(name: str, *args: Any) -> int:
        call(session, name, *args)
        return int(out[0])

    def frame_batch(token: int) -> int:
        ffi = session.host.ffi
        session.host.call(
            "skippy_decode_step_frame_batch_sampled",
            ffi.new("struct skippy_session *[]", [session.handle]), ffi.new("int32_t[]", [token]),
            ffi.new("struct skippy_sampling_config *[]", [chosen]), null, null, null, null, null,
            null, out, 1, 1,
        )
        return int(out[0])

    return {
        "step": lambda t: answer("decode_step_sampled", t, chosen, null, 0, null, 0, null, out),
        "batch": lambda t: batch([session], [t], [sampling])[2][0],
        "frame": lambda t: answer("decode_step_frame_sampled", t, chosen, *frame, out),
        "frame batch": frame_batch,
        "mtp": lambda t: answer("decode_step_sampled_mtp", t, chosen, out, 4, draft),
        "frame mtp": lambda t: answer(
            "decode_step_frame_sampled_mtp", t, chosen, *frame, out, 4, draft
        ),
        "prefill": lambda t: session.prefill_sampled([t], sampling),
        "verify": lambda t: verify_sampled(session, [t], sampling)[0],
    }


@pytest.mark.parametrize("fields", [None, {"seed": 7}, {"seed": 3, "top_k": 20, "top_p": 0.9,
                                   "repeat_penalty": 1.3, "penalty_last_n": 16}])
def test_all_decode_forms_are_equal(
    tiny_model: OpenModel, runtime: Host, tiny_path: Path, fields: dict[str, Any] | None
) -> None:
    found = {}
    names = decode_forms(tiny_model.session(), None).keys()
    for name in names:
        sampling = None if fields is None else runtime.sampling(**fields)
        model = OpenModel(runtime, tiny_path, ctx_size=64)
        session = model.session()
        session.prefill(PROMPT)
        token, tokens = 9, []
        for _ in range(12):
            token = decode_forms(session, sampling)[name](token)
            tokens.append(token)
        found[name] = (tokens, session.position, export(session))
        model.free()
    assert len(names) == 8
    assert len({repr(v) for v in found.values()}) == 1
    assert found["step"][1] == 18


def prefill_forms(session: OpenSession) -> dict[str, Any]:
    null = session.host.ffi.NULL
    frame = [null, null, null, null, 0, null]

    def plain(name: str, *tail: Any) -> Any:
        return lambda t: call(session, name, ids(session, t), len(t), *tail)

    return {
        "chunk": session.prefill,
        "frame": plain("prefill_chunk_frame", *frame),
        "positions": plain("prefill_chunk_frame_with_positions", null, 0, *frame),
        "sampled": session.prefill_sampled,
        "sampled positions": plain(
            "prefill_chunk_frame_sampled_with_positions", null, 0, null, *frame, null
        ),
        "verify": lambda t: verify(session, t),
        "decode": lambda t: [session.decode(token) for token in t],
    }


def test_all_prefill_forms_are_equal(tiny_model: OpenModel) -> None:
    wanted = straight(tiny_model, PROMPT)
    for name in prefill_forms(tiny_model.session()):
        session = tiny_model.session()
        prefill_forms(session)[name](PROMPT)
        assert session.position == len(PROMPT)
        assert (export(session), greedy(session, 9, 4)) == wanted, name
        session.free()


@pytest.mark.parametrize("length", [1, 2, 5, 16, 17, 33, 64, 127])
def test_pieces_change_no_bit(tiny_model: OpenModel, length: int) -> None:
    rng = random.Random(length)
    tokens = [rng.randrange(N_VOCAB) for _ in range(length)]
    wanted = straight(tiny_model, tokens)
    splits = [[1] * length, *([n, length - n] for n in sorted({1, length // 2, length - 1}))]
    for split in splits:
        session = tiny_model.session()
        start = 0
        for n in filter(None, split):
            session.prefill(tokens[start : start + n])
            start += n
        assert (export(session), greedy(session, 9, 4)) == wanted, split
        session.free()


def test_companions_in_a_batch_change_no_bit(tiny_model: OpenModel) -> None:
    rng = random.Random(5)
    lengths = [1, 3, 17, 33]
    prompts = [[rng.randrange(N_VOCAB) for _ in range(n)] for n in lengths]
    solo = []
    for prompt in prompts:
        session = tiny_model.session()
        session.prefill(prompt)
        solo.append((greedy(session, 9, 30), export(session)))
        session.free()
    sessions = [tiny_model.session() for _ in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        session.prefill(prompt)
    fed = [[9] for _ in prompts]
    while any(len(tokens) <= 30 for tokens in fed):
        open_ = [i for i, tokens in enumerate(fed) if len(tokens) <= 30]
        members = rng.sample(open_, rng.randint(1, len(open_)))
        status, message, out = batch([sessions[i] for i in members], [fed[i][-1] for i in members])
        assert status == Status.OK, message
        for i, token in zip(members, out, strict=True):
            fed[i].append(token)
    for i, session in enumerate(sessions):
        assert (fed[i][1:], export(session)) == solo[i]
        session.free()


def test_frames_of_a_whole_model_are_empty_and_labelled(runtime: Host, tiny_path: Path) -> None:
    model = OpenModel(runtime, tiny_path, ctx_size=32, stage_index=3)
    session, ffi = model.session(), runtime.ffi
    desc = ffi.new("struct skippy_activation_desc *")
    counter, null = ffi.new("size_t *", 9), ffi.NULL
    call(session, "prefill_chunk_frame", ids(session, PROMPT), 6, null, null, desc, null, 0,
         counter)
    found = (desc.version, desc.dtype, desc.layout, desc.producer_stage_index, desc.layer_start,
             desc.layer_end, desc.token_count, desc.payload_bytes, counter[0])
    assert found == (1, 0, 0, 3, 0, 2, 6, 0, 0)
    given = ffi.new("struct skippy_activation_desc *", {"version": 1, "payload_bytes": 192})
    status = raw(session, "prefill_chunk_frame", ids(session, PROMPT), 6, given, null, desc, null,
                 0, counter)
    refused(status, Status.INVALID_ARGUMENT, "192")
    assert session.position == 6
    model.free()


@pytest.mark.parametrize(("count", "given", "fine"), [
    (0, False, True), (3, True, True), (12, True, True), (0, True, False), (3, False, False),
    (4, True, False), (6, True, False), (2**63, True, False),
])
def test_position_counts_fit_the_tokens(
    tiny_model: OpenModel, count: int, given: bool, fine: bool
) -> None:
    session, null = tiny_model.session(), tiny_model.host.ffi.NULL
    positions = ids(session, range(12)) if given else null
    status, _ = raw(session, "prefill_chunk_frame_with_positions", ids(session, [1, 2, 3]), 3,
                    positions, count, null, null, null, null, 0, null)
    assert status == (Status.OK if fine else Status.INVALID_ARGUMENT)
    assert session.position == (3 if fine else 0)
    session.free()


def test_a_model_without_output_flag_answers_no_token_in_frames(
    runtime: Host, tiny_path: Path
) -> None:
    model = OpenModel(runtime, tiny_path, ctx_size=64, include_output=False)
    session, out = model.session(), runtime.ffi.new("int32_t *")
    assert session.prefill_sampled(PROMPT) == -1
    forms = decode_forms(session, None)
    assert [forms[name](9) for name in ("frame", "frame mtp")] == [-1, -1]
    assert session.position == 8
    with pytest.raises(AbiError) as error:
        forms["frame batch"](9)
    assert error.value.status == Status.UNSUPPORTED
    counter = runtime.ffi.new("size_t *", 9)
    null = runtime.ffi.NULL
    call(session, "verify_tokens_frame_sampled", ids(session, [1, 2]), 2, null, null, null, null,
         null, 0, null, out, 0, counter, 0, null)
    assert (counter[0], session.position) == (0, 10)
    assert forms["step"](9) >= 0
    model.free()


def test_drafts_are_none(tiny_model: OpenModel) -> None:
    session, ffi = tiny_model.session(), tiny_model.host.ffi
    draft = ffi.new("struct skippy_native_mtp_draft *")
    for session_handle in (session.handle, ffi.NULL):
        ffi.buffer(draft)[:] = b"\xff" * ffi.sizeof(draft[0])
        tiny_model.host.raw("skippy_decode_step_sampled_mtp", session_handle, 5, ffi.NULL, ffi.NULL,
                            2**64 - 1, draft)
        assert (draft.version, bool(draft.available), draft.token_count) == (1, False, 0)
    assert session.position == 1
    session.free()


# Second tenants


def reset(session: OpenSession, model: OpenModel) -> OpenSession:
    session.reset()
    return session


def free_create(session: OpenSession, model: OpenModel) -> OpenSession:
    session.free()
    return model.session()


def restore_nothing(session: OpenSession, model: OpenModel) -> OpenSession:
    restore(session, 8, [])
    return session


def import_nothing(session: OpenSession, model: OpenModel) -> OpenSession:
    session.reset()
    assert load(session, b"")[0] == Status.OK
    return session


def trim_all(session: OpenSession, model: OpenModel) -> OpenSession:
    trim(session, 0)
    return session


def failed_verify(session: OpenSession, model: OpenModel) -> OpenSession:
    with pytest.raises(AbiError):
        verify(session, [1, N_VOCAB])
    session.reset()
    return session


@pytest.mark.parametrize(
    "leave", [reset, free_create, restore_nothing, import_nothing, trim_all, failed_verify]
)
@pytest.mark.parametrize("length", [1, 2, 3, 20])
def test_the_next_tenant_of_a_lane_starts_from_nothing(
    runtime: Host, tiny_path: Path, leave: Any, length: int
) -> None:
    tokens = list(range(100, 100 + length))
    clean = OpenModel(runtime, tiny_path, lane_count=1, ctx_size=128)
    first = clean.session()
    wanted = (first.prefill_sampled(tokens), export(first), greedy(first, 9, 10))
    clean.free()
    model = OpenModel(runtime, tiny_path, lane_count=1, ctx_size=128)
    session = model.session()
    session.prefill(range(50))
    greedy(session, 3, 10)
    session = leave(session, model)
    assert session.position == 0
    assert (session.prefill_sampled(tokens), export(session), greedy(session, 9, 10)) == wanted
    model.free()


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
