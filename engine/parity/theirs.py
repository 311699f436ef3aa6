"""Owns transformers as a peer: its model over our numbers on the same card, run three ways.

The wide way widens one layer at a time, so that it needs 2 GB more and not twice the model. It must
not know our kernels, nor how its model was made.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from engine.parity.records import F32, F64, Trace, Way
from engine.parity.texts import parts_of
from engine.parity.theirs_model import failures_named, libraries, model_of
from engine.records import ModelPlan
from ptx.device import Device

# Rows of logits that are float32 at once.
HEAD_ROWS = 128
ATTENTION: Mapping[Way, str] = {"plain": "sdpa", "other": "eager", "wide": "sdpa"}


class Transformers:
    """`Qwen3_5ForCausalLM` over a plan's numbers; `document` is its config.json."""

    def __init__(self, device: Device, plan: ModelPlan, document: Mapping[str, Any]) -> None:
        """Build it; PeerFailure."""
        self._torch, library = libraries(device)
        self._where = "cuda" if device.name == "cuda" else "cpu"
        self._n_vocab = plan.n_vocab
        self.name = f"transformers {library.__version__}, torch {self._torch.__version__}"
        with failures_named("building transformers' model"), self._torch.inference_mode():
            self._model = model_of(self._torch, library, self._where, device, plan, document)
            given = inspect.signature(type(self._model.model).forward).parameters
            # Its name since 5.24; the one before.
            self._cache = "cache" if "cache" in given else "past_key_values"

    def trace(self, ids: Sequence[int], kept: Sequence[int], way: Way) -> Trace:
        """A run over all ids, the "other" way in the parts of `parts_of`."""
        hidden: dict[int, list[F32]] = {key: [] for key in kept}

        def see(key: int, rows: Any) -> None:
            if key in hidden:
                hidden[key].append(_numpy(rows.reshape(-1, rows.shape[-1])))

        with self._running(way):
            final = self._final(ids, way, see)
            logits = np.concatenate([_numpy(part) for part in self._logits(final)])
        return Trace({key: np.concatenate(rows) for key, rows in hidden.items()}, logits)

    def alone(
        self, ids: Sequence[int], hidden: Mapping[int, F32], keys: Sequence[int], way: Way
    ) -> dict[int, F32]:
        """What a layer's two blocks add to `hidden[key - 1]`, of each key, in one run."""
        found: dict[int, F32] = {}

        def see(key: int, rows: Any) -> None:
            found[key] = found.get(key, 0) + _numpy(rows[0])

        with self._running(way):
            handles = []
            for key in keys:
                layer = self._model.model.layers[key - 1]
                feeder = self._feeder(hidden[key - 1], way)
                handles.append(layer.register_forward_pre_hook(feeder, with_kwargs=True))
                mixer = layer.self_attn if hasattr(layer, "self_attn") else layer.linear_attn
                for block in (mixer, layer.mlp):
                    handles.append(block.register_forward_hook(_watcher(see, key)))
            try:
                self._final(ids, way)
            finally:
                for handle in handles:
                    handle.remove()
        return found

    def rows(self, ids: Sequence[int], first: int, way: Way) -> F32:
        """Logits after each id from number `first` on."""
        with self._running(way):
            final = self._final(ids, way)[first:]
            return np.concatenate([_numpy(part) for part in self._logits(final)])

    def nll(self, ids: Sequence[int], way: Way) -> F64:
        """Minus the log-probability of each id but the first, in nats."""
        torch = self._torch
        with self._running(way):
            aims = torch.tensor(list(ids[1:]), device=self._where)
            final, found, at = self._final(ids[:-1], way), [], 0
            for part in self._logits(final):
                picked = part.gather(1, aims[at : at + len(part), None])[:, 0].double()
                found.append(torch.logsumexp(part.double(), dim=1) - picked)
                at += len(part)
            result: F64 = torch.cat(found).cpu().numpy()
            return result

    # Running

    @contextmanager
    def _running(self, way: Way) -> Iterator[None]:
        with failures_named(f"running transformers, {way}"), self._torch.inference_mode():
            self._model.config._attn_implementation = ATTENTION[way]
            with self._widened() if way == "wide" else nullcontext():
                yield
        if self._where == "cuda":
            self._torch.cuda.empty_cache()

    @contextmanager
    def _widened(self) -> Iterator[None]:
        """Inside, a layer's weights are float32 while it runs."""
        held: dict[Any, list[tuple[Any, Any]]] = {}

        def widen(module: Any, *_: Any) -> None:
            held[module] = [(p, p.data) for p in module.parameters()]
            for parameter, cells in held[module]:
                parameter.data = cells.float()

        def narrow(module: Any, *_: Any) -> None:
            for parameter, cells in held.pop(module):
                parameter.data = cells

        handles = []
        for module in (*self._model.model.layers, self._model.lm_head):
            handles.append(module.register_forward_pre_hook(widen))
            handles.append(module.register_forward_hook(narrow))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for module in list(held):
                narrow(module)

    def _feeder(self, rows: F32, way: Way) -> Callable[..., Any]:
        """A hook by which a layer gets these rows instead of what came to it."""
        dtype = self._torch.float32 if way == "wide" else self._torch.bfloat16

        def hook(module: Any, args: Any, named: Any) -> Any:
            given = self._torch.from_numpy(rows).to(self._where, dtype)[None]
            if args:
                return (given, *args[1:]), named
            return args, {**named, "hidden_states": given}

        return hook

    def _final(
        self, ids: Sequence[int], way: Way, see: Callable[[int, Any], None] | None = None
    ) -> Any:
        """The rows [T, D] behind the final norm; `see` gets the rows behind each layer."""
        body, handles = self._model.model, []
        for index, layer in enumerate(body.layers if see else ()):
            handles.append(layer.register_forward_hook(_watcher(see, index + 1)))
        try:
            lengths = parts_of(len(ids)) if way == "other" else [len(ids)]
            found, cache, at = [], None, 0
            for length in lengths:
                part = self._torch.tensor([list(ids[at : at + length])], device=self._where)
                rows = body.embed_tokens(part)
                rows = rows.float() if way == "wide" else rows
                if see:
                    see(0, rows)
                more: dict[str, Any] = {} if cache is None else {self._cache: cache}
                out = body(inputs_embeds=rows, use_cache=way == "other", **more)
                cache = out.cache if hasattr(out, "cache") else out.past_key_values
                found.append(out.last_hidden_state[0])
                at += length
            return self._torch.cat(found)
        finally:
            for handle in handles:
                handle.remove()

    def _logits(self, final: Any) -> Iterator[Any]:
        """Float32 logits of the ids that exist, some rows at once."""
        for at in range(0, len(final), HEAD_ROWS):
            rows = self._model.lm_head(final[at : at + HEAD_ROWS])
            yield rows[:, : self._n_vocab].float()


def _watcher(see: Any, key: int) -> Callable[..., None]:
    def hook(module: Any, inputs: Any, output: Any) -> None:
        see(key, output[0] if isinstance(output, tuple) else output)

    return hook


def _numpy(rows: Any) -> F32:
    found: F32 = rows.float().cpu().numpy()
    return found
