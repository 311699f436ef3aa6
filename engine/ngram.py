"""Owns drafting from repetition: which token most often followed the last few, in this history.

The history itself is the table. A draft finds the places where the last token occurred, narrows
them to longer matches, and counts what came next, so appending is a copy and memory is four bytes
for a token. Token ids are any int32: no vocabulary is known here.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidArgument

MAX_NGRAM = 4
# By n-gram length: how often it must have been seen, and which percentage of those sightings its
# most frequent follower must hold.
_THRESHOLDS = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}

Tokens = Sequence[int] | npt.NDArray[np.integer]
Int32 = npt.NDArray[np.int32]


class NgramCache:
    """The tokens of one request, and drafts from them; not safe for two threads at once."""

    def __init__(self, ngram_min: int, ngram_max: int) -> None:
        """InvalidArgument unless 1 <= ngram_min <= ngram_max <= 4."""
        if not 1 <= ngram_min <= ngram_max <= MAX_NGRAM:
            raise InvalidArgument(
                f"n-gram cache: lengths {ngram_min} to {ngram_max}, "
                f"needs 1 <= min <= max <= {MAX_NGRAM}"
            )
        self._ngram_min = ngram_min
        self._ngram_max = ngram_max
        self._room: Int32 = np.empty(256, dtype=np.int32)
        self._n_tokens = 0

    def __len__(self) -> int:
        """Tokens in the history."""
        return self._n_tokens

    def reset(self, tokens: Tokens) -> None:
        """Replace the history by `tokens`, oldest first; none clears it."""
        fresh = _as_int32(tokens, "reset")
        self._room = np.empty(max(256, fresh.shape[0]), dtype=np.int32)
        self._n_tokens = 0
        self._extend(fresh)

    def append(self, tokens: Tokens) -> None:
        """Add `tokens`, oldest first, to the history."""
        self._extend(_as_int32(tokens, "append"))

    def draft(self, continuation_prefix: Tokens, max_draft_tokens: int) -> list[int]:
        """Up to `max_draft_tokens` tokens likely to follow history + `continuation_prefix`.

        Each step tries the longest n-gram first and takes the most frequent follower that the
        history holds, the lowest id among equals; the draft ends at the first step without one.
        Nothing drafted or continued is counted.
        """
        history = self._room[: self._n_tokens]
        if history.shape[0] == 0:
            return []
        prefix = _as_int32(continuation_prefix, "continuation prefix")
        recent = [*history[-MAX_NGRAM:].tolist(), *prefix[-MAX_NGRAM:].tolist()]
        drafted: list[int] = []
        while len(drafted) < max_draft_tokens:
            token = self._next(history, recent[-self._ngram_max :])
            if token is None:
                break
            drafted.append(token)
            recent.append(token)
        return drafted

    def _next(self, history: Int32, recent: list[int]) -> int | None:
        """The follower of the longest n-gram of `recent` that passes its threshold."""
        matches: list[npt.NDArray[np.int64]] = []
        # ends[i] is where a match of the tokens looked at so far ends; the last token of the
        # history has no follower yet and is no sighting.
        ends = np.flatnonzero(history[:-1] == recent[-1])
        for back in range(1, len(recent) + 1):
            if back > 1:
                ends = ends[ends >= back - 1]
                ends = ends[history[ends - (back - 1)] == recent[-back]]
            if ends.shape[0] == 0:
                break
            matches.append(ends)
        for length in range(len(matches), self._ngram_min - 1, -1):
            token = _favourite(history[matches[length - 1] + 1], *_THRESHOLDS[length])
            if token is not None:
                return token
        return None

    def _extend(self, fresh: Int32) -> None:
        n_after = self._n_tokens + fresh.shape[0]
        if n_after > self._room.shape[0]:
            # Doubling keeps a long run of single appends linear.
            grown = np.empty(max(n_after, 2 * self._room.shape[0]), dtype=np.int32)
            grown[: self._n_tokens] = self._room[: self._n_tokens]
            self._room = grown
        self._room[self._n_tokens : n_after] = fresh
        self._n_tokens = n_after


def _favourite(followers: Int32, n_least: int, percent: int) -> int | None:
    """The most frequent of `followers`, lowest id on a tie, if seen often enough."""
    n_seen = followers.shape[0]
    if n_seen < n_least:
        return None
    tokens, counts = np.unique(followers, return_counts=True)
    best = int(counts.argmax())
    return int(tokens[best]) if 100 * int(counts[best]) >= percent * n_seen else None


def _as_int32(tokens: Tokens, what: str) -> Int32:
    values = np.asarray(tokens)
    if values.size == 0:
        return np.empty(0, dtype=np.int32)
    info = np.iinfo(np.int32)
    low, high = values.min(), values.max()
    if values.ndim != 1 or low < info.min or high > info.max:
        raise InvalidArgument(f"n-gram cache: {what} holds ids {low} to {high}, needs int32")
    return values.astype(np.int32)
