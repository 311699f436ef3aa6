"""Owns the oracle's checkpoint folders: what is written is read back, what is broken is refused.

It is long because of its two tables of broken input.
"""

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference.bf16 import round_bf16
from reference.checkpoint import Checkpoint
from reference.compare import mismatch
from reference.config import MINI, TINY, Config, Yarn
from reference.errors import OracleError
from reference.hybrid import Hybrid
from reference.safetensors import SafetensorsFile
from reference.synthetic import CountedWeights, _main, deterministic, lively, write_checkpoint
from reference.weights import blocks, linear, resident, tensor

SMALL = dataclasses.replace(TINY, n_layers=4, n_vocab=64, d_ff=32)
IDS = [3, 1, 4, 1, 5, 9, 2, 6]
TOKENIZER = json.dumps(
    {"model": {"vocab": {"a": 0, "b": 40}}, "added_tokens": [{"id": 50, "content": "<x>"}]}
).encode()


@pytest.mark.parametrize("naming", ["multimodal", "text"])
@pytest.mark.parametrize("shard_bytes", [None, 100_000, 1])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_written_weights_are_read_back(
    tmp_path: Path, naming: str, shard_bytes: int | None, dtype: str
) -> None:
    weights = lively(SMALL, seed=2)
    write_checkpoint(
        tmp_path, weights, SMALL, dtype=dtype, vector_dtype="F32", naming=naming, vision=True,
        shard_bytes=shard_bytes,
    )
    found = Checkpoint(tmp_path)
    assert found.config == SMALL
    assert sorted(found.names()) == sorted(SMALL.tensors())
    grids: dict[str, Callable[[Any], Any]] = {
        "BF16": round_bf16, "F16": np.float16, "F32": np.float32,
    }
    for name in weights.names():
        vector = len(weights.shape(name)) == 1
        want = grids["F32" if vector else dtype](tensor(weights, name))
        assert found.dtype(name) == ("F32" if vector else dtype)
        np.testing.assert_array_equal(tensor(found, name), want.astype(np.float64), err_msg=name)
    assert (shard_bytes is None) == (tmp_path / "model.safetensors").is_file()


@pytest.mark.parametrize("yarn", [None, Yarn(4.0, 262144)], ids=["plain", "yarn"])
@pytest.mark.parametrize("multimodal", [True, False])
@pytest.mark.parametrize("config", [TINY, MINI], ids=["tiny", "mini"])
def test_configuration_round_trips(config: Config, multimodal: bool, yarn: Yarn | None) -> None:
    config = dataclasses.replace(config, yarn=yarn)
    assert Config.from_json(json.loads(json.dumps(config.to_json(multimodal)))) == config


def test_stored_deterministic_weights_give_nearly_the_golden_run(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, deterministic(TINY), TINY, dtype="F32")
    stored = Hybrid(Checkpoint(tmp_path), TINY).forward(IDS)
    exact = Hybrid(deterministic(TINY), TINY).forward(IDS)
    assert (found := mismatch(stored.logits, exact.logits, "f32_path")) is None, found


def test_without_mtp_only_the_head_is_missing(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, lively(SMALL, 1), SMALL, mtp=False)
    model = Hybrid(Checkpoint(tmp_path), SMALL)
    out = model.forward(IDS)
    with pytest.raises(OracleError, match="no MTP head"):
        model.mtp(out.hidden, IDS)


def test_the_tokenizer_bounds_the_ids_that_can_win(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, lively(SMALL, 1), SMALL, tokenizer=TOKENIZER)
    found = Checkpoint(tmp_path)
    assert found.config.n_vocab_real == 51
    assert (tmp_path / "tokenizer.json").read_bytes() == TOKENIZER


def test_any_block_of_rows_is_the_same_part_of_the_whole() -> None:
    for weights in (deterministic(SMALL), lively(SMALL, 3)):
        for name in weights.names():
            whole = tensor(weights, name)
            start = whole.shape[0] // 3
            np.testing.assert_array_equal(weights.rows(name, start, start + 1), whole[start:][:1])


def test_random_weights_have_the_spread_that_keeps_the_network_lively() -> None:
    weights = lively(MINI, seed=5)
    gate = tensor(weights, "model.layers.0.mlp.gate_proj.weight")
    assert np.var(gate) == pytest.approx(1 / 512, rel=0.02)
    norm = tensor(weights, "model.layers.0.input_layernorm.weight")
    assert np.std(norm) == pytest.approx(0.2, rel=0.15)
    assert abs(np.mean(norm)) < 0.04
    assert np.mean(tensor(weights, "model.layers.0.linear_attn.norm.weight")) == pytest.approx(
        1.0, abs=0.08
    )
    decays = np.concatenate([tensor(weights, n) for n in weights.names() if n.endswith("A_log")])
    assert -4.0 <= decays.min() < -3.0
    assert 0.0 < decays.max() <= 1.0
    assert not np.array_equal(gate, tensor(lively(MINI, 6), "model.layers.0.mlp.gate_proj.weight"))


def test_weights_too_large_to_keep_are_read_in_blocks(tmp_path: Path) -> None:
    weights = lively(SMALL, 1)
    assert resident(weights, limit_bytes=1000) is weights
    name = "lm_head.weight"
    x = np.random.default_rng(0).standard_normal((3, SMALL.d_model))
    np.testing.assert_allclose(linear(x, weights, name), x @ tensor(weights, name).T, rtol=1e-12)
    ranges = list(blocks((5000, 5120)))
    assert [b for _, b in ranges[:-1]] == [a for a, _ in ranges[1:]]
    assert len(ranges) == 4
    assert ranges[-1][1] == 5000


def test_command_line_writes_a_checkpoint(tmp_path: Path) -> None:
    assert _main([str(tmp_path / "a"), "--seed", "9", "--vision", "--naming", "multimodal"]) == 0
    found = Checkpoint(tmp_path / "a")
    want = round_bf16(tensor(CountedWeights(TINY, 9), "lm_head.weight"))
    np.testing.assert_array_equal(tensor(found, "lm_head.weight"), want)
    assert _main([str(tmp_path / "b"), "--seed", "-1"]) == 2


# --- What is broken.


def edited(folder: Path, change: Callable[[dict[str, Any]], None], file: str) -> None:
    document = json.loads((folder / file).read_text())
    change(document)
    (folder / file).write_text(json.dumps(document))


def drop_shard(folder: Path) -> None:
    next(folder.glob("model-*.safetensors")).unlink()


CONFIG, INDEX = "config.json", "model.safetensors.index.json"
Change = Callable[[dict[str, Any]], Any]
BROKEN_JSON: list[tuple[str, str, Change, str]] = [
    ("no_rope", CONFIG, lambda d: d["text_config"].pop("rope_parameters"), "rope_parameters"),
    ("no_theta", CONFIG, lambda d: d["text_config"]["rope_parameters"].pop("rope_theta"), "theta"),
    ("theta", CONFIG, lambda d: d["text_config"]["rope_parameters"].update(rope_theta="x"), "rope"),
    ("rope_kind", CONFIG, lambda d: d["text_config"]["rope_parameters"].update(rope_type="su"),
     "rope_type"),
    ("rope_more", CONFIG, lambda d: d["text_config"]["rope_parameters"].update(beta_fast=8),
     "specified"),
    ("section", CONFIG, lambda d: d["text_config"]["rope_parameters"].update(mrope_section=[9, 0]),
     "rope_parameters"),
    ("bias", CONFIG, lambda d: d["text_config"].update(attention_bias=True), "attention_bias"),
    ("tied", CONFIG, lambda d: d["text_config"].update(tie_word_embeddings=True), "tie_word"),
    ("kind", CONFIG, lambda d: d["text_config"].update(model_type="qwen3_next"), "model_type"),
    ("width", CONFIG, lambda d: d["text_config"].update(hidden_size=95), "embed_tokens"),
    ("float", CONFIG, lambda d: d["text_config"].update(hidden_size=96.5), "hidden_size"),
    ("absurd", CONFIG, lambda d: d["text_config"].update(num_hidden_layers=10**9), "layers"),
    ("heads", CONFIG, lambda d: d["text_config"].update(num_key_value_heads=4), "n_kv_heads"),
    ("fewer", CONFIG, lambda d: d["text_config"].update(
        num_hidden_layers=3, layer_types=d["text_config"]["layer_types"][:3]), "not of this model"),
    ("order", CONFIG, lambda d: d["text_config"]["layer_types"].reverse(), "layer_types"),
    ("no_map", INDEX, lambda d: d.pop("weight_map"), "weight_map"),
    ("moved", INDEX, lambda d: d["weight_map"].update({"lm_head.weight": "../x"}), "plain file"),
    ("unlisted", INDEX, lambda d: d["weight_map"].pop("lm_head.weight"), "disagree"),
    ("extra", INDEX, lambda d: d["weight_map"].update(
        {"model.more": "model-00001-of-00008.safetensors"}), "disagree"),
]


@pytest.mark.parametrize(
    ("file", "change", "word"), [row[1:] for row in BROKEN_JSON],
    ids=[row[0] for row in BROKEN_JSON],
)
def test_broken_documents_are_refused(
    tmp_path: Path, file: str, change: Change, word: str
) -> None:
    write_checkpoint(tmp_path, lively(SMALL, 1), SMALL, shard_bytes=100_000)
    edited(tmp_path, change, file)
    with pytest.raises(OracleError, match=word):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_files_that_are_no_documents_are_refused(
    tmp_path: Path, file: str, content: bytes
) -> None:
    write_checkpoint(tmp_path, lively(SMALL, 1), SMALL)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(OracleError):
        Checkpoint(tmp_path)


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, lively(SMALL, 1), SMALL, shard_bytes=100_000)
    drop_shard(tmp_path)
    with pytest.raises(OracleError, match="safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("word", [0x7FC0, 0x7F80, 0xFF80], ids=["nan", "inf", "minus_inf"])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, word: int) -> None:
    write_checkpoint(tmp_path, lively(SMALL, 1), SMALL)
    path = tmp_path / "model.safetensors"
    name = "model.language_model.layers.2.mlp.up_proj.weight"
    offset = SafetensorsFile(path).entries[name].offset
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, offset + 10, word)
    path.write_bytes(content)
    with pytest.raises(OracleError, match=name):
        Hybrid(Checkpoint(tmp_path), SMALL)


def header(entry: dict[str, Any], data: bytes = b"\0" * 16, **more: Any) -> bytes:
    text = json.dumps({"t": entry, **more}).encode()
    return len(text).to_bytes(8, "little") + text + data


GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
BROKEN_FILES = {
    "empty": b"",
    "short": b"\1\0\0",
    "huge_header": (1 << 62).to_bytes(8, "little") + b"{}",
    "long_header": (3).to_bytes(8, "little") + b"{}",
    "not_json": (2).to_bytes(8, "little") + b"{]",
    "deep": (90_000).to_bytes(8, "little") + b"[" * 90_000,
    "list": (2).to_bytes(8, "little") + b"[]",
    "twice": (14).to_bytes(8, "little") + b'{"t":1,"t":22}',
    "no_fields": header({}),
    "not_fields": header(7),  # type: ignore[arg-type]
    "dtype": header({**GOOD, "dtype": "I64"}),
    "dtype_list": header({**GOOD, "dtype": ["F32"]}),
    "negative": header({**GOOD, "shape": [-2, -2]}),
    "fraction": header({**GOOD, "shape": [2.0, 2]}),
    "boolean": header({**GOOD, "shape": [True, 4]}),
    "scalar": header({**GOOD, "shape": []}),
    "empty_axis": header({**GOOD, "shape": [0, 4]}),
    "many_axes": header({**GOOD, "shape": [1] * 9 + [4]}),
    "overflow": header({**GOOD, "shape": [1 << 62, 4]}),
    "shape": header({**GOOD, "shape": [2, 3]}),
    "offsets": header({**GOOD, "data_offsets": [0, 12]}),
    "backwards": header({**GOOD, "data_offsets": [16, 0]}),
    "three": header({**GOOD, "data_offsets": [0, 16, 16]}),
    "gap": header({**GOOD, "data_offsets": [4, 20]}, b"\0" * 20),
    "overlap": header(GOOD, u=GOOD),
    "truncated": header(GOOD, b"\0" * 15),
    "trailing": header(GOOD, b"\0" * 17),
}


@pytest.mark.parametrize("content", BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_broken_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(OracleError, match=r"model\.safetensors"):
        SafetensorsFile(path)


def test_the_good_file_of_the_broken_ones_opens(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(header(GOOD, np.arange(4, dtype="<f4").tobytes()))
    np.testing.assert_array_equal(SafetensorsFile(path).rows("t", 1, 2), [[2.0, 3.0]])
