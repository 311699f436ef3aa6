"""Owns the list of places where a path may round, and the named policies over it.

Between two points the oracle computes in float64, so a policy says what a perfect implementation
with those storage formats would give. Sums inside a matrix product are exact for this purpose: an
engine's own order shows as rare flips of one unit in the last place of BF16, never as a trend.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.bf16 import round_bf16
from reference.errors import OracleError

Array = npt.NDArray[Any]

GRIDS = ("exact", "f32", "bf16")

# point: (what is rounded there, engine with BF16 activations, the public library in BF16, eager).
# "exact" means that the value stays inside an operation and is not stored.
POINTS: dict[str, tuple[str, str, str]] = {
    "embed": ("embedding row", "bf16", "bf16"),
    "norm": ("outputs of the RMS norms over d_model, MTP's included", "bf16", "bf16"),
    "projection": ("q, gate, k, v, qkv, z, gate/up and MTP fc results", "bf16", "bf16"),
    "decay_projection": ("in_proj_a and in_proj_b results", "bf16", "bf16"),
    "qk_norm": ("per-head norm of q and k, before rotation", "exact", "bf16"),
    "inv_freq": ("table of rotary frequencies", "exact", "f32"),
    "rope_angle": ("frequency times position", "exact", "f32"),
    "rope_table": ("cosine and sine", "exact", "bf16"),
    "rope_product": ("each of the two products of a rotation", "exact", "bf16"),
    "qk": ("rotated q, and k as it enters the cache", "bf16", "bf16"),
    "score_dot": ("dot product of q and k", "exact", "bf16"),
    "score": ("the same times 1/sqrt(d_head)", "exact", "bf16"),
    "weight": ("softmax result", "exact", "bf16"),
    "attn_sum": ("weighted sum of v, before the gate", "bf16", "bf16"),
    "attn_sigmoid": ("sigmoid of the gate", "exact", "bf16"),
    "attn_out": ("gated attention result", "bf16", "bf16"),
    "conv_sum": ("convolution before SiLU", "exact", "bf16"),
    "conv_out": ("convolution after SiLU", "bf16", "bf16"),
    "l2": ("normalised q and k of GDN, 1/sqrt(d_key) in q included", "f32", "f32"),
    "g": ("log decay", "f32", "f32"),
    "beta": ("write strength", "f32", "bf16"),
    "delta_state": ("matrix state, after every token or chunk", "f32", "f32"),
    "delta_out": ("read of the state", "bf16", "bf16"),
    "gated_unit": ("normalised value inside the gated norm", "exact", "bf16"),
    "gated_weighted": ("the same times the weight", "exact", "bf16"),
    "gated": ("gated norm result", "bf16", "bf16"),
    "mixer_out": ("o_proj and out_proj results", "bf16", "bf16"),
    "resid": ("residual stream after each of the two adds", "bf16", "bf16"),
    "mlp_silu": ("SiLU of the gate", "exact", "bf16"),
    "mlp_act": ("SiLU times up, input of down_proj", "bf16", "bf16"),
    "mlp_out": ("down_proj result", "bf16", "bf16"),
    "logits": ("logits", "f32", "bf16"),
}


@dataclass(frozen=True, eq=False)
class Rounding:
    """A policy: for each name of POINTS the grid ("exact", "f32" or "bf16") of values there."""

    name: str
    grids: Mapping[str, str]

    def __post_init__(self) -> None:
        """OracleError for an unknown point or grid, or a point left out."""
        for point, grid in self.grids.items():
            if point not in POINTS or grid not in GRIDS:
                raise OracleError(f"rounding {point}={grid!r}: no such point or no grid of {GRIDS}")
        if missing := set(POINTS) - set(self.grids):
            raise OracleError(f"rounding {self.name!r} leaves out {', '.join(sorted(missing))}")

    def __call__(self, point: str, x: Array) -> Array:
        """x, any shape, float64 -> x on the grid of that point, still float64."""
        grid = self.grids[point]
        if grid == "exact":
            return x
        return round_bf16(x) if grid == "bf16" else x.astype(np.float32).astype(np.float64)

    def replaced(self, **grids: str) -> "Rounding":
        """The same policy with some points changed, named after the changes."""
        changes = ",".join(f"{point}={grid}" for point, grid in sorted(grids.items()))
        return Rounding(f"{self.name}+{changes}", {**self.grids, **grids})


EXACT = Rounding("exact", dict.fromkeys(POINTS, "exact"))
F32 = Rounding("f32", dict.fromkeys(POINTS, "f32"))
ENGINE_BF16 = Rounding("bf16", {point: row[1] for point, row in POINTS.items()})
TRANSFORMERS_BF16 = Rounding("transformers", {point: row[2] for point, row in POINTS.items()})
POLICIES = {policy.name: policy for policy in (EXACT, F32, ENGINE_BF16, TRANSFORMERS_BF16)}
