"""Owns the oracle's comparison with transformers on the CPU, live; and the maker of stored vectors.

    PYTHONPATH=. python tests/control/test_reference_transformers.py reference/vectors

writes the vectors that `tests/cpu/test_reference_vectors.py` reads without torch. Near ties: two
float32 paths differ by up to 3e-4 in a logit of these models, so a greedy id counts as wrong only
if the oracle puts it NEAR_TIE or more below its own choice. It is long because it stands alone.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference.bf16 import round_bf16
from reference.compare import mismatch
from reference.config import MINI, TINY, Config, Yarn
from reference.hybrid import Hybrid
from reference.rounding import TRANSFORMERS_BF16
from reference.state import zero_layer
from reference.synthetic import CountedWeights, write_checkpoint
from reference.weights import DictWeights, Weights, tensor

torch = pytest.importorskip("torch", reason="the control extra is not installed")
transformers = pytest.importorskip("transformers", reason="the control extra is not installed")
modeling = pytest.importorskip(
    "transformers.models.qwen3_5.modeling_qwen3_5", reason="this transformers lacks qwen3_5"
)

pytestmark = pytest.mark.control

NEAR_TIE = 2e-3
N_NEW = 32
PROMPTS = (
    [5],
    [(7 * t * t + 13 * t + 5) % 317 for t in range(48)],
    [(29 * t + 3) % 320 for t in range(17)],
    [11, 11, 11, 300, 2, 2],
)
MROPE = np.stack([np.arange(24), np.arange(24) // 3 * 2 + 1, np.arange(24) % 5 + 7])

# Stored case: configuration, seed (None: deterministic), ids, positions.
CASES: dict[str, tuple[Config, int | None, list[int], Any]] = {
    "tiny": (TINY, None, PROMPTS[1], None),
    "tiny_seed3": (TINY, 3, PROMPTS[1][:24], None),
    "tiny_mrope": (TINY, 3, PROMPTS[1][:24], MROPE),
    "tiny_yarn": (dataclasses.replace(TINY, yarn=Yarn(4.0, 64)), 3, PROMPTS[1][:24], None),
    "tiny_two_kv_heads": (
        dataclasses.replace(TINY, n_layers=4, n_heads=12, n_kv_heads=2, n_key_heads=4,
                            n_value_heads=12),
        6, PROMPTS[1][:24], None,
    ),
    "mini": (dataclasses.replace(MINI, n_vocab=256), 7, [t % 256 for t in PROMPTS[1][:24]], None),
}
ROWS = [0, 1, -1]


class WideTorch:
    """torch, with float32 meaning float64: the model's internal casts then keep full precision."""

    float32 = torch.float64
    float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextlib.contextmanager
def wide_casts() -> Iterator[None]:
    """Inside, the model code builds tables and casts in float64."""
    rope_utils = sys.modules["transformers.modeling_rope_utils"]
    narrow = torch.Tensor.float
    modeling.torch = rope_utils.torch = WideTorch()
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        modeling.torch = rope_utils.torch = torch
        torch.Tensor.float = narrow


def build(weights: Weights, config: Config, dtype: Any) -> Any:
    """The text model of transformers over the same weights."""
    fields = config.to_json(multimodal=False)
    fields.pop("architectures")
    theirs = transformers.Qwen3_5TextConfig(**fields, attn_implementation="eager")
    assert theirs.rope_parameters["rope_theta"] == config.theta
    model = transformers.Qwen3_5ForCausalLM(theirs).eval().to(torch.float64)
    model.load_state_dict(
        {
            name: torch.from_numpy(tensor(weights, name).copy())
            for name in weights.names() if not name.startswith("mtp.")
        }
    )
    return model.to(dtype)


def run(model: Any, ids: list[int], positions: Any = None) -> dict[str, Any]:
    """logits [T, V], hidden (embedding, each layer's output but the last, final norm), cache."""
    with torch.no_grad():
        out = model(
            torch.tensor([ids]), output_hidden_states=True, use_cache=True,
            position_ids=None if positions is None else torch.from_numpy(positions)[:, None],
        )
    return {
        "logits": out.logits[0].double().numpy(),
        "hidden": np.stack([h[0].double().numpy() for h in out.hidden_states]),
        # Named so since 5.24; the older name still answers, with a warning.
        "cache": out.cache if hasattr(out, "cache") else out.past_key_values,
    }


def oracle_hidden(model: Hybrid, ids: list[int], positions: Any = None) -> tuple[Any, Any]:
    """The oracle's logits and hidden states in the order of `run`."""
    taps = model.forward(ids, positions=positions, record=True).taps
    residuals = [taps[layer]["resid"] for layer in range(model.config.n_layers - 1)]
    rows = [taps["model"]["embed"], *residuals, taps["model"]["final_norm"]]
    return taps["model"]["logits"], np.stack(rows)


def assert_greedy(model: Hybrid, prompt: list[int], chosen: list[int]) -> None:
    """Every chosen id is the oracle's choice after the same ids, or within NEAR_TIE of it."""
    logits = model.forward([*prompt, *chosen[:-1]]).logits[len(prompt) - 1 :]
    for step, (row, found) in enumerate(zip(logits, chosen, strict=True)):
        best, _ = model.best(row)
        lead = row[best] - row[found]
        assert lead < NEAR_TIE, f"step {step}: {found}, the oracle has {best}, {lead:.3g} above"


@pytest.mark.parametrize("seed", [11, 12, 13])
@pytest.mark.parametrize("naming", ["multimodal", "text"])
def test_greedy_ids_of_checkpoints(tmp_path: Path, seed: int, naming: str) -> None:
    """The folder that we write is one that transformers opens, and both go on alike."""
    write_checkpoint(
        tmp_path, CountedWeights(TINY, seed), TINY, dtype="F32", naming=naming,
        vision=naming == "multimodal", shard_bytes=400_000,
    )
    kind = "ForConditionalGeneration" if naming == "multimodal" else "ForCausalLM"
    theirs, loading = getattr(transformers, f"Qwen3_5{kind}").from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["mismatched_keys"]
    weights = CountedWeights(TINY, seed)
    stored = {n: tensor(weights, n).astype(np.float32) for n in weights.names()}
    model = Hybrid(DictWeights(stored), TINY)
    for prompt in PROMPTS:
        with torch.no_grad():
            out = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=N_NEW, do_sample=False, eos_token_id=None
            )
        chosen = out[0, len(prompt) :].tolist()
        assert len(chosen) == N_NEW
        assert_greedy(model, prompt, chosen)


@pytest.mark.parametrize("case", CASES)
def test_hidden_states_in_float32(case: str) -> None:
    config, seed, ids, positions = CASES[case]
    weights = CountedWeights(config, seed)
    found = run(build(weights, config, torch.float32), ids, positions)
    logits, hidden = oracle_hidden(Hybrid(weights, config), ids, positions)
    for layer, (got, want) in enumerate(zip(found["hidden"], hidden, strict=True)):
        assert (bad := mismatch(got, want, "f32_path", f"hidden {layer}")) is None, bad
    assert (bad := mismatch(found["logits"], logits, "f32_path", "logits")) is None, bad


@pytest.mark.parametrize("case", ["tiny_seed3", "tiny_two_kv_heads", "mini"])
def test_each_layer_in_bf16_with_their_rounding_points(case: str) -> None:
    """Fed with their own input, each layer rounds where our table of their rounding says."""
    config, seed, ids, _ = CASES[case]
    source = CountedWeights(config, seed)
    weights = DictWeights({n: round_bf16(tensor(source, n)) for n in source.names()})
    found = run(build(weights, config, torch.bfloat16), ids)
    model = Hybrid(weights, config, TRANSFORMERS_BF16)
    for layer in range(config.n_layers - 1):
        x, want = found["hidden"][layer], found["hidden"][layer + 1]
        got, _ = model.run_layer(layer, x, zero_layer(config, layer), np.arange(len(ids)))
        assert (bad := mismatch(got, want, "bf16_layer", f"layer {layer}")) is None, bad


def vectors(case: str) -> dict[str, Any]:
    """What one stored case holds; see reference/vectors/README.md."""
    config, seed, ids, positions = CASES[case]
    weights = CountedWeights(config, seed)
    with wide_casts():
        wide_model = build(weights, config, torch.float64)
        wide = run(wide_model, ids, positions)
    narrow = run(build(weights, config, torch.float32), ids, positions)
    cache = wide["cache"]
    found: dict[str, Any] = {
        "ids": np.asarray(ids),
        "positions": np.tile(np.arange(len(ids)), (3, 1)) if positions is None else positions,
        "seed": np.asarray(-1 if seed is None else seed),
        "rows": np.asarray(ROWS),
        "logits": wide["logits"][ROWS],
        "hidden": wide["hidden"][:, ROWS],
        "logits_f32": narrow["logits"][ROWS].astype(np.float32),
        "hidden_f32": narrow["hidden"][:, ROWS].astype(np.float32),
    }
    for layer in range(config.n_layers):
        held = cache.layers[layer]
        if config.is_full(layer):
            found[f"k{layer}"] = held.keys[0].transpose(0, 1).numpy()[ROWS]
            found[f"v{layer}"] = held.values[0].transpose(0, 1).numpy()[ROWS]
        else:
            matrix = cache.get_recurrent_state(layer, state_idx=0)[0].transpose(1, 2).numpy()
            conv = cache.get_conv_state(layer, state_idx=0)[0].numpy()[:, -3:].T
            found[f"matrix{layer}"], found[f"conv{layer}"] = matrix[-1, :4], conv[:, -64:]
    if positions is None:
        with wide_casts(), torch.no_grad():
            out = wide_model.generate(
                torch.tensor([ids]), max_new_tokens=N_NEW, do_sample=False, eos_token_id=None
            )
        found["greedy"] = out[0, len(ids) :].numpy()
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for case_name, (case_config, *_) in CASES.items():
        np.savez_compressed(
            folder / f"{case_name}.npz", **vectors(case_name),
            config=np.asarray(json.dumps(case_config.to_json(multimodal=False))),
        )
