"""sample: ids[t] = a token drawn from softmax(z[t] / temperature[t]) by one random word

Tokens rank by z, the highest first, and equal ones by id, the lowest first; -0 equals 0, and a
token at -inf is banned. With m the highest z, those that are left become fewer in this order:
1. top-k  where top_k > 0: the first top_k
2. top-p  where 0 < top_p < 1: the fewest first ones whose weights w(z - m) sum to need or more;
          need = ceil(top_p float64(sum)), at most sum, the sum of the weights of all that 1 left
3. min-p  where z >= m + min(log_min_p, 0); log_min_p is the natural log of min-p, -inf is off
4. draw   with weights w((z - m) / temperature) and total, their sum over the n_left[t] tokens
          left: the first one in increasing id whose running sum is above floor(word total / 2^64);
          word is the splitmix64 word (ptx/splitmix64.py) of the u64 bits of seed and draw
Unless temperature > 0 the best token alone is left: as top-k 1 at temperature 1. weights[t] = the
chosen token's weight, total. A row with a NaN or +inf has ids -1, else one without a token above
-inf has ids -2; weights and n_left are 0 then.
w(x) = rint(2^44 e^x), integers, for their sums know no order: 2^44 for the best token. They come
from x = max(x, -32); n = rint(x PER_LN2); r = (x - n LN2_HIGH) - n LN2_LOW; p = 1/13!;
p = p r + 1/k! for k = 12 .. 0; w = rint(p 2^(44 + n)).

shapes    z f64 [T, V]; temperature, top_p, log_min_p f64 [T]; top_k i32 [T]; seed, draw i64 [T];
          ids, n_left i32 [T]; weights i64 [T, 2]
domain    any numbers, NaN and infinities included: a NaN temperature is not > 0, a NaN top_p is
          off, a NaN log_min_p is 0; T >= 1; 1 <= V < 2^19, for sums below 2^63
effects   writes all of ids, weights and n_left; no overlap
rounding  float64, each operation rounded by itself, ties to even, rint likewise; integers are exact
"""

from collections.abc import Mapping

from ptx.op import Constant, Kernel, Launch, Op, Param, buf

# ln 2 in two parts; the first has 33 bits, so that its product with n is exact.
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
PER_LN2 = float.fromhex("0x1.71547652b82fep+0")
WEIGHT_BITS = 44
LEAST_EXPONENT = -32.0
MAX_VOCAB = (1 << 63 - WEIGHT_BITS) - 1
WEIGHT_CONSTANTS: Mapping[str, Constant] = {
    "ln2_high": LN2_HIGH,
    "ln2_low": LN2_LOW,
    "per_ln2": PER_LN2,
    "weight_bits": WEIGHT_BITS,
    "least_exponent": LEAST_EXPONENT,
}

OP = Op(
    name="sample",
    params=(
        buf("z", "f64", "T V"),
        buf("temperature", "f64", "T"),
        buf("top_k", "i32", "T"),
        buf("top_p", "f64", "T"),
        buf("log_min_p", "f64", "T"),
        buf("seed", "i64", "T"),
        buf("draw", "i64", "T"),
        buf("ids", "i32", "T", out=True),
        buf("weights", "i64", "T 2", out=True),
        buf("n_left", "i32", "T", out=True),
        Param("V", "u32"),
    ),
    tolerance="exact",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["T"], block=256),
            constants=lambda dims: {**WEIGHT_CONSTANTS, "entry": "sample", "wide": False},
        ),
    ),
    requires={
        "V < 2^19": lambda dims: dims["V"] <= MAX_VOCAB,
        "a weight and a total for a row": lambda dims: dims["2"] == 2,
    },
    examples=({"T": 1, "V": 248320, "2": 2},),
)
