"""Protects whole kernels with known answers, each under three seeds with the same bits.

It is long because whole kernels are.
"""

import numpy as np
import pytest

RNG = np.random.default_rng(1)
SEEDS = (0, 1, 2)


def thrice(bench, body, buffers, **options):
    """Run under three seeds; the results must not differ."""
    first, *others = (bench.kernel(body, buffers, seed=seed, **options) for seed in SEEDS)
    for other in others:
        for name in first:
            assert first[name].tobytes() == other[name].tobytes(), name
    return first


REDUCE = """
.reg .pred p; .reg .b32 t, s, r, a, b; .reg .b64 at, off; .reg .f32 f, g;
.shared .align 4 .b8 part[1024];
mov.u32 t, %tid.x; mov.u32 r, %ctaid.x; shl.b32 r, r, 8; add.u32 r, r, t;
mul.wide.u32 off, r, 4; add.u64 at, x, off; ld.global.f32 f, [at];
mov.u32 a, part; shl.b32 b, t, 2; add.u32 a, a, b;
st.shared.f32 [a], f;
mov.u32 s, 128;
LOOP:
bar.sync 0;
setp.ge.u32 p, t, s; @p bra SKIP;
shl.b32 b, s, 2; add.u32 b, b, a; ld.shared.f32 g, [b]; ld.shared.f32 f, [a];
add.rn.f32 f, f, g; st.shared.f32 [a], f;
SKIP:
shr.u32 s, s, 1; setp.ne.u32 p, s, 0; @p bra LOOP;
setp.ne.u32 p, t, 0; @p bra END;
mov.u32 r, %ctaid.x; mul.wide.u32 off, r, 4; add.u64 at, y, off; st.global.f32 [at], f;
END: ret;
"""


def test_reduction_in_shared_memory(bench):
    x = RNG.integers(-50, 50, 256 * 5).astype(np.float32)
    got = thrice(bench, REDUCE, {"x": x, "y": 20}, grid=5, block=256, outputs=("y",))
    assert np.array_equal(got["y"].view(np.float32), x.reshape(5, 256).sum(axis=1))


SCAN = """
.reg .pred p; .reg .b32 t, n, v, w, lane; .reg .b64 at, off;
.shared .align 4 .b8 sums[64];
mov.u32 t, %tid.x; mul.wide.u32 off, t, 4; add.u64 at, x, off; ld.global.u32 v, [at];
mov.u32 lane, %laneid;
mov.u32 n, 1;
UP: shfl.sync.up.b32 w|p, v, n, 0, 0xffffffff; @p add.u32 v, v, w;
shl.b32 n, n, 1; setp.lt.u32 p, n, 32; @p bra UP;
mov.u32 n, %warpid; shl.b32 n, n, 2; mov.u32 w, sums; add.u32 n, n, w;
setp.eq.u32 p, lane, 31; @p st.shared.u32 [n], v;
bar.sync 0;
mov.u32 n, %warpid;
MORE: setp.eq.u32 p, n, 0; @p bra STORE;
sub.u32 n, n, 1; shl.b32 w, n, 2; .reg .b32 b; mov.u32 b, sums; add.u32 w, w, b;
ld.shared.u32 w, [w]; add.u32 v, v, w; bra MORE;
STORE: add.u64 at, y, off; st.global.u32 [at], v; ret;
"""


def test_scan_with_shuffles(bench):
    x = RNG.integers(0, 1000, 256).astype(np.uint32)
    got = thrice(bench, SCAN, {"x": x, "y": 1024}, block=256, outputs=("y",))
    assert np.array_equal(got["y"].view(np.uint32), np.cumsum(x))


TRANSPOSE = """
.reg .b32 i, j, a, b; .reg .b64 at, off; .reg .b32 v; .shared .align 4 .b8 tile[1088];
mov.u32 i, %tid.x; mov.u32 j, %tid.y;
mov.u32 a, %ctaid.x; mad.lo.u32 a, a, 16, i; mov.u32 b, %ctaid.y; mad.lo.u32 b, b, 16, j;
mad.lo.u32 a, b, 48, a; mul.wide.u32 off, a, 4; add.u64 at, x, off; ld.global.u32 v, [at];
mad.lo.u32 a, j, 17, i; shl.b32 a, a, 2; mov.u32 b, tile; add.u32 a, a, b; st.shared.u32 [a], v;
bar.sync 0;
mad.lo.u32 a, i, 17, j; shl.b32 a, a, 2; mov.u32 b, tile; add.u32 a, a, b; ld.shared.u32 v, [a];
mov.u32 a, %ctaid.y; mad.lo.u32 a, a, 16, i; mov.u32 b, %ctaid.x; mad.lo.u32 b, b, 16, j;
mad.lo.u32 a, b, 32, a; mul.wide.u32 off, a, 4; add.u64 at, y, off; st.global.u32 [at], v;
ret;
"""


def test_transpose_by_tiles(bench):
    x = RNG.integers(0, 2**32, (32, 48), np.uint32)
    got = thrice(bench, TRANSPOSE, {"x": x, "y": x.nbytes}, grid=(3, 2), block=(16, 16),
                 outputs=("y",))
    assert np.array_equal(got["y"].view(np.uint32).reshape(48, 32), x.T)


PRODUCT = """
.reg .pred p; .reg .b32 i, j, k, e, a, b, c; .reg .b64 at, off; .reg .f32 f, g, sum;
.shared .align 4 .b8 left[1024]; .shared .align 4 .b8 right[1024];
mov.u32 i, %tid.x; mov.u32 j, %tid.y; mov.f32 sum, 0f00000000; mov.u32 k, 0;
STEP:
mov.u32 b, %ctaid.y; mad.lo.u32 b, b, 16, j; mad.lo.u32 b, b, 64, k; add.u32 b, b, i;
mul.wide.u32 off, b, 4; add.u64 at, x, off; ld.global.f32 f, [at];
mov.u32 c, %ctaid.x; mad.lo.u32 c, c, 16, i; add.u32 b, k, j; mad.lo.u32 c, b, 32, c;
mul.wide.u32 off, c, 4; add.u64 at, y, off; ld.global.f32 g, [at];
mad.lo.u32 a, j, 16, i; shl.b32 a, a, 2; mov.u32 b, left; add.u32 b, b, a;
mov.u32 c, right; add.u32 c, c, a; st.shared.f32 [b], f; st.shared.f32 [c], g;
bar.sync 0;
mov.u32 e, 0; mad.lo.u32 a, j, 64, 0; mov.u32 b, left; add.u32 b, b, a;
shl.b32 a, i, 2; mov.u32 c, right; add.u32 c, c, a;
INNER: ld.shared.f32 f, [b]; ld.shared.f32 g, [c]; fma.rn.f32 sum, f, g, sum;
add.u32 b, b, 4; add.u32 c, c, 64; add.u32 e, e, 1; setp.lt.u32 p, e, 16; @p bra INNER;
bar.sync 0;
add.u32 k, k, 16; setp.lt.u32 p, k, 64; @p bra STEP;
mov.u32 b, %ctaid.y; mad.lo.u32 b, b, 16, j; mov.u32 c, %ctaid.x; mad.lo.u32 c, c, 16, i;
mad.lo.u32 b, b, 32, c; mul.wide.u32 off, b, 4; add.u64 at, z, off; st.global.f32 [at], sum;
ret;
"""


def test_tiled_product(bench):
    a, b = RNG.integers(-8, 8, (48, 64)), RNG.integers(-8, 8, (64, 32))
    buffers = {"x": a.astype("f4"), "y": b.astype("f4"), "z": 48 * 32 * 4}
    got = thrice(bench, PRODUCT, buffers, grid=(2, 3), block=(16, 16), outputs=("z",))
    assert np.array_equal(got["z"].view(np.float32).reshape(48, 32), a @ b)
    missing = PRODUCT.replace("bar.sync 0;\nadd.u32 k", "add.u32 k")
    with pytest.raises(Exception, match="race"):
        bench.kernel(missing, buffers, grid=(2, 3), block=(16, 16), outputs=("z",))


def test_divergent_loops_reconverge(bench):
    """Collatz steps: every lane has a trip count of its own."""
    body = """
    .reg .pred p, odd; .reg .b32 t, v, n, b; .reg .b64 at, off;
    mov.u32 t, %ctaid.x; mov.u32 v, %tid.x; mad.lo.u32 t, t, 64, v;
    add.u32 v, t, 1; mov.u32 n, 0;
    LOOP: setp.eq.u32 p, v, 1; @p bra DONE;
    and.b32 b, v, 1; setp.eq.u32 odd, b, 1; @odd bra UP;
    shr.u32 v, v, 1; bra NEXT;
    UP: mad.lo.u32 v, v, 3, 1;
    NEXT: add.u32 n, n, 1; bra LOOP;
    DONE: activemask.b32 b; mul.wide.u32 off, t, 4; add.u64 at, y, off; st.global.u32 [at], n; ret;
    """
    got = thrice(bench, body, {"y": 4 * 192}, grid=3, block=64, outputs=("y",))

    def steps(v):
        return 0 if v == 1 else 1 + steps(3 * v + 1 if v % 2 else v // 2)

    assert got["y"].view(np.uint32).tolist() == [steps(v + 1) for v in range(192)]


def test_histogram_and_ticket(bench):
    body = """
    .reg .b32 t, v, r, one; .reg .b64 at, off;
    mov.u32 t, %ctaid.x; mov.u32 v, %tid.x; mad.lo.u32 t, t, 128, v;
    mul.wide.u32 off, t, 4; add.u64 at, x, off; ld.global.u32 v, [at];
    mul.wide.u32 off, v, 4; add.u64 at, y, off; red.global.add.u32 [at], 1;
    atom.global.add.u32 r, [z], 1;
    mul.wide.u32 off, r, 4; add.u64 at, w, off; mov.u32 one, 1; st.global.u32 [at], one; ret;
    """
    x = RNG.integers(0, 10, 512).astype(np.uint32)
    buffers = {"x": x, "y": np.zeros(10, "u4"), "z": np.zeros(1, "u4"), "w": 2048}
    got = thrice(bench, body, buffers, grid=4, block=128, outputs=("y", "z", "w"))
    assert got["y"].tolist() == np.bincount(x, minlength=10).tolist()
    assert got["z"][0] == 512


@pytest.mark.parametrize(("word", "type_name", "f"), [
    ("min", "s32", min), ("max", "u32", max), ("xor", "b32", lambda a, b: a ^ b),
    ("add", "f32", lambda a, b: a + b),
])
def test_atomics_combine(bench, word, type_name, f):
    body = f"""
    .reg .b32 t, v; .reg .b64 at, off; mov.u32 t, %tid.x; mul.wide.u32 off, t, 4;
    add.u64 at, x, off; ld.global.b32 v, [at]; red.global.{word}.{type_name} [y], v; ret;
    """
    dtype = {"s": np.int32, "u": np.uint32, "b": np.uint32, "f": np.float32}[type_name[0]]
    x = RNG.integers(0, 1000, 64).astype(dtype)
    want = dtype(7)
    for value in x:
        want = dtype(f(want, value))
    got = thrice(bench, body, {"x": x, "y": np.array([7], dtype)}, block=64)
    assert got["y"][0] == want


def test_spin_lock_between_lanes_of_a_warp(bench):
    body = """
    .reg .pred p; .reg .b32 r, v;
    TRY: atom.acquire.gpu.global.cas.b32 r, [y], 0, 1; setp.ne.u32 p, r, 0; @p bra TRY;
    ld.global.u32 v, [x]; add.u32 v, v, 1; st.global.u32 [x], v;
    atom.release.gpu.global.exch.b32 r, [y], 0; ret;
    """
    got = thrice(bench, body, {"x": np.zeros(1, "u4"), "y": np.zeros(1, "u4")}, block=64, grid=2)
    assert got["x"][0] == 128


def test_votes_matches_and_reductions(bench):
    body = """
    .reg .pred p, q; .reg .b32 t, v, r; .reg .b64 at, off;
    mov.u32 t, %tid.x; mul.wide.u32 off, t, 32; add.u64 at, y, off; and.b32 v, t, 3;
    setp.eq.u32 p, v, 1;
    vote.sync.ballot.b32 r, p, 0xffffffff; st.global.u32 [at], r;
    vote.sync.any.pred q, p, 0xffffffff; selp.u32 r, 1, 0, q; st.global.u32 [at+4], r;
    vote.sync.all.pred q, p, 0xffffffff; selp.u32 r, 1, 0, q; st.global.u32 [at+8], r;
    match.any.sync.b32 r, v, 0xffffffff; st.global.u32 [at+12], r;
    match.all.sync.b32 r|q, v, 0xffffffff; st.global.u32 [at+16], r;
    redux.sync.add.u32 r, t, 0xffffffff; st.global.u32 [at+20], r;
    elect.sync r|q, 0xffffffff; selp.u32 r, 1, 0, q; st.global.u32 [at+24], r;
    bar.red.popc.u32 r, 0, p; st.global.u32 [at+28], r;
    ret;
    """
    got = thrice(bench, body, {"y": 64 * 32}, block=64, outputs=("y",))
    rows = got["y"].view(np.uint32).reshape(64, 8)
    for t, row in enumerate(rows.tolist()):
        first = t // 32 * 32
        same = sum(1 << i for i in range(32) if i % 4 == t % 4)
        ones = sum(1 << i for i in range(32) if i % 4 == 1)
        total = sum(range(first, first + 32))
        assert row == [ones, 1, 0, same, 0, total, int(t % 32 == 0), 16]


@pytest.mark.parametrize(("mode", "b", "c", "want"), [
    ("up", 3, 0, lambda i: i - 3 if i >= 3 else i),
    ("down", 5, 31, lambda i: i + 5 if i + 5 < 32 else i),
    ("bfly", 6, 31, lambda i: i ^ 6),
    ("idx", 9, 31, lambda i: 9),
    ("up", 1, 0x1800, lambda i: i - 1 if i % 8 else i),
    ("down", 2, 0x181F, lambda i: i + 2 if i % 8 < 6 else i),
    ("idx", 3, 0x181F, lambda i: i // 8 * 8 + 3),
])
def test_shuffles(bench, mode, b, c, want):
    body = f"""
    .reg .b32 t, r; .reg .b64 at, off; mov.u32 t, %tid.x; mul.wide.u32 off, t, 4;
    add.u64 at, y, off; shfl.sync.{mode}.b32 r, t, {b}, {c}, 0xffffffff; st.global.u32 [at], r; ret;
    """
    got = bench.kernel(body, {"y": 128})
    assert got["y"].view(np.uint32).tolist() == [want(i) for i in range(32)]


def test_named_barriers_hand_work_over(bench):
    """Warps 0 and 1 produce, warps 2 and 3 consume: arrive on one side, sync on the other."""
    body = """
    .reg .pred p; .reg .b32 t, r, a; .reg .b64 at, off; .shared .align 4 .b8 buf[256];
    mov.u32 t, %tid.x; and.b32 r, t, 63; shl.b32 a, r, 2; mov.u32 r, buf; add.u32 a, a, r;
    setp.ge.u32 p, t, 64; @p bra CONSUME;
    mul.lo.u32 r, t, 3; st.shared.u32 [a], r; bar.arrive 1, 128; ret;
    CONSUME: bar.sync 1, 128; xor.b32 a, a, 128; ld.shared.u32 r, [a];
    sub.u32 t, t, 64; mul.wide.u32 off, t, 4; add.u64 at, y, off; st.global.u32 [at], r; ret;
    """
    got = thrice(bench, body, {"y": 256}, block=128, outputs=("y",))
    assert got["y"].view(np.uint32).tolist() == [3 * (t ^ 32) for t in range(64)]
    with pytest.raises(Exception, match="race"):
        bench.kernel(body.replace("bar.sync 1, 128;", "").replace("bar.arrive 1, 128;", ""),
                     {"y": 256}, block=128)


def test_constants_locals_and_parameters(bench):
    head = ".const .align 4 .u32 table[4] = {10, 0x20, 30, 40};\n"
    body = """
    .reg .b32 t, r, s; .reg .b64 at, off, c; .local .align 8 .b8 own[32];
    mov.u32 t, %tid.x; and.b32 r, t, 3; mul.wide.u32 off, r, 4; mov.u64 c, table;
    add.u64 c, c, off; ld.const.u32 r, [c];
    mov.u64 at, own; st.local.u32 [at+8], r; cvta.local.u64 at, at; ld.u32 s, [at+8];
    mul.wide.u32 off, t, 4; add.u64 at, y, off; st.global.u32 [at], s; ret;
    """
    got = thrice(bench, body, {"y": 128}, head=head, outputs=("y",))
    assert got["y"].view(np.uint32).tolist() == [10, 32, 30, 40] * 8


def test_dynamic_shared_memory_and_generic_addresses(bench):
    head = ".extern .shared .align 16 .b8 dynamic[];\n"
    body = """
    .reg .b32 t, r; .reg .b64 at, off, g; mov.u32 t, %tid.x; mul.wide.u32 off, t, 4;
    mov.u64 at, dynamic; cvta.shared.u64 g, at; add.u64 g, g, off; st.u32 [g], t; bar.sync 0;
    mov.u32 r, %ntid.x; sub.u32 r, r, t; sub.u32 r, r, 1; shl.b32 r, r, 2; cvt.u64.u32 off, r;
    add.u64 at, at, off; ld.shared.u32 r, [at];
    mul.wide.u32 off, t, 4; add.u64 at, y, off; st.global.u32 [at], r; ret;
    """
    got = thrice(bench, body, {"y": 256}, block=64, head=head, shared_bytes=256)
    assert got["y"].view(np.uint32).tolist() == list(range(63, -1, -1))
    with pytest.raises(Exception, match="bounds"):
        bench.kernel(body, {"y": 256}, block=64, head=head, shared_bytes=252)
