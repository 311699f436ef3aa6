"""Protects the chain of the op benchmark: its order, distinct weights, and who reads whom."""

from dataclasses import replace

import pytest

from engine.bench_ops import chain
from engine.bench_ops.cases import CASES
from engine.bench_ops.chain import measure_chain
from ptx.inventory import ops
from ptx.op import OpError
from tests.cpu.bench_ops_cases import EFFORT, card

OPS = ops()


def small_chain():
    """Cases of the chain's labels whose weights are whole parts of 256 lines."""
    lengths = {"D": 2048, "F": 1024, "inner": 1024}
    shapes = {
        "gdn in": (128, lengths["D"], {"A": 64, "B": 64}),
        "attention in": (128, lengths["D"], {"A": 64, "B": 32, "C": 32}),
        "out": (lengths["D"], lengths["inner"], {}),
        "gate/up": (2 * lengths["F"], lengths["D"], {"F": lengths["F"]}),
        "down": (lengths["D"], lengths["F"], {}), "head": (128, lengths["D"], {}),
    }
    labels = set(chain.names())
    for case in CASES:
        if case.label in labels:
            n_rows, n_k, widths = shapes[case.label.removesuffix(" T=1").partition(" ")[2]]
            dims = {**case.dims, "N": n_rows, "K": n_k, "R": n_k // 128, "I": n_rows // 8}
            yield replace(case, dims={**dims, **widths})


needs_linears = pytest.mark.skipif(
    not set(chain.op_names()) <= set(OPS), reason="the chain's linears are not there"
)


@needs_linears
def test_the_chain_reads_distinct_weights_in_order():
    device = card()
    cases = list(small_chain())
    found = measure_chain(device, OPS, EFFORT, cases, n_layers=4)
    assert found.n_launches == 17
    tiles = {"gdn in": 256, "attention in": 256, "out": 2048, "gate/up": 4096, "down": 2048}
    body = 3 * tiles["gdn in"] + tiles["attention in"] + 4 * sum(
        tiles[name] for name in ("out", "gate/up", "down"))
    assert found.weight_bytes == body * 528 + 256 * 1040
    launched = [(entry[0], entry[2]) for entry in device.context.bindings.launched
                if entry[0] in chain.op_names()]
    last = launched[-17:] if found.plain is None else launched[-34:-17]
    by_label = {case.label: case for case in cases}
    assert [name for name, _ in last] == [
        by_label[label].op for label in chain.names(n_layers=4)
    ]
    weights = []
    places = {}
    for name, values in last:
        params = OPS[name].params
        named = {p.name: v for p, v in zip(params, values, strict=False)}
        weights.append(named["w"])
        places.setdefault(name, []).append(named)
    assert len(set(weights)) == 17
    swiglu = places["norm_linear_int4_tiles_swiglu"][0]
    add = places["linear_xbf16_int4_tiles_add"]
    assert add[1]["x"] == swiglu["y"] != add[0]["x"]
    streams = {values["x"] for name in places if name.startswith("norm") for values in places[name]}
    assert streams == {values["h"] for values in add}
    assert len(streams) == 1


@needs_linears
def test_the_chain_says_what_is_missing():
    known = {name: op for name, op in OPS.items() if name != "linear_xbf16_int4_tiles_add"}
    with pytest.raises(OpError, match="chain: linear_xbf16_int4_tiles_add is not there"):
        measure_chain(card(), known, EFFORT, list(small_chain()), n_layers=1)
