"""Owns constrained choice: which tokens a tool-call grammar allows after what was fed so far.

The matching is `llguidance`'s; the grammar text is the Lark dialect that `engine/chat/grammar.py`
writes. A lazy grammar waits for a trigger word in the generated text and then matches from that
word on. It sees generated tokens only: those behind the prompt. A matcher that fails after it was
compiled is dropped, and the choice is free again, as the serving ABI asks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import llguidance
import llguidance.numpy
import numpy as np
import numpy.typing as npt

from engine.errors import RuntimeFailure
from engine.tokenizer import Tokenizer

WORD_TRIGGER = 1
# A matcher keeps its tokenizer's trie; models are few.
CACHED_TOKENIZERS = 4


@dataclass(frozen=True)
class GrammarText:
    """A grammar as chat metadata carries it: `words` are the triggers of a lazy one."""

    text: str
    is_lazy: bool
    words: tuple[str, ...]

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> "GrammarText | None":
        """The grammar of a metadata object; None for no grammar, or for one that never starts.

        RuntimeFailure for a trigger that is not a word.
        """
        text = metadata.get("grammar") or ""
        is_lazy = metadata.get("grammar_lazy") is True
        triggers = metadata.get("grammar_triggers") or []
        if not text or (is_lazy and not triggers):
            return None
        words = []
        for trigger in triggers if is_lazy else []:
            word = trigger.get("value") if isinstance(trigger, dict) else None
            if not isinstance(word, str) or not word or trigger.get("type") != WORD_TRIGGER:
                raise RuntimeFailure(f"grammar: trigger {trigger!r} is not a word")
            words.append(word)
        return cls(text, is_lazy, tuple(words))


class Grammar:
    """A compiled grammar following one session's history; RuntimeFailure when it cannot compile."""

    def __init__(
        self, grammar: GrammarText, tokenizer: Tokenizer, n_prompt_tokens: int
    ) -> None:
        self._tokenizer = tokenizer
        self._words = [word.encode() for word in grammar.words]
        self._grammar = grammar
        self._n_prompt_tokens = n_prompt_tokens
        self._vocabulary = _vocabulary(tokenizer)
        self._begin()
        if self._matcher.is_error():
            reason = str(self._matcher.get_error()).splitlines()[0]
            raise RuntimeFailure(f"grammar: does not compile: {reason}")

    def _begin(self) -> None:
        self._seen: list[int] = []
        self._started = not self._grammar.is_lazy
        self._waiting = b""
        self._matcher: Any = llguidance.LLMatcher(
            self._vocabulary, self._grammar.text, log_level=0
        )

    def mask(self, history: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """Allowed ids, bool [V], after `history` (all tokens fed, prompt included); None is all."""
        generated = list(history[self._n_prompt_tokens :])
        if generated[: len(self._seen)] != self._seen:
            # A step that failed was seen and never happened.
            self._begin()
        self._feed(generated[len(self._seen) :])
        self._seen = generated
        if not self._started or self._matcher is None or self._matcher.is_stopped():
            return None
        n_vocab = self._tokenizer.n_vocab
        words = llguidance.numpy.allocate_token_bitmask(1, n_vocab)
        llguidance.numpy.fill_next_token_bitmask(self._matcher, words)
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[:n_vocab].astype(bool)
        if self._matcher.is_error():
            self._matcher = None
            return None
        allowed[list(self._tokenizer.eog_ids)] = self._matcher.is_accepting()
        return allowed if allowed.any() else None

    def _feed(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._matcher is None:
                return
            if self._started:
                self._consume([token])
            else:
                self._waiting += self._tokenizer.pieces[token]
                self._start_at_trigger()

    def _start_at_trigger(self) -> None:
        """Begin matching at the first trigger word, whatever tokens spelled it."""
        found = [at for word in self._words if (at := self._waiting.find(word)) >= 0]
        if found:
            self._started = True
            self._consume(self._vocabulary.tokenize_bytes(self._waiting[min(found) :]))
            self._waiting = b""

    def _consume(self, tokens: Iterable[int]) -> None:
        ids = list(tokens)
        if any(token in self._tokenizer.eog_ids for token in ids):
            return
        if not self._matcher.consume_tokens(ids):
            self._matcher = None


class _Wrapped:
    """A vocabulary as llguidance wants it: pieces are plain bytes, so tags can match as text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.eos_id if tokenizer.eos_id is not None else 0
        self.bos_token_id = None
        self.tokens = tokenizer.pieces
        self.special_token_ids = sorted(tokenizer.eog_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        decoded = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(decoded, add_special=False)


@lru_cache(maxsize=CACHED_TOKENIZERS)
def _vocabulary(tokenizer: Tokenizer) -> Any:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Wrapped(tokenizer)))
