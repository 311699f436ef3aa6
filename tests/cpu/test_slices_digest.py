"""Owns the content identity of a model: the documented stream, and that every change shows."""

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from engine.artifacts import ggml_types as ggml
from engine.artifacts.content_digest import content_digest
from engine.artifacts.gguf import open_gguf
from engine.artifacts.gguf_types import GgufValue, ValueType
from engine.artifacts.gguf_writer import TensorSource, write_gguf

U32, INT32, STRING = ValueType.UINT32, ValueType.INT32, ValueType.STRING


def test_content_digest_is_the_documented_stream(tmp_path: Path) -> None:
    """Made again from the description alone."""

    def counted(raw: bytes) -> bytes:
        return struct.pack("<Q", len(raw)) + raw

    data = struct.pack("<4f", 1, 2, 3, 4)
    stream = b"gguf-content-1\n"
    stream += struct.pack("<Q", 2)
    stream += counted(b"a") + struct.pack("<I", 4) + counted(struct.pack("<I", 5))
    stream += counted(b"b") + struct.pack("<I", 8) + counted(counted(b"text"))
    stream += struct.pack("<Q", 2)
    stream += counted(b"m") + struct.pack("<IIQQ", 0, 2, 2, 2) + hashlib.sha256(data).digest()
    stream += counted(b"v") + struct.pack("<IIQ", 0, 1, 4) + hashlib.sha256(data).digest()
    path = tmp_path / "a"
    pairs = [("b", GgufValue.of(STRING, "text")), ("skippy.x", GgufValue.of(U32, 1)),
             ("a", GgufValue.of(U32, 5)), ("split.no", GgufValue.of(U32, 1))]  # fmt: skip
    tensors = [TensorSource(name, dims, ggml.F32, 16, (data,))
               for name, dims in (("v", (4, 1, 1)), ("m", (2, 2)))]  # fmt: skip
    write_gguf(path, pairs, tensors, 128)
    assert content_digest(open_gguf(path)) == hashlib.sha256(stream).hexdigest()


@pytest.mark.parametrize("change", ["key", "value", "type", "name", "dims", "data"])
def test_content_digest_sees_every_change(change: str, tmp_path: Path) -> None:
    digests = []
    for changed in (False, True):
        on = changed and change
        value = GgufValue.of(INT32 if on == "type" else U32, 2 if on == "value" else 1)
        x = np.full((3, 2) if on == "dims" else (2, 3), 7 if on == "data" else 0, np.float32)
        tensor = TensorSource.from_array("y" if on == "name" else "x", x, ggml.F32)
        path = tmp_path / str(changed)
        write_gguf(path, [("other" if on == "key" else "key", value)], [tensor])
        digests.append(content_digest(open_gguf(path)))
    assert digests[0] != digests[1]
