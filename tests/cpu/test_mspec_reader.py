"""Owns the proof that a sound .mspec file reads as the format says."""

from pathlib import Path

import numpy as np
import pytest

from engine.artifacts.mspec import open_mspec
from engine.artifacts.mspec_format import Identity, MspecObject, weights_id
from engine.errors import InvalidArgument, ModelError
from tests.cpu import mspec_cases as cases

ITEMS = cases.sound_items()
NAMES = [item.name.decode() for item in ITEMS]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "a.mspec"
    made.write_bytes(cases.mspec(ITEMS))
    return made


def test_identity_and_objects(path: Path) -> None:
    with open_mspec(path) as file:
        expected = cases.weights_id(ITEMS).hex()
        assert file.identity == Identity("tiny", expected, "bf16", cases.RECIPE_SHA256)
        assert list(file.objects) == NAMES
        assert file.n_bytes == path.stat().st_size
        assert [t.name for t in file.tensors()] == NAMES[3:]
        offset = 256
        for item, entry in zip(ITEMS, file.objects.values(), strict=True):
            assert entry.offset == offset
            assert entry.length == len(item.data)
            assert entry.shape == item.dims()
            assert entry.sha256 == cases.sha256(item.data).hex()
            assert file.raw(entry.name).tobytes() == item.data
            offset += -(-len(item.data) // 256) * 256


def test_float_weights(path: Path) -> None:
    with open_mspec(path) as file:
        f32 = file.tensor("f32").to_float32()
        assert f32.dtype == np.float32
        assert f32.tobytes() == ITEMS[3].data
        assert f32.shape == (2, 3)
        assert file.tensor("f16").to_float32().tolist() == [1, -2, 65504]
        # NaN and infinity are weights like others here; judging them is not the reader's business.
        assert file.tensor("bf16").to_float32().tolist() == [[[1], [-2], [np.inf]]]
        assert file.tensor("f32").rows_to_float32(1, 2).tobytes() == ITEMS[3].data[12:]


def test_integer_weights(path: Path) -> None:
    with open_mspec(path) as file:
        tensor = file.tensor("int4")
        assert (tensor.dtype, tensor.shape) == ("int4", (8, 128))
        assert tensor.layout == "int4_symmetric_group_bf16_scale"
        assert tensor.to_float32().tolist() == [[0.5, 1.0] * 64] * 8
        codes, scales = tensor.codes_and_scales()
        assert (codes.shape, scales.shape) == ((8, 64), (8, 1))
        assert set(codes.flat) == {0x21}
        tensor = file.tensor("int8")
        rows = [[2.0 * (r - 4)] * 128 for r in range(8)]
        assert tensor.to_float32().tolist() == rows
        assert tensor.rows_to_float32(2, 7).tolist() == rows[2:7]
        codes, scales = tensor.codes_and_scales()
        assert codes.dtype == np.int8
        assert codes[:, 0].tolist() == list(range(-4, 4))
        assert scales.tolist() == [[0x4000]] * 8


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 9), (3, 3), (5, 4)])
def test_rows_outside_are_refused(start: int, stop: int, path: Path) -> None:
    with open_mspec(path) as file, pytest.raises(InvalidArgument, match="'int4', which has 8"):
        file.tensor("int4").rows_to_float32(start, stop)


def test_texts(path: Path) -> None:
    with open_mspec(path) as file:
        assert file.text("chat_template") == "{{ 'hé' }}"
        assert file.text("config") == '{"a": 1}'
        assert file.raw("anything").tobytes() == bytes(range(256))
        with pytest.raises(ModelError, match=r"no text or json 'anything' .*, only a blob"):
            file.text("anything")
        with pytest.raises(ModelError, match=r"no text or json 'f32' .*, only a tensor"):
            file.text("f32")
        with pytest.raises(ModelError, match="no tensor 'config' among 9 objects, only a json"):
            file.tensor("config")
        with pytest.raises(ModelError, match=r"no object 'nothing' among 9 objects$"):
            file.raw("nothing")
        with pytest.raises(InvalidArgument, match="'f32' is f32: no codes"):
            file.tensor("f32").codes_and_scales()


def test_a_text_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(cases.mspec([cases.text_item(b"t", b"ab\xff")]))
    with open_mspec(path) as file, pytest.raises(ModelError, match="'t' is not valid UTF-8 at"):
        file.text("t")


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [("int4", 64 * 5 + 3, 0x28, r"code of row 5, column 6 is -8, .* has -7 to 7"),
     ("int4", 64 * 5 + 3, 0x82, r"code of row 5, column 7 is -8"),
     ("int8", 128 * 7 + 127, 0x80, r"code of row 7, column 127 is -128, .* has -127 to 127"),
     ("int4", 512 + 2 * 6 + 1, 0xBF, r"scale of row 6, group 0 has the BF16 bits 0xBF00"),
     ("int8", 1024 + 2 * 3 + 1, 0, r"scale of row 3, group 0 has the BF16 bits 0x0000"),
     ("int8", 1024 + 1, 0xFF, r"scale of row 0, group 0 has the BF16 bits 0xFF00")],
)  # fmt: skip
def test_an_invalid_code_or_scale_is_refused(
    name: str, at: int, value: int, words: str, tmp_path: Path
) -> None:
    item = cases.int4_item() if name == "int4" else cases.int8_item()
    data = bytearray(item.data)
    data[at] = value
    path = tmp_path / "a"
    path.write_bytes(cases.mspec([item._replace(data=bytes(data))]))
    with open_mspec(path) as file:
        tensor = file.tensor(name)
        with pytest.raises(ModelError, match=f"tensor '{name}': {words}"):
            tensor.to_float32()
        with pytest.raises(ModelError, match=words):
            tensor.codes_and_scales()
        assert tensor.raw().tobytes() == bytes(data)


def test_weights_id_is_of_the_weights_alone(tmp_path: Path) -> None:
    def made(items: list[cases.Item]) -> str:
        path = tmp_path / "a"
        path.write_bytes(cases.mspec(items))
        with open_mspec(path) as file:
            assert weights_id(file.objects.values()) == file.identity.weights_id
            return file.identity.weights_id

    first = made(ITEMS)
    assert made(ITEMS[::-1]) == first
    assert made(ITEMS[3:]) == first
    x = ITEMS[3]
    others = [
        x._replace(name=b"other"), x._replace(shape=(3, 2)), x._replace(data=x.data[:-1] + b"\1"),
        x._replace(data=x.data[:12], dtype=cases.F16),
    ]  # fmt: skip
    assert len({first, *(made([*ITEMS[:3], other, *ITEMS[4:]]) for other in others)}) == 5


def test_arrays_outlive_the_file(path: Path) -> None:
    with open_mspec(path) as file:
        tensor = file.tensor("f32")
        raw = tensor.raw()
    assert raw.tobytes() == ITEMS[3].data
    assert not raw.flags.writeable
    with pytest.raises(InvalidArgument, match="is closed"):
        tensor.raw()


def test_a_conversion_under_way_does_not_open(path: Path) -> None:
    (path.parent / "a.mspec.journal").touch()
    with pytest.raises(ModelError, match="a conversion is still writing it"):
        open_mspec(path)


def test_files_that_cannot_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("missing", "empty", "."):
        with pytest.raises(ModelError, match="cannot"):
            open_mspec(tmp_path / name)
    with pytest.raises(InvalidArgument, match="NUL"):
        open_mspec("a\0b")


def test_a_file_without_objects(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(cases.mspec())
    with open_mspec(path) as file:
        assert dict(file.objects) == {}
        assert file.tensors() == ()


def test_an_entry_is_what_the_directory_says(path: Path) -> None:
    with open_mspec(path) as file:
        tensor = file.tensor("int8")
        assert isinstance(file.objects["int8"], MspecObject)
        assert (tensor.n_bytes, tensor.sha256) == (1040, cases.sha256(ITEMS[7].data).hex())
