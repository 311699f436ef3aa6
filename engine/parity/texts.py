"""Owns the ids that both sides are given: prompts, the comparison's sequence, how it is cut.

All are numbers of a fixed generator, so that a report can be repeated. It must not know models.
"""

import numpy as np

# Tokens of a prompt by turns; every other prompt repeats a short pattern.
LENGTHS = (1, 48, 17, 64, 33, 6, 96, 24)
PATTERN = 5
SEED = 20_260_101
# Of the compared sequence: tokens that come one by one at the end, and in a small pass before.
SINGLES, FEW = 8, 8


def random_ids(n_tokens: int, n_vocab: int, stream: int) -> list[int]:
    """Ids without a pattern; another stream gives others."""
    found = np.random.Generator(np.random.PCG64([SEED, stream])).integers(0, n_vocab, n_tokens)
    return [int(token) for token in found]


def prompts(count: int, n_vocab: int) -> list[list[int]]:
    """Prompts, random and repeating by turns."""
    made = []
    for index in range(count):
        length = LENGTHS[index % len(LENGTHS)]
        ids = random_ids(length if index % 2 == 0 else PATTERN, n_vocab, index)
        made.append((ids * length)[:length])
    return made


def parts_of(n_tokens: int) -> list[int]:
    """Lengths of the parts of the compared sequence: a pass of many rows, one of few, single ones.
    """
    few, singles = min(FEW, n_tokens // 4), min(SINGLES, n_tokens // 4)
    return [n_tokens - few - singles, *([few] if few else []), *[1] * singles]
