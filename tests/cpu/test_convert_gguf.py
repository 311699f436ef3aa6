"""A `qwen35` GGUF becomes the same .mspec as the checkpoint it was made from.

Long because each of the four ways of storage, and each key, has its case.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from engine.artifacts import ggml_types
from engine.artifacts.gguf_types import GgufValue, ValueType
from engine.artifacts.gguf_writer import TensorSource
from engine.artifacts.mspec import open_mspec
from engine.errors import ModelError
from engine.tokenizer import Tokenizer
from engine.tokenizer_json import tokenizer_metadata
from packages.qwen3_8_27b import PACKAGE, gguf_names
from packages.qwen3_8_27b.bind import shapes
from reference.config import Config
from reference.synthetic import lively
from reference.weights import DictWeights, tensor
from tests import qwen_gguf
from tests.cpu import convert_cases as cases

# One repeat, two key heads; then one key head; then four heads over two.
HEADS = [(2, 6), (3, 3), (1, 4), (4, 8)]


def gguf(path: Path, **options: Any) -> Path:
    given = {"weights": cases.bf16_weights(), "tokenizer": cases.TOKENIZER,
             "template": cases.TEMPLATE, "config": cases.CONFIG, **options}
    return qwen_gguf.write(path, given.pop("weights"), given.pop("config"), **given)


@pytest.mark.parametrize("kind", [ggml_types.F32, ggml_types.F16, ggml_types.BF16])
def test_the_same_tensors_as_from_the_checkpoint_bit_for_bit(tmp_path: Path, kind: int) -> None:
    # F16 holds fewer exponents than BF16, so what it holds is the model here.
    weights = cases.bf16_weights()
    if kind == ggml_types.F16:
        arrays = {name: tensor(weights, name) for name in weights.names()}
        weights = DictWeights({
            name: x.astype(np.float16).astype(float) if x.ndim == 2 else x
            for name, x in arrays.items()
        })
    src = cases.checkpoint(tmp_path / "src", weights=weights, dtype="F32")
    from_checkpoint = cases.run(src, tmp_path / "a.mspec")
    file = gguf(tmp_path / "x.gguf", weights=weights, ggml_type=kind)
    from_gguf = cases.run(file, tmp_path / "b.mspec")
    assert from_gguf.weights_id == from_checkpoint.weights_id
    assert from_gguf.recipe_sha256 == from_checkpoint.recipe_sha256
    with open_mspec(tmp_path / "a.mspec") as a, open_mspec(tmp_path / "b.mspec") as b:
        assert list(a.objects) == list(b.objects)
        differing = [n for n in a.objects if a.objects[n].sha256 != b.objects[n].sha256]
    # The same vocabulary, in this project's spelling.
    assert differing == ["tokenizer.json"]


@pytest.mark.parametrize("heads", HEADS)
def test_head_orders_of_other_ratios_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heads: tuple[int, int]
) -> None:
    n_key, n_value = heads
    config = dataclasses.replace(
        cases.CONFIG, n_layers=4, n_key_heads=n_key, n_value_heads=n_value, d_key=8, d_value=24
    )
    dims = dataclasses.replace(
        cases.DIMS, n_layers=4, n_key_heads=n_key, n_value_heads=n_value, d_key=8, d_value=24
    )
    monkeypatch.setitem(PACKAGE.dims, cases.TWIN, dims)
    weights = cases.bf16_weights(4, config)
    cases.run(gguf(tmp_path / "x.gguf", weights=weights, config=config), tmp_path / "x.mspec")
    with open_mspec(tmp_path / "x.mspec") as file:
        for name, shape in shapes(dims).items():
            wanted = tensor(weights, name).reshape(shape).astype(np.float32)
            assert np.array_equal(file.tensor(name).to_float32(), wanted), name


def test_float32_gains_and_decays_come_back_as_near_as_the_file_has_them(tmp_path: Path) -> None:
    weights = lively(cases.CONFIG, 7)
    cases.run(gguf(tmp_path / "x.gguf", weights=weights), tmp_path / "x.mspec")
    n_gains = n_decays = 0
    with open_mspec(tmp_path / "x.mspec") as file:
        for name in shapes(cases.DIMS):
            wanted = tensor(weights, name).astype(np.float32)
            if wanted.ndim != 1:
                continue
            found = file.tensor(name).to_float32()
            if name.endswith("A_log"):
                n_decays += 1
                assert np.abs(found - wanted).max() <= 4 * 2.0**-23
            elif name.endswith("norm.weight") and "linear_attn" not in name:
                n_gains += 1
                # Half a step of numbers below 2.
                assert np.abs(found - wanted).max() <= 2.0**-24
            else:
                assert np.array_equal(found, wanted)
    assert (n_gains, n_decays) == (8 * 2 + 2 * 2 + 1, 6)


def test_every_bf16_decay_comes_back() -> None:
    """All BF16 words whose decay is an ordinary number, through float32 and back."""
    bits = np.arange(1 << 16, dtype=np.uint32) << 16
    words = bits.view(np.float32)
    words = words[np.isfinite(words) & (words > -80) & (words < 80)]
    # Below this several words have the same exponential, to the last bit or two.
    words = words[(np.abs(words) >= 2.0**-13) | (words == 0)]
    found = gguf_names._log_decay(-np.exp(words))
    assert len(words) > 4000
    assert np.array_equal(found, words)


@pytest.mark.parametrize("a", [0.0, 0.5, np.nan])
def test_a_decay_that_is_none_is_refused_by_name(tmp_path: Path, a: float) -> None:
    def change(name: str, x: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(x)) == 3, np.float32(a), x) if name == "blk.1.ssm_a" else x

    file = gguf(tmp_path / "x.gguf", change=change)
    # Position 3 of the file is repeat 1 of key head 1, which is upstream's head 4.
    with pytest.raises(ModelError, match=r"'blk.1.ssm_a': element \[4\]"):
        cases.run(file, tmp_path / "x.mspec")
    assert not list(tmp_path.glob("x.mspec*"))


def test_block_formats_are_decoded_and_put_in_order(tmp_path: Path) -> None:
    quantise = pytest.importorskip("gguf.quants", reason="an encoder of Q8_0 is needed").quantize
    library = pytest.importorskip("gguf", reason="an encoder of Q8_0 is needed")

    def encode(x: np.ndarray) -> bytes:
        return bytes(quantise(x, library.GGMLQuantizationType.Q8_0).tobytes())

    weights = cases.bf16_weights()
    file = gguf(tmp_path / "x.gguf", weights=weights, ggml_type=ggml_types.Q8_0, encode=encode)
    # The same numbers as floats, in a file whose storage is proven above.
    plain = gguf(
        tmp_path / "plain.gguf", weights=weights,
        change=lambda name, x: x if x.ndim == 1 or "conv1d" in name
        else qwen_gguf.decoded(x, ggml_types.Q8_0, encode),
    )
    found = cases.run(file, tmp_path / "a.mspec")
    assert found.weights_id == cases.run(plain, tmp_path / "b.mspec").weights_id
    assert {t.source_dtype for t in found.tensors} == {"Q8_0", "F32"}


def test_draft_layers_are_left_out(tmp_path: Path) -> None:
    x = np.ones((4, 4), np.float32)
    extra = [TensorSource.from_array(f"blk.8.{n}", x, 0) for n in ("nextn.eh_proj.weight", "a")]
    more = [("qwen35.nextn_predict_layers", GgufValue.of(ValueType.UINT32, 1)),
            ("qwen35.block_count", GgufValue.of(ValueType.UINT32, 9))]
    report = cases.run(
        gguf(tmp_path / "x.gguf", more=more, extra=extra), tmp_path / "x.mspec"
    )
    assert report.left_out == {"mtp": 2}
    with pytest.raises(ModelError, match=r"'blk.8.nextn.eh_proj.weight' is not one"):
        cases.run(gguf(tmp_path / "y.gguf", extra=extra), tmp_path / "y.mspec")


def test_the_tokenizer_stays_the_same(tmp_path: Path) -> None:
    cases.run(gguf(tmp_path / "x.gguf"), tmp_path / "x.mspec")
    with open_mspec(tmp_path / "x.mspec") as file:
        text = file.text("tokenizer.json")
        assert file.text("chat_template") == cases.TEMPLATE
    assert tokenizer_metadata(text) == tokenizer_metadata(cases.TOKENIZER)
    ours = Tokenizer.from_metadata(tokenizer_metadata(text).get)
    theirs = tokenizers.Tokenizer.from_str(text)
    for said in ("the other day", "<|im_start|>user\nin <think>", "ÅÅ\u0301 ñ 1234"):
        wanted = ours.encode(said, add_special=False)
        assert theirs.encode(said, add_special_tokens=False).ids == wanted
    assert ours.n_vocab == cases.DIMS.n_vocab_real


def test_a_file_without_vocabulary_serves_a_twin_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = gguf(tmp_path / "x.gguf", tokenizer=None)
    report = cases.run(file, tmp_path / "x.mspec")
    assert report.notes == ("no tokenizer: the file can be run by token ids only",
                            "no chat template")
    monkeypatch.setitem(PACKAGE.dims, "", cases.DIMS)
    with pytest.raises(ModelError, match=r"no tokenizer\.ggml\.tokens"):
        cases.run(file, tmp_path / "y.mspec", package="qwen3_8_27b")


def u32(value: int) -> GgufValue:
    return GgufValue.of(ValueType.UINT32, value)


def f32(value: float) -> GgufValue:
    return GgufValue.of(ValueType.FLOAT32, value)


def texts(*values: str) -> GgufValue:
    return GgufValue.array(ValueType.STRING, values)


CONTRADICTIONS: dict[str, GgufValue] = {
    "general.architecture": GgufValue.of(ValueType.STRING, "qwen3next"),
    **{f"qwen35.{key}": u32(value) for key, value in {
        "block_count": 9, "embedding_length": 95, "feed_forward_length": 161,
        "context_length": 513, "attention.head_count": 5, "attention.head_count_kv": 2,
        "attention.key_length": 33, "attention.value_length": 31, "rope.dimension_count": 32,
        "full_attention_interval": 3, "ssm.conv_kernel": 5, "ssm.state_size": 17,
        "ssm.group_count": 3, "ssm.time_step_rank": 4, "ssm.inner_size": 97,
        "nextn_predict_layers": 1000,
    }.items()},
    "qwen35.attention.layer_norm_rms_epsilon": f32(1e-5),
    "qwen35.rope.freq_base": f32(10000.0),
    "tokenizer.ggml.tokens": texts("a", "b"),
    "tokenizer.ggml.token_type": texts("a", "b"),
}


@pytest.mark.parametrize("key", CONTRADICTIONS)
def test_a_key_of_another_type_is_refused(tmp_path: Path, key: str) -> None:
    file = gguf(tmp_path / "x.gguf", more=[(key, GgufValue.of(ValueType.BOOL, True))])
    with pytest.raises(ModelError):
        cases.run(file, tmp_path / "x.mspec")


@pytest.mark.parametrize("key", CONTRADICTIONS)
def test_metadata_that_contradicts_the_package_is_refused(tmp_path: Path, key: str) -> None:
    file = gguf(tmp_path / "x.gguf", more=[(key, CONTRADICTIONS[key])])
    with pytest.raises(ModelError) as caught:
        cases.run(file, tmp_path / "x.mspec")
    assert key in str(caught.value)


def test_missing_misshapen_and_unreadable_tensors_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(part: str, **options: Any) -> None:
        with pytest.raises(ModelError) as caught:
            cases.run(gguf(tmp_path / "x.gguf", **options), tmp_path / "x.mspec")
        assert part in str(caught.value)

    refused("'output.weight' is [160, 192], needs [320, 96]",
            change=lambda name, x: x.reshape(160, 192) if name == "output.weight" else x)
    refused("'blk.0.attn_norm.weight' is [1, 96], needs [96]",
            change=lambda name, x: x[None] if name == "blk.0.attn_norm.weight" else x)
    extra = TensorSource.from_array("rope_freqs.weight", np.ones(4, np.float32), 0)
    refused("'rope_freqs.weight' is not one", extra=[extra])
    raw = bytes(320 * 96 // 32 * 17)
    unreadable = TensorSource("output.weight", (96, 320), 39, len(raw), (raw,))
    with monkeypatch.context() as patch:
        patch.setattr(Config, "tensors", _without("lm_head.weight"))
        refused("1 tensors missing: 'lm_head.weight'")
        refused("'output.weight' is MXFP4, a float format", extra=[unreadable])


def _without(name: str) -> Callable[..., dict[str, Any]]:
    whole = Config.tensors

    def tensors(self: Config, mtp: bool = True) -> dict[str, Any]:
        return {key: shape for key, shape in whole(self, mtp).items() if key != name}

    return tensors


def test_a_chat_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = gguf(tmp_path / "x.gguf", more=[("tokenizer.chat_template", u32(1))])
    with pytest.raises(ModelError, match="chat_template is not a text"):
        cases.run(file, tmp_path / "x.mspec")


def test_a_tokenizer_with_other_ids_is_refused(tmp_path: Path) -> None:
    document = json.loads(cases.TOKENIZER)
    document["added_tokens"].pop()
    file = gguf(tmp_path / "x.gguf", tokenizer=json.dumps(document))
    with pytest.raises(ModelError, match="highest id is 315, the package's is 316"):
        cases.run(file, tmp_path / "x.mspec")
