"""The lower rungs from file to text: each runs one new part of the engine on the oracle's values.

Rung 0, the oracle itself, is `test_reference_golden.py`; 5 and 6 are `test_rungs_whole.py`. A BF16
engine adds a mixer's or an MLP's result to the residual before the one rounding, so the oracle
leaves those two exact. Inside ops, and so not seen: q_norm, k_norm, q_l2, k_l2, GDN's v.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from engine.artifacts.mspec import open_mspec
from engine.errors import ModelError
from engine.records import ModelPlan
from packages.convert import convert
from ptx.numerics import Array
from reference import safetensors
from reference.bf16 import round_bf16
from reference.checkpoint import Checkpoint
from reference.compare import mismatch
from reference.dump import tensor_names
from reference.hybrid import Hybrid, Output
from reference.rounding import EXACT
from reference.state import State, zero_state
from reference.synthetic import lively, write_checkpoint
from tests import rungs, tiny_hybrid

DIMS = tiny_hybrid.DIMS
CONFIG = rungs.config_of(DIMS)
IDS = [(7 * t * t + 13 * t + 5) % 317 for t in range(48)]
N_BEFORE = 20
FULL = DIMS.full_layers
GDN = tuple(layer for layer in range(DIMS.n_layers) if layer not in FULL)
TO_MIXER_END = (
    "input_layernorm.weight", "linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight",
    "linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight", "linear_attn.conv1d.weight",
    "gdn_gates", "delta_rule", "linear_attn.norm.weight", "linear_attn.out_proj.weight",
)
# Steps of a GDN mixer that run alone: buffer -> the tap that it holds before them.
ALONE: dict[tuple[str, ...], dict[str, str]] = {
    ("linear_attn.conv1d.weight",): {"u": "conv_in"},
    ("gdn_gates",): {"a": "a", "b": "b"},
    ("delta_rule",): {"qkv": "conv_out", "g": "g", "beta": "beta"},
    ("linear_attn.norm.weight",): {"o": "delta_out", "z": "z"},
}


@dataclass(frozen=True)
class Case:
    """A way to compute: the plan, the oracle's run after N_BEFORE tokens, how near they must be."""

    plan: ModelPlan
    empty: Output
    before: State
    out: Output
    op: str
    layer: str

    @property
    def want(self) -> dict[str, Array]:
        """Everything that the oracle recorded, states after the call among it."""
        return tensor_names(self.out.taps) | self.out.state.arrays()

    def entering(self, layer: int) -> Array:
        """The residual before a layer."""
        return self.out.taps[layer - 1]["resid"] if layer else self.out.taps["model"]["embed"]


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rungs") / "upstream"
    tokenizer = tiny_hybrid.tokenizer_json(DIMS.n_vocab_real).encode()
    write_checkpoint(folder, lively(CONFIG, 1), CONFIG, tokenizer=tokenizer)
    return folder


@pytest.fixture(scope="module")
def converted(upstream: Path) -> Path:
    path = upstream.parent / "tiny.mspec"
    convert(upstream, path, package="qwen3_8_27b:tiny", recipe="bf16", progress=lambda *_: None)
    return path


@pytest.fixture(scope="module", params=["float32", "bf16"])
def case(request: pytest.FixtureRequest, upstream: Path, converted: Path) -> Case:
    rounds = request.param == "bf16"
    oracle = Hybrid(Checkpoint(upstream), CONFIG, rungs.FUSED_BF16 if rounds else EXACT)
    before = oracle.forward(IDS[:N_BEFORE]).state
    return Case(
        rungs.plan_of(converted, DIMS, rounds), oracle.forward(IDS, record=True), before,
        oracle.forward(IDS[N_BEFORE:], before, record=True),
        "bf16_reduction" if rounds else "f32_reduction", "bf16_layer" if rounds else "f32_layer",
    )


# Rung 1: the file


def test_rung_1_every_tensor_has_the_bytes_of_the_checkpoint(
    upstream: Path, converted: Path
) -> None:
    source = Checkpoint(upstream)
    with open_mspec(converted) as file:
        names = [tensor.name for tensor in file.tensors()]
        assert sorted(names) == sorted(n for n in source.names() if not n.startswith("mtp."))
        for name in names:
            found, want = file.tensor(name), source.rows(name, 0, source.shape(name)[0])
            values = found.to_float32()
            assert values.reshape(want.shape).astype(np.float64).tobytes() == want.tobytes(), name
            assert found.raw().tobytes() == safetensors.encode(want, found.dtype.upper()), name
            assert found.dtype == ("bf16" if want.ndim == 2 else "f32"), name


def test_rung_1_a_wrong_byte_is_named(converted: Path, tmp_path: Path) -> None:
    whole = converted.read_bytes()
    with open_mspec(converted) as file:
        weights = [entry for entry in file.objects.values() if entry.kind == "tensor"]
    for entry in weights[:: len(weights) // 6]:
        bad = bytearray(whole)
        bad[entry.offset + entry.length // 2] ^= 1
        path = tmp_path / "bad.mspec"
        path.write_bytes(bad)
        plan = rungs.plan_of(path, DIMS)
        with pytest.raises(ModelError, match=entry.name):
            plan.weights[entry.name].load()


def test_what_a_bf16_engine_stores_is_on_the_grid(case: Case) -> None:
    """Just where the oracle's policy rounds: a tolerance is too wide for one rounding missed."""
    found = rungs.run(case.plan, IDS, zero_state(CONFIG))
    rounded = {name for name, x in found.items() if (round_bf16(x) == x).all()}
    wide = {name for name in found if name.rpartition(".")[2] in {"g", "beta", "logits", "matrix"}}
    assert rounded == (set(found) - wide if case.plan.rounds_activations else {"model.embed"})


# Rungs 2 and 3: embedding, full attention


def test_rung_2_embedding(case: Case) -> None:
    found = rungs.run(rungs.embedding_alone(case.plan), IDS[N_BEFORE:], case.before)
    assert list(found) == ["model.embed"]
    rungs.check(found, case.want, "exact")


def test_rung_2_one_attention_layer_from_nothing(case: Case) -> None:
    layer = FULL[0]
    found = rungs.run(
        rungs.one_layer(case.plan, layer), IDS, zero_state(CONFIG),
        {"h": case.empty.taps[layer - 1]["resid"]},
    )
    rungs.check(found, tensor_names(case.empty.taps) | case.empty.state.arrays(), case.layer)


@pytest.mark.parametrize("layer", FULL)
def test_rung_3_attention_layers_behind_injected_gdn(case: Case, layer: int) -> None:
    """KV rows of the tokens before come from the oracle, as the rows that enter do."""
    plan = rungs.one_layer(case.plan, layer)
    found = rungs.run(plan, IDS[N_BEFORE:], case.before, {"h": case.entering(layer)})
    assert {f"layer.{layer}.attn_sum", f"state.{layer}.k", f"state.{layer}.v"} < set(found)
    rungs.check(found, case.want, case.layer)


@pytest.mark.parametrize("layer", FULL)
def test_rung_3_attention_alone(case: Case, layer: int) -> None:
    """Queries and the whole cache are the oracle's: only the sum over rows is ours."""
    plan = rungs.one_layer(case.plan, layer, ["attention"])
    found = rungs.run(
        plan, IDS[N_BEFORE:], case.out.state, {"q": case.out.taps[layer]["q"]},
        n_before=N_BEFORE,
    )
    rungs.check(found, case.want, case.op)


# Rung 4: GDN


@pytest.mark.parametrize("layer", GDN)
@pytest.mark.parametrize("keys", ALONE, ids=lambda keys: keys[0].removesuffix(".weight"))
def test_rung_4_one_step_of_a_gdn_mixer(case: Case, layer: int, keys: Sequence[str]) -> None:
    taps = case.out.taps[layer]
    injected = {buffer: taps[tap] for buffer, tap in ALONE[tuple(keys)].items()}
    plan = rungs.one_layer(case.plan, layer, keys)
    found = rungs.run(plan, IDS[N_BEFORE:], case.before, injected)
    rungs.check(found, case.want, case.op)


@pytest.mark.parametrize("layer", GDN)
def test_rung_4_mixers_and_whole_layers(case: Case, layer: int) -> None:
    for keys in (TO_MIXER_END, ()):
        plan = rungs.one_layer(case.plan, layer, keys)
        found = rungs.run(plan, IDS[N_BEFORE:], case.before, {"h": case.entering(layer)})
        states = {f"state.{layer}.conv", f"state.{layer}.matrix"}
        assert states < set(found)
        assert (f"layer.{layer}.resid" in found) == (not keys)
        rungs.check(found, case.want, case.layer)


def test_rung_4_the_injected_conv_state_reaches_three_rows(case: Case) -> None:
    """A mixer that ignores its columns from before differs just there, and is caught."""
    layer, keys = GDN[1], ("linear_attn.conv1d.weight",)
    plan = rungs.one_layer(case.plan, layer, keys)
    injected = {"u": case.out.taps[layer]["conv_in"]}
    right, wrong = (
        rungs.run(plan, IDS[N_BEFORE:], state, injected, n_before=N_BEFORE)
        for state in (case.before, zero_state(CONFIG))
    )
    name = f"layer.{layer}.conv_out"
    n_columns = DIMS.conv_width - 1
    assert mismatch(wrong[name], case.want[name], case.layer) is not None
    assert right[name][n_columns:].tobytes() == wrong[name][n_columns:].tobytes()
    assert (right[name][:n_columns] != wrong[name][:n_columns]).any(axis=1).all()
