"""Guards the model-file calls: inventory, slices, parts, files that lie, files with odd names.

Long because the small calls are many.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts.gguf import open_gguf
from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel
from tests.abi.model_files import Files, ids_of, whole_ids
from tests.abi.seam import live_handles
from tests.cpu import gguf_cases

EMBEDDING, LAYER, FINAL_NORM, OUTPUT, METADATA = 3, 4, 5, 6, 1


@pytest.fixture
def files(runtime: Host) -> Iterator[Files]:
    runtime.symbol("skippy_session_position")(runtime.ffi.NULL)
    before = live_handles()
    yield Files(runtime)
    assert live_handles() == before


# Inventory


def test_the_inventory_is_the_file(files: Files, tiny_path: Path) -> None:
    info = files.info(tiny_path)
    found = files.tensors(info)
    string = files.ffi.string
    with open_gguf(tiny_path) as file:
        wanted = [(t.name.encode(), t.ggml_type, t.n_bytes, t.n_elements) for t in file.tensors]
    assert [
        (string(t.name), t.ggml_type, t.byte_size, t.element_count) for t in found
    ] == wanted
    roles = {string(t.name).decode(): (int(t.role), t.layer_index) for t in found}
    assert roles["token_embd.weight"] == (EMBEDDING, -1)
    assert roles["output_norm.weight"] == (FINAL_NORM, -1)
    assert roles["blk.1.attn_q.weight"] == (LAYER, 1)
    assert len(roles) == 20
    files.free(info)


def test_roles_follow_names_alone(files: Files, tmp_path: Path) -> None:
    names = {
        b"output.weight": (OUTPUT, -1), b"output.bias": (OUTPUT, -1),
        b"output_norm.bias": (FINAL_NORM, -1), b"per_layer_token_embd.weight": (EMBEDDING, -1),
        b"blk.0.x": (LAYER, 0), b"blk.2147483647.x": (LAYER, 2**31 - 1),
        b"cache_k_l7": (LAYER, 7), b"blk.x.y": (METADATA, -1), b"rope_freqs": (METADATA, -1),
        b"token_embd.bias": (METADATA, -1), b"output.weight2": (METADATA, -1),
    }
    records = [gguf_cases.tensor(n, (8,), offset=32 * i) for i, n in enumerate(names)]
    path = tmp_path / "roles.gguf"
    path.write_bytes(gguf_cases.gguf((), records, bytes(32 * len(names))))
    info = files.info(path)
    found = {files.ffi.string(t.name): (int(t.role), t.layer_index) for t in files.tensors(info)}
    assert found == names
    files.free(info)


@pytest.mark.parametrize("index", [20, 2**31, 2**63, 2**64 - 1])
def test_a_tensor_beyond_the_last(files: Files, tiny_path: Path, index: int) -> None:
    info = files.info(tiny_path)
    out = files.ffi.new("struct skippy_tensor_info *")
    status, message = files.host.raw("skippy_model_info_tensor_at", info, index, out)
    assert (status, message) == (Status.INVALID_ARGUMENT, f"index: tensor {index} of 20")
    files.free(info)


def test_names_live_as_long_as_their_info(files: Files, tiny_path: Path) -> None:
    one, two = files.info(tiny_path), files.info(tiny_path)
    name = files.tensors(one)[0].name
    files.free(two)
    assert files.ffi.string(name) == b"token_embd.weight"
    files.free(one)


# Slices and parts


def cut(files: Files, path: Path, folder: Path) -> list[Path]:
    info = files.info(path)
    plan = files.plan(info, (0, 0, 1, True, False), (1, 1, 2, False, True), (0, 0, 2, True, True))
    pieces = [folder / f"stage{i}.gguf" for i in range(2)]
    for stage, piece in enumerate(pieces):
        assert files.slice(info, plan, stage, piece) == (Status.OK, None)
    files.host.call("skippy_slice_plan_free", plan)
    files.free(info)
    return pieces


def test_pieces_have_their_tensors_and_say_which(
    files: Files, tiny_path: Path, tmp_path: Path
) -> None:
    pieces = cut(files, tiny_path, tmp_path)
    for stage, piece in enumerate(pieces):
        with open_gguf(piece) as file:
            stated = {name: file.get(f"skippy.slice.{name}") for name in (
                "stage_index", "layer_start", "layer_end", "include_embeddings", "include_output")}
            names = {t.name for t in file.tensors}
        assert stated == {"stage_index": stage, "layer_start": stage, "layer_end": stage + 1,
                          "include_embeddings": stage == 0, "include_output": stage == 1}
        assert ("token_embd.weight" in names) == (stage == 0)
        assert ("output_norm.weight" in names) == (stage == 1)
        assert {n.split(".")[1] for n in names if n.startswith("blk.")} == {str(stage)}


def test_the_pieces_together_are_the_model(files: Files, tiny_path: Path, tmp_path: Path) -> None:
    wanted = whole_ids(files, tiny_path)
    pieces = cut(files, tiny_path, tmp_path)
    assert ids_of(files.open_parts(pieces)) == wanted
    assert files.join(pieces, tmp_path / "joined.gguf") == (Status.OK, None)
    assert whole_ids(files, tmp_path / "joined.gguf") == wanted
    assert files.join([tmp_path / "joined.gguf"], tmp_path / "again.gguf")[0] == Status.OK
    assert ids_of(files.open_parts([tmp_path / "again.gguf"])) == wanted


def test_a_single_piece_is_not_the_model(files: Files, tiny_path: Path, tmp_path: Path) -> None:
    for piece in cut(files, tiny_path, tmp_path):
        with pytest.raises(AbiError) as error:
            files.open_parts([piece])
        assert error.value.status in (Status.UNSUPPORTED, Status.MODEL_ERROR)


@pytest.mark.parametrize(("range_", "status"), [
    ((-1, 0, 1), Status.INVALID_ARGUMENT), ((0, -1, 1), Status.INVALID_ARGUMENT),
    ((0, 2, 1), Status.INVALID_ARGUMENT), ((0, 1, 1), Status.OK), ((0, 0, 2**31 - 1), Status.OK),
    ((2**31 - 1, 0, 1), Status.OK),
])
def test_ranges(
    files: Files, tiny_path: Path, range_: tuple[int, int, int], status: Status
) -> None:
    info = files.info(tiny_path)
    plan = files.plan(info)
    found, _ = files.host.raw("skippy_slice_plan_add_layer_range", plan, *range_, True, True)
    assert found == status
    files.host.call("skippy_slice_plan_free", plan)
    files.free(info)


def test_a_plan_outlives_its_info(files: Files, tiny_path: Path, tmp_path: Path) -> None:
    first, second = files.info(tiny_path), files.info(tiny_path)
    plan = files.plan(first, (0, 0, 2, True, True))
    files.free(first)
    assert files.slice(second, plan, 0, tmp_path / "out.gguf")[0] == Status.OK
    assert files.slice(second, plan, 1, tmp_path / "none.gguf")[0] == Status.INVALID_ARGUMENT
    assert not (tmp_path / "none.gguf").exists()
    files.host.call("skippy_slice_plan_free", plan)
    files.free(second)


def test_outputs_that_cannot_be_written(files: Files, tiny_path: Path, tmp_path: Path) -> None:
    info = files.info(tiny_path)
    plan = files.plan(info, (0, 0, 2, True, True))
    before = tiny_path.read_bytes()
    (tmp_path / "folder").mkdir()
    for bad in (tmp_path / "no" / "folder.gguf", tmp_path / "folder", Path("/proc/x.gguf")):
        assert files.slice(info, plan, 0, bad)[0] == Status.IO_ERROR, bad
        assert files.join([tiny_path], bad)[0] == Status.IO_ERROR, bad
    assert files.slice(info, plan, 0, tiny_path)[0] != Status.OK
    assert files.join([tiny_path], tiny_path)[0] != Status.OK
    assert tiny_path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder"]
    files.host.call("skippy_slice_plan_free", plan)
    files.free(info)


def test_parts_that_are_not_there(files: Files, tiny_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    assert files.join([tiny_path, tmp_path / "gone"], out)[0] == Status.MODEL_ERROR
    assert not out.exists()
    null, ffi = files.ffi.NULL, files.ffi
    text = ffi.new("char[]", bytes(tiny_path))
    model = ffi.new("struct skippy_model **")
    for array, count in ((null, 1), (null, 0), (ffi.new("char *[]", [text]), 0),
                         (ffi.new("char *[]", [text, null]), 2), (ffi.new("char *[]", [text]),
                                                                  2**63)):
        for call in (
            ("skippy_write_gguf_from_parts", array, count, ffi.new("char[]", bytes(out))),
            ("skippy_model_open_from_parts", array, count, null, model),
        ):
            status, _ = files.host.raw(*call)
            assert status == Status.INVALID_ARGUMENT
    assert not out.exists()


# Files that lie, and files with odd names


@pytest.mark.parametrize("case", gguf_cases.hostile_files(), ids=lambda c: c.name)
def test_small_files_with_large_claims(
    files: Files, tiny_path: Path, tmp_path: Path, case: gguf_cases.Hostile
) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(case.data)
    start = time.monotonic()
    calls: list[Any] = [
        lambda: files.info(path), lambda: OpenModel(files.host, path),
        lambda: files.open_parts([path]), lambda: files.open_parts([tiny_path, path]),
    ]
    for call in calls:
        with pytest.raises(AbiError) as error:
            call()
        assert error.value.status == Status.MODEL_ERROR
        for word in case.words:
            assert word in (error.value.message or "")
    status, _ = files.join([tiny_path, path], tmp_path / "out.gguf")
    assert status == Status.MODEL_ERROR
    assert os.listdir(tmp_path) == ["hostile.gguf"]
    assert time.monotonic() - start < 5


NAMES = [
    "модель 模型.gguf", "\u3000/x.gguf", "trailing /x.gguf ", "line\nbreak.gguf",
    "x-00001-of-00013.gguf", b"\xff\xfe.gguf", "n" * 250 + ".gguf", "%s%n{0}.gguf",
]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_open(
    files: Files, tiny_path: Path, tmp_path: Path, name: str | bytes
) -> None:
    target = os.path.join(os.fsencode(tmp_path), os.fsencode(name))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.link(tiny_path, target)
    files.free(files.info(target))
    model = OpenModel(files.host, target, ctx_size=16)
    model.free()
    link = os.fsencode(tmp_path / "link")
    os.symlink(target, link)
    OpenModel(files.host, link, ctx_size=16).free()


def unusual(kind: str, folder: Path) -> bytes:
    path = folder / "x.gguf"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "dangling":
        path.symlink_to(folder / "gone")
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        return b"/dev/zero"
    elif kind == "long":
        return bytes(folder / ("n" * 300))
    elif kind == "very long":
        return bytes(folder) + b"/a" * 5000
    elif kind == "empty":
        return b""
    elif kind == "not text":
        return bytes(folder) + b"/\xff\xfe"
    return bytes(path)


@pytest.mark.parametrize("kind", ["fifo", "loop", "dangling", "folder", "device", "gone", "long",
                                  "very long", "empty", "not text"])
def test_what_is_no_file_is_refused_at_once(files: Files, tmp_path: Path, kind: str) -> None:
    path = unusual(kind, tmp_path)
    start = time.monotonic()
    for call in (lambda: files.info(path), lambda: OpenModel(files.host, path)):
        with pytest.raises(AbiError) as error:
            call()
        assert error.value.status == Status.MODEL_ERROR
        assert (error.value.message or "").isprintable()
    assert time.monotonic() - start < 5
