"""Owns the table of cases: what is timed, at which shapes of Qwen3.8-27B, and the bars.

Ops are named, not imported: one that is not there yet is left out. Shares are of pure reads of
16 GiB, or of torch's bf16 product of 8192^3, both measured in the same run. Long because it is a
table.
"""

from collections.abc import Iterator

import numpy as np

from engine.bench_ops.case import Bar, Case, Terms
from ptx.bench import Maker
from ptx.op import Dims

D_MODEL, D_FF, N_VOCAB, GROUP = 5120, 17408, 248320, 128
FEW = (1, 2, 4, 8, 16)
PREFILL = 2048
# Bytes of a weight's cell; tiles of 8 rows by 128 hold their scales.
CELL_BYTES = {"int4_tiles": 528 / 1024, "int8_tiles": 1040 / 1024, "bf16": 2, "e4m3": 1}
TILE_BYTES = {"int4_tiles": 528, "int8_tiles": 1040}
FAMILY = {"int4_tiles": "int4", "int8_tiles": "int8", "bf16": "bf16", "e4m3": "fp8"}

# Name, epilogue, rows and length of the weight, widths of the outputs, and the share of the read
# ceiling that the int4 form is to reach for one token. An x that is normed on the way is f32.
SWIGLU, ADD, NONE = "_swiglu", "_add", ""
LINEARS: tuple[tuple[str, str, int, int, Dims, float], ...] = (
    ("gate/up", SWIGLU, 2 * D_FF, D_MODEL, {"F": D_FF}, 0.80),
    ("down", ADD, D_MODEL, D_FF, {}, 0.72),
    ("gdn in", "_split2", 16384, D_MODEL, {"A": 10240, "B": 6144}, 0.76),
    ("attention in", "_split3", 14336, D_MODEL, {"A": 12288, "B": 1024, "C": 1024}, 0.0),
    ("out", ADD, D_MODEL, 6144, {}, 0.60),
    ("head", NONE, N_VOCAB, D_MODEL, {}, 0.0),
)
# How much longer than for one token a launch may take for several.
TIMES = {8: 1.10, 16: 1.35}


def linear_name(weight: str, epilogue: str) -> str:
    """The op that reads tiles or bf16 rows for few tokens: what adds takes bf16, others norm."""
    return f"{'linear_xbf16' if epilogue == ADD else 'norm_linear'}_{weight}{epilogue}"


def linear_dims(weight: str, n_rows: int, n_k: int, widths: Dims, n_tokens: int) -> Dims:
    """All axes that a linear's contract may name."""
    tiles = {"R": n_k // GROUP, "I": n_rows // 8, "Q": TILE_BYTES.get(weight, 0)}
    return {"T": n_tokens, "N": n_rows, "K": n_k, "2F": n_rows, **tiles, **widths}


def linear_bytes(weight: str, epilogue: str, normed: bool) -> Terms:
    """The weight, x (f32 with its gain where it is normed), and y (bf16 after swiglu; what is added
    to is read and written)."""
    x: Terms = {"T K": 4, "K": 4} if normed else {"T K": 2}
    y: Terms = {"T F": 2} if epilogue == SWIGLU else {"T N": 8 if epilogue == ADD else 4}
    return {"N K": CELL_BYTES[weight], **x, **y}


def _few(weight: str) -> Iterator[Case]:
    """Every linear of the model for 1 to 16 tokens."""
    for name, epilogue, n_rows, n_k, widths, share in LINEARS:
        first = f"{FAMILY[weight]} {name} T=1"
        for n_tokens in FEW:
            bar = Bar("times", TIMES[n_tokens], first) if n_tokens in TIMES else None
            if n_tokens == 1 and share and weight == "int4_tiles":
                bar = Bar("share", share)
            yield Case(
                f"{FAMILY[weight]} {name} T={n_tokens}", FAMILY[weight],
                linear_name(weight, epilogue),
                linear_dims(weight, n_rows, n_k, widths, n_tokens), "bytes",
                linear_bytes(weight, epilogue, epilogue != ADD), {"T N K": 2}, bar,
                peer={"int4_tiles": "int4", "bf16": "matmul"}.get(weight, ""),
                quick=weight == "int4_tiles" and n_tokens in (1, 8),
            )


def _bf16() -> Iterator[Case]:
    """Plain bf16 linears: one row for a few tokens against memory, prefill against cuBLAS; and the
    gates' matrix, which is short in every recipe."""
    for n_tokens in FEW:
        first = "bf16 17408x5120 T=1"
        bar = Bar("times", TIMES[n_tokens], first) if n_tokens in TIMES else None
        yield Case(
            f"bf16 17408x5120 T={n_tokens}", "bf16", "linear_xbf16_bf16",
            linear_dims("bf16", D_FF, D_MODEL, {}, n_tokens), "bytes",
            linear_bytes("bf16", NONE, False), {"T N K": 2},
            Bar("share", 0.75) if n_tokens == 1 else bar, "matmul", quick=n_tokens in (1, 8),
        )
        # 1 MB: all of it is latency.
        yield Case(
            f"bf16 gates in T={n_tokens}", "bf16", linear_name("bf16", "_split2"),
            linear_dims("bf16", 96, D_MODEL, {"A": 48, "B": 48}, n_tokens), "bytes",
            linear_bytes("bf16", "_split2", True), {"T N K": 2}, peer="matmul",
            quick=n_tokens in (1, 8),
        )
    for name, epilogue, n_rows, n_k, widths in (
        ("gate/up", SWIGLU, 2 * D_FF, D_MODEL, {"F": D_FF}),
        ("down", ADD, D_MODEL, D_FF, {}),
        ("out", ADD, D_MODEL, 6144, {}),
        ("gdn in", NONE, 16384, D_MODEL, {}),
        ("attention in", NONE, 14336, D_MODEL, {}),
    ):
        yield Case(
            f"bf16 prefill {name}", "bf16", f"linear_xbf16_bf16{epilogue}",
            linear_dims("bf16", n_rows, n_k, widths, PREFILL), "flops",
            linear_bytes("bf16", epilogue, False), {"T N K": 2}, Bar("peer", 0.65), "matmul",
            quick=name in ("gate/up", "down"),
        )


HEADS: Dims = {"H": 24, "G": 4, "E": 256, "B": 16, "S": 1, "S+1": 2}


def _constant(value: int) -> Maker:
    return lambda shape, dims: value


def _pages(shape: tuple[int, ...], dims: Dims) -> np.ndarray:
    """Every page once, in an order of no pattern: a pool's pages are not neighbours."""
    return np.random.default_rng(0).permutation(dims["P"])[: shape[0] * shape[1]].reshape(shape)


def _attention() -> Iterator[Case]:
    for gated in ("", "_gated"):
        # q in, y out, the gate; how the cases are called.
        q_bytes, name = (10, "gated attention") if gated else (6, "attention")
        for n_cells in (8192, 32768, 131072):
            n_pages = n_cells // 16
            yield Case(
                f"{name} decode {n_cells}", "attention", f"paged_attention{gated}",
                {**HEADS, "T": 1, "W": n_pages, "P": n_pages}, "bytes",
                {"W B G E": 4, "T H E": q_bytes}, {"T H E W B": 4},
                Bar("share", 0.65) if n_cells == 32768 else None, "attention",
                {"pages": _pages, "positions": _constant(n_cells - 1)},
                quick=n_cells == 32768,
            )
        for first in (0, 30720):
            n_pages = (first + PREFILL) // 16
            # A row at position p sees p + 1 cells; W B is where the last row's end.
            yield Case(
                f"{name} prefill at {first}", "attention", f"causal_attention{gated}",
                {**HEADS, "T": PREFILL, "W": n_pages, "P": n_pages}, "flops",
                {"W B G E": 4, "T H E": q_bytes},
                {"T H E W B": 4, "T T H E": -2, "T H E": 2},
                Bar("peer", 0.5), "attention",
                {"pages": _pages, "first": _constant(first)}, quick=first == 0,
            )


# Value heads, key heads, both widths, channels of q, k and v, taps of the convolution.
DELTA: Dims = {"Nv": 48, "Nk": 16, "Dv": 128, "Dk": 128, "C": 10240, "W": 4, "W-1": 3}


def _recurrent() -> Iterator[Case]:
    # One sequence of T rows, or T sequences of one. The states are read and written.
    for n_tokens, n_sequences in ((1, 1), (4, 1), (8, 8), (16, 16)):
        yield Case(
            f"gdn step T={n_tokens} S={n_sequences}", "recurrent", "gated_delta_step",
            {**DELTA, "T": n_tokens, "S": n_sequences, "S+1": n_sequences + 1,
             "P": n_sequences}, "bytes",
            {"S Nv Dv Dk": 8, "S W-1 C": 8, "C W": 4, "T C": 4, "T Nv Dv": 6, "T Nv": 8,
             "Nv": 8, "Dv": 4},
            {"T Nv Dv Dk": 7, "T C W": 2},
            Bar("us", 6) if n_tokens == 1 else None, quick=n_tokens == 1,
        )
    # In chunks of 64: the products of pairs of rows, the triangular system, the state's products.
    yield Case(
        "delta_rule_chunked 2048", "recurrent", "delta_rule_chunked",
        {**DELTA, "T": PREFILL, "S": 1, "S+1": 2, "P": 1}, "flops",
        {"S Nv Dv Dk": 8, "T C": 4, "T Nv": 8, "T Nv Dv": 4},
        {"T Nv Dk": 64 * 5, "T Nv Dv": 64 * 3, "T Nv Dv Dk": 6}, Bar("us", 800),
    )
    for n_tokens in (1, PREFILL):
        sequences = {"T": n_tokens, "S": 1, "S+1": 2, "P": 1}
        yield Case(
            f"conv T={n_tokens}", "recurrent", "causal_conv_silu", {**DELTA, **sequences},
            "bytes", {"T C": 8, "C W": 4, "W-1 C": 8}, {"T C W": 2}, quick=False,
        )
        for name, op, each in (
            ("gated norm", "gated_rmsnorm", 12), ("gated norm bf16", "gated_rmsnorm_bf16", 10),
        ):
            yield Case(
                f"{name} T={n_tokens}", "recurrent", op, {**DELTA, **sequences},
                "bytes", {"T Nv Dv": each, "Dv": 4}, {"T Nv Dv": 8}, quick=False,
            )


def _small() -> Iterator[Case]:
    norms = {"rmsnorm": 8, "rmsnorm_bf16": 6, "add_rmsnorm": 16, "add_rmsnorm_bf16": 14}
    for n_tokens in (1, PREFILL):
        for name, each in norms.items():
            yield Case(
                f"{name} T={n_tokens}", "small", name, {"T": n_tokens, "D": D_MODEL}, "bytes",
                {"T D": each, "D": 4}, {"T D": 4}, quick=False,
            )
        n_pages = max(1, n_tokens // 16)
        yield Case(
            f"rope and pages T={n_tokens}", "small", "qgate_norm_rope_append_pages",
            {**HEADS, "T": n_tokens, "2E": 512, "P": n_pages}, "bytes",
            {"T H E": 16, "T G E": 12, "E": 8}, {"T H E": 10, "T G E": 10}, quick=False,
        )
    for n_tokens in (1, 8):
        dims = {"T": n_tokens, "V": N_VOCAB}
        for name, each in (
            ("argmax", 4), ("argmax_wide", 4), ("token_signal", 4), ("token_signal_wide", 4),
            ("top_k", 4), ("sample", 8), ("sample_wide", 8),
        ):
            yield Case(
                f"{name} T={n_tokens}", "small", name, dims, "bytes", {"T V": each}, {"T V": 1},
                quick=n_tokens == 1,
            )


def _formats() -> Iterator[Case]:
    """Encoding and decoding of one weight, and the products of fp8."""
    dims = {"N": D_FF, "T": D_FF, "K": D_MODEL, "J": D_MODEL // 2, "R": D_MODEL // GROUP}
    scales = 2 / GROUP
    for name, each in (
        ("encode_int4_group128", 4 + 0.5 + scales), ("encode_int8_group", 4 + 1 + scales),
        ("encode_bf16", 6), ("encode_e4m3_rows", 5), ("dequantise_int4_group128", 2.5 + scales),
    ):
        yield Case(
            name, "formats", name, dims, "bytes", {"N K": each}, {"N K": 2}, quick=False,
        )
    for n_tokens in (1, 8, PREFILL):
        few = n_tokens < PREFILL
        yield Case(
            f"fp8 17408x5120 T={n_tokens}", "fp8", "linear_e4m3",
            {"T": n_tokens, "N": D_FF, "K": D_MODEL}, "bytes" if few else "flops",
            {"N K": 1, "T K": 1, "N": 4, "T": 4, "T N": 4}, {"T N K": 2},
            peer="fp8", quick=n_tokens == 1,
        )


CASES: tuple[Case, ...] = (
    *_few("int4_tiles"), *_few("int8_tiles"), *_few("bf16"), *_bf16(), *_attention(),
    *_recurrent(), *_small(), *_formats(),
)
