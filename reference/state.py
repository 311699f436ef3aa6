"""Owns what a sequence carries between calls: KV rows, conv columns and the delta-rule matrix.

States are values: a call returns a new one and leaves the old, so saving is keeping a reference.
Every layer counts its own tokens, because a KV cache restored without its matching matrix looks
healthy and is wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.config import Config
from reference.delta import recurrent
from reference.errors import OracleError
from reference.rounding import EXACT, Rounding

Array = npt.NDArray[Any]
Taps = dict[int | str, dict[str, Array]]
KV_PARTS, DELTA_PARTS = ("k", "v"), ("n_tokens", "conv", "matrix")


@dataclass(frozen=True)
class KvRows:
    """Cache of one full-attention layer: k (normed, rotated) and v, each [n, G, E]."""

    k: Array
    v: Array

    @property
    def n_tokens(self) -> int:
        """Rows held."""
        return int(self.k.shape[0])


@dataclass(frozen=True)
class DeltaState:
    """State of one GDN layer: raw conv inputs [W-1, C], oldest first, and matrix [Nv, Dv, Dk]."""

    n_tokens: int
    conv: Array
    matrix: Array


LayerState = KvRows | DeltaState


@dataclass(frozen=True)
class State:
    """One sequence's state over all layers, MTP's cache not included."""

    layers: tuple[LayerState, ...]

    @property
    def n_tokens(self) -> int:
        """Tokens executed; OracleError when the layers disagree."""
        counts = {layer.n_tokens for layer in self.layers}
        if len(counts) != 1:
            raise OracleError(f"layers of one state hold different numbers of tokens: {counts}")
        return counts.pop()

    def arrays(self) -> dict[str, Array]:
        """Dump names ("state.3.k", "state.0.conv", ...) -> arrays, GDN token counts included."""
        found: dict[str, Array] = {}
        for index, layer in enumerate(self.layers):
            for part in KV_PARTS if isinstance(layer, KvRows) else DELTA_PARTS:
                found[f"state.{index}.{part}"] = np.asarray(getattr(layer, part))
        return found

    @classmethod
    def from_arrays(cls, config: Config, arrays: Mapping[str, Array]) -> "State":
        """The state that `arrays` names; OracleError for a missing part, a shape, a count."""
        layers: list[LayerState] = []
        for index in range(config.n_layers):
            names = KV_PARTS if config.is_full(index) else DELTA_PARTS
            parts = {part: arrays.get(f"state.{index}.{part}") for part in names}
            missing = [part for part, array in parts.items() if array is None]
            if missing:
                raise OracleError(f"layer {index}: state lacks {', '.join(missing)}")
            layers.append(_layer(config, index, {n: np.asarray(a) for n, a in parts.items()}))
        state = cls(tuple(layers))
        if state.n_tokens < 0:
            raise OracleError(f"state of {state.n_tokens} tokens")
        return state


def _layer(config: Config, index: int, parts: dict[str, Array]) -> LayerState:
    if config.is_full(index):
        want = ((*parts["k"].shape[:1], config.n_kv_heads, config.d_head),) * 2
        if (parts["k"].shape, parts["v"].shape) != want:
            raise OracleError(f"layer {index}: k {parts['k'].shape}, v {parts['v'].shape}: {want}")
        return KvRows(parts["k"], parts["v"])
    zero = zero_layer(config, index)
    assert isinstance(zero, DeltaState)
    for name in ("conv", "matrix"):
        if parts[name].shape != getattr(zero, name).shape:
            want_shape = getattr(zero, name).shape
            raise OracleError(f"layer {index}: {name} is {parts[name].shape}, want {want_shape}")
    return DeltaState(int(parts["n_tokens"]), parts["conv"], parts["matrix"])


def zero_kv(config: Config) -> KvRows:
    """An empty KV cache."""
    empty = np.zeros((0, config.n_kv_heads, config.d_head))
    return KvRows(empty, empty)


def zero_layer(config: Config, layer: int) -> LayerState:
    """What a layer carries before the first token."""
    if config.is_full(layer):
        return zero_kv(config)
    return DeltaState(
        0,
        np.zeros((config.conv_width - 1, config.conv_channels)),
        np.zeros((config.n_value_heads, config.d_value, config.d_key)),
    )


def zero_state(config: Config) -> State:
    """The state of an empty sequence."""
    return State(tuple(zero_layer(config, layer) for layer in range(config.n_layers)))


def commit(
    config: Config, before: State, taps: Taps, n: int, rounding: Rounding = EXACT
) -> State:
    """The state after only the first n columns of a recorded call that began at `before`.

    KV rows are kept by length; matrices are replayed from the recorded k, v, g and beta, conv
    columns from the raw inputs. The recurrent order is that of `forward`, so the bits are too.
    OracleError when n is not within 0..T.
    """
    n_recorded = taps["model"]["embed"].shape[0] if "model" in taps else 0
    if not 0 <= n <= n_recorded:
        raise OracleError(f"commit of {n} columns, {n_recorded} were recorded")
    layers: list[LayerState] = []
    for index, layer in enumerate(before.layers):
        tap = {name: array[:n] for name, array in taps[index].items()}
        if isinstance(layer, KvRows):
            layers.append(KvRows(*(np.concatenate([getattr(layer, p), tap[p]]) for p in "kv")))
            continue
        repeat = config.n_value_heads // config.n_key_heads
        k = np.repeat(tap["k_l2"], repeat, axis=1)
        _, matrix = recurrent(k, k, tap["v"], tap["g"], tap["beta"], layer.matrix, rounding)
        conv = np.concatenate([layer.conv, tap["conv_in"]])[n:]
        layers.append(DeltaState(layer.n_tokens + n, conv, matrix))
    return State(tuple(layers))
