"""Owns cutting a model's plan to a range of layers.

A stage takes token ids when it has the embeddings, else the hidden rows of the stage before it,
and gives hidden rows when it has no output. Rows are float32 [n_tokens, D], so on the host device
a split model equals the whole one bit for bit.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from engine.compiled.records import CompiledSchedule
from engine.errors import InvalidArgument, ModelError
from engine.records import ModelPlan, Schedule, Stage


def check_stage(stage: Stage, n_layers: int) -> None:
    """Raise InvalidArgument for a range that no chain of stages can hold."""
    shown = f"config: layers {stage.layer_start}..{stage.layer_end} of {n_layers}"
    is_first, is_last = stage.layer_start == 0, stage.layer_end == n_layers
    if stage.layer_end > n_layers:
        raise InvalidArgument(f"{shown}: layer_end is above the layer count")
    if is_first and not stage.has_embeddings:
        raise InvalidArgument(f"{shown}: the first stage needs the embeddings")
    if stage.has_embeddings and not is_first and not is_last:
        raise InvalidArgument(f"{shown}: embeddings belong to the first or the final stage")
    if stage.has_output and not is_last:
        raise InvalidArgument(f"{shown}: the output belongs to the final stage")


def cut(plan: ModelPlan, stage: Stage) -> ModelPlan:
    """The part of a whole model's plan that a stage runs: steps, weights, cells and states."""
    check_stage(stage, plan.n_layers)
    layers = range(stage.layer_start, stage.layer_end)
    whole = plan.schedule
    schedule = replace(
        whole,
        embed=whole.embed if stage.layer_start == 0 else (),
        layers=tuple(whole.layers[layer] for layer in layers),
        head=whole.head if stage.has_output else (),
    )
    used = _names(schedule)
    return replace(
        plan,
        stage=stage,
        schedule=schedule,
        weights={name: weight for name, weight in plan.weights.items() if name in used},
        kv=replace(plan.kv, layers=tuple(i for i in plan.kv.layers if i in layers)),
        states={name: shape for name, shape in plan.states.items() if name in used},
        compiled=None if plan.compiled is None else _cut_compiled(plan.compiled, stage, used),
    )


def _cut_compiled(
    whole: CompiledSchedule, stage: Stage, used: Container[str]
) -> CompiledSchedule:
    """The same part of a compiled schedule; its matrices are those with weights in use."""
    layers = slice(stage.layer_start, stage.layer_end)
    return replace(
        whole,
        embed=whole.embed if stage.layer_start == 0 else (),
        few=whole.few[layers],
        many=whole.many[layers],
        head=whole.head if stage.has_output else (),
        matrices={
            name: matrix for name, matrix in whole.matrices.items() if matrix.parts[0] in used
        },
    )


def check_present(plan: ModelPlan) -> None:
    """Raise ModelError for a plan that uses weights which none of the opened parts holds."""
    absent = [name for name, weight in plan.weights.items() if not weight.is_present]
    if absent:
        start, end = plan.layer_range
        raise ModelError(
            f"{plan.display_path}: layers {start}..{end} of {plan.n_layers} need"
            f" {len(plan.weights)} tensors, {len(absent)} of them are in none of the parts,"
            f" first {absent[0]!r}"
        )


def _names(schedule: Schedule) -> set[str]:
    """Every buffer name that a schedule's steps mention."""
    groups = (schedule.embed, *schedule.layers, schedule.head)
    return {
        value for group in groups for step in group for value in step.args.values()
        if isinstance(value, str)
    }

