"""Owns the chain that one chat request configured: a sampler, and a grammar if there is one.

It overrides what later calls pass, until the session forgets it.
"""

from collections.abc import Sequence

import numpy as np

from engine.grammar import Grammar, GrammarText
from engine.sampling import Drawable, Sampler, SamplingConfig, Selection
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
        mask = None
        if self._grammar is not None:
            allowed = self._grammar.mask(history)
            if allowed is not None:
                # Ids that the tokenizer does not have are never allowed.
                mask = np.zeros(self._n_vocab, bool)
                mask[: len(allowed)] = allowed[: self._n_vocab]
        return self.sampler.choose_row(row, history, mask)
