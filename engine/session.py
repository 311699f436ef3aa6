"""Owns one timeline: its position, history, signals, samplers and its cells in the KV pool.

Every public method runs under the model's lock and changes nothing when it raises. The position
counts evaluated tokens only; a predicted token counts once it is fed. The history is what samplers
with memory read; imports and `set_position` may leave it shorter than the position. Rules:
the serving ABI's sections on running tokens and on state. Past 250 lines: a call is a method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from engine.chat_sampling import ChatSampling
from engine.choosing import finish_step
from engine.chunks import Work
from engine.errors import InvalidArgument, RuntimeFailure
from engine.evaluate import Evaluation, evaluate
from engine.grammar import GrammarText
from engine.held import Fed, SamplingKept
from engine.logits import LogitsRow
from engine.recurrent import RecurrentState
from engine.rollback import Checkpoints
from engine.sampling import (
    DrawRequest,
    Sampler,
    SamplingConfig,
    SessionSampling,
    SignalWindow,
    TokenSignal,
    signal_window,
)

if TYPE_CHECKING:
    from engine.model import Model

Row = npt.NDArray[np.float32]


class Session:
    """One mutable timeline on one lane of a model; made by `Model.create_session`."""

    def __init__(self, model: Model, lane: int) -> None:
        self.model = model
        self.lane = lane
        self.cells = model.pool.sequence(lane / model.options.n_lanes)
        self.state = RecurrentState(model.slots)
        self.closed = False
        self._start()

    def _start(self) -> None:
        self.position = 0
        self.state.clear()
        self.checkpoints = Checkpoints()
        self.history: list[int] = []
        self.signals: list[TokenSignal] = []
        self.sampling = SessionSampling(self.model.plan.n_vocab)
        self.chat: ChatSampling | None = None
        self.needs_reset = False
        self.last_row: LogitsRow | None = None

    # Running tokens

    def prefill(self, tokens: Sequence[int], hidden: Row | None = None) -> Row | None:
        """Evaluate tokens without choosing; position += count.

        A stage that takes hidden rows gets them, one that gives them returns them: [n_tokens, D].
        """
        with self.model.running(self):
            evaluation = evaluate(self.model, [Work(self, tokens, "none", hidden)])
            evaluation.commit()
            return evaluation.hidden[0]

    def prefill_sampled(
        self, tokens: Sequence[int], config: SamplingConfig | None, hidden: Row | None = None
    ) -> int:
        """Evaluate tokens and choose from the last row; position += count."""
        with self.model.running(self), SamplingKept([self]):
            ask = self.ask(config, tokens)
            evaluation = evaluate(self.model, [Work(self, tokens, "last", hidden, ask)])
            return finish_step(evaluation, [config])[0]

    def decode(self, token: int, config: SamplingConfig | None) -> int:
        """Feed one token, choose the next; position += 1."""
        return self.prefill_sampled([token], config)

    def verify(self, tokens: Sequence[int]) -> list[int]:
        """Evaluate all tokens and return the greedy next token after each; position += count."""
        with self.model.running(self):
            evaluation = self._evaluate_window(tokens, "all", None)
            with evaluation.guarded():
                chosen = [row.greedy() for row in evaluation.logits[0]]
            self._commit_window(evaluation, len(tokens))
            return chosen

    def verify_hidden(self, tokens: Sequence[int], hidden: Row | None) -> Row | None:
        """Evaluate a window on a stage without output; its hidden rows."""
        with self.model.running(self):
            evaluation = self._evaluate_window(tokens, "none", hidden)
            self._commit_window(evaluation, len(tokens))
            return evaluation.hidden[0]

    def verify_sampled(
        self, tokens: Sequence[int], config: SamplingConfig | None, hidden: Row | None = None
    ) -> list[int]:
        """Evaluate all tokens and choose after each, as the session's sampler would serially.

        With a chain that exists already, the choice stops behind the first output that differs
        from the next input, and the history keeps the inputs that were looked at. The position
        advances by all inputs in any case.
        """
        with self.model.running(self), SamplingKept([self]):
            stops_early = self.chat is not None or self.sampling.has_chain
            self.sampler_for(config)
            evaluation = self._evaluate_window(tokens, "all", hidden)
            chosen: list[int] = []
            with evaluation.guarded():
                for index, row in enumerate(evaluation.logits[0]):
                    chosen.append(self.choose(row, config, tokens[: index + 1]))
                    following = tokens[index + 1 : index + 2]
                    if stops_early and following and chosen[-1] != following[0]:
                        break
            self._commit_window(evaluation, len(chosen))
            return chosen

    def _evaluate_window(
        self, tokens: Sequence[int], rows: Literal["none", "all"], hidden: Row | None
    ) -> Evaluation:
        if self.state.exists:
            self.checkpoints.check_room()
        return evaluate(self.model, [Work(self, tokens, rows, hidden)])

    def _commit_window(self, evaluation: Evaluation, n_seen: int) -> None:
        """Advance by the window; a recurrent state is kept as it was before, to come back to."""
        if self.state.exists:
            self.checkpoints.keep(self.state.snapshot(), evaluation.works[0])
        evaluation.commit(n_seen)

    def sample_current(self, config: SamplingConfig | None) -> int:
        """Choose from the logits of the last evaluated token without advancing."""
        with self.model.running(self), SamplingKept([self]):
            if self.last_row is None:
                raise RuntimeFailure(f"sample: no logits at position {self.position}")
            return self.choose(self.last_row, config, ())

    def sampler_for(self, config: SamplingConfig | None) -> Sampler:
        """The sampler that serves a call with this config; InvalidArgument for a bad config."""
        return self.chat.sampler if self.chat else self.sampling.sampler_for(config)

    def choose(self, row: LogitsRow, config: SamplingConfig | None, fed: Sequence[int]) -> int:
        """The next token for one row, after `fed`, which the history does not have yet."""
        sampler = self._chooser(config)
        if sampler.is_greedy:
            return row.greedy()
        with Fed(self.history, fed):
            return sampler.choose_row(row, self.history).token

    def ask(
        self, config: SamplingConfig | None, fed: Sequence[int]
    ) -> Callable[[], DrawRequest] | None:
        """What `choose` will ask of the row behind `fed`; None where it looks for the best.

        InvalidArgument for a bad config.
        """
        sampler = self._chooser(config)
        if sampler.is_greedy:
            return None

        def request() -> DrawRequest:
            with Fed(self.history, fed):
                return sampler.request(self.history)

        return request

    def _chooser(self, config: SamplingConfig | None) -> ChatSampling | Sampler:
        """What chooses in a call with this config."""
        return self.chat or self.sampling.sampler_for(config)

    def configure_chat(
        self,
        config: SamplingConfig | None,
        n_prompt_tokens: int,
        *,
        seed: int | None = None,
        grammar: GrammarText | None = None,
    ) -> None:
        """From now on choose with this chain, until reset, a shortening, or a new configuration.

        `seed`, 0 .. 2^64 - 1, stands in for the config's 32-bit one. When the chain cannot be
        made there is none afterwards.
        """
        with self.model.locked(self):
            self.chat = None
            plan = self.model.plan
            self.chat = ChatSampling(
                config, plan.tokenizer, plan.n_vocab, n_prompt_tokens=n_prompt_tokens, seed=seed,
                grammar=grammar,
            )

    def forget_chat(self) -> None:
        """Go back to the config that each call passes."""
        with self.model.locked(self):
            self.chat = None

    # Position and life cycle

    def reset(self) -> None:
        """Empty timeline on the same lane, whatever state it was in."""
        with self.model.locked(self):
            self.model.pool.truncate(self.cells, 0)
            self._start()

    def free(self) -> None:
        """Give the lane and its cells back; the session is unusable afterwards."""
        with self.model.lock:
            if not self.closed:
                self.closed = True
                self.model.release(self)

    def set_position(self, position: int) -> None:
        """Bookkeeping only: cells stay; those behind the position go with the next step."""
        with self.model.locked(self):
            if position < 0:
                raise InvalidArgument(f"set_position: position {position} is negative")
            if position < len(self.history):
                del self.history[position:]
                del self.signals[position:]
                self.shortened()
            self.position = position
            self.last_row = None
            self.checkpoints.clear()

    def shortened(self) -> None:
        """The history lost its tail: samplers follow, and chat sampling ends."""
        self.sampling.rewind(len(self.history))
        self.chat = None

    def adopt(self, tokens: Sequence[int]) -> None:
        """Become the restored prefix `tokens`, whose cells are in place already."""
        self.position = len(tokens)
        self.history = list(tokens)
        self.signals = []
        self.last_row = None
        self.checkpoints.clear()

    # Signals

    def last_signal(self) -> TokenSignal:
        """Signal of the newest row; raises InvalidArgument when there is none."""
        with self.model.locked(self):
            if len(self.signals) < self.position and self.last_row is not None:
                signal = self.last_row.signal()
                if signal is not None:
                    self.signals.append(signal)
            if not self.signals:
                raise InvalidArgument(f"token signal: none stored at position {self.position}")
            return self.signals[-1]

    def window(self, n_window_tokens: int) -> SignalWindow:
        """Statistics over the last signals; raises InvalidArgument for 0 or with none stored."""
        with self.model.locked(self):
            if n_window_tokens == 0 or not self.signals:
                raise InvalidArgument(
                    f"signal window: {n_window_tokens} tokens over {len(self.signals)} signals"
                )
            return signal_window(self.signals, self.history, n_window_tokens)
