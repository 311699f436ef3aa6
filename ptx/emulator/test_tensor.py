"""Protects boxes of tensors: what lies where in every swizzle, past the edges, and each refusal."""

import numpy as np
import pytest

from ptx.emulator import EmulatorError, Machine, Memory, Output, parse
from ptx.emulator.tensor_maps import encoded

SEEDS = range(4)
TEXT = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .align 64 .b8 x_map[128])
{{
.reg .pred first, q; .reg .b32 t, at, to, c<5>; .reg .b32 v; .reg .b64 py, map, px, policy;
.shared .align 1024 .b8 box[4096]; .shared .align 8 .b8 full[8];
mov.u32 t, %tid.x; setp.eq.u32 first, t, 0; ld.param.u64 py, [y]; ld.param.u64 px, [x];
mov.u64 map, x_map; cvta.param.u64 map, map; mov.b64 policy, 0;
{init}
@first mbarrier.init.shared.b64 [full], 1;
bar.sync 0;
mov.u32 to, box; {coordinates}
@first mbarrier.arrive.expect_tx.shared.b64 _, [full], {n_bytes};
@first cp.async.bulk.tensor.{n}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [to], [map, {{{names}}}], [full];
{after}
{wait}
GO: setp.lt.u32 q, t, {n_cells}; @!q bra END;
mov.u32 at, box; mad.lo.u32 at, t, 4, at; ld.shared.b32 v, [at];
mad.wide.u32 px, t, 4, py; st.global.b32 [px], v;
add.u32 t, t, 32; bra GO;
END: ret;
}}
"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 q, [full], 0; @!q bra W;"


def run(x, box, start, swizzle=0, seed=0, change=lambda text: text, address=0, raw=None, **words):
    """What 32 threads read of the box [..] at `start`, as u32 cells in the order of shared memory.

    `start` is outermost first; `address` is added to the tensor's.
    """
    memory = Memory()
    n_cells = int(np.prod(box))
    places = memory.allocate(x.nbytes, "x"), memory.allocate(4 * n_cells, "y")
    memory.write(places[0], x)
    names = [f"c{i}" for i in range(len(start))]
    given = {
        "n": len(start), "names": ", ".join(names), "n_cells": n_cells, "n_bytes": 4 * n_cells,
        "coordinates": " ".join(f"mov.s32 {a}, {b};" for a, b in zip(names, start[::-1],
                                                                     strict=True)),
        "wait": WAIT, "after": "", "init": "", **words,
    }
    text = change(TEXT.format(**given))
    raw = raw or encoded(places[0] + address, 4, x.shape, box, swizzle)
    machine = Machine(memory, "sm_90a", seed)
    machine.launch(parse(text), "k", 1, 32, 0, [*places, raw], [Output(places[1], 4 * n_cells)])
    y = np.zeros(n_cells, np.uint32)
    memory.read(places[1], y)
    return y


def numbers(*shape):
    return np.arange(1, 1 + np.prod(shape), dtype=np.uint32).reshape(shape)


@pytest.mark.parametrize(("shape", "box", "start"), [
    ((64,), (8,), (4,)), ((64,), (8,), (60,)), ((9, 20), (4, 8), (7, -4)),
    ((3, 5, 8), (2, 3, 4), (2, 3, 6)), ((2, 3, 2, 4), (1, 2, 2, 4), (1, 2, -1, 0)),
    ((2, 2, 3, 2, 4), (2, 1, 2, 2, 4), (-1, 1, 2, 0, 0)), ((9, 20), (4, 8), (9, 0)),
])
def test_boxes_of_one_to_five_axes(shape, box, start):
    x = numbers(*shape)
    wide = np.pad(x, [(b, b) for b in box])
    want = wide[tuple(slice(s + b, s + 2 * b) for s, b in zip(start, box, strict=True))]
    for seed in SEEDS:
        assert run(x, box, start, seed=seed).tolist() == want.ravel().tolist()


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_every_run_lies_where_its_address_says(swizzle):
    """Written out by bits: the run's number, from bit 4, meets the line's, from bit 7."""
    width, n_rows = swizzle // 4, 4096 // swizzle
    y = run(numbers(n_rows, width), (n_rows, width), (0, 0), swizzle)
    bits = {32: ((4, 7),), 64: ((4, 7), (5, 8)), 128: ((4, 7), (5, 8), (6, 9))}[swizzle]
    for cell in range(1024):
        place = 4 * cell
        for low, high in bits:
            place ^= (place >> high & 1) << low
        assert y[place // 4] == cell + 1


def test_a_pattern_is_of_addresses_not_of_the_box():
    """A box of 12 lines, and the one after it: its lines go on counting only at a multiple of 8."""
    x = numbers(16, 32)
    assert run(x, (8, 32), (8, 0), 128).tolist() == run(x[8:], (8, 32), (0, 0), 128).tolist()
    with pytest.raises(EmulatorError, match="swizzle of 128 bytes needs a multiple of 1024"):
        run(x, (8, 32), (0, 0), 128, change=lambda t: t.replace("u32 to, box;", "u32 to, box+512;"))


def test_a_hint_is_taken_and_a_prefetch_needs_a_map():
    def hinted(text):
        text = text.replace("complete_tx::bytes\n", "complete_tx::bytes.L2::cache_hint\n")
        return text.replace("}], [full];", "}], [full], policy;")

    x = numbers(8, 8)
    want = run(x, (4, 8), (2, 0))
    assert want.tolist() == run(x, (4, 8), (2, 0), change=hinted).tolist()
    prefetch = "prefetch.tensormap [map];"
    assert want.tolist() == run(x, (4, 8), (2, 0), init=prefetch).tolist()
    with pytest.raises(EmulatorError, match="no tensor map"):
        run(x, (4, 8), (2, 0), init=prefetch, raw=bytes(128))
    with pytest.raises(EmulatorError, match=r"line 1\d: `prefetch.* needs sm_90"):
        run(x, (4, 8), (2, 0), init=prefetch, change=lambda t: t.replace("sm_90a", "sm_89"))


@pytest.mark.parametrize(("words", "message"), [
    ({"wait": ""}, "destination of a copy"),
    # Who has not waited may not read, whatever others know.
    ({"wait": "@!first bra GO;\n" + WAIT}, "destination of a copy"),
    ({"n_bytes": 64}, "barrier|destination|bytes"),
    ({"n_bytes": 256}, "deadlock"),
    ({"after": "mov.u32 at, box; st.shared.b32 [at], t;"}, "destination of a copy"),
    ({"raw": bytes(128)}, "no tensor map"),
    ({"address": 1 << 20}, "not inside one allocation"),
    ({"address": 16}, "not inside one allocation"),
    ({"change": lambda t: t.replace("to, box;", "to, box+64;")}, "needs a multiple of 128"),
    ({"change": lambda t: t.replace("to, box;", "to, box+3968;"), "box": (8, 8)}, "one variable"),
    ({"change": lambda t: t.replace("tensor.2d", "tensor.1d").replace("{c0, c1}", "{c0}")},
     "has 2 axes, the copy 1"),
    ({"change": lambda t: t.replace("{c0, c1}", "{c0}")}, r"needs \[map, \{2 coordinates\}\]"),
    ({"change": lambda t: t.replace("param.u64 map, map;", "param.u64 map, map; add.u64 map, map, "
                                    "32;")}, "needs a multiple of 64"),
    ({"change": lambda t: t.replace("tensor.2d", "tensor")}, "needs 1d to 5d"),
    ({"change": lambda t: t.replace(".target sm_90a", ".target sm_89")}, "needs sm_90"),
])
def test_what_is_wrong_is_refused(words, message):
    for seed in SEEDS if "wait" in words else (0,):
        with pytest.raises(EmulatorError, match=message):
            run(**{"x": numbers(9, 8), "box": (4, 8), "start": (0, 0), "seed": seed, **words})


def test_cells_that_nobody_wrote_stay_unwritten():
    """A copy hands the mark on: the reader is told."""
    memory = Memory()
    places = memory.allocate(256, "x"), memory.allocate(128, "y")
    text = TEXT.format(n=2, names="c0, c1", n_cells=32, n_bytes=128, wait=WAIT, after="", init="",
                       coordinates="mov.s32 c0, 0; mov.s32 c1, 0;")
    raw = encoded(places[0], 4, (8, 8), (4, 8), 0)
    Machine(memory, "sm_90a").launch(parse(text), "k", 1, 32, 0, [*places, raw])
    block = memory.at(places[1])
    assert not block.valid.any()
