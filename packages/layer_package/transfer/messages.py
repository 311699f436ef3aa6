"""Owns the three messages of a transfer and their field checks.

It must not know who may ask for what. Wire format is protobuf (`wire.py`), fields as the stage
protocol numbers them; members marked * are present only when they say something:

    SubprotocolOpen   gen u32 = 1, name string = 2, major u32 = 3
    ArtifactRequest   gen u32 = 1, requester_id bytes = 2, topology_id string = 3,
                      run_id string = 4, stage_id string = 5, package_ref string = 6,
                      manifest_sha256 string = 7, relative_path string = 8, offset u64 = 9,
                      expected_size u64 = 10*, expected_sha256 string = 11*
    ArtifactResponse  gen u32 = 1, accepted bool = 2, total_size u64 = 3, sha256 string = 4*,
                      error string = 5*

Digests are read in either case and held in lower case. Unknown fields are ignored.
"""

import re
from dataclasses import dataclass
from typing import Self

from packages.layer_package.errors import PackageError, TransferError
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.paths import check_path
from packages.layer_package.transfer.wire import Schema, Value, decode_fields, encode_field

MESH_GENERATION = 1
STAGE_GENERATION = 7
SUBPROTOCOL_NAME, SUBPROTOCOL_MAJOR = "skippy-stage", 2
STREAM_KIND = b"\x03"
PEER_ID_BYTES = 32

DISABLED = "artifact transfer disabled"
UNAVAILABLE = "artifact unavailable"
INVALID_OFFSET = "invalid transfer offset"

# Ids are the mesh's own names; a reference has 5 + 96 + 1 + 96 + 1 + 255 bytes at most.
_MAX_ID_BYTES, _MAX_REF_BYTES, _MAX_PATH_BYTES, _MAX_TEXT_BYTES = 1024, 512, 1024, 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")

_OPEN: Schema = {1: ("gen", "u32", 0), 2: ("name", "string", 255), 3: ("major", "u32", 0)}
_REQUEST: Schema = {
    1: ("gen", "u32", 0),
    2: ("requester_id", "bytes", PEER_ID_BYTES),
    3: ("topology_id", "string", _MAX_ID_BYTES),
    4: ("run_id", "string", _MAX_ID_BYTES),
    5: ("stage_id", "string", _MAX_ID_BYTES),
    6: ("package_ref", "string", _MAX_REF_BYTES),
    7: ("manifest_sha256", "string", 64),
    8: ("relative_path", "string", _MAX_PATH_BYTES),
    9: ("offset", "u64", 0),
    10: ("expected_size", "u64", 0),
    11: ("expected_sha256", "string", 64),
}
_RESPONSE: Schema = {
    1: ("gen", "u32", 0),
    2: ("accepted", "bool", 0),
    3: ("total_size", "u64", 0),
    4: ("sha256", "string", 64),
    5: ("error", "string", _MAX_TEXT_BYTES),
}


@dataclass(frozen=True, slots=True)
class SubprotocolOpen:
    """The mesh's envelope: which subprotocol the rest of the stream speaks."""

    gen: int = MESH_GENERATION
    name: str = SUBPROTOCOL_NAME
    major: int = SUBPROTOCOL_MAJOR

    def encode(self) -> bytes:
        """Wire format."""
        return _encode(_OPEN, self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The envelope of this subprotocol. TransferError `invalid_transfer_message`."""
        found = decode_fields(data, _OPEN, "open")
        out = cls(_int(found, "gen"), _text(found, "name"), _int(found, "major"))
        if (out.name, out.major) != (SUBPROTOCOL_NAME, SUBPROTOCOL_MAJOR):
            raise _bad(f"subprotocol {out.name!r}/{out.major} is not served")
        _check_generation(out.gen, MESH_GENERATION)
        return out


@dataclass(frozen=True, slots=True)
class ArtifactRequest:
    """Which file of which package for which stage, from which byte on."""

    requester_id: bytes
    topology_id: str
    run_id: str
    stage_id: str
    package_ref: str
    manifest_sha256: str
    relative_path: str
    offset: int = 0
    expected_size: int | None = None
    expected_sha256: str | None = None
    gen: int = STAGE_GENERATION

    def encode(self) -> bytes:
        """Wire format, after the same checks as `decode`."""
        self.check()
        return _encode(_REQUEST, self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """TransferError: `invalid_transfer_message`, or `invalid_transfer_offset` for an offset
        past the expected size; `unsafe_artifact_path` for a path that no package may have."""
        found = decode_fields(data, _REQUEST, "request")
        requester, size = found.get("requester_id", b""), found.get("expected_size")
        assert isinstance(requester, bytes)
        assert size is None or isinstance(size, int)
        digest = found.get("expected_sha256")
        out = cls(
            requester,
            _text(found, "topology_id"),
            _text(found, "run_id"),
            _text(found, "stage_id"),
            _text(found, "package_ref"),
            manifest_sha256=_text(found, "manifest_sha256").lower(),
            relative_path=_text(found, "relative_path"),
            offset=_int(found, "offset"),
            expected_size=size,
            expected_sha256=None if digest is None else _text(found, "expected_sha256").lower(),
            gen=_int(found, "gen"),
        )
        out.check()
        return out

    def check(self) -> None:
        """The field checks of `decode`."""
        _check_generation(self.gen, STAGE_GENERATION)
        if len(self.requester_id) != PEER_ID_BYTES:
            raise _bad(f"requester_id has {len(self.requester_id)} bytes, not {PEER_ID_BYTES}")
        for name in ("topology_id", "run_id", "stage_id", "package_ref"):
            if not getattr(self, name):
                raise _bad(f"{name} is empty")
        _check_digest("manifest_sha256", self.manifest_sha256)
        if self.expected_sha256 is not None:
            _check_digest("expected_sha256", self.expected_sha256)
        if self.relative_path != MANIFEST_NAME:
            # check_path refuses the manifest's own name, which no artifact may have.
            try:
                check_path(self.relative_path, "")
            except PackageError as e:
                raise TransferError(e.kind, e.issue.message) from e
        if self.expected_size is not None and self.offset > self.expected_size:
            raise TransferError(
                "invalid_transfer_offset",
                f"offset {self.offset} is past the expected size {self.expected_size}",
                artifact=self.relative_path,
            )


@dataclass(frozen=True, slots=True)
class ArtifactResponse:
    """Whether the bytes `[offset, total_size)` follow, or which of the public texts says no."""

    accepted: bool
    total_size: int = 0
    sha256: str | None = None
    error: str | None = None
    gen: int = STAGE_GENERATION

    def encode(self) -> bytes:
        """Wire format."""
        return _encode(_RESPONSE, self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """TransferError `invalid_transfer_message`."""
        found = decode_fields(data, _RESPONSE, "response")
        digest = _text(found, "sha256").lower() if "sha256" in found else None
        error = _text(found, "error") if "error" in found else None
        accepted = bool(found.get("accepted", False))
        out = cls(accepted, _int(found, "total_size"), digest, error, _int(found, "gen"))
        _check_generation(out.gen, STAGE_GENERATION)
        if digest is not None:
            _check_digest("sha256", digest)
        return out


def _encode(schema: Schema, message: object) -> bytes:
    # proto3: what equals its default is left out. Our two optional integers and texts are None
    # when absent, and an optional one that is zero is written.
    out = bytearray()
    for number, (name, _, _) in schema.items():
        value = getattr(message, name)
        if value is not None and (value or name.startswith("expected_")):
            out += encode_field(number, value)
    return bytes(out)


def _int(found: dict[str, Value], name: str) -> int:
    value = found.get(name, 0)
    assert isinstance(value, int)
    return value


def _text(found: dict[str, Value], name: str) -> str:
    value = found.get(name, "")
    assert isinstance(value, str)
    return value


def _check_generation(found: int, wanted: int) -> None:
    if found != wanted:
        raise _bad(f"generation {found}, this side speaks {wanted}")


def _check_digest(name: str, value: str) -> None:
    if not _DIGEST.fullmatch(value):
        raise _bad(f"{name} is not 64 hex digits")


def _bad(message: str) -> TransferError:
    return TransferError("invalid_transfer_message", message)
