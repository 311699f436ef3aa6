"""Owns models of random weights with a package's exact shapes, for benchmarks and self-tests.

They run the package's own schedule; their text means nothing. Weights come from a counter-based
generator, so that a model is the same everywhere.
"""

import importlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidArgument
from engine.pretokenizers import PRE_TOKENIZERS
from engine.records import ModelPlan, Weight
from engine.tokenizer import Tokenizer
from packages import KNOWN

NORMAL = 1


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
    plan: ModelPlan = bind.plan_of(
        artifact, _weights(bind.shapes(dims), seed), _tokenizer(bind.n_vocab(dims)), None,
        f"synthetic {key}",
    )
    return replace(plan, model_id=f"synthetic {key}")


def _weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Weight]:
    return {
        name: Weight(shape, partial(_values, name, shape, seed, number))
        for number, (name, shape) in enumerate(shapes.items())
    }


def _values(
    name: str, shape: tuple[int, ...], seed: int, number: int
) -> npt.NDArray[np.float32]:
    """Values that keep activations lively: matrices of variance 1/fan-in, gains near their rest."""
    rng = np.random.Generator(np.random.Philox(key=[seed, number]))
    x = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("A_log"):
        return x - np.float32(1.5)
    if len(shape) == 1:
        rest = 1.0 if name.endswith(("_norm.weight", "linear_attn.norm.weight")) else 0.0
        return np.float32(rest) + np.float32(0.1) * x
    return x / np.float32(np.sqrt(shape[-1]))


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
