"""Owns the proof that what the writer writes is what the format says, byte for byte, every time.

Long because every option has its case here.
"""

import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts.gguf import open_gguf
from packages.layer_package.manifest import load_manifest
from packages.layer_package.materialise import materialise
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.references import PackageRef
from packages.layer_package.selection import select_parts
from packages.layer_package.source_digests import SourceDigests
from packages.layer_package.source_model import open_source
from packages.layer_package.validate_source import validate_package
from packages.layer_package.writer import write_package
from tests.cpu.gguf_cases import ARRAY, STRING, array, pair, u64
from tests.layer_package.package_cases import (
    CREATED,
    MODEL_ID,
    REPO,
    REVISION,
    Pair,
    gguf_bytes,
    made,
    number,
    projector_gguf,
    source_gguf,
    source_shards,
    tiny_model,
    write_tiny_package,
)
from tests.layer_package.writer_cases import local_options, tiny_source, tree, write

MODELS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tied": True},
    "one layer": {"n_layers": 1},
    "prediction block": {"mtp": True, "tied": True},
    "prediction block with its embedding": {"mtp": True, "mtp_embedding": True},
    "per-layer table": {"per_layer_table": True},
    "RoPE table": {"rope_table": True},
    "odd alignment": {"alignment": 8, "rope_table": True},
    "wide alignment": {"alignment": 4096},
    "every type": {"every_type": True},
}


@pytest.fixture(autouse=True)
def epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(CREATED))


@pytest.mark.parametrize("kinds", MODELS.values(), ids=MODELS.keys())
def test_a_package_is_what_the_format_says_and_gives_the_model_back(
    kinds: dict[str, Any], tmp_path: Path
) -> None:
    source, out = tiny_source(tmp_path, **kinds), tmp_path / "out"
    projector = projector_gguf(tmp_path / "mmproj-TinyDemo.gguf")
    result = write(source, out, projectors=[projector])
    # the maker of tests packs by itself
    wanted = write_tiny_package(tmp_path / "wanted", projector=True, **kinds)
    assert tree(out) == tree(wanted)
    assert result.report.kinds() == []
    assert list(json.loads(result.manifest)) == list(json.loads(tree(wanted)["model-package.json"]))
    validation = validate_package(source, out)
    assert validation["valid"], validation["issues"]
    assert_same_model(source, out, tmp_path / "stages")


def assert_same_model(source: Path, folder: Path, cache: Path) -> None:
    """All layers as one file have the tensors of the source, byte for byte."""
    package = PackageDir(folder, PackageRef("local", path=folder), None, load_manifest(folder))
    selection = select_parts(package.manifest, 0, package.manifest.layer_count)
    with open_gguf(materialise(package, selection, root=cache)) as joined:
        with open_gguf(source) as full:
            assert {t.name for t in joined.tensors} == {t.name for t in full.tensors}
            for tensor in full.tensors:
                found = joined.tensor(tensor.name)
                assert (found.dims, found.ggml_type) == (tensor.dims, tensor.ggml_type)
                assert found.raw().tobytes() == tensor.raw().tobytes()
            assert full.metadata.items() <= joined.metadata.items()


@pytest.mark.parametrize("empty_first", [True, False], ids=["empty first shard", "full shards"])
def test_shards_give_the_fragments_of_the_single_file(empty_first: bool, tmp_path: Path) -> None:
    shards = source_shards(tmp_path / "source", empty_first=empty_first, mtp=True, alignment=64)
    single = source_gguf(tmp_path / "single.gguf", mtp=True, alignment=64)
    name = "q8/TinyDemo-Q8_0-00002-of-00003.gguf"
    for given in shards:
        out = tmp_path / given.stem
        result = write(given, out, source_file=name)
        source = json.loads(result.manifest)["source_model"]
        assert source["primary_file"] == source["path"] == name.replace("00002", "00001", 1)
        assert [f["path"] for f in source["files"]] == [f"q8/{path.name}" for path in shards]
        assert [f["size_bytes"] for f in source["files"]] == [p.stat().st_size for p in shards]
        assert source["sha256"] == source["files"][0]["sha256"]
        assert source["distribution_id"] == "Q8_0"
        write(single, tmp_path / "single", force=True)
        ours, theirs = tree(out), tree(tmp_path / "single")
        del ours["model-package.json"], theirs["model-package.json"]
        assert ours == theirs
        validation = validate_package(given, out)
        assert validation["valid"], validation["issues"]


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    source = tiny_source(tmp_path, mtp=True)
    one, two = tmp_path / "one", tmp_path / "two"
    results = [write(source, out, readme=True) for out in (one, two)]
    assert tree(one) == tree(two)
    assert results[0].manifest_sha256 == results[1].manifest_sha256
    assert str(tmp_path).encode() not in b"".join(tree(one).values())


def test_split_and_earlier_slice_pairs_are_dropped(tmp_path: Path) -> None:
    extra = [number("split.count", 1), number("skippy.slice.layer_start", 7), number("last", 9)]
    write(tiny_source(tmp_path, extra_pairs=extra), tmp_path / "out")
    with open_gguf(tmp_path / "out/layers/layer-00001.gguf") as file:
        keys = list(file.metadata)
        assert keys[-7:] == [
            "last",
            "general.alignment",
            *(
                f"skippy.slice.{k}"
                for k in (
                    "stage_index",
                    "layer_start",
                    "layer_end",
                    "include_embeddings",
                    "include_output",
                )
            ),
        ]
        assert "split.count" not in keys
        assert file.get("skippy.slice.layer_start") == 1
        assert file.get("skippy.slice.stage_index") == 1001
    with open_gguf(tmp_path / "out/shared/output.gguf") as file:
        assert (file.get("skippy.slice.layer_start"), file.get("skippy.slice.layer_end")) == (3, 3)
        assert file.get("skippy.slice.include_output") is True


def test_lean_fragments_have_no_tokenizer(tmp_path: Path) -> None:
    write(tiny_source(tmp_path), tmp_path / "out", fragment_metadata="lean")
    for path, expected in (("shared/metadata", True), ("shared/output", False),
                           ("layers/layer-00000", False)):  # fmt: skip
        with open_gguf(tmp_path / f"out/{path}.gguf") as file:
            assert ("tokenizer.ggml.tokens" in file.metadata) is expected
    assert validate_package(tmp_path / "source/TinyDemo-Q8_0.gguf", tmp_path / "out")["valid"]


def test_a_dry_run_writes_nothing_and_knows_the_sizes(tmp_path: Path) -> None:
    source, out = tiny_source(tmp_path), tmp_path / "out"
    planned = write(source, out, dry_run=True)
    assert not out.exists()
    done = write(source, out)
    assert [a.artifact_bytes for a in planned.artifacts] == [
        a.artifact_bytes for a in done.artifacts
    ]
    assert planned.as_json()["dry_run"]
    assert planned.as_json()["manifest"] is None
    report = json.loads(json.dumps(done.as_json()))
    assert report["manifest"] == json.loads(done.manifest)
    assert report["artifact_bytes"] == sum(p.stat().st_size for p in out.rglob("*.gguf"))
    assert report["needed_bytes"] > source.stat().st_size


def test_the_readme_says_what_was_written(tmp_path: Path) -> None:
    projector = projector_gguf(tmp_path / "eye.gguf")
    result = write(tiny_source(tmp_path, mtp=True), tmp_path / "out", readme=True,
                   projectors=[projector])  # fmt: skip
    text = (tmp_path / "out/README.md").read_text()
    source = json.loads(result.manifest)["source_model"]
    for word in (MODEL_ID, REPO, REVISION, source["sha256"], result.manifest_sha256, "native-mtp",
                 "projectors/eye.gguf", "package validate", "0.1.39"):  # fmt: skip
        assert str(word) in text


def test_several_prediction_layers_are_not_advertised(tmp_path: Path) -> None:
    extra = [made("blk.1.nextn.enorm.weight", (64,)), made("blk.2.nextn.enorm.weight", (64,))]
    result = write(tiny_source(tmp_path, extra_tensors=extra), tmp_path / "out")
    assert result.report.kinds() == ["multi_layer_mtp_not_advertised"]
    document = json.loads(result.manifest)
    assert "generation" not in document
    assert document["selection_hints"]["prediction_layers"] == [1, 2]


def test_a_per_layer_table_without_a_reader_by_name_is_read_by_all(tmp_path: Path) -> None:
    table = made("per_layer_token_embd.weight", (32, 48))
    source = tiny_source(tmp_path, extra_tensors=[table])
    result = write(source, tmp_path / "out")
    hints = json.loads(result.manifest)["selection_hints"]
    assert hints["per_layer_embedding_layers"] == "all"
    with open_gguf(tmp_path / "out/shared/embeddings.gguf") as file:
        assert [t.name for t in file.tensors] == ["token_embd.weight", table.name]


def test_the_callers_generation_is_merged_in(tmp_path: Path) -> None:
    own = {
        "thresholds": {"short_prefill_max_tokens": 7},
        "speculative_decoding": {
            "proposers": {"cache": {"type": "ngram-cache", "ngram_min": 2, "ngram_max": 4,
                                    "max_proposal_tokens": 8, "history_scope": "request"}},
            "strategies": {"ngram-cache": {"type": "ngram-cache", "proposer": "cache"}},
        },
    }  # fmt: skip
    result = write(tiny_source(tmp_path, mtp=True), tmp_path / "out", generation=own)
    block = json.loads(result.manifest)["generation"]
    assert block["thresholds"] == {"short_prefill_max_tokens": 7}
    assert block["speculative_decoding"]["default"] == "mtp"
    assert list(block["speculative_decoding"]["proposers"]) == ["mtp", "cache"]


def test_progress_reaches_the_whole_and_memory_stays_small(tmp_path: Path) -> None:
    big = made("blk.0.big.weight", (1 << 14, 1 << 10))
    words = Pair("x", pair(b"x", ARRAY, array(STRING, 9, (u64(40) + bytes(40)) * 9)))
    source = tiny_source(tmp_path, extra_tensors=[big], extra_pairs=[words])
    seen: list[tuple[int, int]] = []
    tracemalloc.start()
    try:
        write_package(source, tmp_path / "out", local_options(),
                      progress=lambda done, total: seen.append((done, total)))  # fmt: skip
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert seen == sorted(seen)
    artifacts = sum(p.stat().st_size for p in (tmp_path / "out").rglob("*.gguf"))
    assert {total for _, total in seen} == {artifacts + source.stat().st_size}
    assert seen[-1][0] == seen[-1][1]


def test_digests_of_the_source_are_those_of_its_files(tmp_path: Path) -> None:
    paths = source_shards(tmp_path / "source")
    with open_source(paths[0]) as source, SourceDigests(source) as digests:
        found = digests.wait(lambda: None)
        assert digests.n_bytes_done == source.n_bytes
    assert found == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def test_version_2_is_read_and_3_written(tmp_path: Path) -> None:
    old = tmp_path / "old.gguf"
    old.write_bytes(gguf_bytes(*tiny_model(), version=2))
    write(old, tmp_path / "out")
    wanted = tree(write_tiny_package(tmp_path / "wanted"))
    found = tree(tmp_path / "out")
    del wanted["model-package.json"], found["model-package.json"]
    assert found == wanted
