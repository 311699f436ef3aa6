"""Tables of an artifact's tensors: a part is as exact as the whole, and a table proves nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.artifacts.content_digest import content_digest, tensor_digests
from engine.artifacts.gguf import GgufFile, open_gguf
from engine.artifacts.slices import SlicePlan, open_parts, write_slice
from engine.errors import InvalidArgument, ModelError
from packages import tensor_table
from packages.package import Artifact
from packages.select import open_plan, select
from packages.smollm2_135m import PACKAGE
from packages.tensor_table import holds_part, read_table, table_text
from tests import tiny


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "source.gguf", seed=3)


@pytest.fixture
def artifact(source: Path) -> Artifact:
    table = source.with_name("table.toml")
    with open_gguf(source) as file:
        table.write_text(table_text(tensor_digests(file)))
        return PACKAGE.artifact("tiny", None, content_digest(file), table)


def slice_of(source: Path, *layers: int) -> Path:
    out = source.with_name(f"slice{layers[0]}-{layers[-1]}.gguf")
    plan = SlicePlan()
    plan.add_layer_range(0, layers[0], layers[-1] + 1, False, False)
    with open_gguf(source) as file:
        write_slice(file, plan, 0, out)
    return out


def is_part(artifact: Artifact, file: GgufFile) -> bool:
    with file:
        return holds_part(artifact, file, tensor_digests(file))


def test_every_part_is_known_and_nothing_else(source: Path, artifact: Artifact) -> None:
    for layers in ((0,), (1,), (0, 1)):
        assert is_part(artifact, open_gguf(slice_of(source, *layers)))
    assert is_part(artifact, open_parts([slice_of(source, 1), slice_of(source, 0)]))
    assert is_part(artifact, open_gguf(source))
    other = tiny.write(source.with_name("other.gguf"), seed=4)
    assert not is_part(artifact, open_gguf(slice_of(other, 0)))
    assert not is_part(artifact, open_parts([slice_of(source, 1), other]))
    assert not is_part(replace(artifact, tensor_table=None), open_gguf(source))
    # Metadata alone, without a tensor, is no part of anything.
    plan = SlicePlan()
    plan.add_layer_range(0, 2, 2, False, False)
    with open_gguf(source) as file:
        write_slice(file, plan, 0, source.with_name("empty.gguf"))
    assert not is_part(artifact, open_gguf(source.with_name("empty.gguf")))


def test_other_metadata_is_another_model(source: Path, artifact: Artifact) -> None:
    part = slice_of(source, 0)
    part.write_bytes(part.read_bytes().replace(b"tiny twin", b"Tiny twin", 1))
    assert not is_part(artifact, open_gguf(part))


def test_a_table_proves_nothing_by_itself(source: Path, artifact: Artifact) -> None:
    """Whoever writes another model's tensors into the table has another content digest."""
    other = tiny.write(source.with_name("other.gguf"), seed=4)
    part = slice_of(other, 0)
    assert artifact.tensor_table is not None
    with open_gguf(other) as file:
        artifact.tensor_table.write_text(table_text(tensor_digests(file)))
    assert not is_part(artifact, open_gguf(part))
    assert not is_part(artifact, open_gguf(source))


@pytest.mark.parametrize("text", [
    "", "tensors = 1", "[tensors]\nx = 1", '[tensors]\nx = "0 4"', '[tensors]\nx = "0 4 zz"',
    '[tensors]\nx = "0 4,4 00"', '[tensors]\nx = "a 4 00"', "[tensors\n", '[tensors]\nx=""\nx=""',
])  # fmt: skip
def test_what_is_no_table(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        read_table(path)
    assert "table.toml" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    with pytest.raises(InvalidArgument):
        read_table(tmp_path / "none.toml")


def test_names_of_any_kind_come_back(tmp_path: Path) -> None:
    names = ['a"b', "a\\b", "line\nbreak", "a.b", "модель", "a = b", ""]
    tensors = [
        tensor_table.TensorDigest(name, 0, (4, i + 1), bytes([i]) * 32)
        for i, name in enumerate(names)
    ]
    path = tmp_path / "table.toml"
    path.write_text(table_text(tensors), "utf-8")
    assert list(read_table(path)) == tensors


def test_the_shipped_table_is_the_shipped_model(smollm2_path: Path) -> None:
    (artifact,) = PACKAGE.served()
    assert artifact.tensor_table is not None
    with open_gguf(smollm2_path) as file:
        found = tensor_digests(file)
        assert list(read_table(artifact.tensor_table)) == found
        assert holds_part(artifact, file, found[:1])


def test_the_operators_table_serves_parts(
    source: Path, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves = tiny.serve(source.with_name("serves.toml"), source)
    monkeypatch.setenv("MESH_SPECIALIZE_SERVES", str(serves))
    part = str(slice_of(source, 1))
    assert select(part).match is None
    serves.write_text(serves.read_text() + 'tensors = "table.toml"\n')
    match = select(part).match
    assert match is not None
    assert match.artifact.content_sha256 == artifact.content_sha256
    plan = open_plan([part.encode()])
    present = {name for name, weight in plan.weights.items() if weight.is_present}
    assert present == {name for name in plan.weights if name.startswith("blk.1.")}
    with pytest.raises(ModelError, match=r"no tensor 'blk\.0\.attn_q\.weight'"):
        plan.weights["blk.0.attn_q.weight"].load()
    assert plan.weights_id == artifact.content_sha256
