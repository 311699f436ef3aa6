"""Guards the sizing rule: ask, get exactly that, and change nothing while the room is short."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from engine.errors import Status
from skippy_abi import client
from tests.abi.seam import SYMBOLS, Seam, seam

INT32_MAX = 2**31 - 1
POISON = 0xA5


class Sized(NamedTuple):
    """A call with a buffer, its capacity in items of some bytes, and a counter."""

    name: str
    buffer: str
    capacity: str
    counter: str
    item_bytes: int = 1


TEXT = [
    Sized("skippy_tokenize", "output_tokens", "output_token_capacity", "out_token_count", 4),
    Sized("skippy_detokenize", "output_text", "output_text_capacity", "out_text_bytes"),
    Sized("skippy_apply_chat_template_json", "output_text", "output_text_capacity",
          "out_text_bytes"),
    Sized("skippy_apply_chat_template_json", "output_metadata_json",
          "output_metadata_json_capacity", "out_metadata_json_bytes"),
    Sized("skippy_parse_chat_response_json", "output_message_json",
          "output_message_json_capacity", "out_message_json_bytes"),
]
STATE = [
    Sized("skippy_export_state", "output", "output_capacity", "out_bytes"),
    Sized("skippy_export_full_state", "output", "output_capacity", "out_bytes"),
    Sized("skippy_export_kv_page", "output", "output_capacity", "out_bytes"),
    Sized("skippy_ngram_cache_draft", "output_tokens", "output_token_capacity",
          "out_token_count", 4),
]
VERIFY = [
    Sized("skippy_verify_tokens", "output_tokens", "output_token_capacity", "out_token_count", 4),
    Sized("skippy_verify_tokens_frame_sampled", "output_tokens", "output_token_capacity",
          "out_token_count", 4),
]
SHOWN = [f"{s.name}-{s.buffer}" for s in TEXT + STATE + VERIFY]


@pytest.fixture(scope="module")
def calls(
    runtime: client.Host, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seam]:
    with seam(runtime, tiny_path, tmp_path_factory.mktemp("out")) as made:
        yield made


def ask(calls: Seam, sized: Sized, buffer: Any, capacity: int) -> tuple[int, int]:
    """Status and counter of the call with that buffer; the counter starts as nonsense."""
    counter = calls.ffi.new("size_t *", 0xDEAD)
    args = {**calls.good(SYMBOLS[sized.name]), sized.buffer: buffer, sized.capacity: capacity,
            sized.counter: counter}
    status, _ = calls.run(SYMBOLS[sized.name], args)
    return status, counter[0]


@pytest.mark.parametrize("sized", TEXT + STATE + VERIFY, ids=SHOWN)
def test_exactly_the_size_that_was_asked_for_is_enough(calls: Seam, sized: Sized) -> None:
    calls.fresh()
    before = calls.state()
    status, needed = ask(calls, sized, calls.ffi.NULL, 0)
    assert status == Status.BUFFER_TOO_SMALL
    assert 0 < needed < 60_000
    n_bytes = needed * sized.item_bytes
    buffer = calls.ffi.new("unsigned char[]", bytes([POISON]) * (n_bytes + 64))
    out = calls.ffi.cast("void *", buffer)
    assert ask(calls, sized, out, needed - 1) == (Status.BUFFER_TOO_SMALL, needed)
    assert bytes(calls.ffi.buffer(buffer, n_bytes + 64)) == bytes([POISON]) * (n_bytes + 64)
    assert calls.state() == before
    assert ask(calls, sized, out, needed) == (Status.OK, needed)
    raw = bytes(calls.ffi.buffer(buffer, n_bytes + 64))
    assert raw[:n_bytes] != bytes([POISON]) * n_bytes
    assert raw[n_bytes:] == bytes([POISON]) * 64
    if sized not in VERIFY:
        assert calls.state() == before


@pytest.mark.parametrize("sized", TEXT + STATE + VERIFY, ids=SHOWN)
def test_a_dangling_pointer_with_no_room_is_never_touched(calls: Seam, sized: Sized) -> None:
    calls.fresh()
    before = calls.state()
    wanted = ask(calls, sized, calls.ffi.NULL, 0)
    for number in (1, 4, 0x18, 2**64 - 1):
        assert ask(calls, sized, calls.ffi.cast("void *", number), 0) == wanted
    assert calls.state() == before


@pytest.mark.parametrize("capacity", [INT32_MAX + 1, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("sized", TEXT, ids=SHOWN[: len(TEXT)])
def test_text_calls_refuse_capacities_beyond_int32(
    calls: Seam, sized: Sized, capacity: int
) -> None:
    buffer = calls.ffi.new("char[]", 1 << 16)
    status, _ = ask(calls, sized, calls.ffi.cast("void *", buffer), capacity)
    assert status == Status.INVALID_ARGUMENT
    status, _ = ask(calls, sized, calls.ffi.cast("void *", buffer), INT32_MAX)
    assert status == Status.OK


@pytest.mark.parametrize("capacity", [INT32_MAX + 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("sized", STATE + VERIFY, ids=SHOWN[len(TEXT):])
def test_other_calls_write_what_is_needed_into_any_capacity(
    calls: Seam, sized: Sized, capacity: int
) -> None:
    calls.fresh()
    buffer = calls.ffi.new("char[]", 1 << 16)
    assert ask(calls, sized, calls.ffi.cast("void *", buffer), capacity)[0] == Status.OK


def test_enough_room_and_no_buffer(calls: Seam) -> None:
    null = calls.ffi.NULL
    assert ask(calls, TEXT[0], null, 100)[0] == Status.INVALID_ARGUMENT
    assert ask(calls, TEXT[1], null, 100)[0] == Status.INVALID_ARGUMENT
    for sized in (*TEXT[2:], *STATE[:3]):
        calls.fresh()
        assert ask(calls, sized, null, 60_000)[0] == Status.BUFFER_TOO_SMALL


def test_both_counters_of_the_template_are_set_before_either_buffer_is_judged(
    calls: Seam,
) -> None:
    symbol = SYMBOLS["skippy_apply_chat_template_json"]
    sizes = calls.ffi.new("size_t[2]", [7, 7])
    args = {**calls.good(symbol), "output_text_capacity": 0, "output_metadata_json_capacity": 0,
            "out_text_bytes": sizes, "out_metadata_json_bytes": sizes + 1}
    assert calls.run(symbol, args)[0] == Status.BUFFER_TOO_SMALL
    assert sizes[0] > 20
    assert sizes[1] > 20


@pytest.mark.parametrize("name", ["skippy_tokenize", "skippy_detokenize"])
def test_nothing_fits_into_nothing(calls: Seam, name: str) -> None:
    symbol = SYMBOLS[name]
    counter = calls.ffi.new("size_t *", 9)
    empty = {"text": calls.text(b""), "token_count": 0, "output_tokens": calls.ffi.NULL,
             "output_token_capacity": 0, "output_text": calls.ffi.NULL, "output_text_capacity": 0,
             "out_token_count": counter, "out_text_bytes": counter}
    args = {k: empty.get(k, v) for k, v in calls.good(symbol).items()}
    assert calls.run(symbol, args)[0] == Status.OK
    assert counter[0] == 0


def test_exports_of_an_empty_session_are_nothing_and_right(calls: Seam) -> None:
    calls.session.reset()
    for name in ("skippy_export_state", "skippy_export_full_state"):
        counter = calls.ffi.new("size_t *", 9)
        for buffer in (calls.ffi.NULL, calls.ffi.cast("void *", 1)):
            status, _ = calls.host.raw(name, calls.session.handle, 0, 2, buffer, 0, counter)
            assert (status, counter[0]) == (Status.OK, 0)
    status, _ = calls.host.raw(
        "skippy_export_recurrent_state", calls.session.handle, calls.ffi.NULL, 0, counter
    )
    assert (status, counter[0]) == (Status.OK, 0)


@pytest.mark.parametrize("counter", [True, False])
def test_state_counters_are_optional(calls: Seam, counter: bool) -> None:
    calls.fresh()
    for name in ("skippy_export_state", "skippy_prefill_chunk", "skippy_decode_step_sampled"):
        symbol = SYMBOLS[name]
        args = calls.good(symbol)
        if not counter:
            args |= {k: calls.ffi.NULL for k in args if k.startswith("out_")}
        assert calls.run(symbol, args)[0] == Status.OK, name


def test_predicted_tokens_need_room_for_every_request(calls: Seam) -> None:
    calls.fresh()
    before = calls.state()
    for name in ("skippy_decode_batch_sampled", "skippy_decode_step_frame_batch_sampled"):
        symbol = SYMBOLS[name]
        args = {**calls.good(symbol), "predicted_token_capacity": 0}
        assert calls.run(symbol, args)[0] == Status.BUFFER_TOO_SMALL
        assert calls.state() == before
