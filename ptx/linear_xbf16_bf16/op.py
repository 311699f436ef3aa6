"""linear_xbf16_bf16: y[t,n] = sum_k x[t,k] w[n,k]

shapes    x bf16 [T, K]; w bf16 [N, K]; y f32 [T, N]
domain    K and N multiples of 8; T >= 1; x, w and y start at multiples of 16 bytes
effects   writes all of y; y overlaps neither x nor w
rounding  products exact, float32 sums; their order is free, and depends on T at most by whether
          a kernel of few tokens serves it: up to 16 tokens have the same bits for every T
"""

from ptx.bf16_few_kernel import few_kernels
from ptx.gemm_kernel import kernels, params, requires
from ptx.op import Op

OP = Op(
    name="linear_xbf16_bf16",
    params=params("none"),
    tolerance="f32_reduction",
    kernels=(*few_kernels("linear_xbf16_bf16", "none"), *kernels("linear_xbf16_bf16", "none")),
    requires=requires("none"),
    examples=(
        {"T": 2048, "N": 34816, "K": 5120}, {"T": 2048, "N": 16384, "K": 5120},
        {"T": 2048, "N": 5120, "K": 17408}, {"T": 512, "N": 16384, "K": 5120},
        {"T": 64, "N": 5120, "K": 6144},
        {"T": 1, "N": 16384, "K": 5120}, {"T": 16, "N": 5120, "K": 6144},
    ),
)
