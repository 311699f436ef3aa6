"""Owns the proof that no .mspec file, however made, does more than raise ModelError at once, and
that no flipped byte goes unnoticed.

A flip in the header or directory is refused when the file is opened; one in an object, or in the
zeros after it, when that object is verified.
"""

from pathlib import Path

import pytest

from engine.artifacts.mspec import MspecFile, Verify, open_mspec
from engine.errors import ModelError
from tests.cpu import mspec_cases as cases
from tests.cpu.cheap import opened, refusal
from tests.cpu.mspec_hostile import HOSTILE, Hostile


@pytest.mark.parametrize("case", HOSTILE, ids=[case.name for case in HOSTILE])
def test_a_hostile_file_is_refused_by_name(case: Hostile, tmp_path: Path) -> None:
    path = tmp_path / "hostile.mspec"
    path.write_bytes(case.data)
    message = refusal(open_mspec, path)
    assert "hostile.mspec" in message
    assert message.isprintable()
    for word in case.words:
        assert word in message, message


def test_hostile_names_are_unique_and_the_sound_file_opens(tmp_path: Path) -> None:
    assert len({case.name for case in HOSTILE}) == len(HOSTILE) >= 60
    path = tmp_path / "a"
    path.write_bytes(cases.mspec([cases.Item(b"x", bytes(16), shape=(4,))]))
    open_mspec(path).close()


def small_file() -> bytes:
    """Every kind of thing once, so that each of its bytes can be flipped in each of its bits."""
    kept = (b"chat_template", b"f32", b"bf16")
    return cases.mspec([item for item in cases.sound_items() if item.name in kept])


def test_every_single_bit_flip_is_found(tmp_path: Path) -> None:
    data = small_file()
    path = tmp_path / "flipped"
    path.write_bytes(data)
    with open_mspec(path) as file:
        first = min(o.offset for o in file.objects.values())
        last = max(o.offset + o.length for o in file.objects.values())
        directory = last + -last % 256
        names = list(file.objects)
    assert (first, len(names)) == (256, 3)
    with open(path, "r+b", buffering=0) as out:
        for i, byte in enumerate(data):
            for bit in range(8):
                out.seek(i)
                out.write(bytes((byte ^ 1 << bit,)))
                if first <= i < directory:
                    with open_mspec(path, Verify.ALWAYS) as file:
                        assert _damaged(file, names) == 1, (i, bit)
                else:
                    with pytest.raises(ModelError):
                        open_mspec(path)
            out.seek(i)
            out.write(data[i : i + 1])
    open_mspec(path).close()


def _damaged(file: MspecFile, names: list[str]) -> int:
    count = 0
    for name in names:
        try:
            file.raw(name)
        except ModelError:
            count += 1
    return count


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = cases.mspec(cases.sound_items())
    path = tmp_path / "cut"
    for n_bytes in range(len(data)):
        path.write_bytes(data[:n_bytes])
        words = "begins with|has 0 bytes" if n_bytes < 9 else f"{n_bytes} bytes"
        with pytest.raises(ModelError, match=f"cut.*({words})"):
            open_mspec(path)
    for extra in (1, 256):
        path.write_bytes(data + bytes(extra))
        with pytest.raises(ModelError, match="header says"):
            open_mspec(path)


def test_changes_under_right_digests_open_or_are_refused(tmp_path: Path) -> None:
    """What the checks of the fields must find alone; ModelError is all that may come out."""
    items = cases.sound_items()
    whole = cases.mspec(items)
    offset = int.from_bytes(whole[24:32], "little")
    body, directory = whole[256:offset], whole[offset:]
    path = tmp_path / "resealed"
    opened = refused = 0
    for i in range(len(directory)):
        for value in {0x00, 0x01, 0x7F, 0xFF} - {directory[i]}:
            changed = directory[:i] + bytes((value,)) + directory[i + 1 :]
            path.write_bytes(cases.seal(changed, offset, len(items)) + body + changed)
            try:
                with open_mspec(path, Verify.ALWAYS) as file:
                    opened += 1
                    for tensor in file.tensors():
                        tensor.to_float32()
            except ModelError:
                refused += 1
    # What opens has other names, or other digests of texts, which the weights do not count.
    assert 0 < opened < refused


@pytest.mark.parametrize("n_objects", [32_768, 32_769, 1_000_000])
def test_many_objects_are_read_or_refused_cheaply(n_objects: int, tmp_path: Path) -> None:
    path = tmp_path / "large.mspec"
    n_made = min(n_objects, 32_769)
    one = cases.Item(b"", bytes(256), cases.BLOB, cases.U8)
    digest = cases.sha256(one.data)
    records = b"".join(
        cases.u64(256 + 256 * i) + cases.u64(256) + digest + bytes((4, 4, 1, 1)) + cases.u32(256)
        + cases.u64(256) + b"%0256d" % i
        for i in range(n_made)
    )  # fmt: skip
    directory = cases.identity([]) + records
    body = bytes(256 * n_made)
    header = cases.seal(directory, 256 + len(body), n_objects)
    path.write_bytes(header + body + directory)
    if n_objects > 32_768:
        assert str(n_objects) in refusal(open_mspec, path)
        return
    file = opened(open_mspec, path)
    assert len(file.objects) == n_objects
