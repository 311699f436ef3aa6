"""Guards the hybrid's imports over the C ABI: bytes that lie, foreign bytes, no room."""

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import Status
from skippy_abi.client import Host, OpenModel, OpenSession
from tests.abi.hybrid import (
    Judge,
    export,
    load,
    load_recurrent,
    opened,
    page,
    parts_of,
    recurrent,
    text,
)
from tests.abi.steps import greedy, load_page, raw, refused, trim, verify
from tests.abi.test_state import FIELDS, LIES, changed, signed

TOKENS, OTHER = text(30), text(30, seed=1)
MIB = 1 << 20
KINDS = ["recurrent", "state", "whole", "page"]
Loader = Callable[[OpenSession, bytes], tuple[int, str | None]]


def kinds(filled: OpenSession) -> dict[str, tuple[bytes, Loader]]:
    """Every kind of exported bytes, and how they are imported."""
    desc, cells = page(filled, 0, 30)
    return {
        "recurrent": (recurrent(filled), load_recurrent),
        "state": (recurrent(filled), lambda session, data: load(session, data, "state")),
        "whole": (export(filled), load),
        "page": (cells, lambda session, data: load_page(session, desc, data)),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_header_fields_that_lie_are_refused(
    filled: OpenSession, target: OpenSession, untouched: None, kind: str
) -> None:
    data, import_it = kinds(filled)[kind]
    before, tried = export(target), 0
    for field in FIELDS:
        for value in LIES:
            lie = changed(data, field, value)
            candidates = {lie, signed(lie)} if field != "digest" else {lie}
            if kind == "recurrent" and field == "mark":
                # A signed lie about tokens that this session does not have is not seen yet.
                candidates = {lie}
            if kind == "state" and field == "mark":
                candidates = {lie}
            if kind in ("recurrent", "state") and field == "token_count" and value == 1:
                candidates = {lie}
            for candidate in candidates - {data}:
                status, message = import_it(target, candidate)
                assert status in (Status.RUNTIME_ERROR, Status.INVALID_ARGUMENT), (field, value)
                assert message
                assert (target.position, export(target)) == (7, before)
                tried += 1
    assert tried > 60


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_and_flip_is_refused(
    filled: OpenSession, target: OpenSession, untouched: None, kind: str
) -> None:
    data, import_it = kinds(filled)[kind]
    before, rng = export(target), random.Random(5)
    cuts = {*range(1, 200), *rng.sample(range(200, len(data)), 60), len(data) - 1}
    for length in cuts:
        assert import_it(target, data[:length])[0] == Status.RUNTIME_ERROR, length
    assert import_it(target, data + b"\0")[0] == Status.RUNTIME_ERROR
    for place in (*range(96), *rng.sample(range(96, len(data)), 60), len(data) - 1):
        broken = bytearray(data)
        broken[place] ^= 1 << rng.randrange(8)
        status = import_it(target, bytes(broken))[0]
        assert status in (Status.RUNTIME_ERROR, Status.INVALID_ARGUMENT), place
    assert (target.position, export(target)) == (7, before)


@pytest.mark.parametrize("kind", KINDS)
def test_lies_take_no_memory(filled: OpenSession, target: OpenSession, kind: str) -> None:
    data, import_it = kinds(filled)[kind]
    tracemalloc.start()
    try:
        for field in ("token_count", "token_start", "payload_bytes", "row_bytes", "layer_end"):
            for value in (2**31, 2**40, 2**62, 2**63, 2**64 - 1):
                lie = changed(data, field, value)
                for candidate in (lie, signed(lie)):
                    assert import_it(target, candidate)[0] != Status.OK
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_other_weights_are_refused_by_name(
    filled: OpenSession, target: OpenSession, untouched: None, runtime: Host, hybrids: Path,
    kind: str,
) -> None:
    model = opened(runtime, hybrids, "other")
    session = model.session()
    session.prefill(TOKENS)
    data, _ = kinds(session)[kind]
    refused(kinds(filled)[kind][1](target, data), Status.RUNTIME_ERROR, "model identity")
    model.free()


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_another_model_are_refused(
    target: OpenSession, untouched: None, filled: OpenSession, tiny_model: OpenModel, kind: str
) -> None:
    dense = tiny_model.session()
    dense.prefill(TOKENS)
    data = bytes(dense.host.sized("skippy_export_full_state", dense.handle, 0, 2))
    refused(kinds(filled)[kind][1](target, data), Status.RUNTIME_ERROR)
    # And back: the dense model has no place for a recurrent state.
    refused(load_recurrent(dense, recurrent(filled)), Status.UNSUPPORTED)
    source = dense.host.ffi.new("char[]", export(filled))
    refused(raw(dense, "import_full_state", 0, 2, source, len(source) - 1), Status.RUNTIME_ERROR)
    dense.free()


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_are_not_exchanged(
    filled: OpenSession, target: OpenSession, untouched: None, kind: str
) -> None:
    _, import_it = kinds(filled)[kind]
    for other, (data, _) in kinds(filled).items():
        if {other, kind} not in ({"recurrent", "state"}, {kind}):
            refused(import_it(target, data), Status.RUNTIME_ERROR)


def test_a_refused_import_keeps_the_windows(filled: OpenSession, target: OpenSession) -> None:
    verify(target, [1, 2, 3])
    for kind, (data, import_it) in kinds(filled).items():
        assert import_it(target, data[:-1])[0] == Status.RUNTIME_ERROR, kind
    trim(target, 8)
    assert target.position == 8


def test_a_context_without_room_refuses_and_stays(
    runtime: Host, hybrids: Path, filled: OpenSession, hybrid_judge: Judge
) -> None:
    model = opened(runtime, hybrids, n_lanes=2, ctx=34)
    a, b = model.session(), model.session()
    a.prefill(text(5))
    b.prefill(OTHER[:5])
    before = export(b)
    desc, cells, _ = parts_of(filled, 30)
    for outcome in (load(b, export(filled)), load_page(b, desc, cells)):
        refused(outcome, Status.RUNTIME_ERROR, "34 in total")
    assert (b.position, export(b)) == (5, before)
    assert greedy(b, 9, 4) == hybrid_judge(OTHER[:5])[1]
    model.free()
