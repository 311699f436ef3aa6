"""Protects asynchronous copies and mbarriers: late landing, planted bugs, pipelines."""

import numpy as np
import pytest

from ptx.emulator import EmulatorError

X = np.arange(256, dtype=np.uint32) * 3 + 1
START = """
.reg .pred p, q; .reg .b32 t, a, r, s, n; .reg .b32 v<4>; .reg .b64 at, off, token;
.shared .align 16 .b8 buf[2048]; .shared .align 8 .b8 full[8]; .shared .align 8 .b8 empty[8];
mov.u32 t, %tid.x; shl.b32 a, t, 4; mov.u32 r, buf; add.u32 a, a, r;
mul.wide.u32 off, t, 16; add.u64 at, x, off;
"""
COPY = "cp.async.cg.shared.global [a], [at], 16;\n"
READ = ("ld.shared.v4.b32 {v0, v1, v2, v3}, [a];\nadd.u64 at, y, off;\n"
        "st.global.v4.b32 [at], {v0, v1, v2, v3};\nret;")


def fails(bench, body, kind, words, marked, **options):
    with pytest.raises(EmulatorError, match=words) as found:
        bench.kernel(START + body, {"x": X, "y": 1024}, **{"block": 64, **options})
    assert found.value.kind == kind
    assert found.value.text is not None
    assert marked in found.value.text


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_copies_land_at_their_wait(bench, seed):
    body = COPY + "cp.async.commit_group;\ncp.async.wait_group 0;\n" + READ
    got = bench.kernel(START + body, {"x": X, "y": 1024}, block=64, outputs=("y",), seed=seed)
    assert np.array_equal(got["y"].view(np.uint32), X)
    body = COPY + "cp.async.wait_all;\n" + READ
    got = bench.kernel(START + body, {"x": X, "y": 1024}, block=64, outputs=("y",))
    assert np.array_equal(got["y"].view(np.uint32), X)


def test_a_missing_wait_is_found(bench):
    fails(bench, COPY + "cp.async.commit_group;\n" + READ, "async", "nobody waited", "ld.shared")
    # A wait for all but one group leaves the only group open.
    fails(bench, COPY + "cp.async.commit_group;\ncp.async.wait_group 1;\n" + READ, "async",
          "nobody waited", "ld.shared")
    # Without a commit there is no group to wait for.
    fails(bench, COPY + "cp.async.wait_group 0;\n" + READ, "async", "nobody waited", "ld.shared")


def test_leaving_with_a_copy_outstanding(bench):
    fails(bench, COPY + "ret;", "async", "outstanding", "ret")


def test_writing_a_copys_destination_or_source(bench):
    fails(bench, COPY + "st.shared.u32 [a+4], t;\nret;", "async", "destination", "st.shared")
    fails(bench, COPY + COPY + "ret;", "async", "destination", "cp.async")
    body = COPY + "mov.u32 s, 0;\nst.global.u32 [at], s;\ncp.async.wait_all;\nret;"
    fails(bench, body, "async", "writes the source of a copy", "st.global")


def test_other_threads_need_a_barrier_after_the_wait(bench):
    swap = "cp.async.wait_all;\nxor.b32 a, a, 512;\n" + READ
    fails(bench, COPY + swap, "race", "no order", "ld.shared")
    ok = COPY + "cp.async.wait_all;\nbar.sync 0;\nxor.b32 r, t, 32; shl.b32 a, r, 4;\n" \
        "mov.u32 r, buf; add.u32 a, a, r;\n" + READ
    got = bench.kernel(START + ok, {"x": X, "y": 1024}, block=64)
    assert np.array_equal(got["y"].view(np.uint32).reshape(2, 128), X.reshape(2, 128)[::-1])


def test_a_short_source_is_filled_with_zeros(bench):
    body = "mov.u32 n, 6;\ncp.async.ca.shared.global [a], [at], 16, n;\ncp.async.wait_all;\n" + READ
    got = bench.kernel(START + body, {"x": X, "y": 1024}, block=64)
    want = X.view(np.uint8).reshape(64, 16).copy()
    want[:, 6:] = 0
    assert np.array_equal(got["y"].reshape(64, 16), want)
    body = ("mov.u32 n, 0; mov.u64 at, 0;\ncp.async.cg.shared.global [a], [at], 16, n;\n"
            "cp.async.wait_all;\n" + READ)
    got = bench.kernel(START + body, {"x": X, "y": 1024}, block=64)
    assert not got["y"].any()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_predicate_says_that_a_source_is_not_read(bench, seed):
    body = ("and.b32 n, t, 1; setp.eq.u32 p, n, 1; @p mov.u64 at, 0;\n"
            "cp.async.cg.shared.global [a], [at], 16, p;\ncp.async.wait_all;\n" + READ)
    got = bench.kernel(START + body, {"x": X, "y": 1024}, block=64, seed=seed)
    want = X.reshape(64, 4).copy()
    want[1::2] = 0
    assert np.array_equal(got["y"].view(np.uint32).reshape(64, 4), want)


def test_bulk_prefetches_change_nothing_but_must_be_right(bench):
    line = "cp.async.bulk.prefetch.L2.global [x], 1024;\n"
    got = bench.kernel(START + line + COPY + "cp.async.wait_all;\n" + READ, {"x": X, "y": 1024},
                       block=64, outputs=("y",))
    assert np.array_equal(got["y"].view(np.uint32), X)
    fails(bench, line.replace("1024", "1040") + "ret;", "bounds", "1040 bytes", "prefetch")
    fails(bench, line.replace("1024", "1000") + "ret;", "alignment", "multiple of 16", "prefetch")
    fails(bench, line.replace("[x]", "[x+8]") + "ret;", "alignment", "multiples of 16", "prefetch")


def test_copy_sizes_and_places(bench):
    fails(bench, "cp.async.cg.shared.global [a], [at], 8;\nret;", "subset", "8 bytes", "cp.async")
    fails(bench, COPY.replace("[at]", "[at+8]") + "ret;", "alignment", "16", "cp.async")
    fails(bench, COPY.replace("[at]", "[at+16]") + "ret;", "bounds", "allocation x", "cp.async")


INIT = """
setp.ne.u32 p, t, 0; @p bra READY_;
mbarrier.init.shared.b64 [full], 32;
mbarrier.init.shared.b64 [empty], 32;
READY_: bar.sync 0;
"""
# Warp 0 fills one cell of 128 bytes four times, warp 1 empties it: parity waits both ways.
PIPE = INIT + """
shl.b32 a, t, 2; and.b32 a, a, 127; mov.u32 r, buf; add.u32 a, a, r; mov.u32 n, 0;
setp.ge.u32 p, t, 32; @p bra CONSUME;
PRODUCE:
and.b32 s, n, 1; xor.b32 s, s, 1;
FREE: mbarrier.try_wait.parity.shared.b64 q, [empty], s; @!q bra FREE;
mad.lo.u32 r, n, 32, t; mul.wide.u32 off, r, 4; add.u64 at, x, off; ld.global.u32 r, [at];
st.shared.u32 [a], r;
mbarrier.arrive.shared.b64 token, [full];
add.u32 n, n, 1; setp.lt.u32 p, n, 4; @p bra PRODUCE;
ret;
CONSUME:
and.b32 s, n, 1;
FILLED: mbarrier.try_wait.parity.shared.b64 q, [full], s; @!q bra FILLED;
xor.b32 s, a, 4; ld.shared.u32 r, [s];
mbarrier.arrive.shared.b64 _, [empty];
sub.u32 s, t, 32; mad.lo.u32 s, n, 32, s; mul.wide.u32 off, s, 4; add.u64 at, y, off;
st.global.u32 [at], r;
add.u32 n, n, 1; setp.lt.u32 p, n, 4; @p bra CONSUME;
ret;
"""


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_producer_and_consumer_over_mbarriers(bench, seed):
    got = bench.kernel(START + PIPE, {"x": X, "y": 512}, block=64, outputs=("y",), seed=seed)
    want = X[:128].reshape(-1, 2)[:, ::-1].ravel()
    assert np.array_equal(got["y"].view(np.uint32), want)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_consumer_that_does_not_wait_races(bench, seed):
    body = PIPE.replace("FILLED: mbarrier.try_wait.parity.shared.b64 q, [full], s; @!q bra FILLED;",
                        "")
    with pytest.raises(EmulatorError) as found:
        bench.kernel(START + body, {"x": X, "y": 512}, block=64, seed=seed)
    assert found.value.kind in ("race", "uninitialised")


def test_a_producer_that_does_not_wait_races(bench):
    body = PIPE.replace("@!q bra FREE;", "")
    with pytest.raises(EmulatorError) as found:
        bench.kernel(START + body, {"x": X, "y": 512}, block=64)
    assert found.value.kind in ("race", "barrier", "deadlock")


def test_wrong_uses_of_mbarriers(bench):
    fails(bench, "mbarrier.arrive.shared.b64 token, [full];\nret;", "barrier", "before its init",
          "mbarrier.arrive")
    single = "setp.ne.u32 p, t, 0; @p exit;\nmbarrier.init.shared.b64 [full], 1;\n"
    fails(bench, single + "mbarrier.init.shared.b64 [full], 1;\nret;", "barrier", "without inval",
          "mbarrier.init")
    fails(bench, single + "mbarrier.arrive.shared.b64 token, [full], 2;\nret;", "barrier",
          "2 arrivals, 1 are pending", "mbarrier.arrive")
    fails(bench, "setp.ne.u32 p, t, 0; @p exit;\nmbarrier.init.shared.b64 [full], 0;\nret;",
          "barrier", "count of 0", "mbarrier.init")
    fails(bench, single + "mbarrier.init.shared.b64 [buf+4], 1;\nret;", "alignment", "8",
          "mbarrier.init")
    wait = "W: mbarrier.try_wait.parity.shared.b64 q, [full], 0;\n@!q bra W;\nret;"
    with pytest.raises(EmulatorError, match=r"deadlock: k.*nobody can go on"):
        bench.kernel(START + single + wait, {"x": X, "y": 4}, block=64)
    fails(bench, "setp.ne.u32 p, t, 0;\n@!p mbarrier.init.shared.b64 [full], 64;\n"
          "mbarrier.arrive.shared.b64 token, [full];\nret;", "race", "no order", "mbarrier.arrive")


def test_tokens(bench):
    body = INIT + """
    setp.ge.u32 p, t, 32; @p exit;
    mbarrier.arrive.shared.b64 token, [full];
    W: mbarrier.test_wait.shared.b64 q, [full], token; @!q bra W;
    add.u64 at, y, off; mov.b64 token, 0; st.global.v2.b64 [at], {token, token}; ret;
    """
    bench.kernel(START + body, {"x": X, "y": 512}, block=64, outputs=("y",))


def test_copies_arrive_at_an_mbarrier(bench):
    body = INIT + """
    setp.ge.u32 p, t, 32; @p exit;
    cp.async.cg.shared.global [a], [at], 16;
    cp.async.mbarrier.arrive.noinc.shared.b64 [full];
    W: mbarrier.try_wait.parity.shared.b64 q, [full], 0; @!q bra W;
    xor.b32 a, a, 16; add.u32 r, a, 0;
    """ + READ
    got = bench.kernel(START + body, {"x": X, "y": 512}, block=64, outputs=("y",))
    want = X[:128].reshape(-1, 2, 4)[:, ::-1].ravel()
    assert np.array_equal(got["y"].view(np.uint32), want)


BULK = INIT.replace("[full], 32", "[full], 1") + """
setp.ne.u32 p, t, 0; @p bra WAITING;
mbarrier.arrive.expect_tx.shared.b64 _, [full], 1024;
mov.u32 r, buf;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r], [x], 1024, [full];
WAITING:
W: mbarrier.try_wait.parity.shared.b64 q, [full], 0; @!q bra W;
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bulk_copy_reports_its_bytes(bench, seed):
    buffers = {"x": X, "y": 1024}
    got = bench.kernel(START + BULK + READ, buffers, block=64, outputs=("y",), seed=seed)
    assert np.array_equal(got["y"].view(np.uint32), X)


def test_bulk_copy_bugs(bench):
    fails(bench, BULK.replace("W: mbarrier.try_wait.parity.shared.b64 q, [full], 0; @!q bra W;", "")
          + READ, "async", "nobody waited", "ld.shared")
    fails(bench, BULK.replace("[x], 1024", "[x], 1000") + READ, "alignment", "multiple of 16",
          "cp.async.bulk")
    with pytest.raises(EmulatorError, match="nobody can go on"):
        bench.kernel(START + BULK.replace("[full], 1024;", "[full], 1040;") + READ,
                     {"x": X, "y": 1024}, block=64)


STORE = """
st.shared.v4.b32 [a], {t, t, t, t};
FENCE
bar.sync 0;
setp.ne.u32 p, t, 0; @p exit;
mov.u32 r, buf;
cp.async.bulk.global.shared::cta.bulk_group [y], [r], 1024;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
ret;
"""


def test_bulk_store_needs_a_proxy_fence(bench):
    good = STORE.replace("FENCE", "fence.proxy.async.shared::cta;")
    got = bench.kernel(START + good, {"x": X, "y": 1024}, block=64, outputs=("y",))
    assert np.array_equal(got["y"].view(np.uint32), np.repeat(np.arange(64), 4))
    fails(bench, STORE.replace("FENCE", ""), "async", "no proxy fence", "cp.async.bulk")
    fails(bench, good.replace("cp.async.bulk.wait_group 0;", ""), "async", "outstanding", "ret")
