"""Guards error objects: one for each failure, right, readable, freed; and the n-gram exception."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi import client
from tests.abi.seam import SYMBOLS, UNMAPPED, Seam, is_handle, read_only_page, seam

NGRAM = [name for name, symbol in SYMBOLS.items() if symbol.leaves_out_error]
FAILING = [
    name for name, symbol in SYMBOLS.items()
    if symbol.is_status and not symbol.leaves_out_error and not name.endswith("_free")
]


@pytest.fixture(scope="module")
def calls(
    runtime: client.Host, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seam]:
    with seam(runtime, tiny_path, tmp_path_factory.mktemp("out")) as made:
        yield made


def failing(calls: Seam, name: str, place: Any) -> int:
    """The call with every handle, pointer and list gone, so that it must fail."""
    args = []
    for p in SYMBOLS[name].params[:-1]:
        if p.c_type.endswith("*"):
            args.append(calls.ffi.NULL)
        else:
            args.append(2**31 if name.endswith("device_at") else 0)
    return int(calls.host.symbol(name)(*args, place))


@pytest.mark.parametrize("name", FAILING)
def test_each_failure_has_its_own_object(calls: Seam, name: str) -> None:
    first, second = (calls.ffi.new("struct skippy_error **") for _ in range(2))
    first[0] = second[0] = calls.ffi.cast("struct skippy_error *", 0x1234)
    statuses = [failing(calls, name, first), failing(calls, name, second)]
    assert first[0] != second[0]
    for status, place in zip(statuses, (first, second), strict=True):
        assert 0 < status <= Status.RUNTIME_ERROR
        assert place[0].status == status
        text = calls.ffi.string(place[0].message).decode("utf-8")
        assert text
        assert "Traceback" not in text
        assert "Error(" not in text
        calls.host.symbol("skippy_error_free")(place[0])


@pytest.mark.parametrize("name", FAILING)
def test_success_clears_the_place(calls: Seam, name: str) -> None:
    calls.fresh()
    symbol = SYMBOLS[name]
    args = calls.good(symbol)
    place = calls.ffi.new("struct skippy_error **", calls.ffi.cast("struct skippy_error *", 1))
    values = [args[p.name] for p in symbol.params if p.name != "out_error"]
    if calls.host.symbol(name)(*values, place) == Status.OK:
        assert place[0] == calls.ffi.NULL
        calls._free_made(symbol, args)
    else:
        assert place[0].status != Status.OK
        calls.host.symbol("skippy_error_free")(place[0])


@pytest.mark.parametrize("name", NGRAM)
def test_ngram_calls_leave_the_place_alone(calls: Seam, name: str) -> None:
    marker = calls.ffi.cast("struct skippy_error *", 0x1234)
    place = calls.ffi.new("struct skippy_error **", marker)
    assert failing(calls, name, place) == Status.INVALID_ARGUMENT
    assert place[0] == marker
    symbol = SYMBOLS[name]
    args = calls.good(symbol)
    values = [args[p.name] for p in symbol.params if p.name != "out_error"]
    assert calls.host.symbol(name)(*values, place) == Status.OK
    assert place[0] == marker
    calls._free_made(symbol, args)


def test_there_are_four_ngram_exceptions() -> None:
    assert len(NGRAM) == 4


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("number", [0, *UNMAPPED])
def test_a_failure_needs_no_place(calls: Seam, name: str, number: int) -> None:
    told = calls.ffi.new("struct skippy_error **")
    status = failing(calls, name, told)
    calls.host.symbol("skippy_error_free")(told[0])
    assert failing(calls, name, calls.ffi.cast("struct skippy_error **", number)) == status


def test_a_read_only_place_is_not_written(calls: Seam) -> None:
    place, page = read_only_page(calls.ffi)
    status = failing(calls, "skippy_session_reset", calls.ffi.cast("struct skippy_error **", place))
    assert status == Status.INVALID_ARGUMENT
    assert page[:8] == bytes(8)


def test_freeing_what_is_no_error_does_nothing(calls: Seam) -> None:
    free = calls.host.symbol("skippy_error_free")
    heap = calls.ffi.new("char[]", b"\x5a" * 256)
    for pointer in (calls.ffi.NULL, calls.ffi.cast("char *", heap) + 64, *UNMAPPED, 1, 2**64 - 1):
        free(calls.ffi.cast("struct skippy_error *", pointer))
    assert bytes(calls.ffi.buffer(heap)) == b"\x5a" * 256 + b"\0"
    place = calls.ffi.new("struct skippy_error **")
    failing(calls, "skippy_session_reset", place)
    free(place[0])
    free(place[0])


@pytest.mark.parametrize("name", [n for n in SYMBOLS if n.endswith("_free")])
def test_free_functions_accept_null(calls: Seam, name: str) -> None:
    args = [calls.ffi.NULL] * len(SYMBOLS[name].params)
    assert calls.host.symbol(name)(*args) in (None, Status.OK)


def test_out_handles_are_null_after_a_failure(calls: Seam) -> None:
    makers = [
        n for n, s in SYMBOLS.items()
        for p in s.params if p.c_type.endswith("**") and p.name.startswith("out_")
        and p.name != "out_error" and "const" not in p.c_type
    ]
    assert len(makers) == 9
    for name in makers:
        symbol = SYMBOLS[name]
        args = calls.good(symbol)
        for p in symbol.params:
            if is_handle(p.c_type) or p.c_type == "const char *" or p.name == "paths":
                args[p.name] = calls.ffi.NULL
            if p.c_type.endswith("**") and p.name.startswith("out_") and p.name != "out_error":
                place = args[p.name]
                place[0] = calls.ffi.cast(p.c_type[:-1], 0x1234)
        if name == "skippy_ngram_cache_create":
            args["ngram_max"] = 9
        status, _ = calls.run(symbol, args)
        assert status != Status.OK
        assert place[0] == calls.ffi.NULL, name
