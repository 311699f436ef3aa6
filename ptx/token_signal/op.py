"""token_signal: ids[t] = the best token a and the second b; values[t] = how sure the row is of a

values[t] = H, -ln S, -M - ln S, M with l = logits[t], d[v] = l[v] - l[a], S = sum_v exp(d[v]):
softmax entropy H = ln S - sum_v d[v] exp(d[v]) / S, the log-probabilities of a and of b, and
their margin M = l[a] - l[b], all in nats. Among equal logits the lower id comes first. A cell of
-infinity weighs nothing. A row with a NaN, or whose largest logit is not finite, gives ids -1, -1
and four zeros.

shapes    logits f32 [T, V]; ids i32 [T, 2]; values f32 [T, 4]
domain    any float32, infinities and NaN included; V >= 2; T >= 1
effects   writes all of ids and values; no overlap
rounding  differences and exponentials in float32; their sums in an order that depends on V alone,
          and what follows, in float64, rounded to float32 once. For V <= 2^20, H and ln S are
          within 5e-6 nats of the exact ones of these logits, and within 1e-5 of themselves plus
          1e-35; -M - ln S is within 5e-6 nats and 2^-24 of itself, M within 2^-24 of itself.
          An M past float32 is infinite, and -M - ln S with it, as where l[b] is -infinity
"""

from ptx.op import Kernel, Launch, Op, Param, buf

OP = Op(
    name="token_signal",
    params=(
        buf("logits", "f32", "T V"),
        buf("ids", "i32", "T 2", out=True),
        buf("values", "f32", "T 4", out=True),
        Param("V", "u32"),
    ),
    # With float64 sums an entropy of 12 is still a handful of roundings. It is also narrow enough
    # for ids: 5e-7 of an id below 2^20 is less than 1.
    tolerance="f32_elementwise",
    kernels=(
        Kernel(
            "portable",
            lambda dims: Launch(grid=dims["T"], block=256),
            constants=lambda dims: {"entry": "token_signal", "wide": False},
        ),
    ),
    requires={
        "two tokens to compare": lambda dims: dims["V"] >= 2,
        "2 ids and 4 values for a row": lambda dims: dims["2"] == 2 and dims["4"] == 4,
    },
    examples=({"T": 1, "V": 248320, "2": 2, "4": 4},),
)
