"""Layer packages through the C ABI: stages from their own parts, the model-file calls over them.

A stage knows its model by the artifact's table of tensors: parts of another model, or changed ones,
are refused with both identities. Long because every group of calls has its part.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from engine.artifacts.content_digest import content_digest
from engine.artifacts.gguf import open_gguf
from engine.errors import Status
from packages.layer_package.materialise import materialise
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.selection import Selection, select_parts
from packages.layer_package.write_options import WriteOptions
from packages.layer_package.writer import write_package
from skippy_abi.client import AbiError, Host, OpenModel
from tests import tiny
from tests.abi.model_files import Files, whole_ids
from tests.abi.stages import Stages
from tests.layer_package.package_cases import write_tiny_package
from tests.layer_package.stage_cases import model_of, opened

D_MODEL = tiny.DIMS.d_model
PROMPT = [11, 40, 7, 99, 250, 3, 3, 18]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, tiny_path: Path) -> Path:
    """A served tiny model with a table of its tensors."""
    path = tiny.write(tmp_path_factory.mktemp("source") / "source.gguf", seed=7)
    tiny.serve_parts(Path(os.environ["MESH_SPECIALIZE_SERVES"]), path)
    return path


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, source: Path) -> PackageDir:
    return opened(write_tiny_package(tmp_path_factory.mktemp("package"), model=model_of(source)))


@pytest.fixture
def files(runtime: Host, source: Path) -> Iterator[Files]:
    runtime.symbol("skippy_session_position")(runtime.ffi.NULL)
    return Files(runtime)


def paths(package: PackageDir, selection: Selection) -> list[Path]:
    return [package.root / part.path for part in selection.parts]


def config(selection: Selection, index: int = 0) -> dict[str, Any]:
    """What a host fills in for a stage of a package."""
    return {
        "stage_index": index, "layer_start": selection.layer_start,
        "layer_end": selection.layer_end, "filter_tensors_on_load": True, "load_mode": 1,
        "include_embeddings": selection.include_embeddings,
        "include_output": selection.include_output, "ctx_size": 128,
    }  # fmt: skip


def greedy_of_file(host: Host, path: Path) -> list[int]:
    model = OpenModel(host, path, ctx_size=128)
    session = model.session()
    chosen = [session.prefill_sampled(PROMPT)]
    for _ in range(10):
        chosen.append(session.decode(chosen[-1]))
    session.free()
    model.free()
    return chosen


# Stages


@pytest.mark.parametrize("form", ["parts", "materialised"])
def test_stages_from_their_own_parts_equal_the_whole_model(
    files: Files, source: Path, package: PackageDir, tmp_path: Path, form: str
) -> None:
    def of_parts(index: int, start: int, end: int) -> OpenModel:
        chosen = select_parts(package.manifest, start, end)
        if form == "parts":
            return files.open_parts(paths(package, chosen), **config(chosen, index))
        path = materialise(package, chosen, root=tmp_path)
        return OpenModel(files.host, path, **config(chosen, index))

    stages = Stages(files.host, source, [0, 1, 2], D_MODEL, of_parts)
    found = stages.greedy(PROMPT, 10)
    stages.free()
    assert found == greedy_of_file(files.host, source)
    assert len(set(found)) >= 3


def refused(files: Files, parts: list[Path], **values: Any) -> AbiError:
    with pytest.raises(AbiError) as caught:
        files.open_parts(parts, **values)
    return caught.value


def test_a_stage_whose_parts_lack_a_tensor_says_which(
    files: Files, package: PackageDir
) -> None:
    last = select_parts(package.manifest, 1, 2)
    parts = paths(package, last)
    without_layer = [p for p in parts if p.parent.name != "layers"]
    error = refused(files, without_layer, **config(last))
    assert error.status == Status.MODEL_ERROR
    assert "layers 1..2 of 2 need 11 tensors, 9 of them are in none of the parts" in str(error)
    # The output is tied, so the last stage needs the embeddings too.
    assert last.include_embeddings
    without_embeddings = [p for p in parts if p.name != "embeddings.gguf"]
    error = refused(files, without_embeddings, **config(last))
    assert error.status == Status.MODEL_ERROR
    assert "first 'token_embd.weight'" in str(error)
    error = refused(files, parts, ctx_size=64)
    assert error.status == Status.MODEL_ERROR
    assert "layers 0..2 of 2" in str(error)


@pytest.mark.parametrize("change", ["a byte", "the metadata", "another model", "one name twice"])
def test_parts_that_are_not_the_artifacts_are_not_served(
    files: Files, package: PackageDir, tmp_path: Path, change: str
) -> None:
    first = select_parts(package.manifest, 0, 1)
    parts = paths(package, first)
    stranger = tmp_path / "stranger"
    model = model_of(tiny.write(tmp_path / "other.gguf", seed=8))
    write_tiny_package(stranger, model=model)
    if change == "a byte":
        raw = bytearray(parts[2].read_bytes())
        raw[-1] ^= 1
        parts[2] = tmp_path / "changed.gguf"
        parts[2].write_bytes(raw)
    elif change == "the metadata":
        raw = parts[0].read_bytes()
        parts[0] = tmp_path / "metadata.gguf"
        parts[0].write_bytes(raw.replace(b"tiny twin", b"tiny Twin"))
    elif change == "another model":
        parts = [stranger / part.path for part in first.parts]
    else:
        # The first tensor of a name counts, so the stranger's layer is what would run.
        parts.insert(2, stranger / package.manifest.layers[0].path)
    error = refused(files, parts, **config(first))
    assert error.status == Status.UNSUPPORTED
    assert "model not served: requested {model_id tiny" in str(error)
    assert "serves [" in str(error)


@pytest.mark.parametrize("metadata", ["full", "lean"])
def test_packages_of_our_writer_open(
    files: Files, source: Path, tmp_path: Path, metadata: Literal["full", "lean"]
) -> None:
    """Lean fragments leave the tokenizer to the metadata fragment, which is always first."""
    options = WriteOptions(
        model_id="acme/tiny:F32", source_repo="acme/tiny", source_revision="0" * 40,
        source_file="tiny.gguf", abi_version="0.1.39", fragment_metadata=metadata,
    )  # fmt: skip
    write_package(source, tmp_path / "package", options)
    written = opened(tmp_path / "package")

    def of_parts(index: int, start: int, end: int) -> OpenModel:
        chosen = select_parts(written.manifest, start, end)
        return files.open_parts(paths(written, chosen), **config(chosen, index))

    stages = Stages(files.host, source, [0, 1, 2], D_MODEL, of_parts)
    found = stages.greedy(PROMPT, 10)
    assert stages.models[1].detokenize(found) == stages.models[0].detokenize(found)
    stages.free()
    assert found == greedy_of_file(files.host, source)


# The calls on model files


def test_the_inventory_of_every_fragment_has_its_roles(files: Files, package: PackageDir) -> None:
    roles = {"metadata": set(), "embeddings": {3}, "output": {5}, "layer": {4}}
    for artifact in package.manifest.fragments:
        info = files.info(package.root / artifact.path)
        tensors = files.tensors(info)
        assert len(tensors) == artifact.tensor_count
        assert sum(t.byte_size for t in tensors) == artifact.tensor_bytes
        assert {int(t.role) for t in tensors} == roles[artifact.role], artifact.path
        layers = {t.layer_index for t in tensors}
        assert layers <= {-1 if artifact.layer_index is None else artifact.layer_index}
        files.free(info)


def test_joined_parts_are_the_model_and_slice_like_it(
    files: Files, source: Path, package: PackageDir, tmp_path: Path
) -> None:
    expected = whole_ids(files, source)
    everything = select_parts(package.manifest, 0, 2)
    joined = tmp_path / "joined.gguf"
    assert files.join(paths(package, everything), joined) == (Status.OK, None)
    assert whole_ids(files, joined) == expected
    with open_gguf(joined) as found, open_gguf(source) as wanted:
        assert content_digest(found) == content_digest(wanted)
        assert found.get("skippy.package.part_count") == len(everything.parts)
    info = files.info(joined)
    plan = files.plan(info, (0, 0, 1, True, False), (1, 1, 2, True, True))
    for index, (start, end) in enumerate([(0, 1), (1, 2)]):
        assert files.slice(info, plan, index, tmp_path / f"{index}.gguf") == (Status.OK, None)
        stage = select_parts(package.manifest, start, end)
        model = OpenModel(files.host, tmp_path / f"{index}.gguf", **config(stage, index))
        model.free()
    files.host.call("skippy_slice_plan_free", plan)
    files.free(info)


def test_all_parts_of_a_package_are_the_whole_model(
    files: Files, source: Path, package: PackageDir, tmp_path: Path
) -> None:
    everything = select_parts(package.manifest, 0, 2)
    expected = greedy_of_file(files.host, source)
    made = materialise(package, everything, root=tmp_path)
    assert greedy_of_file(files.host, made) == expected
    model = files.open_parts(paths(package, everything), **config(everything))
    session = model.session()
    assert session.prefill_sampled(PROMPT) == expected[0]
    session.free()
    model.free()


# Models of others


def test_a_package_of_another_model_is_read_but_not_run(files: Files, tmp_path: Path) -> None:
    foreign = opened(write_tiny_package(tmp_path / "package", rope_table=True))
    everything = select_parts(foreign.manifest, 0, foreign.manifest.layer_count)
    parts = paths(foreign, everything)
    assert files.join(parts, tmp_path / "joined.gguf") == (Status.OK, None)
    made = materialise(foreign, everything, root=tmp_path / "stages")
    for path in (made, tmp_path / "joined.gguf"):
        info = files.info(path)
        assert len(files.tensors(info)) == sum(p.tensor_count for p in everything.parts)
        files.free(info)
    for stage in (everything, select_parts(foreign.manifest, 0, 1)):
        error = refused(files, paths(foreign, stage), **config(stage))
        assert error.status == Status.UNSUPPORTED
        assert "model not served: requested {model_id Tiny Demo" in str(error)
