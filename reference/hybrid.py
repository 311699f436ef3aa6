"""Owns the hybrid model: embedding, layers, MTP head and greedy decoding, in float64.

Written from the specification alone, as slowly and plainly as it reads. State is carried by value;
`rounding` says where values are stored; weights come through `reference.weights`.
It is long because the model is: one method for each section of the specification.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from reference import delta, rope
from reference.attention import attend
from reference.config import Config
from reference.errors import OracleError
from reference.norms import gated_norm, l2, rms1, sigmoid, silu, softplus
from reference.rounding import EXACT, Rounding
from reference.state import (
    DeltaState,
    KvRows,
    LayerState,
    State,
    Taps,
    zero_kv,
    zero_state,
)
from reference.weights import Weights, check, linear, resident, tensor

Array = npt.NDArray[Any]
Tap = dict[str, Array]


@dataclass(frozen=True)
class Output:
    """A call's results: logits [T, V], hidden [T, D] after the final norm, new state, taps."""

    logits: Array
    hidden: Array
    state: State
    taps: Taps


@dataclass(frozen=True)
class MtpOutput:
    """An MTP call's results: logits [T, V], hidden [T, D] after its norm, new cache, taps."""

    logits: Array
    hidden: Array
    kv: KvRows
    taps: Taps


@dataclass
class Greedy:
    """Greedy ids, the gap between the best two logits of each, all logits [n, V], last state."""

    ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    logits: list[Array] = field(default_factory=list)
    state: State | None = None


@dataclass(frozen=True)
class Draft:
    """Drafted ids, their logits [depth, V], and the cache with its provisional rows."""

    ids: list[int]
    logits: Array
    kv: KvRows


class Hybrid:
    """The model over a source of weights. `chunk` None: recurrent delta rule, else its length."""

    def __init__(
        self, weights: Weights, config: Config, rounding: Rounding = EXACT,
        chunk: int | None = None,
    ) -> None:
        """OracleError names a missing or misshapen tensor; weights that fit 1 GiB are copied."""
        if chunk is not None and chunk < 1:
            raise OracleError(f"chunk of {chunk} tokens, want at least 1 or None")
        has_mtp = any(name.startswith("mtp.") for name in weights.names())
        check(weights, config.tensors(mtp=has_mtp))
        self.weights, self.config = resident(weights), config
        self.rounding, self.chunk, self.has_mtp = rounding, chunk, has_mtp

    def forward(
        self, ids: Any, state: State | None = None, positions: Any = None, record: bool = False,
        scores: bool = False,
    ) -> Output:
        """ids int [T]; positions int [T] or [3, T], None to go on after the state's tokens.

        record: fill taps; scores: also record attention scores. OracleError for bad ids or state.
        """
        state = zero_state(self.config) if state is None else state
        if len(state.layers) != self.config.n_layers:
            raise OracleError(f"state of {len(state.layers)} layers, not {self.config.n_layers}")
        x = self.embed(ids)
        if positions is None:
            positions = state.n_tokens + np.arange(x.shape[0])
        taps: Taps = {"model": {"embed": x}}
        layers: list[LayerState] = []
        for layer in range(self.config.n_layers):
            tap: Tap = {}
            x, after = self.run_layer(layer, x, state.layers[layer], positions, tap)
            layers.append(after)
            if record:
                taps[layer] = {n: a for n, a in tap.items() if scores or n != "scores"}
        hidden, logits = self.finish(x)
        taps["model"] |= {"final_norm": hidden, "logits": logits}
        return Output(logits, hidden, State(tuple(layers)), taps if record else {})

    def embed(self, ids: Any) -> Array:
        """ids int [T] -> rows [T, D]."""
        given = np.asarray(ids)
        if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
            raise OracleError(f"ids are {given.dtype} {given.shape}, want integers (T,), T >= 1")
        if given.min() < 0 or given.max() >= self.config.n_vocab:
            raise OracleError(f"ids {given.min()}..{given.max()}, not 0..{self.config.n_vocab - 1}")
        name = "model.embed_tokens.weight"
        rows = [self.weights.rows(name, int(index), int(index) + 1) for index in given]
        return self.rounding("embed", np.concatenate(rows))

    def run_layer(
        self, layer: int, x: Array, state: LayerState, positions: Any, tap: Tap | None = None
    ) -> tuple[Array, LayerState]:
        """Residual x [T, D] through one decoder layer -> residual [T, D] and its new state."""
        tap = {} if tap is None else tap
        return self._layer(f"model.layers.{layer}.", x, state, positions, tap)

    def finish(self, x: Array) -> tuple[Array, Array]:
        """Residual [T, D] -> hidden [T, D] after the final norm, logits [T, V]."""
        hidden = self._rms("norm", x, "model.norm.weight")
        return hidden, self.rounding("logits", linear(hidden, self.weights, "lm_head.weight"))

    def best(self, logits: Array) -> tuple[int, float]:
        """logits [V] -> the best real id (lowest on ties) and its lead over the second."""
        real = logits[: self.config.n_vocab_real]
        if not np.isfinite(real).all():
            raise OracleError(f"logit {int(np.argmin(np.isfinite(real)))} is not finite")
        first = int(np.argmax(real))
        return first, float(real[first] - np.max(np.delete(real, first), initial=-np.inf))

    def greedy(self, prompt: Any, n: int, state: State | None = None) -> Greedy:
        """n ids after `prompt` int [T], one token a step; the last id is not executed."""
        found, ids = Greedy(), prompt
        for _ in range(n):
            out = self.forward(ids, state)
            state = out.state
            chosen, margin = self.best(out.logits[-1])
            found.ids.append(chosen)
            found.margins.append(margin)
            found.logits.append(out.logits[-1])
            ids = [chosen]
        found.state = state
        return found

    def mtp(
        self, hidden: Array, next_ids: Any, kv: KvRows | None = None, positions: Any = None
    ) -> MtpOutput:
        """hidden [T, D] (`Output.hidden`), the token after each [T], positions of the hidden rows.

        Row t predicts the token after next_ids[t]. None positions go on after the cache's rows.
        """
        if not self.has_mtp:
            raise OracleError("the checkpoint has no MTP head")
        kv = zero_kv(self.config) if kv is None else kv
        if positions is None:
            positions = kv.n_tokens + np.arange(hidden.shape[0])
        tap: Tap = {}
        norm = "mtp.pre_fc_norm_"
        tap["embed_norm"] = self._rms("norm", self.embed(next_ids), norm + "embedding.weight")
        tap["hidden_norm"] = self._rms("norm", hidden, norm + "hidden.weight")
        joined = np.concatenate([tap["embed_norm"], tap["hidden_norm"]], axis=-1)
        tap["fc"] = self._project("projection", joined, "mtp.fc.weight")
        x, after = self._layer("mtp.layers.0.", tap["fc"], kv, positions, tap)
        assert isinstance(after, KvRows)
        del tap["scores"]
        tap["final_norm"] = self._rms("norm", x, "mtp.norm.weight")
        tap["logits"] = self._project("logits", tap["final_norm"], "lm_head.weight")
        return MtpOutput(tap["logits"], tap["final_norm"], after, {"mtp": tap})

    def draft(self, hidden: Array, next_id: int, kv: KvRows, position: int, depth: int) -> Draft:
        """Draft `depth` ids: hidden [D] of the token at `position`, next_id the one after it.

        `kv` holds the rows before that position; each draft feeds its own hidden and id back.
        """
        ids, logits = [], []
        row, token = hidden, next_id
        for step in range(depth):
            out = self.mtp(row.reshape(1, -1), [token], kv, [position + step])
            row, kv = out.hidden[0], out.kv
            token, _ = self.best(out.logits[0])
            ids.append(token)
            logits.append(out.logits[0])
        return Draft(ids, np.array(logits), kv)

    def _rms(self, point: str, x: Array, name: str) -> Array:
        return self.rounding(point, rms1(x, tensor(self.weights, name), self.config.eps))

    def _project(self, point: str, x: Array, name: str) -> Array:
        return self.rounding(point, linear(x, self.weights, name))

    def _layer(
        self, prefix: str, x: Array, state: LayerState, positions: Any, tap: Tap
    ) -> tuple[Array, LayerState]:
        """One decoder layer; its kind follows from the state it carries."""
        h = tap["input_norm"] = self._rms("norm", x, prefix + "input_layernorm.weight")
        after: LayerState
        if isinstance(state, KvRows):
            mixed, after = self._attention(prefix + "self_attn.", h, state, positions, tap)
        else:
            mixed, after = self._delta_net(prefix + "linear_attn.", h, state, tap)
        tap["mixer_out"] = mixed
        x = tap["resid_mid"] = self.rounding("resid", x + mixed)
        h = tap["post_norm"] = self._rms("norm", x, prefix + "post_attention_layernorm.weight")
        tap["mlp_gate"] = self._project("projection", h, prefix + "mlp.gate_proj.weight")
        tap["mlp_up"] = self._project("projection", h, prefix + "mlp.up_proj.weight")
        active = self.rounding("mlp_silu", silu(tap["mlp_gate"])) * tap["mlp_up"]
        tap["mlp_act"] = self.rounding("mlp_act", active)
        tap["mlp_out"] = self._project("mlp_out", tap["mlp_act"], prefix + "mlp.down_proj.weight")
        tap["resid"] = self.rounding("resid", x + tap["mlp_out"])
        return tap["resid"], after

    def _attention(
        self, prefix: str, h: Array, state: KvRows, positions: Any, tap: Tap
    ) -> tuple[Array, KvRows]:
        c, rounding = self.config, self.rounding
        n_tokens = h.shape[0]
        packed = self._project("projection", h, prefix + "q_proj.weight")
        # Packed head by head: a head's query rows, then its gate rows.
        packed = packed.reshape(n_tokens, c.n_heads, 2, c.d_head)
        tap["q_raw"], tap["gate"] = packed[:, :, 0], packed[:, :, 1]
        for name in ("k_raw", "v"):
            projected = self._project("projection", h, f"{prefix}{name[0]}_proj.weight")
            tap[name] = projected.reshape(n_tokens, c.n_kv_heads, c.d_head)
        cosine, sine = rope.tables(c, rope.triples(positions, n_tokens), rounding)
        for name in "qk":
            normed = self._rms("qk_norm", tap[f"{name}_raw"], f"{prefix}{name}_norm.weight")
            tap[f"{name}_norm"] = normed
            tap[name] = rounding("qk", rope.rotate(normed, cosine, sine, rounding))
        after = KvRows(np.concatenate([state.k, tap["k"]]), np.concatenate([state.v, tap["v"]]))
        summed, tap["scores"] = attend(tap["q"], after.k, after.v, rounding)
        tap["attn_sum"] = rounding("attn_sum", summed)
        gated = tap["attn_sum"] * rounding("attn_sigmoid", sigmoid(tap["gate"]))
        tap["attn_out"] = rounding("attn_out", gated)
        flat = tap["attn_out"].reshape(n_tokens, -1)
        return self._project("mixer_out", flat, prefix + "o_proj.weight"), after

    def _delta_net(
        self, prefix: str, h: Array, state: DeltaState, tap: Tap
    ) -> tuple[Array, DeltaState]:
        c, rounding = self.config, self.rounding
        n_tokens = h.shape[0]
        u = tap["conv_in"] = self._project("projection", h, prefix + "in_proj_qkv.weight")
        z = self._project("projection", h, prefix + "in_proj_z.weight")
        tap["z"] = z.reshape(n_tokens, c.n_value_heads, c.d_value)
        for name in "ab":
            tap[name] = self._project("decay_projection", h, f"{prefix}in_proj_{name}.weight")
        taps = tensor(self.weights, prefix + "conv1d.weight")[:, 0]
        sums, conv = delta.causal_conv(u, state.conv, taps)
        y = tap["conv_out"] = rounding("conv_out", silu(rounding("conv_sum", sums)))
        keys = c.n_key_heads * c.d_key
        q, k = (y[:, i * keys : (i + 1) * keys].reshape(n_tokens, -1, c.d_key) for i in (0, 1))
        tap["q_l2"] = rounding("l2", l2(q) / np.sqrt(c.d_key))
        tap["k_l2"] = rounding("l2", l2(k))
        tap["v"] = y[:, 2 * keys :].reshape(n_tokens, c.n_value_heads, c.d_value)
        a_log, dt_bias = (tensor(self.weights, prefix + name) for name in ("A_log", "dt_bias"))
        tap["g"] = rounding("g", -np.exp(a_log) * softplus(tap["a"] + dt_bias))
        tap["beta"] = rounding("beta", sigmoid(tap["b"]))
        read, matrix = self._delta_rule(tap, state.matrix)
        tap["delta_out"] = rounding("delta_out", read)
        w = tensor(self.weights, prefix + "norm.weight")
        gated = gated_norm(tap["delta_out"], tap["z"], w, c.eps, rounding)
        tap["gated"] = rounding("gated", gated)
        flat = tap["gated"].reshape(n_tokens, -1)
        mixed = self._project("mixer_out", flat, prefix + "out_proj.weight")
        return mixed, DeltaState(state.n_tokens + n_tokens, conv, matrix)

    def _delta_rule(self, tap: Tap, matrix: Array) -> tuple[Array, Array]:
        # Value head j reads key head j * Nk / Nv: each key head serves neighbours.
        repeat = self.config.n_value_heads // self.config.n_key_heads
        q, k = (np.repeat(tap[name], repeat, axis=1) for name in ("q_l2", "k_l2"))
        v, g, beta = tap["v"], tap["g"], tap["beta"]
        if self.chunk is None:
            return delta.recurrent(q, k, v, g, beta, matrix, self.rounding)
        return delta.chunked(q, k, v, g, beta, matrix, self.chunk, self.rounding)
