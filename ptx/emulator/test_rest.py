"""Protects what is easily forgotten: hints, register budgets, half atomics, wide vectors."""

import numpy as np
import pytest

from ptx.emulator import EmulatorError, Machine, Memory, parse

RNG = np.random.default_rng(9)


def test_hints_change_nothing(bench):
    body = """
    .reg .b32 t, v<8>; .reg .b64 at, off, pol; mov.u32 t, %tid.x; mul.wide.u32 off, t, 32;
    createpolicy.fractional.L2::evict_first.b64 pol, 1.0;
    add.u64 at, x, off; prefetch.global.L2 [at];
    ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {v0, v1, v2, v3}, [at], pol;
    ld.global.v4.b32 {v4, v5, v6, v7}, [at+16];
    griddepcontrol.launch_dependents; griddepcontrol.wait; membar.gl; nanosleep.u32 10;
    add.u64 at, y, off; st.global.cs.v4.b32 [at], {v0, v1, v2, v3};
    st.global.v2.b32 [at+16], {v4, v5}; st.global.wt.v2.b32 [at+24], {v6, v7}; ret;
    """
    x = RNG.integers(0, 2**32, 256, np.uint32)
    got = bench.kernel(body, {"x": x, "y": 1024}, outputs=("y",))
    assert np.array_equal(got["y"].view(np.uint32), x)


def test_wide_vectors_of_sm_120(bench):
    regs = ", ".join(f"v{r}" for r in range(8))
    body = f"""
    .reg .b32 t, v<8>; .reg .b64 at, off; mov.u32 t, %tid.x; mul.wide.u32 off, t, 32;
    add.u64 at, x, off; ld.global.v8.b32 {{{regs}}}, [at];
    add.u64 at, y, off; st.global.v8.b32 [at], {{{regs}}}; ret;
    """
    x = RNG.integers(0, 2**32, 256, np.uint32)
    got = bench.kernel(body, {"x": x, "y": 1024}, target="sm_120a")
    assert np.array_equal(got["y"].view(np.uint32), x)
    with pytest.raises(EmulatorError, match="needs sm_100"):
        bench.kernel(body, {"x": x, "y": 1024}, target="sm_90a")


@pytest.mark.parametrize(("line", "words"), [
    ("setmaxnreg.dec.sync.aligned.u32 100;", "steps of 8"),
    ("setmaxnreg.inc.sync.aligned.u32 264;", "steps of 8"),
    ("setmaxnreg.inc.sync.aligned.u32 240;", "register bound at entry"),
])
def test_register_budgets(bench, line, words):
    with pytest.raises(EmulatorError, match=words):
        bench.kernel(line + " ret;", {})


@pytest.mark.parametrize(("bound", "taken"), [
    (".maxnreg 128", True), (".reqntid 128 .minnctapersm 2", True), (".maxntid 128", False),
    (".minnctapersm 2", False),
])
def test_a_thread_bound_alone_is_no_register_bound(bound, taken):
    text = (".version 8.0\n.target sm_90a\n.address_size 64\n"
            f".entry k() {bound} {{ setmaxnreg.dec.sync.aligned.u32 40; ret; }}")
    machine = Machine(Memory(), "sm_90a")
    if taken:
        machine.launch(parse(text), "k", 1, 128)
        return
    with pytest.raises(EmulatorError, match="register bound at entry"):
        machine.launch(parse(text), "k", 1, 128)


def test_half_atomics(bench):
    body = """
    .reg .b32 t, one; .reg .b16 h; mov.b32 one, 0x3C003C00; mov.b16 h, 0x3C00;
    red.global.add.noftz.f16x2 [x], one; red.global.add.noftz.f16 [x+4], h; ret;
    """
    got = bench.kernel(body, {"x": np.zeros(4, np.float16)}, block=64)
    assert got["x"].tolist() == [64, 64, 64, 0]


def test_pairs_of_f32(bench):
    a, b, c = (RNG.standard_normal(64).astype(np.float32) for _ in range(3))
    single = bench.evaluate("fma.rn.f32 d, a, b, c;", "f32", ("f32", a), ("f32", b), ("f32", c))
    pairs = bench.evaluate("fma.rn.f32x2 d, a, b, c;", "b64",
                           *[("b64", x.view(np.uint64)) for x in (a, b, c)])
    assert np.array_equal(pairs.view(np.uint32), single)


@pytest.mark.parametrize("word", ["inc", "dec", "exch"])
def test_counting_atomics_return_what_was_there(bench, word):
    body = f"""
    .reg .b32 t, r; .reg .b64 at, off; mov.u32 t, %tid.x; mul.wide.u32 off, t, 4;
    atom.global.{word}.{"b32" if word == "exch" else "u32"} r, [x], 5;
    add.u64 at, y, off; st.global.u32 [at], r; ret;
    """
    got = bench.kernel(body, {"x": np.array([2], np.uint32), "y": 32}, block=8)
    want = {"inc": [2, 3, 4, 5, 0, 1, 2, 3], "dec": [2, 1, 0, 5, 4, 3, 2, 1],
            "exch": [2, 5, 5, 5, 5, 5, 5, 5]}[word]
    assert got["y"].view(np.uint32).tolist() == want


def test_places_in_variables(bench):
    body = """
    .reg .b32 t, r, s; .reg .b64 at, off, w; .shared .align 4 .b8 buf[256]; .reg .pred p;
    mov.u32 t, %tid.x; shl.b32 r, t, 2; mov.u32 s, buf; add.u32 s, s, r; st.shared.u32 [s], t;
    bar.warp.sync 0xffffffff;
    mov.u32 s, buf + 4*3; ld.shared.u32 r, [s]; mov.u64 w, buf+120; sub.u64 w, w, 4;
    ld.shared.u32 s, [w]; mad.lo.u32 r, r, 100, s; mul.wide.u32 off, t, 4; add.u64 at, y, off;
    st.global.u32 [at], r; ret;
    """
    got = bench.kernel(body, {"y": 128}, outputs=("y",))
    assert set(got["y"].view(np.uint32).tolist()) == {329}
    with pytest.raises(EmulatorError, match="bounds"):
        bench.kernel(body.replace("buf+120", "buf+260"), {"y": 128})


@pytest.mark.parametrize(("word", "f"), [("add", sum), ("max", max)])
def test_shared_atomics_of_64_bits(bench, word, f):
    # Each lane joins its cell of eight; sums carry into the upper half of the cell.
    body = f"""
    .shared .align 8 .b8 cells[64]; .reg .pred p; .reg .b32 t, cell, base; .reg .b64 at, off, v;
    mov.u32 t, %tid.x; mov.u32 base, cells; setp.lt.u32 p, t, 8; mov.b64 v, 0;
    mad.lo.u32 cell, t, 8, base; @p st.shared.u64 [cell], v; bar.sync 0;
    mul.wide.u32 off, t, 8; add.u64 at, x, off; ld.global.u64 v, [at];
    and.b32 t, t, 7; mad.lo.u32 cell, t, 8, base; red.shared.{word}.u64 [cell], v; bar.sync 0;
    ld.shared.u64 v, [cell]; mul.wide.u32 off, t, 8; add.u64 at, y, off;
    mov.u32 t, %tid.x; setp.lt.u32 p, t, 8; @p st.global.u64 [at], v; ret;
    """
    x = RNG.integers(0, 2**58, 64, np.uint64)
    x[:8] = 2**32 - 1
    for seed in (0, 1, 2):
        got = bench.kernel(body, {"x": x, "y": 64}, block=64, outputs=("y",), seed=seed)
        want = [f(map(int, x[cell::8])) for cell in range(8)]
        assert got["y"].view(np.uint64).tolist() == want
