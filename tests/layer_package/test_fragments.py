"""Owns the proof of the rules by which fragments are read: one refusal each, no crash, no hang.

Long because bytes that are kept, shared, cut and flipped all come from one reader.
"""

import os
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from packages.layer_package.errors import ArtifactError, GgufError, Report
from packages.layer_package.fragments import Fragment, read_fragment, tensor_digest, tensor_pieces
from tests.cpu.gguf_cases import (
    ARRAY,
    STRING,
    UINT32,
    array,
    every_type,
    gguf,
    hostile_files,
    pair,
    tensor,
    text,
    u32,
    u64,
)
from tests.layer_package.fragment_cases import Opened, Unsound, opened, unsound_files
from tests.layer_package.package_cases import Model, gguf_bytes, tiny_model

UNSOUND = unsound_files()
KINDS = {
    "gguf_bad_magic", "unsupported_gguf_endianness", "unsupported_gguf_version",
    "gguf_limit_exceeded", "gguf_truncated", "gguf_invalid_utf8", "gguf_duplicate_key",
    "gguf_duplicate_tensor", "gguf_unknown_type", "gguf_bad_shape", "gguf_bad_alignment",
    "gguf_bad_offset", "gguf_overlapping_tensors",
}  # fmt: skip


def read(path: Path, report: Report | None = None) -> Fragment:
    with opened(path) as file:
        return read_fragment(file, "layers/x.gguf", report=report)


def refused_as(act: Callable[[], object]) -> str | None:
    """The kind of the GgufError, None without one."""
    kind = None
    try:
        act()
    except GgufError as error:
        kind = error.kind
    assert kind is None or kind in KINDS
    return kind


@pytest.mark.parametrize("case", UNSOUND, ids=[case.name for case in UNSOUND])
def test_an_unsound_file_is_refused_with_its_kind(case: Unsound, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(case.data)
    start = time.process_time()
    with pytest.raises(GgufError) as caught:
        read(path)
    assert time.process_time() - start < 0.5
    assert caught.value.kind == case.kind
    assert caught.value.issue.artifact == "layers/x.gguf"
    assert str(tmp_path) not in str(caught.value)
    assert caught.value.issue.message.isprintable()


def test_every_kind_has_a_case() -> None:
    assert {case.kind for case in UNSOUND} == KINDS


def test_large_claims_cost_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for case in UNSOUND:
        path.write_bytes(case.data)
        tracemalloc.start()
        try:
            with pytest.raises(GgufError):
                read(path)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20, case.name
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("version", [2, 3])
def test_pairs_and_tensors_are_kept_as_the_file_has_them(version: int, tmp_path: Path) -> None:
    model = tiny_model(mtp=True, every_type=True, alignment=64)
    path = tmp_path / "x.gguf"
    data = gguf_bytes(*model, version=version)
    path.write_bytes(data)
    report = Report()
    fragment = read(path, report)
    assert report.kinds() == []
    again = [text(p.key.encode()) + u32(p.type) + p.payload for p in fragment.pairs]
    assert again == [p.record for p in model.pairs]
    assert (fragment.version, fragment.alignment, fragment.architecture) == (version, 64, "llama")
    assert fragment.integer("llama.block_count") == 3
    assert fragment.integer("general.name") is None
    assert fragment.value("tokenizer.ggml.merges") == []
    assert fragment.text("general.description") == ""
    assert fragment.tensor_bytes == sum(len(t.data) for t in model.tensors)
    with opened(path) as file:
        for found, made in zip(fragment.tensors, model.tensors, strict=True):
            assert (found.name, found.dims, found.ggml_type) == made[:3]
            assert b"".join(map(bytes, tensor_pieces(file, "x", found))) == made.data
            assert data[found.offset : found.offset + found.n_bytes] == made.data


def test_texts_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf([pair(b"general.architecture", STRING, text(b"\xff\x00"))]))
    fragment = read(path)
    assert fragment.architecture is None
    assert fragment.value("general.architecture") == b"\xff\x00"


@pytest.mark.parametrize(
    ("tail", "warned"),
    [(b"", False), (bytes(4), False), (bytes(12), False), (bytes(13), True), (b"x", True),
     (bytes(1000), True)],
    ids=["nothing", "some padding", "all padding", "a byte more", "not zero", "much more"],
)  # fmt: skip
def test_trailing_bytes(tail: bytes, warned: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf((), [tensor(b"a", (5,))], bytes(20)) + tail)
    report = Report()
    read(path, report)
    assert report.kinds() == (["gguf_trailing_bytes"] if warned else [])
    assert report.valid
    read(path)


def test_no_tensors_with_and_without_padding(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for data in (gguf([pair(b"x", UINT32, u32(1))]), gguf_bytes(*Model([], [], 32))):
        path.write_bytes(data)
        report = Report()
        fragment = read(path, report)
        assert (fragment.tensors, fragment.tensor_bytes, report.kinds()) == ((), 0, [])


def test_hostile_files_of_the_engine_raise_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for case in hostile_files():
        path.write_bytes(case.data)
        refused_as(lambda: read(path, Report()))


def test_every_truncation_opens_or_is_refused(tmp_path: Path) -> None:
    data = every_type()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data)
    needed = max(tensor.offset + tensor.n_bytes for tensor in read(path).tensors)
    fd = os.open(path, os.O_RDWR)
    try:
        for n_bytes in reversed(range(len(data))):
            os.truncate(fd, n_bytes)
            kind = refused_as(lambda n=n_bytes: read_fragment(Opened(fd, n), "x", report=Report()))
            expected = (None,) if n_bytes >= needed else ("gguf_truncated", "gguf_bad_magic")
            assert kind in expected
    finally:
        os.close(fd)


def test_random_byte_flips_open_or_are_refused(tmp_path: Path) -> None:
    data = every_type()
    path = tmp_path / "flipped.gguf"
    path.write_bytes(data)
    rng = random.Random(5)
    n_refused = 0
    with opened(path) as file, open(path, "r+b", buffering=0) as out:
        for _ in range(4000):
            at = rng.randrange(len(data) - 60)
            os.pwrite(out.fileno(), bytes([rng.randrange(256)]), at)
            kind = refused_as(lambda: read_fragment(file, "x", report=Report()))
            n_refused += kind is not None
            os.pwrite(out.fileno(), data[at : at + 1], at)
    assert 400 < n_refused < 4000


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(*tiny_model()))
    with opened(path) as file:
        fragment = read_fragment(file, "x")
        os.truncate(path, 400)
        for act in (lambda: read_fragment(file, "x"),
                    lambda: tensor_digest(file, "x", fragment.tensors[0])):  # fmt: skip
            with pytest.raises(GgufError) as caught:
                act()
            assert caught.value.kind == "gguf_truncated"


def test_what_the_system_refuses_is_no_gguf_error(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(ArtifactError) as caught:
            read_fragment(Opened(folder, 100), "x")
    finally:
        os.close(folder)
    assert caught.value.kind == "artifact_unreadable"


def test_a_pool_shares_equal_values(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes(*tiny_model()))
    pool: dict[bytes, bytes] = {}
    with opened(path) as file:
        one, two = (read_fragment(file, "x", pool=pool) for _ in range(2))
    assert one == two
    key = "tokenizer.ggml.tokens"
    assert one.by_key[key].payload is two.by_key[key].payload


def test_a_pool_changes_nothing_that_is_read(tmp_path: Path) -> None:
    words = [array(STRING, n, text(b"a" * 300) * n) for n in (2, 1, 3)]
    values = [
        (ARRAY, words[0]), (ARRAY, words[1]), (ARRAY, words[2]), (STRING, text(b"a" * 300)),
        (ARRAY, array(UINT32, 75, bytes(300))), (ARRAY, words[0][:-1] + b"b"),
        (ARRAY, words[0]), (UINT32, u32(1)), (ARRAY, words[0]),
    ]  # fmt: skip
    pool: dict[bytes, bytes] = {}
    path = tmp_path / "x.gguf"
    for kind, value in values:
        path.write_bytes(gguf([pair(b"k", kind, value), pair(b"z", UINT32, u32(7))]))
        with opened(path) as file:
            found = read_fragment(file, "x", pool=pool)
        assert (found.by_key["k"].payload, found.by_key["k"].type) == (value, kind)
        assert found.integer("z") == 7
    path.write_bytes(gguf([pair(b"k", ARRAY, words[0])])[:-1])
    with opened(path) as file, pytest.raises(GgufError) as caught:
        read_fragment(file, "x", pool=pool)
    assert caught.value.kind == "gguf_truncated"


def test_a_large_vocabulary_is_read_piece_by_piece(tmp_path: Path) -> None:
    words = b"".join(u64(n % 40) + bytes(n % 40) for n in range(40_000))
    path = tmp_path / "x.gguf"
    long = text(b"t" * (1 << 20))
    path.write_bytes(
        gguf(
            [
                pair(b"v", ARRAY, array(STRING, 40_001, words + long)),
                pair(b"w", STRING, text(b"last")),
            ],
            [tensor(b"a", (8,))],
            bytes(32),
        )
    )
    fragment = read(path)
    assert len(fragment.value("v")) == 40_001
    assert fragment.text("w") == "last"
