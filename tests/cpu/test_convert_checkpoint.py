"""A checkpoint becomes an .mspec: every number, text and name, in every dtype and naming."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from engine.artifacts.mspec import MspecFile, open_mspec
from engine.artifacts.weight_codecs import encode_rows
from engine.errors import InvalidArgument, ModelError
from packages.convert import convert
from packages.qwen3_8_27b import PACKAGE
from packages.qwen3_8_27b.bind import shapes
from packages.recipes import RECIPES
from reference.bf16 import round_bf16
from reference.checkpoint import Checkpoint
from reference.config import MINI
from reference.synthetic import lively, write_checkpoint
from reference.weights import tensor
from tests.cpu import convert_cases as cases


def assert_same(file: MspecFile, wanted: object, dtype: str) -> None:
    """Every tensor has the values of `wanted`, as `dtype` holds them or exactly where that is."""
    for name, shape in shapes(cases.DIMS).items():
        found = file.tensor(name)
        values = tensor(wanted, name).reshape(shape)
        is_wide = len(shape) == 1 or name.endswith("conv1d.weight")
        assert found.dtype == ("f32" if is_wide else dtype)
        expected = values if is_wide else round_bf16(values)
        assert found.shape == shape
        assert np.array_equal(found.to_float32(), expected.astype(np.float32)), name


@pytest.mark.parametrize("naming", ["multimodal", "text"])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_every_number_survives(tmp_path: Path, naming: str, dtype: str) -> None:
    # F16 holds fewer exponents: what upstream would have stored is what counts.
    weights = cases.bf16_weights()
    src = cases.checkpoint(tmp_path / "src", weights=weights, naming=naming, dtype=dtype,
                           vector_dtype="F32", vision=naming == "multimodal")
    cases.run(src, tmp_path / "x.mspec")
    with open_mspec(tmp_path / "x.mspec") as file:
        if dtype == "F16":
            weights = Checkpoint(src)
        assert_same(file, weights, "bf16")


def test_numbers_beyond_bf16_are_rounded_to_nearest(tmp_path: Path) -> None:
    weights = lively(cases.CONFIG, 3)
    src = cases.checkpoint(tmp_path / "src", weights=weights, dtype="F32")
    cases.run(src, tmp_path / "x.mspec")
    with open_mspec(tmp_path / "x.mspec") as file:
        stored = Checkpoint(src)
        assert_same(file, stored, "bf16")


def test_texts_order_identity_and_report(tmp_path: Path) -> None:
    src = cases.checkpoint(tmp_path / "src")
    report = cases.run(src, tmp_path / "x.mspec", model_id="someone/else")
    with open_mspec(tmp_path / "x.mspec") as file:
        names = list(file.objects)
        assert names == ["config", "tokenizer.json", "chat_template", *shapes(cases.DIMS)]
        assert file.text("tokenizer.json") == cases.TOKENIZER
        assert file.text("chat_template") == cases.TEMPLATE
        config = json.loads(file.text("config"))
        assert config == {"package": cases.KEY, "dims": dataclasses.asdict(cases.DIMS)}
        identity = file.identity
        n_bytes = sum(entry.length for entry in file.objects.values())
    assert identity.model_id == report.model_id == "someone/else"
    assert identity.weights_id == report.weights_id
    assert (identity.recipe, identity.recipe_sha256) == ("bf16", report.recipe_sha256)
    assert report.recipe_sha256 == RECIPES["bf16"].sha256(cases.KEY)
    assert report.left_out == {"mtp": 15, "vision": 33}
    assert (report.n_bytes, report.n_resumed_bytes) == (n_bytes, 0)
    shards = [*src.glob("*.safetensors"), *src.glob("*.json"), src / "chat_template.jinja"]
    assert report.n_source_bytes == sum(path.stat().st_size for path in shards)
    assert not report.fallbacks
    assert not report.notes
    assert report.weights_id in "\n".join(report.lines())


def test_what_is_written_depends_on_values_not_on_how_they_are_stored(tmp_path: Path) -> None:
    weights = cases.bf16_weights()
    kinds = [
        {}, {"shard_bytes": None, "naming": "text", "vision": False, "mtp": False},
        {"dtype": "F32", "shard_bytes": 100_000},
    ]
    written = []
    for i, options in enumerate(kinds):
        src = cases.checkpoint(tmp_path / f"src{i}", weights=weights, **options)
        cases.run(src, tmp_path / f"{i}.mspec")
        written.append((tmp_path / f"{i}.mspec").read_bytes())
    assert written[0] == written[1] == written[2]


def test_progress_goes_up_to_the_whole(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    src = cases.checkpoint(tmp_path / "src")
    report = cases.run(
        src, tmp_path / "x.mspec", progress=lambda done, total: seen.append((done, total))
    )
    assert seen[0][0] == 0
    assert seen[-1] == (report.n_bytes, report.n_bytes)
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {report.n_bytes}


def test_a_twin_that_int4_does_not_fit_says_so_for_each_tensor(tmp_path: Path) -> None:
    src = cases.checkpoint(tmp_path / "src")
    report = cases.run(src, tmp_path / "x.mspec", "groupwise-int")
    wanted = {t.name for t in report.tensors if t.role in ("mlp", "attention", "gdn", "head")}
    assert {t.name for t in report.fallbacks} == wanted
    for converted in report.fallbacks:
        assert converted.format.dtype == "bf16"
        assert "K a multiple of 128" in converted.format.why_fallback
        assert any(converted.name in line for line in report.lines())


def test_groupwise_int_is_what_the_codecs_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On dims that the layouts hold: the oracle's middle configuration."""
    numbers = {
        field.name: getattr(MINI, {"rope_theta": "theta", "norm_eps": "eps"}.get(
            field.name, field.name), None)
        for field in dataclasses.fields(cases.DIMS)
    }
    numbers |= {"n_vocab_real": MINI.n_vocab, "n_context": MINI.max_positions, "n_layers": 4}
    monkeypatch.setitem(PACKAGE.dims, "mini", type(cases.DIMS)(**numbers))
    config = dataclasses.replace(MINI, n_layers=4)
    weights = lively(config, 5)
    write_checkpoint(tmp_path / "src", weights, config, mtp=False)
    stored = Checkpoint(tmp_path / "src")
    report = convert(
        tmp_path / "src", tmp_path / "x.mspec", package="qwen3_8_27b:mini",
        recipe="groupwise-int", progress=lambda done, total: None,
    )
    assert not report.fallbacks
    assert report.notes == ("no tokenizer: the file can be run by token ids only",
                            "no chat template")
    with open_mspec(tmp_path / "x.mspec") as file:
        for found in report.tensors:
            values = tensor(stored, found.name).astype(np.float32).reshape(found.shape)
            dtype = file.tensor(found.name).dtype
            raw = b"".join(
                chunk.tobytes() for chunk in encode_rows(dtype, found.shape, [values], "it")
            )
            assert file.raw(found.name).tobytes() == raw, found.name
        used = {t.role: t.format.dtype for t in report.tensors}
    assert used == {
        "embedding": "bf16", "head": "int8", "mlp": "int4", "attention": "int4", "gdn": "int4",
        "gdn_gate": "bf16", "vector": "f32", "conv": "f32",
    }


@pytest.mark.parametrize("place", ["field", "file", "both", "absent"])
def test_where_the_chat_template_comes_from(tmp_path: Path, place: str) -> None:
    src = cases.checkpoint(tmp_path / "src")
    if place in ("field", "absent"):
        (src / "chat_template.jinja").unlink()
    if place in ("field", "both"):
        (src / "tokenizer_config.json").write_text(json.dumps({"chat_template": "of the field"}))
    report = cases.run(src, tmp_path / "x.mspec")
    with open_mspec(tmp_path / "x.mspec") as file:
        if place == "absent":
            assert "chat_template" not in file.objects
            assert report.notes == ("no chat template",)
        else:
            wanted = "of the field" if place == "field" else cases.TEMPLATE
            assert file.text("chat_template") == wanted


def test_an_output_that_is_an_input_is_refused(tmp_path: Path) -> None:
    src = cases.checkpoint(tmp_path / "src", shard_bytes=None)
    shard = src / "model.safetensors"
    before = shard.read_bytes()
    (tmp_path / "link").symlink_to(shard)
    for dst in (shard, tmp_path / "link"):
        with pytest.raises(InvalidArgument, match="one of the input files"):
            cases.run(src, dst)
    assert shard.read_bytes() == before


@pytest.mark.parametrize("key", ["qwen", "qwen3_8_27b:", "qwen3_8_27b:huge", "", ":tiny", "a:b:c"])
def test_a_package_that_is_not_one_is_refused_with_those_there_are(
    tmp_path: Path, key: str
) -> None:
    with pytest.raises(InvalidArgument, match="qwen3_8_27b:tiny"):
        cases.run(tmp_path, tmp_path / "x.mspec", package=key)


def test_a_hub_cache_of_links_is_read(tmp_path: Path) -> None:
    src = cases.checkpoint(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for path in src.iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    cases.run(tmp_path / "snapshot", tmp_path / "x.mspec")
    (tmp_path / "snapshot" / "chat_template.jinja").unlink()
    (tmp_path / "snapshot" / "chat_template.jinja").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="cannot open"):
        cases.run(tmp_path / "snapshot", tmp_path / "y.mspec")
