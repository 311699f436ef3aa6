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

NORMAL = 1
WORD = 0xFFFF_FFFF
HEAD_SPREAD = 4.0


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
    for name, shape in shapes.items():
        fill = fill_of(name, shape, seed)
        made[name] = Weight(shape, partial(cells, fill, shape), fill=fill)
    return made


def fill_of(name: str, shape: tuple[int, ...], seed: int) -> Fill:
    """The counter of a tensor, and its range.

    Matrices have variance 1 / fan-in, so that activations keep their size; the head's is 16 times
    that: logits then spread like a trained model's, with a lead of the first that rounding seldom
    turns. Gains are near their rest, decays fast and slow.
    """
    word = int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest())
    return Fill(word, *_range(name, shape))


def _range(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    if name.endswith("A_log"):
        return -4.0, 1.0
    if name.endswith("dt_bias"):
        return -0.5, 1.5
    if len(shape) == 1:
        rest = 1.0 if name.endswith("linear_attn.norm.weight") or "model." not in name else 0.0
        return rest - 0.3, rest + 0.3
    if name.endswith("embed_tokens.weight"):
        return -1.0, 1.0
    half = math.sqrt(3 / shape[-1]) * (HEAD_SPREAD if name == "lm_head.weight" else 1.0)
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
