"""Owns running any part of a hybrid plan on injected values, with the result of every step tapped.

The product's own `Program` runs, on a host device that keeps what each step left behind. What is
injected: the residual rows before a layer, one sequence's KV rows and recurrent states before a
call, and scratch buffers before a step. Results have the names of a `reference.dump`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.artifacts.mspec import open_mspec
from engine.chunk import Chunk
from engine.program import Program
from engine.records import ModelPlan, Stage, Step
from engine.stages import cut
from packages.qwen3_8_27b import PACKAGE
from packages.qwen3_8_27b.dims import HybridDims
from ptx.devices.host import HostDevice
from ptx.numerics import Array
from ptx.op import Op
from reference.compare import mismatch
from reference.config import Config
from reference.rounding import ENGINE_BF16
from reference.state import KvRows, State
from reference.weights import Weights, tensor

Named = dict[str, Array]
N_CELLS = 128
# What a BF16 engine stores: it adds to the residual before the one rounding.
FUSED_BF16 = ENGINE_BF16.replaced(mixer_out="exact", mlp_out="exact")
STATE_IN, STATE_OUT, N_SLOTS = 1, 2, 3
# The engine's word for a recurrent state -> the oracle's.
STATE_PARTS = {"conv": "conv", "delta": "matrix"}
# A step, by its weight's name in the layer or else by its op: parameter -> the oracle's tap.
TAPS: Mapping[str, Mapping[str, str]] = {
    "model.embed_tokens.weight": {"y": "embed"},
    "input_layernorm.weight": {"y": "input_norm"},
    "self_attn.q_proj.weight": {"y": "q_raw"},
    "self_attn.k_proj.weight": {"y": "k_raw"},
    "self_attn.v_proj.weight": {},
    "qgate_norm_rope_append_kv": {"q": "q", "gate": "gate", "k_cache": "k", "v_cache": "v"},
    "attention": {"y": "attn_sum"},
    "sigmoid_gate": {"x": "attn_out"},
    "self_attn.o_proj.weight": {"h": "resid_mid"},
    "linear_attn.in_proj_qkv.weight": {"y": "conv_in"},
    "linear_attn.in_proj_z.weight": {"y": "z"},
    "linear_attn.in_proj_a.weight": {"y": "a"},
    "linear_attn.in_proj_b.weight": {"y": "b"},
    "linear_attn.conv1d.weight": {"y": "conv_out"},
    "gdn_gates": {"g": "g", "beta": "beta"},
    "delta_rule": {"o": "delta_out"},
    "linear_attn.norm.weight": {"y": "gated"},
    "linear_attn.out_proj.weight": {"h": "resid_mid"},
    "post_attention_layernorm.weight": {"y": "post_norm"},
    "mlp.gate_proj.weight": {"y": "mlp_gate"},
    "mlp.up_proj.weight": {"y": "mlp_up"},
    "swiglu": {"y": "mlp_act"},
    "mlp.down_proj.weight": {"h": "resid"},
    "h": {},
    "model.norm.weight": {"y": "final_norm"},
    "lm_head.weight": {"y": "logits"},
}


def config_of(dims: HybridDims) -> Config:
    """The oracle's words for a twin's numbers."""
    pairs = dims.d_rotary // 2
    known = {field.name for field in fields(Config)}
    same = {f.name: getattr(dims, f.name) for f in fields(dims) if f.name in known}
    return Config(
        **same, mrope_section=(pairs - 2 * (pairs // 3), pairs // 3, pairs // 3),
        theta=dims.rope_theta, eps=dims.norm_eps, max_positions=dims.n_context,
    )


def arrays_of(weights: Weights) -> Named:
    """All tensors, in float32 as a file has them."""
    return {name: tensor(weights, name).astype(np.float32) for name in weights.names()}


def plan_of(path: Path, dims: HybridDims, rounds: bool = False) -> ModelPlan:
    """The plan of a .mspec of any dims; `rounds` as a BF16 engine."""
    file = open_mspec(path)
    artifact = PACKAGE.artifact("tiny", None, file.identity.weights_id)
    return replace(replace(artifact, dims=dims).plan(file), rounds_activations=rounds)


def one_layer(plan: ModelPlan, layer: int, keys: Sequence[str] = ()) -> ModelPlan:
    """The plan cut to one layer, which starts from injected "h"; with `keys`, to those steps."""
    part = cut(plan, Stage(layer, layer + 1, layer == 0, False))
    steps = tuple(step for step in part.schedule.layers[0] if not keys or key(step) in keys)
    assert len(steps) == len(keys) or not keys, f"{keys} are not all steps of layer {layer}"
    return replace(part, schedule=replace(part.schedule, embed=(), layers=(steps,)))


def embedding_alone(plan: ModelPlan) -> ModelPlan:
    """The plan without layers and output."""
    steps = replace(plan.schedule, layers=(), head=())
    return replace(plan, schedule=steps, states={}, kv=replace(plan.kv, layers=()))


def key(step: Step) -> str:
    """What TAPS knows a step by."""
    weight = step.args.get("w")
    if not isinstance(weight, str):
        return step.op.name
    return weight.split(".", 3)[3] if weight.startswith("model.layers.") else weight


def check(found: Named, want: Mapping[str, Array], tolerance: str) -> None:
    """Every value that was found is the oracle's, within a tolerance of `reference.compare`."""
    assert found
    reports = [mismatch(found[name], want[name], tolerance, name) for name in found]
    assert not any(reports), "\n".join(report for report in reports if report)


class TapDevice(HostDevice):
    """A poisoning host device that knows its buffers by name and keeps what each launch wrote.

    A launch's results are read when the next one begins: only then has the engine rounded them.
    """

    def __init__(self) -> None:
        super().__init__(poison=True)
        self.named: Named = {}
        self.launches: list[Named] = []
        self._last: Named = {}

    def allocate(self, shape: tuple[int, ...], dtype: str, name: str) -> Array:
        self.named[name] = super().allocate(shape, dtype, name)
        return self.named[name]

    def launch(self, op: Op, **args: Any) -> None:
        self.settle()
        super().launch(op, **args)
        self._last = {param.name: args[param.name] for param in op.params if param.out}

    def settle(self) -> None:
        """Keep what the last launch left."""
        if self._last:
            self.launches.append({name: array.copy() for name, array in self._last.items()})
        self._last = {}


def run(
    plan: ModelPlan, ids: Sequence[int], before: State,
    inject: Mapping[str, Array] | None = None, n_before: int | None = None,
) -> Named:
    """Run the plan's steps over ids that follow `before`; what each left, and the states after.

    `inject` [T, ...] by buffer: "h" before a layer, or any scratch buffer that the steps read.
    `n_before` is where ids begin, when `before` has other rows than those.
    """
    device, n_tokens = TapDevice(), len(ids)
    start = before.n_tokens if n_before is None else n_before
    program = Program(device, plan, N_CELLS, N_SLOTS, lambda fraction: None)
    # Cells in no order: nothing may depend on a sequence lying in one piece.
    cells = np.random.default_rng(3).permutation(N_CELLS).astype(np.int32)
    _inject_state(plan, program, before, cells)
    for name, values in (inject or {}).items():
        device.upload(device.named[name][:n_tokens], values)
    positions = np.arange(start, start + n_tokens, dtype=np.int32)
    one = np.array([0], np.int32)
    program.run(Chunk(
        np.asarray(ids, np.int32), positions, cells[positions], np.zeros(n_tokens, np.int32),
        [cells[: positions[-1] + 1]], np.array([0, n_tokens], np.int32), one + STATE_IN,
        one + STATE_OUT, np.arange(n_tokens if plan.schedule.head else 0), None,
    ))
    device.settle()
    found = _named(plan, device.launches, cells[positions])
    return found | _states(plan, program, cells[: positions[-1] + 1])


def _inject_state(plan: ModelPlan, program: Program, before: State, cells: Array) -> None:
    arrays = {}
    for name in plan.states:
        part, _, index = name.partition(".")
        arrays[name] = getattr(before.layers[int(index)], STATE_PARTS[part])
    program.write_slot(STATE_IN, arrays)
    if before.n_tokens:
        for layer in plan.kv.layers:
            rows = before.layers[layer]
            assert isinstance(rows, KvRows)
            for which, values in enumerate((rows.k, rows.v)):
                program.write_rows(layer, which, cells[: before.n_tokens], values)


def _named(plan: ModelPlan, launches: Sequence[Named], cells: Array) -> Named:
    """Launches' results under the names of a dump; of a cache, the rows of this call."""
    schedule = plan.schedule
    scopes = [("model", schedule.embed)]
    scopes += [(f"layer.{plan.layer_range[0] + i}", s) for i, s in enumerate(schedule.layers)]
    scopes.append(("model", schedule.head))
    steps = [(scope, step) for scope, group in scopes for step in group]
    found = {}
    for (scope, step), left in zip(steps, launches, strict=True):
        for param, tap in TAPS[key(step)].items():
            values = left[param]
            if param.endswith("_cache"):
                values = values[cells]
            # Of the packed projection the first half is the query; the gate has a tap of its own.
            found[f"{scope}.{tap}"] = np.split(values, 2, -1)[0] if tap == "q_raw" else values
    return found


def _states(plan: ModelPlan, program: Program, cells: Array) -> Named:
    """The states that the steps wrote, KV rows of the whole sequence among them."""
    written = {
        value for group in plan.schedule.layers for step in group for value in step.args.values()
    }
    found = {}
    for name, array in program.read_slot(STATE_OUT).items():
        part, _, index = name.partition(".")
        if name in written:
            found[f"state.{index}.{STATE_PARTS[part]}"] = array
    for layer in plan.kv.layers:
        if f"k_cache.{layer}" in written:
            for which, part in enumerate("kv"):
                found[f"state.{layer}.{part}"] = program.read_rows(layer, which, cells)
    return found
