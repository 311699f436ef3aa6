"""Checkpoints that are not just the package's model: each refused by name, nothing left behind.

Long because every field, part and document has its case.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import EngineError, IoFailure, ModelError
from packages.qwen3_8_27b import PACKAGE
from tests.cpu import convert_cases as cases

NORM = "model.language_model.layers.2.input_layernorm.weight"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without fault, in shards."""
    return cases.checkpoint(tmp_path_factory.mktemp("sound") / "src")


@pytest.fixture
def src(sound: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(sound, tmp_path / "src"))


def refused(src: Path, *parts: str, **options: Any) -> str:
    """The refusal's text, which has all parts; no file was left."""
    dst = src.parent / "x.mspec"
    with pytest.raises(ModelError) as caught:
        cases.run(src, dst, **options)
    for part in parts:
        assert part in str(caught.value)
    assert not list(src.parent.glob("x.mspec*"))
    return str(caught.value)


def shard_of(src: Path, name: str) -> Path:
    return src / json.loads((src / INDEX).read_text())["weight_map"][name]


def spoil(src: Path, name: str, new: Callable[[str, np.ndarray], tuple[str, np.ndarray]]) -> None:
    """Replace one tensor by another dtype or array."""
    cases.edit_shard(shard_of(src, name), lambda t: t.update({name: new(*t[name])}))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "at"),
    [(NORM, (17,)), ("lm_head.weight", (319, 95)),
     ("model.language_model.layers.1.linear_attn.conv1d.weight", (100, 0, 3)),
     ("model.language_model.layers.3.self_attn.q_proj.weight", (0, 0))],
)
@pytest.mark.parametrize("recipe", ["bf16", "groupwise-int"])
def test_a_number_that_is_not_finite_is_named_by_place(
    src: Path, name: str, at: tuple[int, ...], value: float, recipe: str
) -> None:
    def put(dtype: str, x: np.ndarray) -> tuple[str, np.ndarray]:
        x[at] = value
        return dtype, x

    spoil(src, name, put)
    where = [i for axis, i in enumerate(at) if not (name.endswith("conv1d.weight") and axis == 1)]
    refused(src, repr(name), f"element {where}", str(value), "not finite", recipe=recipe)


@pytest.mark.parametrize("recipe", ["bf16", "groupwise-int"])
def test_a_float32_beyond_bf16_is_named(src: Path, recipe: str) -> None:
    def put(dtype: str, x: np.ndarray) -> tuple[str, np.ndarray]:
        x[3, 4] = 3.4e38
        return "F32", x

    spoil(src, "lm_head.weight", put)
    refused(src, "'lm_head.weight'", "element [3, 4]", "bf16 cannot hold", recipe=recipe)


def test_missing_and_extra_tensors_are_named(src: Path) -> None:
    name = "model.language_model.layers.3.self_attn.k_proj.weight"

    def drop(tensors: dict[str, Any]) -> None:
        tensors[f"{name}_scale"] = tensors.pop(name)

    cases.edit_shard(shard_of(src, name), drop)
    cases.edit_json(
        src / INDEX, lambda d: d["weight_map"].update({f"{name}_scale": d["weight_map"].pop(name)})
    )
    refused(src, "1 tensors that qwen3_8_27b:padded has not", f"'{name}_scale'")
    shard = json.loads((src / INDEX).read_text())["weight_map"][f"{name}_scale"]
    cases.edit_shard(src / shard, lambda tensors: tensors.pop(f"{name}_scale"))
    cases.edit_json(src / INDEX, lambda d: d["weight_map"].pop(f"{name}_scale"))
    refused(src, "1 tensors missing: 'model.layers.3.self_attn.k_proj.weight'")


@pytest.mark.parametrize("extra", [
    "model.language_model.layers.8.input_layernorm.weight", "model.layers.08.mlp.up_proj.weight",
    "model.language_model.layers.0.mlp.up_proj.bias", "visual", "model.visual", "mtp",
    "model.language_model.visual.x", "lm_head.bias",
])
def test_a_tensor_outside_every_known_part_is_named(src: Path, extra: str) -> None:
    shard = shard_of(src, "lm_head.weight")
    cases.edit_shard(shard, lambda t: t.update({extra: ("BF16", np.ones(3))}))
    cases.edit_json(src / INDEX, lambda d: d["weight_map"].update({extra: shard.name}))
    refused(src, "tensors that", repr(extra))


def test_a_layer_of_the_other_kind_is_refused(src: Path) -> None:
    name = "model.language_model.layers.3.linear_attn.A_log"
    shard = shard_of(src, "lm_head.weight")
    cases.edit_shard(shard, lambda t: t.update({name: ("BF16", np.ones(6))}))
    cases.edit_json(src / INDEX, lambda d: d["weight_map"].update({name: shard.name}))
    refused(src, repr(name))


@pytest.mark.parametrize("name", ["lm_head.weight", NORM])
def test_another_shape_is_refused_with_both(src: Path, name: str) -> None:
    spoil(src, name, lambda dtype, x: (dtype, x.reshape(2, -1)))
    refused(src, repr(name), "[2,", "needs [")


def test_another_dtype_is_refused(src: Path) -> None:
    path = shard_of(src, "lm_head.weight")
    raw = path.read_bytes()
    start = raw.index(b'"lm_head.weight"')
    path.write_bytes(raw[:start] + raw[start:].replace(b'"BF16"', b'"I16" ', 1))
    refused(src, "'lm_head.weight' is I16", "a float format")


def test_both_namings_of_one_tensor_are_refused(src: Path) -> None:
    twin = NORM.replace("language_model.", "")
    shard = shard_of(src, "lm_head.weight")
    cases.edit_shard(shard, lambda t: t.update({twin: ("BF16", np.ones(96))}))
    cases.edit_json(src / INDEX, lambda d: d["weight_map"].update({twin: shard.name}))
    refused(src, "stored twice", repr(twin), repr(NORM))


def test_a_missing_shard_is_named(src: Path) -> None:
    shard = shard_of(src, NORM)
    shard.unlink()
    refused(src, f"shard '{shard.name}' is missing")


def test_a_tensor_in_two_shards_is_refused(src: Path) -> None:
    other = shard_of(src, "lm_head.weight")
    assert other != shard_of(src, NORM)
    cases.edit_shard(other, lambda t: t.update({NORM: ("BF16", np.ones(96))}))
    refused(src, repr(NORM), "is in two shards", other.name, shard_of(src, NORM).name)


def test_a_tensor_where_the_index_has_it_not_is_refused(src: Path) -> None:
    cases.edit_json(
        src / INDEX,
        lambda d: d["weight_map"].update({NORM: d["weight_map"]["lm_head.weight"]}),
    )
    refused(src, repr(NORM), "index.json has it in")
    cases.edit_json(src / INDEX, lambda d: d["weight_map"].pop(NORM))
    refused(src, repr(NORM), "has it in 'None'")


def test_a_tensor_that_only_the_index_has_is_refused(src: Path) -> None:
    cases.edit_json(
        src / INDEX,
        lambda d: d["weight_map"].update({"x": d["weight_map"]["lm_head.weight"]}),
    )
    refused(src, "has tensor 'x'", "it is not there")


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/etc/hostname", "a/b", "..", ".", "", "a\\b", "a\0b", 5, None,
              "a\nb"],
)
def test_an_index_that_leads_out_of_the_folder_is_refused(src: Path, shard: object) -> None:
    outside = src.parent / "x.safetensors"
    shutil.copy(shard_of(src, NORM), outside)
    cases.edit_json(src / INDEX, lambda d: d["weight_map"].update({NORM: shard}))
    with pytest.raises(ModelError, match="not the name of a file in this folder"):
        cases.run(src, src.parent / "y.mspec")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "{", '{"a": 1, "a": 2}',
             '{"weight_map": {"a": NaN}}', "\ud800", "[" * 100_000],
)
@pytest.mark.parametrize("name", [INDEX, "config.json", "tokenizer.json"])
def test_documents_that_are_none_are_refused(src: Path, name: str, text: str) -> None:
    (src / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelError):
        cases.run(src, src.parent / "x.mspec")
    assert not list(src.parent.glob("x.mspec*"))


@pytest.mark.parametrize("ids", [{"a": 315}, {"a": 317}, {"a": "1"}, {"a": True}, {}, []])
def test_a_tokenizer_with_other_ids_is_refused(src: Path, ids: object) -> None:
    document = {"model": {"vocab": ids}, "added_tokens": []}
    (src / "tokenizer.json").write_text(json.dumps(document))
    refused(src, "tokenizer.json", "id")


def test_nothing_without_weights_or_config_is_a_checkpoint(src: Path, tmp_path: Path) -> None:
    (src / INDEX).unlink()
    refused(src, "neither model.safetensors.index.json nor model.safetensors")
    (src / "config.json").unlink()
    refused(src, "config.json", "No such file")
    with pytest.raises(ModelError, match="cannot open"):
        cases.run(tmp_path / "absent", tmp_path / "x.mspec")


def test_only_a_twin_goes_without_a_tokenizer(src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (src / "tokenizer.json").unlink()
    cases.run(src, src.parent / "twin.mspec")
    monkeypatch.setitem(PACKAGE.dims, "", cases.DIMS)
    refused(src, "tokenizer.json is missing", package="qwen3_8_27b")


def test_the_model_itself_is_no_twin(src: Path) -> None:
    refused(src, "num_hidden_layers is 8, qwen3_8_27b has 64", package="qwen3_8_27b")


FIELDS: dict[str, Any] = {
    "model_type": "qwen3_next", "num_hidden_layers": 12, "hidden_size": 95,
    "intermediate_size": "160", "vocab_size": 321, "num_attention_heads": 5,
    "num_key_value_heads": True, "head_dim": 64, "linear_num_key_heads": 1,
    "linear_num_value_heads": 3, "linear_key_head_dim": 17, "linear_value_head_dim": 15,
    "linear_conv_kernel_dim": 3, "rms_norm_eps": 1e-5, "max_position_embeddings": 262144,
    "full_attention_interval": 2, "layer_types": ["full_attention"] * 8, "attention_bias": True,
    "attn_output_gate": False, "hidden_act": "gelu", "mamba_ssm_dtype": "bfloat16",
    "tie_word_embeddings": True, "quantization_config": {"bits": 4}, "rope_parameters": None,
}
ROPE_FIELDS: dict[str, Any] = {
    "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "rope_type": "yarn",
    "mrope_section": [11, 11, 10], "mrope_interleaved": False,
}


@pytest.mark.parametrize("field", [*FIELDS, *(f"rope_parameters.{f}" for f in ROPE_FIELDS)])
def test_every_field_that_contradicts_the_package_is_refused(src: Path, field: str) -> None:
    rest = field.removeprefix("rope_parameters.")
    value = ROPE_FIELDS[rest] if rest != field else FIELDS[field]

    def change(document: Any) -> None:
        text = document["text_config"]
        (text["rope_parameters"] if rest != field else text)[rest] = value

    cases.edit_json(src / "config.json", change)
    said = field if value is None else f"{field} is {value!r:.40}"
    refused(src, "config.json", said)


@pytest.mark.parametrize("field", ["hidden_size", "rms_norm_eps", "model_type", "rope_theta"])
def test_a_field_that_decides_must_be_there(src: Path, field: str) -> None:
    def change(document: Any) -> None:
        text = document["text_config"]
        (text["rope_parameters"] if field == "rope_theta" else text).pop(field)

    cases.edit_json(src / "config.json", change)
    refused(src, f"{field} is missing, qwen3_8_27b:padded has")


def test_a_contradiction_outside_the_text_part_counts(src: Path) -> None:
    cases.edit_json(src / "config.json", lambda d: d.update(tie_word_embeddings=True))
    refused(src, "tie_word_embeddings is True", "has False")


def test_a_source_that_changes_meanwhile_is_refused(src: Path) -> None:
    shard = shard_of(src, NORM)

    def touch(done: int, total: int) -> None:
        if done == total:
            os.utime(shard, ns=(1, 1))

    refused(src, shard.name, "was changed while it was converted", progress=touch)


@pytest.mark.parametrize("name", [b"\xff\xfe", "модель 模型\u3000 ".encode(), b"a\nb", b"x" * 200])
def test_odd_names_of_folders_and_files_work(src: Path, name: bytes) -> None:
    folder = Path(os.fsdecode(os.fsencode(src.parent) + b"/" + name))
    src.rename(folder)
    dst = folder.with_name(folder.name + ".mspec")
    report = cases.run(folder, dst)
    assert dst.is_file()
    assert report.source.isprintable()
    folder_norm = shard_of(folder, NORM)
    folder_norm.unlink()
    refused(folder, folder_norm.name)


@pytest.mark.parametrize("raw", [b"", b"GGUF", b"{}", bytes(64)])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x").write_bytes(raw)
    refused(tmp_path / "x", str(tmp_path / "x"))


def test_a_source_that_cannot_be_looked_at_is_refused(src: Path, tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 300), tmp_path / "a\0b", tmp_path / "absent" / "b"):
        with pytest.raises(EngineError):
            cases.run(path, tmp_path / "x.mspec")
    with pytest.raises(IoFailure):
        cases.run(src, tmp_path / "absent" / "x.mspec")
    shard = shard_of(src, NORM)
    shard.unlink()
    os.mkfifo(shard)
    refused(src, shard.name, "FIFO")
    rename = {shard.name: "x" * 300}
    cases.edit_json(
        src / INDEX, lambda d: d.update(
            weight_map={name: rename.get(s, s) for name, s in d["weight_map"].items()}
        ),
    )
    refused(src, "is missing")


def test_what_was_there_before_is_untouched_by_a_refusal(src: Path) -> None:
    dst = src.parent / "x.mspec"
    dst.write_bytes(b"somebody's")
    spoil(src, NORM, lambda dtype, x: (dtype, np.full_like(x, np.nan)))
    with pytest.raises(ModelError, match="not finite"):
        cases.run(src, dst)
    assert dst.read_bytes() == b"somebody's"
    assert [path.name for path in src.parent.glob("x.mspec*")] == ["x.mspec"]
