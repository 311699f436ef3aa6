"""Protects `dequantise_int4_group128`: every code and fraction, bits, tails, refusals."""

import numpy as np
import pytest

from engine.artifacts.int4_group128 import INT4
from ptx.dequantise_int4_group128.op import OP
from ptx.numerics import round_to_bf16, widen_bf16
from ptx.op import OpError

# N, R: one group, a block of the tuned kernel less one group and more, several blocks.
SHAPES = [(1, 1), (3, 1), (7, 9), (5, 13), (33, 8)]


def _inputs(n_rows, n_groups):
    rng = np.random.default_rng(n_rows + n_groups)
    codes = rng.integers(0, 256, (n_rows, 64 * n_groups), np.uint8)
    scales = round_to_bf16(2.0 ** rng.uniform(-20, 20, (n_rows, n_groups)))
    return {"codes": codes, "scales": scales, "w": np.zeros((n_rows, 128 * n_groups), np.uint16)}


def _want(codes, scales):
    """One number at a time, as the contract reads; float32 holds the product."""
    w = np.zeros((len(codes), 2 * codes.shape[1]), np.float32)
    for row, k in np.ndindex(*w.shape):
        nibble = int(codes[row, k // 2]) >> 4 * (k % 2) & 15
        w[row, k] = (nibble - 16 * (nibble > 7)) * widen_bf16(scales[row, k // 128 :])[0]
    return round_to_bf16(w)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits(bench, kernels, shape):
    args = _inputs(*shape)
    want = _want(args["codes"], args["scales"])
    assert bench.run(OP, **args)["w"].tobytes() == want.tobytes()
    for kernel in kernels(OP):
        assert kernel.run(OP, **args)["w"].tobytes() == want.tobytes()
        kernel.run_bare(OP, **args)


def test_every_code_with_every_fraction_and_the_ends(bench, kernels):
    """Ties between two bf16 are among them; so are scales of which a seventh is subnormal."""
    bits = np.concatenate([np.arange(0x3F80, 0x4000), [1, 2, 0x7F, 0x80, 0x81, 0x7C00]])
    scales = bits.astype(np.uint16)[:, None]
    codes = np.resize(np.arange(256, dtype=np.uint8), (len(scales), 64))
    codes[1::2] += 64
    codes[2::4] += 128
    args = {"codes": codes, "scales": scales, "w": np.zeros((len(scales), 128), np.uint16)}
    want = _want(codes, scales).tobytes()
    for one in (bench, *kernels(OP)):
        assert one.run(OP, **args)["w"].tobytes() == want


def test_reads_the_layout_of_the_artifacts(bench):
    w = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
    codes, scales = INT4.quantise(w)
    got = bench.run(OP, codes=codes, scales=scales, w=np.zeros((8, 256), np.uint16))["w"]
    assert got.tobytes() == round_to_bf16(INT4.dequantise(codes, scales)).tobytes()


def test_refusals(bench):
    args = _inputs(2, 2)
    with pytest.raises(OpError, match="needs K = 2 J"):
        bench.run(OP, **{**args, "codes": args["codes"][:, :64]})
    with pytest.raises(OpError, match="needs K = 128 R"):
        bench.run(OP, **{**args, "scales": args["scales"][:, :1]})
