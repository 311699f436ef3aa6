"""Owns what the tests of ops with carried state share: cases, a plain loop, runs in pieces.

It must not know how an op computes. `plain_delta_rule` is written from the formula with Python
loops over heads, apart from any `ref.py`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ptx.numerics import Array
from ptx.op import Op

# Around every power of two that a kernel may take as its chunk.
BORDER_LENGTHS = [1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129]
N_DECODE_STEPS = 3
N_SLOTS = 5


class Bench(Protocol):
    """The part of the fixture `bench` that is used here."""

    def run(self, op: Op, n_guard: int = 1, **args: Any) -> dict[str, Array]:
        """Launch `op` and return what it wrote."""


@dataclass(frozen=True)
class Carried:
    """An op that carries state, with one sequence's arguments.

    `rows` have T outermost, `fixed` are the same for all tokens, `start` is one slot's content,
    `y` names the output that is not the state.
    """

    op: Op
    rows: dict[str, Array]
    fixed: dict[str, Any]
    start: Array
    y: str

    @property
    def n_tokens(self) -> int:
        """Rows of the sequence."""
        return len(next(iter(self.rows.values())))

    def head(self, n_tokens: int) -> "Carried":
        """The same sequence, cut after its first tokens."""
        rows = {name: array[:n_tokens] for name, array in self.rows.items()}
        return Carried(self.op, rows, self.fixed, self.start, self.y)


def run_pieces(bench: Bench, case: Carried, lengths: Sequence[int]) -> tuple[Array, Array]:
    """y of all rows and the end state, run as calls of the given lengths.

    The state sits in another slot at each call, and stays in place at every third.
    """
    rng = np.random.default_rng(sum(lengths))
    state = rng.standard_normal((N_SLOTS, *case.start.shape)).astype(np.float32)
    slot = int(rng.integers(N_SLOTS))
    state[slot] = case.start
    done, parts = 0, []
    for call, length in enumerate(lengths):
        target = slot if call % 3 == 2 else int(rng.integers(N_SLOTS))
        rows = {name: array[done : done + length] for name, array in case.rows.items()}
        before = state
        got = bench.run(
            case.op, n_guard=1 + call % 4, **rows, **case.fixed, state=state,
            starts=[0, length], state_in=[slot], state_out=[target],
        )
        state = got["state"]
        others = np.arange(N_SLOTS) != target
        assert state[others].tobytes() == before[others].tobytes(), "another slot was written"
        parts.append(got[case.y])
        slot, done = target, done + length
    return np.concatenate(parts), state[slot]


def run_batch(bench: Bench, cases: Sequence[Carried], seed: int) -> list[tuple[Array, Array]]:
    """y and the end state of each sequence, all run in one call, in a random order of slots."""
    rng = np.random.default_rng(seed)
    n_slots = 2 * len(cases) + 1
    slots = rng.permutation(n_slots)
    state_in, state_out = slots[: len(cases)], slots[: len(cases)].copy()
    moved = rng.random(len(cases)) < 0.5
    state_out[moved] = slots[len(cases) : 2 * len(cases)][moved]
    state = np.full((n_slots, *cases[0].start.shape), np.nan, np.float32)
    for slot, case in zip(state_in, cases, strict=True):
        state[slot] = case.start
    rows = {
        name: np.concatenate([case.rows[name] for case in cases]) for name in cases[0].rows
    }
    starts = np.cumsum([0, *[case.n_tokens for case in cases]])
    got = bench.run(
        cases[0].op, n_guard=int(rng.integers(1, 6)), **rows, **cases[0].fixed, state=state,
        starts=starts, state_in=state_in, state_out=state_out,
    )
    others = np.setdiff1d(np.arange(n_slots), state_out)
    assert got["state"][others].tobytes() == state[others].tobytes(), "another slot was written"
    return [
        (got[cases[0].y][starts[i] : starts[i + 1]], got["state"][slot])
        for i, slot in enumerate(state_out)
    ]


def cuts(length: int) -> Iterator[list[int]]:
    """Lengths of pieces: one call, all ones, every split into two; decode steps behind each."""
    steps = [1] * N_DECODE_STEPS
    yield [length, *steps]
    yield [1] * length + steps
    for first in range(1, length):
        yield [first, length - first, *steps]


def delta_inputs(
    n_tokens: int, n_key_heads: int, n_value_heads: int, d_key: int, d_value: int, seed: int = 0
) -> tuple[dict[str, Array], Array]:
    """Rows qkv, g, beta as a layer makes them, fast and slow decays both, and a state in use."""
    rng = np.random.default_rng([seed, n_tokens])
    x = rng.standard_normal((n_tokens, 2 * n_key_heads * d_key + n_value_heads * d_value))
    # Some rows are so small that the constant under the root of the l2 norm matters.
    x *= 10.0 ** rng.choice([-3, -1, 0, 0, 0, 1], (n_tokens, 1))
    rate = np.exp(rng.uniform(-4, 2, n_value_heads))
    softplus = np.log1p(np.exp(rng.standard_normal((n_tokens, n_value_heads)) + 0.5))
    beta = 1 / (1 + np.exp(-2 * rng.standard_normal((n_tokens, n_value_heads))))
    state = rng.standard_normal((n_value_heads, d_value, d_key)) / math.sqrt(d_key)
    return {"qkv": x / (1 + np.exp(-x)), "g": -rate * softplus, "beta": beta}, state


def plain_delta_rule(
    qkv: Array, g: Array, beta: Array, start: Array, n_key_heads: int
) -> tuple[Array, Array]:
    """o [T, Nv, Dv] and the end state of one sequence in float64, one head and token at a time."""
    n_value_heads, d_value, d_key = start.shape
    d_block = n_key_heads * d_key
    state = np.array(start, np.float64)
    o = np.empty((len(qkv), n_value_heads, d_value))
    for t, row in enumerate(np.asarray(qkv, np.float64)):
        for head in range(n_value_heads):
            at = head // (n_value_heads // n_key_heads) * d_key
            q, k = row[at : at + d_key], row[d_block + at : d_block + at + d_key]
            v = row[2 * d_block + head * d_value :][:d_value]
            q = q / math.sqrt(float(q @ q) + 1e-6) / math.sqrt(d_key)
            k = k / math.sqrt(float(k @ k) + 1e-6)
            s = state[head] * math.exp(float(g[t, head]))
            s = s + np.outer(float(beta[t, head]) * (v - s @ k), k)
            state[head], o[t, head] = s, s @ q
    return o, state
