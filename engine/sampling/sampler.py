"""Owns a session's sampler: which version serves a call, the random state, and what it records.

A sampler keeps nothing but its draws: penalties read the history that each call brings. The random
state follows the history too. Each draw remembers how many tokens had been fed, and `rewind` takes
back the draws made beyond a trimmed history, so after a rejected draft the state is what it would
be had the rejected tokens never been seen. Knows no sessions, grammars or C.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidArgument
from engine.sampling import chain, draws, plain, rng
from engine.sampling.config import SamplingConfig
from engine.sampling.row import checked_row

MadeMask = Callable[[], chain.Mask | None]


def no_mask() -> None:
    """Every token is allowed."""


@dataclass(frozen=True)
class Selection:
    """One chosen token and what a replay of the choice needs.

    Log-probabilities are natural; `log_p_model` only when asked for. `seed` and `draw_index` are
    None where no random word was drawn.
    """

    token: int
    log_p_sampler: float
    log_p_model: float | None
    sampler_version: str
    config: SamplingConfig | None
    seed: int | None
    draw_index: int | None


@dataclass(frozen=True)
class SamplerState:
    """A sampler's whole random state; `seed` is None for one that draws nothing."""

    seed: int | None
    n_drawn: int


class Sampler:
    """Chooses tokens under one config; config None, version 0 or flags 0 is greedy."""

    def __init__(
        self, config: SamplingConfig | None, n_vocab: int, seed: int | None = None
    ) -> None:
        """`seed`, 0 .. 2^64 - 1, stands in for the config's 32-bit one, and may be 0.

        InvalidArgument for a field that the config's table refuses, or a seed out of range. A seed
        of the system is drawn here, once, and only when the config draws at all.
        """
        if config is not None:
            config.validate(n_vocab)
        if seed is not None and not 0 <= seed < 1 << 64:
            raise InvalidArgument(f"sampler: seed is {seed}, needs 0 to 2^64 - 1")
        self.config = config
        self.n_vocab = n_vocab
        self._active = config if config is not None and config.enabled else None
        self.seed: int | None = None
        if self._active is not None and self._active.temperature > 0.0:
            self.seed = seed if seed is not None else self._active.seed or rng.system_seed()
        self._n_before = 0
        self._fed_at_draw: list[int] = []

    @property
    def is_greedy(self) -> bool:
        """Whether it takes the best token of a row, whatever was fed before."""
        return self._active is None

    @property
    def n_drawn(self) -> int:
        """How many random words have been drawn: one for each token chosen at T > 0."""
        return self._n_before + len(self._fed_at_draw)

    def choose(
        self,
        logits: npt.NDArray[np.float32],
        history: chain.History = (),
        mask: chain.Mask | None = None,
        with_log_p_model: bool = False,
    ) -> Selection:
        """The next token for one row of raw logits.

        logits float32 [V]; history: every token fed so far, prompt included, oldest first; mask
        bool [V], True where a grammar allows. RuntimeFailure for a NaN or infinity in the row or
        when every token is banned; InvalidArgument for a shape or history that does not fit. A
        refused call draws no word, so the sampler stays usable.
        """
        row = checked_row(logits, self.n_vocab)
        active = self._active
        if mask is not None or (active is not None and active.uses_chain):
            version = chain.VERSION
            ids, z = chain.survivors(row, active, history, mask)
            index, log_p, draw_index = self._pick(z, len(history))
            token = int(ids[index])
        else:
            version = plain.VERSION
            z = row.astype(np.float64)
            token, log_p, draw_index = self._pick(z, len(history))
        return Selection(
            token=token,
            log_p_sampler=log_p,
            log_p_model=plain.log_p_model(row, token) if with_log_p_model else None,
            sampler_version=version,
            config=self.config,
            seed=self.seed,
            draw_index=draw_index,
        )

    def choose_row(
        self,
        row: draws.Drawable,
        history: chain.History = (),
        mask: MadeMask = no_mask,
    ) -> Selection:
        """As `choose`, by the row's device where it can; `mask()` makes the mask where it is
        needed."""
        index = self.n_drawn
        draw = row.draw(lambda: self.request(history, mask))
        if draw is None:
            return self.choose(row.array(), history, mask())
        draws_word = self.seed is not None
        if draws_word:
            self._fed_at_draw.append(len(history))
        return Selection(
            token=draw.token,
            log_p_sampler=draw.log_p if draws_word else 0.0,
            log_p_model=None,
            sampler_version=draws.VERSION,
            config=self.config,
            seed=self.seed,
            draw_index=index if draws_word else None,
        )

    def request(self, history: chain.History, mask: MadeMask = no_mask) -> draws.DrawRequest:
        """What `choose_row` asks of a device."""
        return draws.request_of(
            self._active, history, mask(), self.n_vocab, self.seed or 0, self.n_drawn
        )

    def _pick(self, z: npt.NDArray[np.float64], n_fed: int) -> tuple[int, float, int | None]:
        """Index into z float64 [N], its log-probability, and the index of the word it took."""
        if self._active is None or self.seed is None:
            return int(z.argmax()), 0.0, None
        draw_index = self.n_drawn
        u = rng.uniform(rng.word(self.seed, draw_index))
        self._fed_at_draw.append(n_fed)
        index, log_p = plain.draw(z, self._active.temperature, u)
        return index, log_p, draw_index

    def rewind(self, n_fed: int) -> None:
        """Take back the draws made after more than `n_fed` tokens had been fed.

        The draw that followed token `n_fed` itself stays: the token it chose is still the next.
        """
        while self._fed_at_draw and self._fed_at_draw[-1] > n_fed:
            self._fed_at_draw.pop()

    def snapshot(self) -> SamplerState:
        """The random state now."""
        return SamplerState(self.seed, self.n_drawn)

    def restore(self, state: SamplerState) -> None:
        """Continue from `state`, earlier or later than now; InvalidArgument for another seed.

        Draws that this sampler did not make itself cannot be rewound.
        """
        if state.seed != self.seed:
            raise InvalidArgument(f"sampler: state of seed {state.seed}, needs {self.seed}")
        kept = self._fed_at_draw[: max(0, state.n_drawn - self._n_before)]
        self._fed_at_draw = kept if self._n_before + len(kept) == state.n_drawn else []
        self._n_before = state.n_drawn - len(self._fed_at_draw)


class SessionSampling:
    """A session's `current` sampler: an equal config continues it, another one replaces it."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._greedy = Sampler(None, n_vocab)
        self.current: Sampler | None = None

    @property
    def has_chain(self) -> bool:
        """Whether an enabled config has been served since the last reset."""
        return self.current is not None

    def sampler_for(self, config: SamplingConfig | None) -> Sampler:
        """The sampler that serves `config` now; InvalidArgument leaves the current one in place.

        A greedy call looks at nothing, so it does not replace the current sampler either.
        """
        if config is None or not config.enabled:
            return self._greedy
        if self.current is None or self.current.config != config:
            self.current = Sampler(config, self._n_vocab)
        return self.current

    def rewind(self, n_fed: int) -> None:
        """Follow a history that was shortened to `n_fed` tokens."""
        if self.current is not None:
            self.current.rewind(n_fed)

    def reset(self) -> None:
        """Forget the random sequence: an equal config starts it again."""
        self.current = None
