"""Owns the numbers of a Llama-type dense decoder."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DenseDims:
    """A dense decoder's numbers; every one of them fixed by the package, none guessed."""

    n_layers: int
    d_model: int
    d_ff: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    n_vocab: int
    n_context: int
    norm_eps: float
    rope_theta: float
