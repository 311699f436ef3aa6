"""Protects the table of the op benchmark: real dims, work counted right, bars that mean something.
"""

from dataclasses import replace
from math import prod

import pytest

from engine.bench_ops import chain
from engine.bench_ops.case import Bar, dims_of, kernels_of, total
from engine.bench_ops.cases import CASES
from engine.bench_ops.judge import judge
from engine.bench_ops.peers import WAYS, Peer
from engine.bench_ops.svg import COLOURS
from ptx.bench import SCALARS, VALUES, bytes_of
from ptx.inventory import ops, targets
from ptx.op import OpError
from tests.cpu.bench_ops_cases import norm_case, spread_of, timed

OPS = ops()
BY_LABEL = {case.label: case for case in CASES}
THERE = [case for case in CASES if case.op in OPS]


def test_labels_bars_and_peers_mean_something():
    assert len(BY_LABEL) == len(CASES)
    for case in CASES:
        assert case.family in COLOURS
        assert not case.peer or case.peer in WAYS
        if case.bar and case.bar.kind == "times":
            first = BY_LABEL[case.bar.of]
            assert (first.op, first.dims["T"]) == (case.op, 1)
        if case.bar and case.bar.kind == "peer":
            assert case.peer


def test_only_the_bars_of_the_plan_are_there():
    shares = {c.label: c.bar.value for c in CASES if c.bar and c.bar.kind == "share"}
    assert shares == {
        "int4 gate/up T=1": 0.80, "int4 down T=1": 0.72, "int4 gdn in T=1": 0.76,
        "int4 out T=1": 0.60, "bf16 17408x5120 T=1": 0.75, "attention decode 32768": 0.65,
        "gated attention decode 32768": 0.65,
    }
    times = {(c.dims["T"], c.bar.value) for c in CASES if c.bar and c.bar.kind == "times"}
    assert times == {(8, 1.10), (16, 1.35)}
    assert {c.label: c.bar.value for c in CASES if c.bar and c.bar.kind == "us"} == {
        "gdn step T=1 S=1": 6, "delta_rule_chunked 2048": 800,
    }


@pytest.mark.parametrize("case", THERE, ids=[case.label for case in THERE])
def test_every_op_that_is_there_takes_its_cases(case):
    op = OPS[case.op]
    dims = dims_of(case, op)
    shapes = {p.name: tuple(dims[axis] for axis in p.shape) for p in op.params if p.shape}
    assert op.bind(shapes) == dims
    for target in targets().values():
        assert kernels_of(op, target.runs, dims)
    for param in op.given(dims):
        assert param.shape or param.name in SCALARS
    assert set(case.values) <= {p.name for p in op.params}


@pytest.mark.parametrize("case", [
    case for case in THERE
    if not any(p.partial for p in OPS[case.op].params) and case.family != "attention"
], ids=lambda case: case.label)
def test_bytes_are_those_of_the_buffers(case):
    op = OPS[case.op]
    dims = dims_of(case, op)
    # The residual stream is read and written.
    again = sum(4 * prod(dims[axis] for axis in p.shape) for p in op.params if p.name == "h")
    # What a launch returns beside a row of logits, and what an encoder says of bad rows, is small.
    assert case.n_bytes == pytest.approx(bytes_of(op, dims) + again, 2e-3)


# By hand, from the formats: int4 is 4.125 bits a weight, int8 8.125.
@pytest.mark.parametrize(("label", "n_bytes", "n_flops"), [
    ("int4 gate/up T=1", 34816 * 40 * 66 + 5120 * 8 + 17408 * 2, 2 * 34816 * 5120),
    ("int4 down T=8", 5120 * 136 * 66 + 8 * (17408 * 2 + 5120 * 8), 16 * 5120 * 17408),
    ("int8 head T=1", 248320 * 40 * 130 + 5120 * 8 + 248320 * 4, 2 * 248320 * 5120),
    ("bf16 17408x5120 T=1", 17408 * 5120 * 2 + 5120 * 2 + 17408 * 4, 2 * 17408 * 5120),
    ("bf16 prefill gate/up", 34816 * 5120 * 2 + 2048 * 2 * (5120 + 17408), 730_144_440_320),
    ("attention decode 32768", 134_217_728 + 24 * 256 * 6, 4 * 24 * 256 * 32768),
    # 2048 rows see 1 .. 2048 cells each.
    ("attention prefill at 0", 8_388_608 + 2048 * 6144 * 6, 4 * 6144 * (2048 * 2049 // 2)),
    ("gated attention prefill at 30720", 134_217_728 + 2048 * 6144 * 10,
     4 * 6144 * (2048 * 30720 + 2048 * 2049 // 2)),
    # 48 states of 128 by 128 and 3 columns of 10,240, both ways; u, z, y, a, b and the constants.
    ("gdn step T=1 S=1", 2 * 3_145_728 + 2 * 122_880 + 4 * 4 * 10240 + 4 * 10240
     + 6144 * 6 + 48 * 16 + 512, 7 * 48 * 128 * 128 + 8 * 10240),
    ("argmax T=1", 993_280, 248_320),
    ("encode_int4_group128", 17408 * (5120 * 4 + 2560 + 80), 2 * 17408 * 5120),
])
def test_work_by_hand(label, n_bytes, n_flops):
    assert (BY_LABEL[label].n_bytes, BY_LABEL[label].n_flops) == (n_bytes, n_flops)


def test_work_of_a_chunk_by_hand():
    # For each of 48 heads and 32 chunks of 64 rows: K K^T, Q K^T, two systems, three products with
    # the state, one of pairs with values.
    pairs = 64 * 64 * (2 * 128 + 2 * 128 + 128 + 128 + 2 * 128)
    assert BY_LABEL["delta_rule_chunked 2048"].n_flops == 48 * 32 * (pairs + 6 * 64 * 128 * 128)


def test_terms():
    assert total({"N K": 0.5, "K": 2, "T": 4}, {"N": 3, "K": 4, "T": 5}) == 6 + 8 + 20
    with pytest.raises(KeyError, match="N"):
        total({"N": 1}, {"K": 1})


def test_axes_come_from_the_case_then_from_the_example_most_like_it():
    sample = OPS["sample"]
    case = norm_case(op="sample", dims={"T": 3, "V": 7, "K": 1})
    assert dims_of(case, sample) == {"T": 3, "V": 7, "2": 2}
    conv = OPS["causal_conv_silu"]
    found = dims_of(norm_case(op="causal_conv_silu", dims={"T": 9, "C": 10240}), conv)
    assert (found["T"], found["W"], found["P"]) == (9, 4, 2)
    with pytest.raises(OpError, match="rmsnorm: norm has no axis T, D"):
        dims_of(norm_case(dims={}), replace(OPS["rmsnorm"], examples=()))


def test_a_case_that_does_not_fit_is_named():
    with pytest.raises(OpError, match="sample: needs V < 2\\^19"):
        kernels_of(OPS["sample"], ("portable",), {"T": 1, "V": 1 << 19, "2": 2})
    with pytest.raises(OpError, match="argmax: no kernel fits T=1 V=2"):
        kernels_of(OPS["argmax"], ("none",), {"T": 1, "V": 2})


def test_the_chain_is_one_token():
    labels = chain.names()
    assert len(labels) == 64 * 4 + 1
    assert [labels.count(f"int4 {name} T=1") for name in (
        "gdn in", "attention in", "out", "gate/up", "down")] == [48, 16, 64, 64, 64]
    assert labels[12:16] == [f"int4 {n} T=1" for n in ("attention in", "out", "gate/up", "down")]
    n_weights = sum(prod((BY_LABEL[label].dims["N"], BY_LABEL[label].dims["K"]))
                    for label in labels)
    assert n_weights == 48 * 16384 * 5120 + 16 * 14336 * 5120 + 64 * 5120 * (6144 + 34816 + 17408
                                                                            ) + 248320 * 5120
    n_bytes = sum(total({"N K": 528 / 1024 if label.startswith("int4") else 1040 / 1024},
                        BY_LABEL[label].dims) for label in labels)
    assert n_bytes == pytest.approx(13.85e9, rel=2e-3)
    assert set(chain.op_names()) <= {case.op for case in CASES}


# Bars


def test_every_bar_becomes_microseconds():
    first = timed(norm_case("first"), 10.0)
    case = norm_case(bar=Bar("times", 1.1, "first"))
    (_, several) = judge([first, timed(case, 10.9)], {"bytes": 1e9, "flops": None}, {})
    assert several.limit_us == pytest.approx(11)
    assert several.holds
    assert several.share == pytest.approx(case.n_bytes / 10.9e-6 / 1e9)
    (one,) = judge([timed(case)], {"bytes": None, "flops": None}, {})
    assert (one.share, one.limit_us, one.holds) == (None, None, None)
    (one,) = judge([timed(norm_case(bar=Bar("share", 0.5)), 2.0)],
                   {"bytes": 1e9, "flops": None}, {})
    assert one.limit_us == pytest.approx((2 * 64 * 8 + 64 * 4) / 0.5e9 * 1e6)
    peers = {"norm": Peer("torch", spread_of(20.0))}
    (one,) = judge([timed(norm_case(bar=Bar("peer", 0.5)), 41.0)],
                   {"bytes": 1e9, "flops": None}, peers)
    assert (one.limit_us, one.holds) == (40, False)
    (one,) = judge([timed(norm_case(bar=Bar("us", 6)), 6.0)], {"bytes": 1e9, "flops": None}, {})
    assert one.holds


def test_a_bar_in_times_is_of_the_kernel_that_a_launch_picks():
    case = norm_case(bar=Bar("times", 2, "first"))
    slow = timed(norm_case("first"), 99.0, "portable", picked=False)
    found = judge([timed(norm_case("first"), 10.0), slow, timed(case)],
                  {"bytes": 1.0, "flops": None}, {})
    assert found[-1].limit_us == 20


def test_values_of_cases_are_in_the_domain():
    case = BY_LABEL["gated attention decode 8192"]
    pages = case.values["pages"]((1, 512), case.dims)
    assert sorted(pages.ravel().tolist()) == list(range(512))
    assert case.values["positions"]((1,), case.dims) == 8191
    assert "starts" in VALUES
