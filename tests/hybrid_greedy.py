"""Owns the greedy comparison on tiny hybrids: checkpoints, prompts, the engine's ids, the rule.

A difference ends the comparison of its prompt. It is a near tie where the oracle, in float64 over
the same weights and ids, puts neither choice NEAR_TIE or more below its own; else it is a failure.
Two float32 paths are each off by up to 3e-4 in a logit of these models, and a choice compares two
logits of each: 1.2e-3 at worst.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.chunks import Work
from engine.devices import inventory
from engine.evaluate import evaluate
from engine.model import Model
from engine.options import RuntimeOptions
from engine.records import ModelPlan
from ptx.numerics import Array
from reference.hybrid import Hybrid
from reference.synthetic import lively
from reference.weights import DictWeights, tensor
from tests import rungs, tiny_hybrid

CONFIG = rungs.config_of(tiny_hybrid.DIMS)
# Ids that would end a text somewhere.
ENDS = tuple(
    token["id"] for token in json.loads(tiny_hybrid.tokenizer_json(CONFIG.n_vocab))["added_tokens"]
    if token["content"] in tiny_hybrid.SPECIALS
)
NEAR_TIE = 2e-3
# The same for two orders of sums of one BF16 path with heads of 128 and more: up to 0.06 in a logit
# of four layers here (bf16_path allows more), and a choice compares two.
BF16_NEAR_TIE = 0.12
N_TOKENS = 64
SEEDS = (21, 22, 23)
PROMPTS = (
    [5],
    [(7 * t * t + 13 * t + 5) % 317 for t in range(48)],
    [(29 * t + 3) % 320 for t in range(17)],
    [11, 11, 11, 300, 2, 2],
    list(range(40, 72)),
    [319, 0, 319, 0, 160],
    [(t * t * t + 91) % 256 for t in range(65)],
    [200, 7],
)


@dataclass
class Tally:
    """What a comparison saw: ids that were equal, and prompts that ended in a near tie."""

    n_equal: int = 0
    n_near_ties: int = 0


def weights(seed: int) -> DictWeights:
    """A random tiny checkpoint in float32 that never ends a text: those ids' logits are zero."""
    arrays = rungs.arrays_of(lively(CONFIG, seed, mtp=False))
    arrays["lm_head.weight"][list(ENDS)] = 0
    return DictWeights(arrays)


def engine_model(plan: ModelPlan, n_context: int = 256) -> Model:
    """The plan open on the host device, with one lane."""
    options = RuntimeOptions(n_context=n_context, n_lanes=1, n_batch=64, include_output=True)
    return Model(plan, options, inventory()[0].device)


def engine_greedy(model: Model, prompt: Sequence[int], n_tokens: int = N_TOKENS) -> list[int]:
    """The engine's greedy continuation, one token a step."""
    session = model.create_session()
    chosen = [session.prefill_sampled(list(prompt), None)]
    while len(chosen) < n_tokens:
        chosen.append(session.decode(chosen[-1], None))
    session.free()
    return chosen


def engine_logits(model: Model, ids: Sequence[int]) -> Array:
    """The engine's logits [T, V] after each of the ids."""
    session = model.create_session()
    rows = evaluate(model, [Work(session, list(ids), "all")]).rows[0]
    session.free()
    return rows


def plan_of(path: Path) -> ModelPlan:
    """The plan of a tiny .mspec."""
    return rungs.plan_of(path, tiny_hybrid.DIMS)


def engine_ids(path: Path, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[list[int]]:
    """Greedy ids of a tiny .mspec on the float32 path."""
    model = engine_model(plan_of(path))
    return [engine_greedy(model, prompt) for prompt in prompts]


def judge(
    oracle: Hybrid, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int], tally: Tally
) -> None:
    """Apply the rule to one prompt; AssertionError for a difference that is no near tie."""
    assert len(ours) == len(theirs)
    differing = [i for i, pair in enumerate(zip(ours, theirs, strict=True)) if len(set(pair)) > 1]
    tally.n_equal += differing[0] if differing else len(ours)
    if not differing:
        return
    step = differing[0]
    logits = oracle.forward([*prompt, *ours[:step]]).logits[-1]
    best, _ = oracle.best(logits)
    below = {name: float(logits[best] - logits[chosen[step]])
             for name, chosen in (("ours", ours), ("theirs", theirs))}
    shown = f"step {step} of {list(prompt)[:8]}: {ours[step]}, theirs {theirs[step]}, oracle {best}"
    assert max(below.values()) < NEAR_TIE, f"{shown}; below its choice by {below}"
    tally.n_near_ties += 1


def near_tie_weights(
    weights: DictWeights, prompt: Sequence[int], first: int, second: int
) -> DictWeights:
    """Weights with `second` lifted to half of NEAR_TIE below `first` at the end of the prompt."""
    out = Hybrid(weights, CONFIG).forward(prompt)
    hidden, logits = out.hidden[-1], out.logits[-1]
    arrays = {name: tensor(weights, name) for name in weights.names()}
    lift = logits[first] - logits[second] - NEAR_TIE / 2
    head = arrays["lm_head.weight"].copy()
    head[second] += hidden * (lift / (hidden @ hidden))
    return DictWeights({**arrays, "lm_head.weight": head})
