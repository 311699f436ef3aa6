"""Owns models of random weights with a package's exact shapes, for benchmarks and self-tests.

They run the package's own schedule; their text means nothing. Weights come from a counter-based
generator, so that a model is the same everywhere, any part of it can be made alone, and a device
with kernels makes its own in seconds.
"""

import hashlib
import importlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidArgument
from engine.pretokenizers import PRE_TOKENIZERS
from engine.records import Fill, ModelPlan, Weight
from engine.tokenizer import Tokenizer
from packages import KNOWN
from packages.recipes import recipe_named
from ptx.fill_uniform.ref import fill_uniform
from ptx.splitmix64 import STEP

NORMAL = 1
WORD, DOUBLE_WORD = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF
HEAD, TABLE, LAST_NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
# What adds to the residual stream; the first is in every layer.
ADDS = ("mlp.down_proj.weight", "self_attn.o_proj.weight", "linear_attn.out_proj.weight")
HEAD_SPREAD = 4.0
# Stored gain of queries and keys, one less than the gain: scores have a deviation of 3.
SHARP = 0.7
# Part of the vocabulary between an id and its likely successor; by how many deviations of the
# logits that leads, on average; and the cosine of the last residual row with the id's own row.
LINK, LEAD, TABLE_SHARE = 4, 1.3, 0.57


def synthetic_plan(key: str, seed: int = 0, recipe: str = "groupwise-int") -> ModelPlan:
    """The plan of "package" or "package:twin" with random weights; InvalidArgument otherwise.

    On a device with kernels they lie in the forms of the recipe, where the package has any.
    """
    name, _, twin = key.partition(":")
    if name not in KNOWN:
        raise InvalidArgument(f"package {name!r}: there are {', '.join(KNOWN)}")
    package = importlib.import_module(f"packages.{name}").PACKAGE
    if twin not in package.dims:
        twins = ", ".join(filter(None, package.dims))
        raise InvalidArgument(f"{name}: twin {twin!r}, there are {twins}")
    bind = importlib.import_module(f"packages.{name}.bind")
    dims = package.dims[twin]
    artifact = package.artifact(twin, None, f"{seed:064x}")
    more = {}
    if hasattr(bind, "recipe_forms"):
        more["form_of"] = bind.recipe_forms(dims, recipe_named(recipe))
    plan: ModelPlan = bind.plan_of(
        artifact, _weights(bind.shapes(dims), seed), _tokenizer(bind.n_vocab(dims)), None,
        f"synthetic {key}", **more,
    )
    return replace(plan, model_id=f"synthetic {key}")


def _weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Weight]:
    made = {}
    fills = fills_of(shapes, seed)
    for name, shape in shapes.items():
        made[name] = Weight(shape, partial(cells, fills[name], shape), fill=fills[name])
    return made


def fills_of(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Fill]:
    """The counter of each tensor, and its range.

    Matrices have variance 1 / fan-in, so that activations keep their size. Gains are near their
    rest, those of queries and keys above it, for attention that picks; decays are fast and slow. A
    deep model gets what a trained one has and a plainly random one lacks
    (KNOWLEDGE/findings/random-deep-hybrids-amplify-noise.md):
    - what a layer adds shrinks with the root of the depth, else noise grows from layer to layer
    - the head's variance is 16 times that, so that the logits' deviation is 4
    - a row of the head is the row of the table of ids a quarter of the vocabulary further on: an id
      past the first quarter has a likely successor, which leads by a few nats. The final norm's
      mean gain sets how much of it comes through, so that it wins often, not always
    """
    words = {
        name: int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest())
        for name in shapes
    }
    ranges = {name: _range(name, shape) for name, shape in shapes.items()}
    if {HEAD, TABLE, LAST_NORM} <= shapes.keys():
        n_vocab, width = shapes[HEAD]
        words[HEAD] = (words[TABLE] + n_vocab // LINK * width * int(STEP)) & DOUBLE_WORD
        ranges[LAST_NORM] = _last_gain(n_vocab, width)
        scale = 1 / math.sqrt(max(1, sum(name.endswith(ADDS[0]) for name in shapes)))
        for name in shapes:
            if name.endswith(ADDS):
                low, high = ranges[name]
                ranges[name] = scale * low, scale * high
    return {name: Fill(words[name], *ranges[name]) for name in shapes}


def _last_gain(n_vocab: int, width: int) -> tuple[float, float]:
    """Range of the final norm's stored gain, one less than the gain: mean square 1, and the mean
    that puts the likely successor LEAD deviations above the expected best of all the others."""
    wanted = math.sqrt(2 * math.log(n_vocab)) + LEAD
    mean = min(0.9, wanted / (math.sqrt(width) * TABLE_SHARE))
    half = math.sqrt(3 * (1 - mean * mean))
    return mean - half - 1, mean + half - 1


def _range(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    if name.endswith("A_log"):
        return -4.0, 1.0
    if name.endswith("dt_bias"):
        return -0.5, 1.5
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return SHARP - 0.3, SHARP + 0.3
    if len(shape) == 1:
        rest = 1.0 if name.endswith("linear_attn.norm.weight") or "model." not in name else 0.0
        return rest - 0.3, rest + 0.3
    if name.endswith("embed_tokens.weight"):
        return -1.0, 1.0
    half = math.sqrt(3 / shape[-1]) * (HEAD_SPREAD if name == HEAD else 1.0)
    return -half, half


def cells(fill: Fill, shape: tuple[int, ...], start: int = 0) -> npt.NDArray[np.float32]:
    """Numbers from cell `start` on, float32 of that shape: those that the device makes."""
    made = np.empty(math.prod(shape), np.float32)
    fill_uniform(made, fill.seed & WORD, fill.seed >> 32, start & WORD, start >> 32,
                 fill.low, fill.high)
    return made.reshape(shape)


def _tokenizer(n_vocab: int) -> Tokenizer:
    """As many tokens as there are ids, each spelled by its number: no text goes through it."""
    prefix = "tokenizer.ggml."
    metadata = {
        f"{prefix}model": "gpt2", f"{prefix}pre": next(iter(PRE_TOKENIZERS)),
        f"{prefix}tokens": [f"{i}" for i in range(n_vocab)],
        f"{prefix}token_type": [NORMAL] * n_vocab, f"{prefix}merges": [],
        f"{prefix}add_bos_token": False,
    }
    return Tokenizer.from_metadata(lambda key, default=None: metadata.get(key, default))
