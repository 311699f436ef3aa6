"""Guards that forms of a step are one step, and that pieces and company change no bit.

Long because every form of every call is here.
"""

import random
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
    straight,
    trim,
    verify,
    verify_sampled,
)

PROMPT = [10, 20, 30, 40, 50, 60]
N_VOCAB = 320


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
    assert forms["frame batch"](9) == -1
    counter = runtime.ffi.new("size_t *", 9)
    null = runtime.ffi.NULL
    call(session, "verify_tokens_frame_sampled", ids(session, [1, 2]), 2, null, null, null, null,
         null, 0, null, out, 0, counter, 0, null)
    assert (counter[0], session.position) == (0, 11)
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
