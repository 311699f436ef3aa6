"""linear_xbf16_bf16_swiglu: y[t,f] = p[t,f] / (1 + exp(-p[t,f])) * p[t,F+f]

where p[t,n] = sum_k x[t,k] w[n,k]: gate's rows are 0 .. F-1, up's F .. 2F-1.

shapes    x bf16 [T, K]; w bf16 [N, K]; y bf16 [T, F]
domain    N = 2 F; K and F multiples of 8; p finite; T >= 1; x, w and y start at multiples of
          16 bytes
effects   writes all of y; y overlaps neither x nor w
rounding  products exact, float32 sums; their order is free, and depends on T at most by whether
          a kernel of few tokens serves it: up to 16 tokens have the same bits for every T; silu
          and its product in float32, then one rounding to bf16; a result below the smallest
          normal may be zero
"""

from ptx.bf16_few_kernel import few_kernels
from ptx.gemm_kernel import kernels, params, requires
from ptx.op import Op

OP = Op(
    name="linear_xbf16_bf16_swiglu",
    params=params("swiglu"),
    tolerance="bf16_output",
    kernels=(
        *few_kernels("linear_xbf16_bf16_swiglu", "swiglu"),
        *kernels("linear_xbf16_bf16_swiglu", "swiglu"),
    ),
    requires=requires("swiglu"),
    examples=tuple(
        {"T": n_tokens, "N": 34816, "F": 17408, "K": 5120} for n_tokens in (2048, 1, 16)
    ),
)
