"""Guards the seam against memory that callers name wrongly: nothing crashes, nothing moves."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi import client
from tests.abi.seam import (
    IGNORED,
    OUTCOMES,
    SYMBOLS,
    UNMAPPED,
    Seam,
    is_output,
    is_pointer,
    read_only_page,
    seam,
)

INVALID = Status.INVALID_ARGUMENT
# Both are required together, and missing is a page that does not fit.
PAGE_OUTPUTS = {"out_desc", "out_bytes"}
STATUS_SYMBOLS = {
    name: symbol for name, symbol in SYMBOLS.items()
    if symbol.is_status and not name.endswith("_free")
}
# Answered before memory is looked at, or with nothing to move.
UNTOUCHED = {
    ("skippy_import_recurrent_state", "input"), ("skippy_export_recurrent_state", "output"),
    *(("skippy_session_copy_output_activation_frame", p.name)
      for p in SYMBOLS["skippy_session_copy_output_activation_frame"].params),
}
POINTERS = [
    (name, p.name, p.c_type) for name, symbol in STATUS_SYMBOLS.items() for p in symbol.params
    if is_pointer(p.c_type) and p.name not in IGNORED and p.name != "out_error"
    and (name, p.name) not in UNTOUCHED
]
OUTPUTS = [(n, p) for n, p, c_type in POINTERS if is_output(p, c_type)]
INPUTS = [(n, p) for n, p, c_type in POINTERS if not is_output(p, c_type)]
COUNTS = [
    (name, p.name) for name, symbol in STATUS_SYMBOLS.items() for p in symbol.params
    # The prompt's length is a number to remember, and no array has it.
    if p.name.endswith("_count") and p.c_type in ("size_t", "uint64_t")
    and p.name != "prompt_token_count" and (name, p.name) not in UNTOUCHED
]


@pytest.fixture(scope="module")
def calls(
    runtime: client.Host, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seam]:
    with seam(runtime, tiny_path, tmp_path_factory.mktemp("out")) as made:
        yield made


def pointer(calls: Seam, number: int) -> Any:
    return calls.ffi.cast("void *", number)


@pytest.mark.parametrize(("name", "param"), OUTPUTS)
def test_an_output_that_cannot_be_written_stops_the_call_before_it_moves(
    calls: Seam, name: str, param: str
) -> None:
    calls.fresh()
    before = calls.state()
    read_only, page = read_only_page(calls.ffi)
    symbol = SYMBOLS[name]
    for bad in (*(pointer(calls, number) for number in UNMAPPED), read_only):
        status, message = calls.run(symbol, {**calls.good(symbol), param: bad})
        assert status == INVALID, (bad, message)
        if not symbol.leaves_out_error:
            assert "writable" in (message or "")
        assert calls.state() == before
    assert page[:16] == bytes(16)


@pytest.mark.parametrize(("name", "param"), INPUTS)
def test_an_input_that_cannot_be_read_stops_the_call_before_it_moves(
    calls: Seam, name: str, param: str
) -> None:
    calls.fresh()
    before = calls.state()
    symbol = SYMBOLS[name]
    for number in UNMAPPED:
        args = {**calls.good(symbol), param: pointer(calls, number)}
        status, message = calls.run(symbol, args)
        assert status == INVALID, (number, message)
        if not symbol.leaves_out_error:
            assert "readable" in (message or "")
        assert calls.state() == before


@pytest.mark.parametrize(("name", "param"), OUTPUTS + INPUTS)
def test_null_is_an_absent_option_or_refused(calls: Seam, name: str, param: str) -> None:
    calls.fresh()
    before = calls.state()
    symbol = SYMBOLS[name]
    args = {**calls.good(symbol), param: calls.ffi.NULL}
    if name == "skippy_import_recurrent_state":
        args["input_bytes"] = 0
    status, _ = calls.run(symbol, args)
    allowed = {OUTCOMES.get(name, Status.OK), INVALID}
    if "output" in param:
        allowed.add(Status.BUFFER_TOO_SMALL)
    if param in PAGE_OUTPUTS and name == "skippy_export_kv_page":
        allowed = {Status.RUNTIME_ERROR}
    assert status in allowed
    if status not in (Status.OK,):
        assert calls.state() == before


@pytest.mark.parametrize("count", [2**31, 2**32, 2**62 + 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize(("name", "param"), COUNTS)
def test_a_count_that_no_memory_has_is_refused(
    calls: Seam, name: str, param: str, count: int
) -> None:
    calls.fresh()
    before = calls.state()
    symbol = SYMBOLS[name]
    status, _ = calls.run(symbol, {**calls.good(symbol), param: count})
    if name == "skippy_export_kv_page":
        assert status == Status.RUNTIME_ERROR
    elif name == "skippy_retire_verify_checkpoint":
        assert status == Status.OK
    else:
        assert status == INVALID
    assert calls.state() == before


@pytest.mark.parametrize("number", [0, 1, UNMAPPED[2]])
@pytest.mark.parametrize(("name", "param"), COUNTS)
def test_no_pointer_is_followed_for_a_count_of_nothing(
    calls: Seam, name: str, param: str, number: int
) -> None:
    calls.fresh()
    symbol = SYMBOLS[name]
    args = {**calls.good(symbol), param: 0}
    for p in symbol.params:
        if p.c_type == "const int32_t *" and p.name != "positions":
            args[p.name] = pointer(calls, number)
    status, message = calls.run(symbol, args)
    assert "readable" not in (message or "")
    assert status in (Status.OK, INVALID, Status.RUNTIME_ERROR, Status.UNSUPPORTED)


@pytest.mark.parametrize("number", [0, *UNMAPPED])
@pytest.mark.parametrize("name", STATUS_SYMBOLS)
def test_a_bad_place_for_the_error_changes_no_answer(
    calls: Seam, name: str, number: int
) -> None:
    calls.fresh()
    symbol = SYMBOLS[name]
    args = calls.good(symbol)
    values = [args[p.name] for p in symbol.params if p.name != "out_error"]
    place = calls.ffi.cast("struct skippy_error **", number)
    status = calls.host.symbol(name)(*values, place)
    assert status == OUTCOMES.get(name, Status.OK)
    if status == Status.OK:
        calls._free_made(symbol, args)


def test_reading_stops_at_the_end_of_memory_without_a_terminator(calls: Seam) -> None:

    page = mmap.mmap(-1, 4096)
    page.write(b"a" * 4096)
    start = calls.ffi.cast("char *", calls.ffi.from_buffer(page))
    counter = calls.ffi.new("size_t *")
    status, message = calls.host.raw("skippy_tokenize", calls.model.handle, start, True,
                                     calls.ffi.NULL, 0, counter)
    # What follows the page is not ours to know: either it ends there, or there is a terminator.
    assert status in (INVALID, Status.BUFFER_TOO_SMALL), message
    page[4095] = 0
    status, _ = calls.host.raw("skippy_tokenize", calls.model.handle, start + 4090, True,
                               calls.ffi.NULL, 0, counter)
    assert (status, counter[0]) == (Status.BUFFER_TOO_SMALL, 5)
