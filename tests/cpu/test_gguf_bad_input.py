"""Owns the proof that no GGUF file, however made, does more than raise ModelError at once.

Holds the field cases on small files with large claims: refused within 1 s and 64 MiB, naming field,
value and limit.
"""

import random
from pathlib import Path

import pytest

from engine.artifacts.gguf import GgufFile, open_gguf
from engine.artifacts.quants import can_decode
from engine.artifacts.slices import open_parts, write_from_parts
from engine.errors import ModelError
from tests.cpu import gguf_cases as cases
from tests.cpu.cheap import opened, refusal

HOSTILE = cases.hostile_files()


def use_everything(file: GgufFile) -> None:
    """Everything a caller may do with an open file; only ModelError may come out."""
    for key, value in file.metadata.items():
        assert value.value is not None
        try:
            file.get(key)
        except ModelError:
            assert value.type.name in ("STRING", "ARRAY")
    for tensor in file.tensors:
        assert tensor.raw().nbytes == tensor.n_bytes
        if can_decode(tensor.ggml_type):
            assert tensor.to_float32().shape == tensor.shape
        else:
            with pytest.raises(ModelError, match="cannot be decoded"):
                tensor.to_float32()


@pytest.mark.parametrize("case", HOSTILE, ids=[case.name for case in HOSTILE])
def test_a_hostile_file_is_refused_by_name(case: cases.Hostile, tmp_path: Path) -> None:
    assert len(case.data) < 128 << 10
    path = tmp_path / "hostile.gguf"
    path.write_bytes(case.data)
    message = refusal(open_gguf, path)
    assert "hostile.gguf" in message
    assert message.isprintable()
    for word in case.words:
        assert word in message, message


def test_hostile_names_are_unique() -> None:
    assert len({case.name for case in HOSTILE}) == len(HOSTILE) >= 40


def test_a_bad_part_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    good, bad, out = (tmp_path / name for name in ("good", "bad", "out"))
    good.write_bytes(cases.every_type())
    for case in HOSTILE:
        bad.write_bytes(case.data)
        with pytest.raises(ModelError, match="bad"):
            open_parts([good, bad])
        with pytest.raises(ModelError, match="bad"):
            write_from_parts([good, bad], out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad", "good"]


def test_more_array_items_than_accepted(tmp_path: Path) -> None:
    empty = cases.array(cases.UINT8, 0)
    for kind, item, limit in ((cases.STRING, bytes(8), 2**21), (cases.ARRAY, empty, 2**16)):
        n = limit + 1
        path = tmp_path / f"{kind}.gguf"
        whole = cases.array(kind, n, item * n)
        path.write_bytes(cases.gguf([cases.pair(b"x", cases.ARRAY, whole)]))
        message = refusal(open_gguf, path)
        assert "'x'" in message
        assert str(n) in message
        assert str(limit) in message


@pytest.mark.parametrize("kind", ["strings", "arrays", "pairs", "tensors"])
def test_the_largest_accepted_counts_stay_cheap(kind: str, tmp_path: Path) -> None:
    n_strings, n_arrays = 2**21, 2**16
    empty = cases.array(cases.UINT8, 0)
    made = {
        "strings": lambda: ([cases.array(cases.STRING, n_strings, bytes(8) * n_strings)], 0),
        "arrays": lambda: ([cases.array(cases.ARRAY, n_arrays, empty * n_arrays)], 0),
        "pairs": lambda: ([empty] * 16_384, 0),
        "tensors": lambda: ([], 32_768),
    }[kind]()
    pairs = [cases.pair(b"%05d" % i + b"k" * 99, cases.ARRAY, v) for i, v in enumerate(made[0])]
    infos = [cases.tensor(b"%06d" % i + b"t" * 250, (8,), 0, 32 * i) for i in range(made[1])]
    path = tmp_path / "large.gguf"
    path.write_bytes(cases.gguf(pairs, infos, bytes(32 * made[1])))
    file = opened(open_gguf, path)
    assert len(file.tensors) + len(file.metadata) == max(made[1], len(pairs))


def test_every_truncation_opens_or_is_refused(tmp_path: Path) -> None:
    data = cases.every_type()
    assert len(data) < 3000
    path = tmp_path / "cut.gguf"
    path.write_bytes(data)
    with open_gguf(path) as whole:
        needed = max(tensor.offset + tensor.n_bytes for tensor in whole.tensors)
    for n_bytes in range(len(data)):
        path.write_bytes(data[:n_bytes])
        if n_bytes < needed:
            with pytest.raises(ModelError):
                open_gguf(path)
        else:
            with open_gguf(path) as file:
                use_everything(file)


def test_random_byte_flips_open_or_are_refused(tmp_path: Path) -> None:
    data = cases.every_type()
    path = tmp_path / "flipped.gguf"
    path.write_bytes(data)
    rng = random.Random(20_000)
    n_opened = 0
    messages: set[str] = set()
    with open(path, "r+b", buffering=0) as out:
        for _ in range(20_000):
            at = [rng.randrange(len(data)) for _ in range(rng.choice((1, 1, 1, 2, 4)))]
            for i in at:
                out.seek(i)
                out.write(bytes([data[i] ^ rng.randrange(1, 256)]))
            try:
                with open_gguf(path) as file:
                    use_everything(file)
                    n_opened += 1
            except ModelError as e:
                messages.add(str(e))
            for i in at:
                out.seek(i)
                out.write(data[i : i + 1])
    assert 2000 < n_opened < 18_000
    assert all(message.isprintable() for message in messages)
