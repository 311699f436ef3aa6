"""Owns the numbers of the hybrid architecture and what follows from them; symbols as in ptx ops."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HybridDims:
    """A hybrid decoder's numbers; `n_vocab` rows exist, ids below `n_vocab_real` are tokens."""

    n_layers: int
    d_model: int
    d_ff: int
    n_vocab: int
    n_vocab_real: int
    full_attention_interval: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_rotary: int
    rope_theta: float
    n_key_heads: int
    n_value_heads: int
    d_key: int
    d_value: int
    conv_width: int
    norm_eps: float
    n_context: int

    def is_full(self, layer: int) -> bool:
        """Whether a layer is full attention; every other one is GatedDeltaNet."""
        return (layer + 1) % self.full_attention_interval == 0

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indexes of the full-attention layers."""
        return tuple(layer for layer in range(self.n_layers) if self.is_full(layer))

    @property
    def n_conv_channels(self) -> int:
        """Channels of the causal convolution: queries, keys and values of a GDN layer."""
        return 2 * self.n_key_heads * self.d_key + self.d_value_all

    @property
    def d_value_all(self) -> int:
        """Width of all value heads together."""
        return self.n_value_heads * self.d_value
