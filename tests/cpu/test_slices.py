"""Owns roles by name, slice plans, slices, joined parts, and that content identity survives."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from engine.artifacts import ggml_types as ggml
from engine.artifacts.content_digest import content_digest
from engine.artifacts.gguf import GgufFile, open_gguf
from engine.artifacts.gguf_types import GgufValue, ValueType
from engine.artifacts.gguf_writer import TensorSource, write_gguf
from engine.artifacts.slices import (
    Role,
    SlicePlan,
    open_parts,
    tensor_role,
    write_from_parts,
    write_slice,
)
from engine.errors import InvalidArgument, IoFailure, ModelError

U32, INT32, BOOL, STRING = ValueType.UINT32, ValueType.INT32, ValueType.BOOL, ValueType.STRING
NAMES = (
    "token_embd.weight", "blk.0.a", "blk.0.b", "rope_freqs.weight", "blk.1.a", "blk.2.a",
    "blk.10.a", "output_norm.weight", "output.weight", "cache_k_l1",
)  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Ten small tensors, alignment 64, split keys and keys of an earlier slice in the middle."""
    path = tmp_path / "model.gguf"
    pairs = [
        ("general.architecture", GgufValue.of(STRING, "llama")),
        ("split.no", GgufValue.of(U32, 0)),
        ("split.count", GgufValue.of(U32, 1)),
        ("split.tensors.count", GgufValue.of(U32, 10)),
        ("skippy.slice.stage_index", GgufValue.of(INT32, 77)),
        ("general.alignment", GgufValue.of(U32, 64)),
        ("llama.block_count", GgufValue.of(U32, 11)),
    ]
    arrays = [np.full((2, 3), i, np.float32) for i in range(len(NAMES))]
    sources = [TensorSource.from_array(n, x, ggml.F32) for n, x in zip(NAMES, arrays, strict=True)]
    write_gguf(path, pairs, sources, 64)
    return path


def plan_of(*ranges: tuple[int, int, int, bool, bool]) -> SlicePlan:
    plan = SlicePlan()
    for layers in ranges:
        plan.add_layer_range(*layers)
    return plan


def names(file: GgufFile) -> list[str]:
    return [tensor.name for tensor in file.tensors]


@pytest.mark.parametrize(
    ("name", "role", "layer_index"),
    [
        ("blk.0.attn_q.weight", Role.LAYER, 0),
        ("blk.63.x", Role.LAYER, 63),
        ("blk.007.x", Role.LAYER, 7),
        ("blk.5.", Role.LAYER, 5),
        ("blk.2147483647.x", Role.LAYER, 2**31 - 1),
        ("blk.2147483648.x", Role.METADATA, -1),
        ("blk." + "9" * 200 + ".x", Role.METADATA, -1),
        ("blk.5", Role.METADATA, -1),
        ("blk..x", Role.METADATA, -1),
        ("blk.-1.x", Role.METADATA, -1),
        ("blk.1a.x", Role.METADATA, -1),
        ("blk.٣.x", Role.METADATA, -1),
        ("xblk.1.x", Role.METADATA, -1),
        ("cache_k_l12", Role.LAYER, 12),
        ("cache_k_idx_l3", Role.LAYER, 3),
        ("cache_k_l3\n", Role.METADATA, -1),
        ("cache_k_l3.x", Role.METADATA, -1),
        ("cache_l3", Role.METADATA, -1),
        ("token_embd.weight", Role.EMBEDDING, -1),
        ("per_layer_token_embd.weight", Role.EMBEDDING, -1),
        ("token_embd.bias", Role.METADATA, -1),
        ("output.weight", Role.OUTPUT, -1),
        ("output.bias", Role.OUTPUT, -1),
        ("output_norm.weight", Role.FINAL_NORM, -1),
        ("output_norm.bias", Role.FINAL_NORM, -1),
        ("rope_freqs.weight", Role.METADATA, -1),
        ("", Role.METADATA, -1),
        (None, Role.UNKNOWN, -1),
    ],
)
def test_role_by_name(name: str | None, role: Role, layer_index: int) -> None:
    assert tensor_role(name) == (role, layer_index)


def test_role_numbers_are_the_abis() -> None:
    expected = ["UNKNOWN", "METADATA", "TOKENIZER", "EMBEDDING", "LAYER", "FINAL_NORM", "OUTPUT"]
    assert [role.name for role in sorted(Role)] == expected
    assert [int(role) for role in sorted(Role)] == list(range(7))


@pytest.mark.parametrize(
    ("stage_index", "start", "end"), [(-1, 0, 1), (0, -1, 1), (0, 2, 1), (2**31, 0, 1),
                                      (0, 0, 2**31)],
)  # fmt: skip
def test_a_bad_range_is_refused(stage_index: int, start: int, end: int) -> None:
    plan = SlicePlan()
    with pytest.raises(InvalidArgument, match=f"stage {stage_index} with layers {start} to {end}"):
        plan.add_layer_range(stage_index, start, end, True, True)
    with pytest.raises(InvalidArgument, match="among 0"):
        plan.range_of(stage_index)


SLICES = {
    "first": ((3, 0, 2, True, False), [0, 1, 2, 3, 4, 9]),
    "middle": ((3, 1, 3, False, False), [3, 4, 5, 9]),
    "last": ((3, 2, 11, False, True), [3, 5, 6, 7, 8]),
    "no layers": ((3, 1, 1, False, False), [3]),
    "everything": ((3, 0, 11, True, True), list(range(10))),
}


@pytest.mark.parametrize(("layers", "kept"), SLICES.values(), ids=SLICES)
def test_a_slice_has_its_tensors_and_says_what_it_is(
    layers: tuple[int, int, int, bool, bool], kept: list[int], model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "slice.gguf"
    with open_gguf(model) as file:
        write_slice(file, plan_of(layers), 3, out)
    made = open_gguf(out)
    assert names(made) == [NAMES[i] for i in kept]
    for tensor in made.tensors:
        assert tensor.shape == (2, 3)
        assert tensor.offset % 64 == 0
        assert (tensor.to_float32() == NAMES.index(tensor.name)).all()
    own = ("stage_index", "layer_start", "layer_end", "include_embeddings", "include_output")
    assert list(made.metadata) == [
        "general.architecture", "general.alignment", "llama.block_count",
        *(f"skippy.slice.{key}" for key in own),
    ]  # fmt: skip
    for key, value, kind in zip(own, layers, [INT32] * 3 + [BOOL] * 2, strict=True):
        assert made.metadata[f"skippy.slice.{key}"] == GgufValue.of(kind, value)
    assert out.stat().st_size % 64 == 0


def test_the_alignment_becomes_explicit(tmp_path: Path) -> None:
    source, out = tmp_path / "a", tmp_path / "b"
    write_gguf(source, [], [])
    write_slice(open_gguf(source), plan_of((0, 0, 1, True, True)), 0, out)
    assert open_gguf(out).metadata["general.alignment"] == GgufValue.of(U32, 32)


def test_the_first_range_of_a_stage_counts(model: Path, tmp_path: Path) -> None:
    plan = plan_of((1, 0, 1, False, False), (1, 1, 3, True, True))
    with open_gguf(model) as file:
        write_slice(file, plan, 1, tmp_path / "out")
        with pytest.raises(InvalidArgument, match="no range for stage 2 among 2"):
            write_slice(file, plan, 2, tmp_path / "other")
    assert names(open_gguf(tmp_path / "out")) == ["blk.0.a", "blk.0.b", "rope_freqs.weight"]
    assert not (tmp_path / "other").exists()


@pytest.fixture
def parts(model: Path, tmp_path: Path) -> list[Path]:
    """Three slices that together are the model; the metadata tensor is in each of them."""
    plan = plan_of((0, 0, 1, True, False), (1, 1, 3, False, False), (2, 3, 11, False, True))
    paths = [tmp_path / f"part{i}" for i in range(3)]
    with open_gguf(model) as file:
        for stage, path in enumerate(paths):
            write_slice(file, plan, stage, path)
    return paths


def test_parts_are_one_model(parts: list[Path], model: Path) -> None:
    with open_parts(parts) as view, open_gguf(model) as whole:
        assert sorted(names(view)) == sorted(names(whole))
        assert names(view)[:4] == ["token_embd.weight", "blk.0.a", "blk.0.b", "rope_freqs.weight"]
        assert view.get("skippy.slice.stage_index") == 0
        assert view.path == str(parts[0])
        for tensor in whole.tensors:
            assert view.tensor(tensor.name).raw().tobytes() == tensor.raw().tobytes()
        everything = b"".join(part.read_bytes() for part in parts)
        assert view.sha256() == hashlib.sha256(everything).hexdigest()


def test_the_first_tensor_of_a_name_wins(tmp_path: Path) -> None:
    paths = [tmp_path / f"p{i}" for i in range(2)]
    for i, path in enumerate(paths):
        x = np.full(1 + i, i, np.float32)
        write_gguf(path, [], [TensorSource.from_array("x", x, ggml.F32)])
    for order, expected in ((paths, [0.0]), (paths[::-1], [1.0, 1.0])):
        assert open_parts(order).tensor("x").to_float32().tolist() == expected


def test_joined_parts(parts: list[Path], model: Path, tmp_path: Path) -> None:
    out = tmp_path / "joined"
    write_from_parts(parts, out)
    with open_gguf(out) as made, open_parts(parts) as view:
        assert names(made) == names(view)
        assert made.alignment == 64
        expected = [*view.metadata, "skippy.package.materialized", "skippy.package.part_count"]
        assert list(made.metadata) == expected
        assert made.metadata["skippy.package.materialized"] == GgufValue.of(BOOL, True)
        assert made.metadata["skippy.package.part_count"] == GgufValue.of(U32, 3)
    write_from_parts([model], out)
    assert not any(key.startswith("split.") for key in open_gguf(out).metadata)


def test_parts_that_cannot_be_opened(parts: list[Path], tmp_path: Path) -> None:
    n_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ModelError, match=r"missing.*No such file"):
        write_from_parts([*parts, tmp_path / "missing"], tmp_path / "out")
    with pytest.raises(InvalidArgument, match="0 parts"):
        open_parts([])
    assert not (tmp_path / "out").exists()
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_the_output_is_never_an_input(parts: list[Path], tmp_path: Path) -> None:
    soft, hard = tmp_path / "soft", tmp_path / "hard"
    soft.symlink_to(parts[1])
    hard.hardlink_to(parts[2])
    before = [path.read_bytes() for path in parts]
    plan = plan_of((0, 0, 1, True, True))
    for out in (parts[0], parts[2], soft, hard, tmp_path / "." / "part1"):
        with pytest.raises(InvalidArgument, match="one of the input files"):
            write_from_parts(parts, out)
    with open_parts(parts) as view:
        for out in (parts[1], soft, hard):
            with pytest.raises(InvalidArgument, match="one of the input files"):
                write_slice(view, plan, 0, out)
    assert [path.read_bytes() for path in parts] == before
    assert len(list(tmp_path.iterdir())) == 6


def test_a_failed_write_is_an_io_failure(parts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(IoFailure, match=r"nowhere/out'.*No such file"):
        write_from_parts(parts, tmp_path / "nowhere" / "out")


def test_content_identity_survives_cutting(parts: list[Path], model: Path, tmp_path: Path) -> None:
    joined = tmp_path / "joined"
    write_from_parts(parts, joined)
    expected = content_digest(open_gguf(model))
    assert content_digest(open_parts(parts)) == expected
    assert content_digest(open_gguf(joined)) == expected
    assert content_digest(open_parts(parts[1:])) != expected
