"""Owns what the tests of causal attention share: sequences in pages, NaN where nobody may look.

It must not know how an op computes.
"""

from typing import Any

import numpy as np

from ptx.numerics import Array, round_to_bf16, widen_bf16

NOT_READ = -(2**31)
NAN = 0x7FFF


def case(
    sequences: tuple[tuple[int, int], ...], n_heads: int, n_kv_heads: int, d_head: int,
    d_page: int = 16, seed: int = 0,
) -> dict[str, Any]:
    """Arguments for sequences of (position of the first row, rows), pages in any order.

    Pages that no sequence has, and cells past its last position, are NaN.
    """
    rng = np.random.default_rng([seed, d_head])
    lengths = [first + n_rows for first, n_rows in sequences]
    n_pages = sum(-(-n // d_page) for n in lengths) + 2
    free = iter(rng.permutation(n_pages).tolist())
    table = np.full((len(lengths), max(-(-n // d_page) for n in lengths) + 1), NOT_READ)
    held = {name: np.full((n_pages, n_kv_heads, d_page, d_head), NAN, np.uint16)
            for name in ("k_pages", "v_pages")}
    for seq, length in enumerate(lengths):
        for at in range(0, length, d_page):
            page = table[seq, at // d_page] = next(free)
            n = min(d_page, length - at)
            for pages in held.values():
                pages[page, :, :n] = _random(rng, (n_kv_heads, n, d_head))
    n_tokens = sum(n_rows for _, n_rows in sequences)
    return {
        "q": 1.5 * rng.standard_normal((n_tokens, n_heads, d_head)),
        **held,
        "pages": table,
        "starts": np.cumsum([0, *(n_rows for _, n_rows in sequences)]),
        "first": np.array([first for first, _ in sequences]),
    }


def cut(args: dict[str, Any], seq: int, begin: int, end: int) -> dict[str, Any]:
    """A call with rows `begin` .. `end`-1 of one sequence alone, whose other pages are moved."""
    rows = slice(int(args["starts"][seq]) + begin, int(args["starts"][seq]) + end)
    order = np.random.default_rng(end).permutation(len(args["k_pages"]))
    d_page = args["k_pages"].shape[2]
    n_pages = -(-(int(args["first"][seq]) + end) // d_page)
    table = np.full((1, n_pages), NOT_READ)
    table[0] = np.argsort(order)[args["pages"][seq, :n_pages]]
    return {
        **{name: args[name][rows] for name in ("q", "gate") if name in args},
        "k_pages": args["k_pages"][order],
        "v_pages": args["v_pages"][order],
        "pages": table,
        "starts": np.array([0, end - begin]),
        "first": np.array([int(args["first"][seq]) + begin]),
    }


def plain(args: dict[str, Any]) -> Array:
    """The attention in float64 by loops over rows, heads and cells: [T, H, E]."""
    q = np.asarray(args["q"], np.float64)
    _, n_heads, d_head = q.shape
    k, v = (widen_bf16(args[name]).astype(np.float64) for name in ("k_pages", "v_pages"))
    n_kv_heads, d_page = k.shape[1:3]
    y = np.empty_like(q)
    for seq, first in enumerate(args["first"].tolist()):
        for i, row in enumerate(range(args["starts"][seq], args["starts"][seq + 1])):
            places = [(args["pages"][seq, u // d_page], u % d_page) for u in range(first + i + 1)]
            for head in range(n_heads):
                g = head * n_kv_heads // n_heads
                scores = np.array([q[row, head] @ k[page, g, at] for page, at in places])
                weights = np.exp((scores - scores.max()) / np.sqrt(d_head))
                weights /= weights.sum()
                y[row, head] = sum(
                    w * v[page, g, at] for w, (page, at) in zip(weights, places, strict=True)
                )
    return y


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return round_to_bf16(rng.standard_normal(shape))
