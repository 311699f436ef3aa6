"""Owns the oracle of `reference/` as a peer: for small models, where transformers is not.

It rounds where transformers does, and not at all for the wide way. The oracle is in a checkout
only, imported by name. It must not know our kernels.
"""

import importlib
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from engine.parity.judge import nll_of
from engine.parity.records import F32, F64, PeerFailure, Trace, Way
from engine.parity.texts import parts_of
from engine.parity.values import decoded, pieces
from engine.records import ModelPlan
from ptx.device import Device

MAX_CELLS = 1 << 27
# Rounding policy and chunk of the delta rule of each way, None for token by token.
WAYS: Mapping[Way, tuple[str, int | None]] = {
    "plain": ("TRANSFORMERS_BF16", 64), "other": ("TRANSFORMERS_BF16", None),
    "wide": ("EXACT", None),
}


class Oracle:
    """`reference.hybrid` over a plan's numbers; `document` is its config.json."""

    def __init__(self, device: Device, plan: ModelPlan, document: Mapping[str, Any]) -> None:
        """Build it; PeerFailure where it is missing or the model too large for it."""
        n_cells = sum(prod(weight.shape) for weight in plan.weights.values())
        if n_cells > MAX_CELLS:
            raise PeerFailure(f"the oracle: {n_cells} weights, at most {MAX_CELLS}")
        try:
            config, hybrid, rounding, state, weights = (
                importlib.import_module(f"reference.{name}")
                for name in ("config", "hybrid", "rounding", "state", "weights")
            )
        except ImportError as error:
            raise PeerFailure(f"the oracle is not here: {error}") from None
        self._zero_layer = state.zero_layer
        dims = config.Config.from_json(dict(document))
        shapes = dims.tensors(mtp=False)
        arrays = {
            name: np.concatenate([decoded(p) for p in pieces(device, plan, name)])
            for name in plan.weights
        }
        source = weights.DictWeights({n: a.reshape(shapes[n]) for n, a in arrays.items()})
        self._models = {
            way: hybrid.Hybrid(source, dims, getattr(rounding, policy), chunk)
            for way, (policy, chunk) in WAYS.items()
        }
        self._n_vocab, self._n_layers = plan.n_vocab, plan.n_layers
        self.name = "the oracle in numpy, rounding where transformers does"

    def trace(self, ids: Sequence[int], kept: Sequence[int], way: Way) -> Trace:
        """A run over all ids, the "other" way in parts."""
        hidden: dict[int, list[F32]] = {key: [] for key in kept}
        state, logits, at = None, [], 0
        for length in parts_of(len(ids)) if way == "other" else [len(ids)]:
            out = self._models[way].forward(list(ids[at : at + length]), state, record=True)
            rows = [out.taps["model"]["embed"]]
            rows += [out.taps[layer]["resid"] for layer in range(self._n_layers)]
            for key in kept:
                hidden[key].append(rows[key].astype(np.float32))
            logits.append(out.logits[:, : self._n_vocab].astype(np.float32))
            state, at = out.state, at + length
        return Trace({key: np.concatenate(r) for key, r in hidden.items()}, np.concatenate(logits))

    def alone(
        self, ids: Sequence[int], hidden: Mapping[int, F32], keys: Sequence[int], way: Way
    ) -> dict[int, F32]:
        """What a layer's two blocks add to `hidden[key - 1]`, of each key."""
        model, positions = self._models[way], np.arange(len(ids))
        found = {}
        for key in keys:
            x = model.rounding("resid", hidden[key - 1].astype(np.float64))
            state = self._zero_layer(model.config, key - 1)
            tap: dict[str, Any] = {}
            model.run_layer(key - 1, x, state, positions, tap)
            found[key] = (tap["mixer_out"] + tap["mlp_out"]).astype(np.float32)
        return found

    def rows(self, ids: Sequence[int], first: int, way: Way) -> F32:
        """Logits after each id from number `first` on."""
        return self.trace(ids, (), way).logits[first:]

    def nll(self, ids: Sequence[int], way: Way) -> F64:
        """Minus the log-probability of each id but the first, in nats."""
        return nll_of(self.rows(ids[:-1], 0, way), ids[1:])
