"""Guards state in and out over the C ABI: right bytes go on alike, any other byte is refused.

Long because every field of two headers lies here once.
"""

import hashlib
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import Host, OpenModel, OpenSession
from tests.abi.steps import (
    N_LAYERS,
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
)

TOKENS = list(range(40, 70))
# Written down apart from the codec: magic, version, kind, layers, row bytes, tokens, identity,
# payload length, digest of everything else, mark of the tokens before.
HEADER = struct.Struct("<8sHHiiIQQ32sQ8sQ")
MARK_BYTES = 8
FIELDS = {
    "magic": (0, "Q"), "version": (8, "H"), "kind": (10, "H"), "layer_start": (12, "I"),
    "layer_end": (16, "I"), "row_bytes": (20, "I"), "token_start": (24, "Q"),
    "token_count": (32, "Q"), "identity": (40, "Q"), "payload_bytes": (72, "Q"),
    "digest": (80, "Q"), "mark": (88, "Q"),
}
LIES = [0, 1, 2**31, 2**63]


@pytest.fixture
def filled(tiny_model: OpenModel) -> Iterator[OpenSession]:
    session = tiny_model.session()
    session.prefill(TOKENS)
    yield session
    session.free()


def signed(data: bytes) -> bytes:
    """The bytes with their digest made right again, as a careful liar would."""
    digest = hashlib.sha256(data[:80] + data[88:]).digest()[:8]
    return data[:80] + digest + data[88:]


def changed(data: bytes, field: str, value: int) -> bytes:
    offset, code = FIELDS[field]
    packed = struct.pack(f"<{code}", value & (2 ** (8 * struct.calcsize(code)) - 1))
    return data[:offset] + packed + data[offset + len(packed) :]


def test_the_header_is_as_documented(filled: OpenSession) -> None:
    data = export(filled)
    magic, version, kind, start, end, row_bytes, first, count, _, payload, digest, mark = (
        HEADER.unpack_from(data)
    )
    assert (magic, version, kind, start, end, row_bytes) == (b"MSKVROWS", 1, 1, 0, 2, 64)
    assert (first, count, payload, mark) == (0, 30, 30 * (2 * 2 * 64 + MARK_BYTES), 0)
    assert len(data) == 96 + payload
    assert signed(data) == data
    assert digest == data[80:88]


@pytest.mark.parametrize("name", ["import_state", "import_full_state"])
@pytest.mark.parametrize("lane", [0, 2])
def test_an_import_goes_on_like_the_export(tiny_model: OpenModel, name: str, lane: int) -> None:
    source = tiny_model.session()
    source.prefill(TOKENS)
    data = export(source)
    assert bytes(tiny_model.host.sized("skippy_export_full_state", source.handle, 0, 2)) == data
    source.free()
    neighbours = [tiny_model.session() for _ in range(lane)]
    for neighbour in neighbours:
        neighbour.prefill([1, 2, 3])
    target = tiny_model.session()
    assert load(target, data, name)[0] == Status.OK
    assert target.position == 30
    wanted = straight(tiny_model, TOKENS)
    assert (export(target), greedy(target, 9, 4)) == wanted
    for neighbour in neighbours:
        assert (export(neighbour), greedy(neighbour, 9, 4)) == straight(tiny_model, [1, 2, 3])
        neighbour.free()
    target.free()


def test_export_bytes_are_the_same_from_every_lane_and_every_time(tiny_model: OpenModel) -> None:
    sessions = [tiny_model.session() for _ in range(3)]
    for session in sessions:
        session.prefill(TOKENS)
    assert len({export(s) for s in sessions} | {export(sessions[0])}) == 1
    for session in sessions:
        session.free()


def test_position_after_an_import_is_the_larger_one(tiny_model: OpenModel) -> None:
    short, long = tiny_model.session(), tiny_model.session()
    short.prefill(TOKENS[:10])
    long.prefill(TOKENS)
    assert load(long, export(short))[0] == Status.OK
    assert long.position == 30
    call(long, "session_set_position", 10)
    assert (export(long), greedy(long, 9, 4)) == straight(tiny_model, TOKENS[:10])
    short.free()
    long.free()


@pytest.mark.parametrize(
    "layers", [(0, 1), (1, 2), (0, 3), (-1, 2), (0, 0), (2, 0), (0, 2**31 - 1)]
)
def test_state_calls_want_the_sessions_own_layers(
    filled: OpenSession, layers: tuple[int, int]
) -> None:
    ffi, before = filled.host.ffi, export(filled)
    counter = ffi.new("size_t *")
    for name in ("export_state", "export_full_state"):
        refused(raw(filled, name, *layers, ffi.NULL, 0, counter), Status.INVALID_ARGUMENT,
                f"{layers[0]}..{layers[1]}", "0..2")
    for name in ("import_state", "import_full_state"):
        refused(raw(filled, name, *layers, ffi.new("char[]", before), len(before)),
                Status.INVALID_ARGUMENT)
    assert export(filled) == before


# Lies


@pytest.mark.parametrize("value", LIES)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("resign", [False, True], ids=["as is", "signed again"])
def test_a_header_field_that_lies_is_refused(
    filled: OpenSession, field: str, value: int, resign: bool
) -> None:
    data = export(filled)
    lie = changed(data, field, value)
    if resign and field != "digest":
        lie = signed(lie)
    if lie == data:
        # What the field says already.
        return
    target = filled.model.session()
    target.prefill([1, 2, 3])
    before = export(target)
    status, message = load(target, lie)
    allowed = {Status.RUNTIME_ERROR}
    if field in ("token_start", "token_count") and value > 256:
        allowed = {Status.INVALID_ARGUMENT}
    assert status in allowed, message
    assert (target.position, export(target)) == (3, before)
    target.free()


def test_every_flipped_byte_is_found(filled: OpenSession) -> None:
    data = export(filled)
    target = filled.model.session()
    places = [*range(96), *random.Random(1).sample(range(96, len(data)), 100), len(data) - 1]
    for place in places:
        broken = bytearray(data)
        broken[place] ^= 0x40
        assert load(target, bytes(broken))[0] in (Status.RUNTIME_ERROR, Status.INVALID_ARGUMENT)
    assert (target.position, export(target)) == (0, b"")
    target.free()


def test_every_truncation_is_refused(filled: OpenSession) -> None:
    data = export(filled)
    target = filled.model.session()
    for length in (*range(1, 130), *range(130, len(data), 97), len(data) - 1):
        refused(load(target, data[:length]), Status.RUNTIME_ERROR)
    refused(load(target, data + b"\0"), Status.RUNTIME_ERROR)
    assert target.position == 0
    target.free()


def test_no_bytes_are_no_import(filled: OpenSession) -> None:
    before, null = export(filled), filled.host.ffi.NULL
    for name in ("import_state", "import_full_state"):
        call(filled, name, 0, N_LAYERS, null, 0)
        refused(raw(filled, name, 0, N_LAYERS, null, 5), Status.INVALID_ARGUMENT, "NULL")
    call(filled, "import_recurrent_state", null, 0)
    refused(raw(filled, "import_recurrent_state", filled.host.ffi.new("char[]", 8), 8),
            Status.UNSUPPORTED, "8 bytes")
    assert (filled.position, export(filled)) == (30, before)


def test_random_bytes_are_refused(filled: OpenSession) -> None:
    rng, before = random.Random(3), export(filled)
    for _ in range(50):
        refused(load(filled, rng.randbytes(rng.randint(1, 400))), Status.RUNTIME_ERROR)
    assert export(filled) == before


def test_state_of_other_weights_is_refused_by_name(
    filled: OpenSession, runtime: Host, tiny_path: Path
) -> None:
    other = OpenModel(runtime, tiny_path.with_name("tiny_other.gguf"), ctx_size=64)
    session = other.session()
    refused(load(session, export(filled)), Status.RUNTIME_ERROR, "model identity")
    refused(load_page(session, *page(filled, 0, 3)), Status.RUNTIME_ERROR, "model identity")
    assert session.position == 0
    other.free()


@pytest.mark.parametrize(("ctx", "status"), [(29, Status.INVALID_ARGUMENT), (30, Status.OK)])
def test_a_context_with_room_takes_the_state(
    filled: OpenSession, runtime: Host, tiny_path: Path, ctx: int, status: Status
) -> None:
    model = OpenModel(runtime, tiny_path, ctx_size=ctx)
    session = model.session()
    assert load(session, export(filled))[0] == status
    assert session.position == (30 if status == Status.OK else 0)
    model.free()


def test_an_import_without_room_changes_nothing(runtime: Host, tiny_path: Path) -> None:
    model = OpenModel(runtime, tiny_path, lane_count=2, ctx_size=40)
    a, b = model.session(), model.session()
    a.prefill(TOKENS)
    b.prefill([1, 2, 3])
    before = export(b)
    refused(load(b, export(a)), Status.RUNTIME_ERROR, "30 more wanted", "40 in total")
    refused(load_page(b, *page(a, 0, 30)), Status.RUNTIME_ERROR, "40 in total")
    assert (b.position, export(b)) == (3, before)
    model.free()


# Pages


@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 30), (5, 11), (16, 14), (29, 1)])
def test_a_page_has_the_rows_of_its_tokens(
    filled: OpenSession, start: int, count: int
) -> None:
    desc, data = page(filled, start, count)
    found = (desc.version, desc.codec, desc.component_count, desc.layer_start, desc.layer_end,
             desc.layer_count, desc.token_start, desc.token_count, desc.payload_bytes,
             desc.k_row_bytes, desc.v_row_bytes)
    assert found == (1, 1, 0, 0, 2, 2, start, count, len(data), 64, 64)
    whole = export(filled)[96:]
    n = len(TOKENS)
    rows = [whole[i * 64 : (i + 1) * 64] for i in range(4 * n)]
    wanted = b"".join(b"".join(rows[k * n + start : k * n + start + count]) for k in range(4))
    marks = whole[len(whole) - MARK_BYTES * n :]
    wanted += marks[MARK_BYTES * start : MARK_BYTES * (start + count)]
    assert data[96:] == wanted


def test_pages_in_order_make_the_sequence(filled: OpenSession) -> None:
    pieces = [page(filled, start, min(7, 30 - start)) for start in range(0, 30, 7)]
    target = filled.model.session()
    for desc, data in pieces:
        assert load_page(target, desc, data)[0] == Status.OK
        assert target.position == desc.token_start + desc.token_count
    assert export(target) == export(filled)
    assert greedy(target, 9, 4) == straight(filled.model, TOKENS)[1]
    target.free()


@pytest.mark.parametrize(("layers", "start", "count"), [
    ((0, 2), 0, 0), ((0, 2), 0, 31), ((0, 2), 30, 1), ((0, 2), 2**64 - 1, 1),
    ((0, 2), 1, 2**64 - 1), ((0, 3), 0, 1), ((-1, 2), 0, 1), ((1, 1), 0, 1), ((2, 1), 0, 1),
    ((2, 3), 0, 1),
])
def test_pages_that_are_not_there(
    filled: OpenSession, layers: tuple[int, int], start: int, count: int
) -> None:
    ffi = filled.host.ffi
    desc, counter = ffi.new("struct skippy_kv_page_desc *"), ffi.new("size_t *")
    status = raw(filled, "export_kv_page", *layers, start, count, desc, ffi.NULL, 0, counter)
    refused(status, Status.RUNTIME_ERROR, "KV page")


def test_a_page_behind_a_gap_is_refused(filled: OpenSession) -> None:
    desc, data = page(filled, 10, 5)
    target = filled.model.session()
    target.prefill(TOKENS[:9])
    before = export(target)
    refused(load_page(target, desc, data), Status.RUNTIME_ERROR, "starts at token 10")
    assert (target.position, export(target)) == (9, before)
    target.prefill(TOKENS[9:10])
    assert load_page(target, desc, data)[0] == Status.OK
    assert (export(target), greedy(target, 9, 4)) == straight(filled.model, TOKENS[:15])
    target.free()


def test_a_page_into_the_middle_keeps_what_is_behind(filled: OpenSession) -> None:
    desc, data = page(filled, 5, 10)
    before = export(filled)
    assert load_page(filled, desc, data)[0] == Status.OK
    assert (filled.position, export(filled)) == (30, before)
    assert greedy(filled, 9, 4) == straight(filled.model, TOKENS)[1]


def test_importing_into_a_shared_page_leaves_the_prefix_alone(filled: OpenSession) -> None:
    call(filled, "session_save_prefix", 8, 30)
    other = filled.model.session()
    other.prefill([*TOKENS[:3], *[200] * 27])
    assert load_page(filled, *page(other, 3, 9))[0] == Status.OK
    other.reset()
    call(other, "session_restore_prefix", 8, other.host.ffi.new("int32_t[]", TOKENS), 30)
    assert (export(other), greedy(other, 9, 4)) == straight(filled.model, TOKENS)
    other.free()


PAGE_FIELDS = [
    "layer_start", "layer_end", "token_start", "token_count", "layer_count", "k_type", "v_type",
    "k_row_bytes", "v_row_bytes", "v_element_bytes", "payload_bytes", "flags",
]


@pytest.mark.parametrize("field", PAGE_FIELDS)
@pytest.mark.parametrize("value", [0, 1, 2**31 - 1])
def test_a_descriptor_that_lies_is_refused(filled: OpenSession, field: str, value: int) -> None:
    desc, data = page(filled, 2, 5)
    if getattr(desc, field) == value:
        return
    setattr(desc, field, value)
    target = filled.model.session()
    target.prefill(TOKENS[:2])
    refused(load_page(target, desc, data), Status.RUNTIME_ERROR, field)
    assert target.position == 2
    target.free()


@pytest.mark.parametrize(("codec", "components", "status"), [
    (0, 0, Status.OK), (1, 0, Status.OK), (1, 1, Status.INVALID_ARGUMENT),
    (2, 2, Status.INVALID_ARGUMENT), (3, 0, Status.INVALID_ARGUMENT),
    (2**31, 0, Status.INVALID_ARGUMENT),
])
def test_codecs(filled: OpenSession, codec: int, components: int, status: Status) -> None:
    desc, data = page(filled, 0, 5)
    ffi = filled.host.ffi
    offset = ffi.offsetof("struct skippy_kv_page_desc", "codec")
    ffi.buffer(desc)[offset : offset + 4] = struct.pack("<I", codec)
    desc.component_count = components
    target = filled.model.session()
    assert load_page(target, desc, data)[0] == status
    target.free()


@pytest.mark.parametrize("token_count", [0, 257, 2**63])
def test_a_signed_page_that_does_not_fit_is_refused(
    filled: OpenSession, token_count: int
) -> None:
    desc, data = page(filled, 0, 5)
    data = changed(data, "token_count", token_count)
    if token_count == 0:
        data = changed(data[:96], "payload_bytes", 0)
        data = changed(data, "token_count", 0)
    desc.token_count = token_count
    desc.payload_bytes = len(data)
    refused(load_page(filled, desc, signed(data)), Status.RUNTIME_ERROR)
    assert filled.position == 30


def test_imports_do_not_bring_history_or_logits(filled: OpenSession) -> None:
    data = export(filled)
    target = filled.model.session()
    assert load(target, data)[0] == Status.OK
    out: Any = target.host.ffi.new("int32_t *")
    refused(raw(target, "session_sample_current", target.host.ffi.NULL, out),
            Status.RUNTIME_ERROR, "no logits")
    signal = target.host.ffi.new("struct skippy_token_signal *")
    refused(raw(target, "session_last_token_signal", signal), Status.INVALID_ARGUMENT)
    trim(target, 10)
    assert (export(target), greedy(target, 9, 4)) == straight(filled.model, TOKENS[:10])
    target.free()
