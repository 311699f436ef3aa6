"""A whole forward pass, every buffer dumped and compared: what is wrong is named, layer and tensor.

The dump of the engine lacks what stays inside its ops, so it is compared with `--partial`.
"""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.records import ModelPlan, Weight
from ptx.numerics import Array
from reference.compare import TOLERANCES, compare, difference
from reference.dump import TAPS, Dump, run, write_dump
from reference.hybrid import Hybrid
from reference.state import zero_state
from reference.synthetic import lively
from reference.weights import DictWeights
from tests import rungs, tiny_hybrid

CONFIG = rungs.config_of(tiny_hybrid.DIMS)
IDS = [(11 * t * t + 5 * t + 2) % 320 for t in range(24)]
INSIDE_OPS = {"q_norm", "k_norm", "q_l2", "k_l2", "mixer_out", "mlp_out"}
Change = Callable[[ModelPlan], ModelPlan]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ModelPlan:
    path = tmp_path_factory.mktemp("dumps") / "tiny.mspec"
    return rungs.plan_of(tiny_hybrid.write(path, lively(CONFIG, 4)), tiny_hybrid.DIMS)


@pytest.fixture(scope="module")
def oracle() -> Dump:
    return run(Hybrid(DictWeights(rungs.arrays_of(lively(CONFIG, 4))), CONFIG), IDS)


def engine_dump(plan: ModelPlan) -> Dump:
    positions = np.tile(np.arange(len(IDS)), (3, 1))
    found = rungs.run(plan, IDS, zero_state(CONFIG))
    return Dump(np.array(IDS), positions, found, {"made_by": "tests.rungs", "rounding": "f32"})


def command(a: Path, b: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "reference.compare", str(a), str(b), "--partial"],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_tensor_but_those_inside_ops_is_compared(plan: ModelPlan, oracle: Dump) -> None:
    missing = {name.rpartition(".")[2] for name in set(oracle.tensors) - set(rungs.run(
        plan, IDS, zero_state(CONFIG)
    ))}
    # A GDN layer's v is a part of its conv_out.
    assert missing == INSIDE_OPS | {"v", "n_tokens"}
    assert set(TAPS) > INSIDE_OPS


def test_no_layer_drifts(plan: ModelPlan, oracle: Dump) -> None:
    """The error of the residual stream, layer by layer, under the tolerance of one path."""
    found = rungs.run(plan, IDS, zero_state(CONFIG))
    errors = [
        difference(name, oracle.tensors[name], found[name], TOLERANCES["f32_path"])
        for name in (f"layer.{layer}.resid" for layer in range(CONFIG.n_layers))
    ]
    assert all(error.passed for error in errors), [str(error) for error in errors]
    # Far below the tolerance, so that a slow drift would show here before it shows there.
    assert max(error.norm for error in errors) < TOLERANCES["f32_layer"].norm


def test_the_command_finds_no_divergence(plan: ModelPlan, oracle: Dump, tmp_path: Path) -> None:
    a, b = tmp_path / "oracle.npz", tmp_path / "engine.npz"
    write_dump(a, oracle)
    write_dump(b, engine_dump(plan))
    status, text = command(a, b)
    assert status == 0, text
    assert "tensors within f32_path" in text


def test_the_command_names_a_planted_bug(plan: ModelPlan, oracle: Dump, tmp_path: Path) -> None:
    a, b = tmp_path / "oracle.npz", tmp_path / "engine.npz"
    write_dump(a, oracle)
    mlp = "model.layers.3.mlp."
    write_dump(b, engine_dump(swapped(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight")(plan)))
    status, text = command(a, b)
    assert status == 1, text
    assert "first: layer.3.mlp_gate at" in text


def swapped(one: str, other: str) -> Change:
    def change(plan: ModelPlan) -> ModelPlan:
        both = {one: plan.weights[other], other: plan.weights[one]}
        return dataclasses.replace(plan, weights={**plan.weights, **both})
    return change


def altered(name: str, how: Callable[[Array], Array]) -> Change:
    def change(plan: ModelPlan) -> ModelPlan:
        weight = plan.weights[name]
        new = Weight(weight.shape, lambda: how(weight.load()))
        return dataclasses.replace(plan, weights={**plan.weights, name: new})
    return change


def step_with(layer: int, key: str, **args: str | float) -> Change:
    def change(plan: ModelPlan) -> ModelPlan:
        layers = list(plan.schedule.layers)
        layers[layer] = tuple(
            dataclasses.replace(step, args={**step.args, **args}) if rungs.key(step) == key
            else step
            for step in layers[layer]
        )
        return dataclasses.replace(
            plan, schedule=dataclasses.replace(plan.schedule, layers=tuple(layers))
        )
    return change


def rope_base(plan: ModelPlan) -> ModelPlan:
    pairs = np.arange(CONFIG.d_rotary // 2)
    constants = {"inv_freq": 1e4 ** (-2.0 * pairs / CONFIG.d_rotary)}
    return dataclasses.replace(
        plan, schedule=dataclasses.replace(plan.schedule, constants=constants)
    )


LAYER = "model.layers.{}.{}"
GDN = "linear_attn."
BUGS: dict[str, tuple[Change, str]] = {
    "reversed taps": (
        altered(LAYER.format(5, f"{GDN}conv1d.weight"), lambda w: w[:, ::-1]), "layer.5.conv_out",
    ),
    "decays of other heads": (
        altered(LAYER.format(2, f"{GDN}A_log"), lambda w: np.roll(w, 1)), "layer.2.g",
    ),
    "value heads tiled": (
        altered(LAYER.format(1, f"{GDN}in_proj_z.weight"),
                lambda w: w.reshape(2, 3, 16, -1).swapaxes(0, 1).reshape(w.shape)),
        "layer.1.z",
    ),
    "gain without its one": (
        step_with(7, "input_layernorm.weight", offset=0.0), "layer.7.input_norm",
    ),
    "gain with a one too many": (
        altered(LAYER.format(4, f"{GDN}norm.weight"), lambda w: w + 1), "layer.4.gated",
    ),
    "another layer's cache": (step_with(7, "attention", k_cache="k_cache.3"), "layer.7.attn_sum"),
    "a gate before its attention": (
        step_with(3, "sigmoid_gate", gate="q"), "layer.3.attn_out",
    ),
    "another layer's state": (step_with(6, "delta_rule", state="delta.5"), "state.5.matrix"),
    "another rotary base": (rope_base, "layer.3.q"),
    "head of the embedding": (
        swapped("lm_head.weight", "model.embed_tokens.weight"), "model.embed",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_first_divergence_is_the_bug(plan: ModelPlan, oracle: Dump, bug: str) -> None:
    change, first = BUGS[bug]
    found = compare(oracle, engine_dump(change(plan)), "f32_path", partial=True)
    bad = [item for item in found if not item.passed]
    assert bad[0].name == first, str(bad[0])
    assert np.isfinite(bad[0].norm)
