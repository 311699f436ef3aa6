"""Owns the chain that one chat request configured: a sampler, and a grammar if there is one.

It overrides what later calls pass, until the session forgets it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.grammar import Grammar, GrammarText
from engine.sampling import Drawable, DrawRequest, Sampler, SamplingConfig, Selection
from engine.tokenizer import Tokenizer


class ChatSampling:
    """Chooses under one config, and within the grammar once that has begun.

    InvalidArgument for a bad config, RuntimeFailure for a grammar that does not compile.
    """

    def __init__(
        self,
        config: SamplingConfig | None,
        tokenizer: Tokenizer,
        n_vocab: int,
        *,
        n_prompt_tokens: int,
        seed: int | None,
        grammar: GrammarText | None,
    ) -> None:
        self.sampler = Sampler(config, n_vocab, seed)
        self._n_vocab = n_vocab
        self._grammar = Grammar(grammar, tokenizer, n_prompt_tokens) if grammar else None

    @property
    def is_greedy(self) -> bool:
        """Whether it takes the best token of a row, whatever was fed before."""
        return self._grammar is None and self.sampler.is_greedy

    def choose_row(self, row: Drawable, history: Sequence[int]) -> Selection:
        """The next token after `history`, all tokens fed, prompt included."""
        return self.sampler.choose_row(row, history, lambda: self._mask(history))

    def request(self, history: Sequence[int]) -> DrawRequest:
        """What `choose_row` asks of a device."""
        return self.sampler.request(history, lambda: self._mask(history))

    def _mask(self, history: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """What the grammar allows, bool [V]; None for everything."""
        allowed = self._grammar.mask(history) if self._grammar is not None else None
        if allowed is None:
            return None
        # Ids that the tokenizer does not have are never allowed.
        mask = np.zeros(self._n_vocab, bool)
        mask[: len(allowed)] = allowed[: self._n_vocab]
        return mask
