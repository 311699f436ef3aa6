"""Owns the tests of frames, wire format and messages: exact bytes, limits, and random input.

Long because it holds the bytes of every message, field by field.
"""

import random
import socket
import struct
import time

import pytest

from packages.layer_package.errors import TransferError
from packages.layer_package.transfer import wire
from packages.layer_package.transfer.frames import (
    MAX_FRAME_BYTES,
    Deadline,
    read_exact,
    read_frame,
    write_frame,
)
from packages.layer_package.transfer.messages import (
    ArtifactRequest,
    ArtifactResponse,
    SubprotocolOpen,
)
from packages.layer_package.transfer.sockets import SocketStream

PEER = bytes(range(32))
DIGEST = "ab" * 32
REQUEST = ArtifactRequest(
    PEER, "topology", "run", "stage", "hf://acme/demo@v1", DIGEST, "layers/layer-00000.gguf",
    300, 1000, "cd" * 32,
)  # fmt: skip


class Scripted:
    """A stream that gives prepared bytes in pieces of a given length and keeps what is written."""

    def __init__(self, data: bytes, step: int = 1 << 30) -> None:
        self.data, self.step, self.written = data, step, b""
        self.largest = 0

    def read(self, n_bytes: int, /) -> bytes:
        self.largest = max(self.largest, n_bytes)
        part, self.data = self.data[: min(n_bytes, self.step)], self.data[min(n_bytes, self.step):]
        return part

    def write(self, data: bytes | bytearray | memoryview, /) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.data = b""


def soon() -> Deadline:
    return Deadline.after(5.0, "a test")


def kind_of(act: object, *args: object) -> str:
    assert callable(act)
    with pytest.raises(TransferError) as caught:
        act(*args)
    return caught.value.kind


def test_a_frame_is_a_length_and_its_bytes() -> None:
    stream = Scripted(b"")
    write_frame(stream, b"abc")
    assert stream.written == b"\x03\x00\x00\x00abc"
    assert read_frame(Scripted(stream.written, step=1), soon()) == b"abc"
    assert read_frame(Scripted(bytes(4)), soon()) == b""


def test_a_frame_over_the_limit_is_refused_before_its_bytes_are_read() -> None:
    for n_bytes in (MAX_FRAME_BYTES + 1, 0xFFFFFFFF):
        stream = Scripted(struct.pack("<I", n_bytes) + b"x")
        assert kind_of(read_frame, stream, soon()) == "transfer_frame_too_large"
        assert stream.largest == 4
    whole = Scripted(struct.pack("<I", MAX_FRAME_BYTES) + bytes(MAX_FRAME_BYTES))
    assert len(read_frame(whole, soon())) == MAX_FRAME_BYTES
    # A length that lies makes no room for what never comes.
    assert whole.largest <= 64 << 10
    assert kind_of(write_frame, Scripted(b""), b"12345", 4) == "transfer_frame_too_large"


@pytest.mark.parametrize("cut", range(7))
def test_a_stream_that_ends_in_a_frame_is_truncated(cut: int) -> None:
    assert kind_of(read_frame, Scripted(b"\3\0\0\0abc"[:cut]), soon()) == "transfer_truncated"


def test_a_stream_that_gives_more_than_asked_is_refused() -> None:
    class Generous(Scripted):
        def read(self, n_bytes: int, /) -> bytes:
            return bytes(n_bytes + 1)

    assert kind_of(read_exact, Generous(b""), 4, soon()) == "transfer_overrun"


def test_one_byte_at_a_time_does_not_outlive_the_deadline() -> None:
    class Dripping(Scripted):
        def read(self, n_bytes: int, /) -> bytes:
            time.sleep(0.01)
            return b"\xff"

    began = time.monotonic()
    deadline = Deadline.after(0.1, "a test")
    assert kind_of(read_exact, Dripping(b""), 1000, deadline) == "transfer_timeout"
    assert time.monotonic() - began < 10


def test_the_request_has_the_fields_and_numbers_of_the_stage_protocol() -> None:
    short = ArtifactRequest(PEER, "t", "r", "s", "hf://a/b@c", DIGEST, "model-package.json")
    assert short.encode() == (
        b"\x08\x07" + b"\x12\x20" + PEER + b"\x1a\x01t\x22\x01r\x2a\x01s"
        + b"\x32\x0ahf://a/b@c" + b"\x3a\x40" + DIGEST.encode() + b"\x42\x12model-package.json"
    )  # fmt: skip
    # 300 and 1000 take two bytes each; the optional members are there when they are zero, too
    encoded = REQUEST.encode()
    assert b"\x48\xac\x02\x50\xe8\x07\x5a\x40" in encoded
    assert ArtifactRequest.decode(encoded) == REQUEST
    zero = ArtifactRequest(PEER, "t", "r", "s", "hf://a/b@c", DIGEST, "x", 0, 0)
    assert zero.encode().endswith(b"\x42\x01x\x50\x00")


def test_the_envelope_and_the_answers_have_their_bytes() -> None:
    assert SubprotocolOpen().encode() == b"\x08\x01\x12\x0cskippy-stage\x18\x02"
    assert SubprotocolOpen.decode(SubprotocolOpen().encode()) == SubprotocolOpen()
    yes = ArtifactResponse(True, 5, DIGEST)
    assert yes.encode() == b"\x08\x07\x10\x01\x18\x05\x22\x40" + DIGEST.encode()
    no = ArtifactResponse(False, error="artifact unavailable")
    assert no.encode() == b"\x08\x07\x2a\x14artifact unavailable"
    for answer in (yes, no, ArtifactResponse(True)):
        assert ArtifactResponse.decode(answer.encode()) == answer


def test_unknown_fields_of_every_wire_type_are_stepped_over() -> None:
    unknown = (
        b"\xa0\x06\x01"  # field 100, varint
        b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4) + b"\xa2\x06\x03abc"
        b"\xa3\x06\x08\x09\x1a\x01z\xa4\x06"  # a group that holds fields 1 and 3
    )
    for data in (unknown + REQUEST.encode(), REQUEST.encode() + unknown):
        assert ArtifactRequest.decode(data) == REQUEST


def test_digests_are_read_in_either_case_and_the_last_of_a_repeated_field_counts() -> None:
    upper = REQUEST.encode().replace(DIGEST.encode(), DIGEST.upper().encode())
    assert ArtifactRequest.decode(upper) == REQUEST
    assert ArtifactRequest.decode(REQUEST.encode() + b"\x48\x07").offset == 7


BAD = {
    "empty": b"",
    "varint-without-end": b"\x08" + b"\xff" * 11,
    "varint-over-u64": b"\x48" + b"\xff" * 9 + b"\x02",
    "varint-cut": b"\x08",
    "generation-over-u32": b"\x08\x87\x80\x80\x80\x10",
    "field-zero": b"\x00\x01",
    "field-number-too-large": wire.encode_varint(1 << 29 << 3) + b"\x00",
    "wire-type-6": b"\x0e",
    "wrong-wire-type": b"\x09" + bytes(8),
    "length-past-the-end": b"\x1a\x7fabc",
    "length-2-to-63": b"\x1a" + wire.encode_varint(1 << 63),
    "text-not-utf8": b"\x1a\x01\xff",
    "text-too-long": b"\x1a" + wire.encode_varint(1025) + b"x" * 1025,
    "group-not-closed": b"\xa3\x06",
    "group-closed-only": b"\xa4\x06",
    "group-closed-by-another": b"\xa3\x06\xac\x06",
    "groups-too-deep": b"\xa3\x06" * 100_000,
    "fields-too-many": b"\xa0\x06\x00" * 300,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_sound_message_is_refused(name: str) -> None:
    began = time.monotonic()
    for message in (ArtifactRequest, ArtifactResponse, SubprotocolOpen):
        assert kind_of(message.decode, BAD[name]) == "invalid_transfer_message"
    data = REQUEST.encode() + BAD[name]
    if BAD[name]:
        assert kind_of(ArtifactRequest.decode, data) == "invalid_transfer_message"
    assert time.monotonic() - began < 10


def test_a_u32_has_32_bits() -> None:
    schema: wire.Schema = {1: ("n", "u32", 0)}
    assert wire.decode_fields(wire.encode_field(1, 0xFFFFFFFF), schema, "x") == {"n": 0xFFFFFFFF}
    too_large = wire.encode_field(1, 1 << 32)
    assert kind_of(wire.decode_fields, too_large, schema, "x") == "invalid_transfer_message"


def changed(**members: object) -> bytes:
    """The request with members that `encode` would refuse."""
    out = b""
    numbers = {name: number for number, (name, _, _) in _schema().items()}
    for name, number in numbers.items():
        value = members.get(name, getattr(REQUEST, name))
        if value is not None:
            assert isinstance(value, int | bytes | str)
            out += wire.encode_field(number, value)
    return out


def _schema() -> wire.Schema:
    from packages.layer_package.transfer import messages

    return messages._REQUEST


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({"gen": 6}, "invalid_transfer_message"),
        ({"requester_id": bytes(31)}, "invalid_transfer_message"),
        ({"requester_id": bytes(33)}, "invalid_transfer_message"),
        ({"topology_id": ""}, "invalid_transfer_message"),
        ({"run_id": ""}, "invalid_transfer_message"),
        ({"stage_id": ""}, "invalid_transfer_message"),
        ({"package_ref": ""}, "invalid_transfer_message"),
        ({"manifest_sha256": "ab" * 31}, "invalid_transfer_message"),
        ({"manifest_sha256": "ag" * 32}, "invalid_transfer_message"),
        ({"expected_sha256": ""}, "invalid_transfer_message"),
        ({"offset": 1001}, "invalid_transfer_offset"),
        ({"offset": (1 << 64) - 1}, "invalid_transfer_offset"),
        ({"relative_path": "../x"}, "unsafe_artifact_path"),
        ({"relative_path": "/x"}, "unsafe_artifact_path"),
        ({"relative_path": ""}, "unsafe_artifact_path"),
        ({"relative_path": "a\\b"}, "unsafe_artifact_path"),
        ({"relative_path": "a/./b"}, "unsafe_artifact_path"),
        ({"relative_path": "a\0"}, "unsafe_artifact_path"),
    ],
)
def test_field_checks_of_a_request(members: dict[str, object], kind: str) -> None:
    assert kind_of(ArtifactRequest.decode, changed(**members)) == kind


def test_changed_changes_nothing_when_nothing_is_changed() -> None:
    assert changed() == REQUEST.encode()


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_and_random_changes_give_a_message_or_a_refusal(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        if rng.random() < 0.3:
            data = rng.randbytes(rng.randrange(200))
        else:
            data = bytearray(REQUEST.encode())
            for _ in range(rng.randrange(1, 5)):
                at = rng.randrange(len(data))
                data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
            data = bytes(data)
        for message in (ArtifactRequest, ArtifactResponse, SubprotocolOpen):
            try:
                found = message.decode(data)
            except TransferError:
                continue
            assert message.decode(found.encode()) == found


@pytest.mark.parametrize("seed", range(5))
def test_random_streams_give_frames_or_a_refusal(seed: int) -> None:
    rng = random.Random(seed)
    kinds = set()
    for _ in range(100):
        data = b"".join(
            struct.pack("<I", rng.choice((0, 1, 5, 1 << 16, 1 << 31))) + rng.randbytes(4)
            for _ in range(rng.randrange(4))
        )
        stream = Scripted(data, step=rng.randrange(1, 9))
        while stream.data:
            try:
                read_frame(stream, soon(), limit=1 << 16)
            except TransferError as e:
                kinds.add(e.kind)
                break
    assert kinds == {"transfer_frame_too_large", "transfer_truncated"}


def test_a_socket_that_stalls_ends_with_the_idle_limit() -> None:
    mine, theirs = socket.socketpair()
    stream = SocketStream(mine, idle_seconds=0.05)
    began = time.monotonic()
    assert kind_of(stream.read, 1) == "transfer_timeout"
    assert kind_of(stream.write, bytes(64 << 20)) == "transfer_timeout"
    assert time.monotonic() - began < 10
    stream.close()
    stream.close()
    assert kind_of(stream.read, 1) == "transfer_disconnected"
    assert mine.fileno() == -1
    theirs.close()
