"""The real SmolLM2 as a layer package: written, validated, split, materialised; llama.cpp judges.

Stages run from their parts, as the host opens them, and from materialised files.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts.content_digest import content_digest
from engine.artifacts.gguf import open_gguf
from engine.artifacts.gguf_writer import to_float32_gguf
from packages.layer_package.load_stage import StageFiles, load_stage
from packages.layer_package.materialise import materialise
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.selection import Selection, StageRequest, even_ranges
from packages.layer_package.validate_source import validate_package
from packages.layer_package.write_options import WriteOptions
from packages.layer_package.writer import write_package
from skippy_abi.client import Host, OpenModel
from tests.abi.model_files import Files
from tests.abi.stages import Stages
from tests.judge_llama_cpp import llama_cpp_greedy, llama_cpp_server
from tests.layer_package.stage_cases import opened

OPTIONS = WriteOptions(
    model_id="HuggingFaceTB/SmolLM2-135M-Instruct-GGUF:Q4_1",
    source_repo="HuggingFaceTB/SmolLM2-135M-Instruct-GGUF",
    source_revision="0123456789abcdef0123456789abcdef01234567",
    source_file="SmolLM2-135M-Instruct.Q4_1.gguf",
    abi_version="0.1.39",
)
D_MODEL = 576
PROMPTS = ["Why is the sky blue?", "Name three colours.", "¿Dónde está la biblioteca?"]
N_TOKENS = 12


@pytest.fixture(scope="module")
def package(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> PackageDir:
    root = tmp_path_factory.mktemp("package") / "smollm2"
    write_package(smollm2_path, root, OPTIONS)
    return opened(root)


@pytest.fixture(scope="module")
def made(package: PackageDir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The materialised whole model."""
    everything = StageRequest(0, 30).select(package.manifest)
    return materialise(package, everything, root=tmp_path_factory.mktemp("stages"))


@pytest.fixture(scope="module")
def whole(runtime: Host, smollm2_path: Path) -> Iterator[OpenModel]:
    model = OpenModel(runtime, smollm2_path, ctx_size=256)
    yield model
    model.free()


def tokens_of(model: OpenModel, prompt: str) -> list[int]:
    text, _ = model.template(json.dumps([{"role": "user", "content": prompt}]))
    return model.tokenize(text)


def greedy_of(model: OpenModel, tokens: list[int], n_tokens: int = N_TOKENS) -> list[int]:
    session = model.session()
    chosen = [session.prefill_sampled(tokens)]
    for _ in range(n_tokens):
        chosen.append(session.decode(chosen[-1]))
    session.free()
    return chosen


def config(selection: Selection, index: int) -> dict[str, Any]:
    return {
        "stage_index": index, "layer_start": selection.layer_start,
        "layer_end": selection.layer_end, "filter_tensors_on_load": True, "load_mode": 1,
        "include_embeddings": selection.include_embeddings,
        "include_output": selection.include_output, "ctx_size": 256,
    }  # fmt: skip


def test_it_is_valid_against_its_source(smollm2_path: Path, package: PackageDir) -> None:
    found = validate_package(smollm2_path, package)
    assert found["valid"], found["issues"]
    assert found["checked_artifact_count"] == 33
    assert found["required_owned_tensor_count"] == found["full_tensor_count"] == 272


def test_the_materialised_model_is_the_source(smollm2_path: Path, made: Path) -> None:
    with open_gguf(made) as found, open_gguf(smollm2_path) as source:
        assert content_digest(found) == content_digest(source)


@pytest.mark.parametrize("form", ["parts", "materialised"])
def test_three_stages_equal_the_whole_model(
    runtime: Host, whole: OpenModel, package: PackageDir, tmp_path: Path, smollm2_path: Path,
    form: str,
) -> None:
    files = Files(runtime)

    def opens(index: int, start: int, end: int) -> OpenModel:
        stage = StageRequest(start, end)
        selection = stage.select(package.manifest)
        if form == "materialised":
            path = materialise(package, selection, root=tmp_path)
            return OpenModel(runtime, path, **config(selection, index))

        def loader(found: StageFiles) -> OpenModel:
            return files.open_parts(list(found.paths), **config(found.selection, index))

        return load_stage(package, stage, loader, verify=True)

    edges = [0, *(stage.stop for stage in even_ranges(30, 3))]
    stages = Stages(runtime, smollm2_path, edges, D_MODEL, opens)
    tokens = tokens_of(whole, PROMPTS[0])
    found = stages.greedy(tokens, N_TOKENS)
    stages.free()
    assert found == greedy_of(whole, tokens)
    assert len(set(found)) > 6


def test_llama_cpp_loads_the_materialised_model(
    smollm2_path: Path, made: Path, whole: OpenModel
) -> None:
    tokens = [tokens_of(whole, prompt) for prompt in PROMPTS]
    answers = []
    for path in (made, smollm2_path):
        with llama_cpp_server(path) as address:
            answers.append([llama_cpp_greedy(address, ids, N_TOKENS) for ids in tokens])
    assert answers[0] == answers[1]
    assert all(len(ids) >= 6 for ids in answers[0])


def test_llama_cpp_gives_our_ids_on_the_materialised_model(
    runtime: Host, made: Path, whole: OpenModel, tmp_path: Path
) -> None:
    """In float32, for llama.cpp quantises activations of block formats."""
    model = OpenModel(runtime, made, ctx_size=256)
    with open_gguf(made) as file:
        to_float32_gguf(file, tmp_path / "float32.gguf")
    with llama_cpp_server(tmp_path / "float32.gguf") as address:
        for prompt in PROMPTS:
            tokens = tokens_of(model, prompt)
            mine = greedy_of(model, tokens)
            assert mine == greedy_of(whole, tokens)
            ends = [i for i, token in enumerate(mine) if model.is_eog(token)]
            mine = mine[: ends[0]] if ends else mine[:N_TOKENS]
            theirs = llama_cpp_greedy(address, tokens, N_TOKENS)
            assert [token for token in theirs if not model.is_eog(token)] == mine, prompt
    model.free()
