"""Protects when asynchronous copies land: late or early by seed, the same errors either way.

It is long because each rule has its right program beside the wrong one.
"""

import re

import numpy as np
import pytest

from ptx.emulator import EmulatorError

SEEDS = range(6)
X = np.arange(256, dtype=np.uint32) * 3 + 1
START = """
.reg .pred p, q, first; .reg .b32 t, a, r, s, n; .reg .b32 v<4>; .reg .b64 at, to, off;
.shared .align 16 .b8 buf[1024]; .shared .align 16 .b8 two[1024];
.shared .align 8 .b8 full[8]; .shared .align 8 .b8 other[8];
mov.u32 t, %tid.x; shl.b32 a, t, 4; mov.u32 r, buf; add.u32 a, a, r; mov.u32 n, two;
mul.wide.u32 off, t, 16; add.u64 at, x, off; add.u64 to, y, off; setp.eq.u32 first, t, 0;
"""
COPY = "cp.async.cg.shared.global [a], [at], 16;\n"
DONE = "cp.async.wait_all;\n"
READ = "ld.shared.v4.b32 {v0, v1, v2, v3}, [a]; // READ\n"
GIVE = "st.global.v4.b32 [to], {v0, v1, v2, v3};\nret;"
INIT = """
@!first bra READY_;
mbarrier.init.shared.b64 [full], 1; mbarrier.init.shared.b64 [other], 1;
READY_: bar.sync 0;
"""
ASK = ("mbarrier.arrive.expect_tx.shared.b64 _, [{1}], 1024;\ncp.async.bulk.shared::cluster.global"
       ".mbarrier::complete_tx::bytes [{0}], [x], 1024, [{1}];\n")
LOAD = INIT + "@!first bra WAITING;\n" + ASK.format("r", "full") + "WAITING:\n"
WAIT = "W{0}: mbarrier.try_wait.parity.shared.b64 q, [{1}], 0; @!q bra W{0};\n"
WAIT_FULL = WAIT.format(0, "full")
FILL = "st.shared.v4.b32 [a], {t, t, t, t};\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
STORE = FILL + ("@!first bra GO_ON;\ncp.async.bulk.global.shared::cta.bulk_group [y], [r], 1024;\n"
                "cp.async.bulk.commit_group;\n")
END = "cp.async.bulk.wait_group 0;\n"
READ_END = "cp.async.bulk.wait_group.read 0;\n"


def run(bench, body, **options):
    buffers = {"x": X, "y": np.zeros(256, np.uint32)}
    return bench.kernel(START + body, buffers, **{"block": 64, **options})["y"]


def alike(bench, body, want, **options):
    """The body is right: the same bits under every seed."""
    for seed in SEEDS:
        assert np.array_equal(run(bench, body, seed=seed, **options), want), seed


def caught(bench, body, words, marked, kind="async", **options):
    """The body is wrong where `marked` stands, however early the copies land.

    With a seed another warp may come first, and the race be found from its side.
    """
    for seed in SEEDS:
        with pytest.raises(EmulatorError) as found:
            run(bench, body, seed=seed, **options)
        assert found.value.line is not None
        if found.value.kind == kind or not seed:
            assert found.value.kind == kind, (seed, found.value)
            assert re.search(words, str(found.value)), (seed, found.value)
            assert marked in str(found.value), (seed, found.value)
        else:
            assert found.value.kind in ("async", "race", "uninitialised"), (seed, found.value)


NUMBERS = np.repeat(np.arange(64, dtype=np.uint32), 4)


def test_right_programs_give_the_same_bits_under_every_seed(bench):
    alike(bench, COPY + DONE + READ + GIVE, X)
    alike(bench, LOAD + WAIT_FULL + READ + GIVE, X)
    alike(bench, STORE + END + "GO_ON: ret;", NUMBERS)
    arrive = INIT.replace("[full], 1", "[full], 64") + COPY + (
        "cp.async.mbarrier.arrive.noinc.shared.b64 [full];\n" + WAIT_FULL + "xor.b32 a, a, 512;\n")
    alike(bench, arrive + READ + GIVE, X.reshape(2, 128)[::-1].ravel())
    # One who waited tells the others by a barrier; nobody else needs to ask the mbarrier.
    body = LOAD + "setp.ge.u32 p, t, 32;\n@!p bra ON;\n" + WAIT_FULL + "ON: bar.sync 0;\n"
    alike(bench, body + READ + GIVE, X)


def test_a_lane_may_wait_for_its_copies_by_itself_too(bench):
    body = INIT.replace("[full], 1", "[full], 64") + COPY
    arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [full];\n"
    alike(bench, body + arrive + DONE + READ + WAIT_FULL + GIVE, X)
    alike(bench, body + arrive + DONE + WAIT_FULL + "xor.b32 a, a, 512;\n" + READ + GIVE,
          X.reshape(2, 128)[::-1].ravel())


def bits(bench, body, **options):
    return {run(bench, body, seed=seed, sanitise=False, **options).tobytes() for seed in range(12)}


def test_without_the_sanitiser_seeds_tell_early_from_late(bench):
    """What a destination holds before the wait, and what a source still gives, depend on lots."""
    old = "mov.b32 v0, 7; st.shared.v4.b32 [a], {v0, v0, v0, v0};\nbar.sync 0;\n"
    late = np.full(256, 7, np.uint32).tobytes()
    found = bits(bench, old + COPY + READ + DONE + GIVE)
    assert late in found
    assert len(found) > 1
    found = bits(bench, old + LOAD + READ + WAIT_FULL + GIVE, block=32)
    assert late[:512] in {b[:512] for b in found}
    assert X.tobytes()[:512] in {b[:512] for b in found}
    spoilt = "mov.b32 v0, 9; st.global.b32 [at], v0;\n"
    found = bits(bench, COPY + spoilt + DONE + READ + GIVE)
    assert len(found) > 1
    found = bits(bench, STORE + "mov.b32 v0, 5; st.shared.b32 [r], v0;\n" + END + "GO_ON: ret;")
    assert len(found) == 2
    assert NUMBERS.tobytes() in found
    # A late write of one block's result is not seen, an early one is.
    body = STORE + "ld.global.b32 v0, [y+4];\n" + END + "st.global.b32 [y], v0;\nGO_ON: ret;"
    assert {np.frombuffer(b, np.uint32)[0] for b in bits(bench, body.replace("t, t, t, t", "n, n, n"
            ", n"))} >= {0}
    assert len(bits(bench, body.replace("t, t, t, t", "n, n, n, n"))) == 2


def test_a_destination_is_read_too_early(bench):
    caught(bench, COPY + READ + DONE + GIVE, "destination of a copy", "ld.shared")
    caught(bench, COPY + "cp.async.commit_group;\n" + READ + DONE + GIVE, "destination of a copy",
           "ld.shared")
    caught(bench, LOAD + READ + WAIT_FULL + GIVE, "destination of a copy", "ld.shared")
    # Nor may the warp that asked read it once another warp has waited.
    body = LOAD + "setp.lt.u32 p, t, 32;\n@p bra ON;\n" + WAIT_FULL + "ON:\n" + READ + GIVE
    caught(bench, body, "destination of a copy", "ld.shared")
    caught(bench, STORE + "ld.global.b32 v0, [y+64];\n" + END + "GO_ON: ret;",
           "destination of a copy", "ld.global")
    caught(bench, STORE + "atom.global.add.u32 v0, [y+64], 1;\n" + END + "GO_ON: ret;",
           "destination of a copy", "atom.global")
    caught(bench, STORE + READ_END + "ld.global.b32 v0, [y+64];\n" + END + "GO_ON: ret;",
           "destination of a copy", "ld.global")


def test_one_early_lane_is_as_wrong(bench):
    """Where many lanes copy, some are late under every seed; one alone may be early."""
    caught(bench, COPY + READ + DONE + GIVE, "destination of a copy", "ld.shared", block=1)
    store = STORE.replace("1024;", "16;") + "ld.global.b32 v0, [y];\n" + END + "GO_ON: ret;"
    caught(bench, store, "destination of a copy", "ld.global", block=1)


def test_a_destination_is_written_too_early(bench):
    caught(bench, COPY + "st.shared.b32 [a+4], t;\n" + DONE + "ret;", "destination", "st.shared")
    caught(bench, LOAD + "st.shared.b32 [a+4], t;\n" + WAIT_FULL + "ret;", "destination",
           "st.shared")
    caught(bench, COPY + COPY + DONE + "ret;", "destination", "cp.async")
    caught(bench, LOAD + "atom.shared.add.u32 s, [a], 1;\n" + WAIT_FULL + "ret;", "destination",
           "atom.shared")


def test_a_source_is_overwritten_too_early(bench):
    caught(bench, COPY + "st.global.b32 [at], t;\n" + DONE + READ + GIVE, "source of a copy",
           "st.global")
    caught(bench, LOAD + "st.global.b32 [at], t;\n" + WAIT_FULL + READ + GIVE,
           "source of a copy|what a copy", "st.global", block=32)
    caught(bench, COPY + "red.global.add.u32 [at], 1;\n" + DONE + READ + GIVE, "source of a copy",
           "red.global")
    caught(bench, STORE + "st.shared.b32 [r], t;\n" + END + "GO_ON: ret;", "source of a copy",
           "st.shared")
    # The same value over it is as wrong.
    caught(bench, STORE + "ld.shared.b32 v0, [r];\nst.shared.b32 [r], v0;\n" + END + "GO_ON: ret;",
           "source of a copy", "st.shared")
    alike(bench, STORE + READ_END + "st.shared.b32 [r], t;\n" + END + "GO_ON: ret;", NUMBERS)


def test_other_threads_need_a_barrier_to_reuse_a_source(bench):
    again = "GO_ON:\nBARRIER\nst.shared.b32 [a], t;\nret;"
    alike(bench, STORE + READ_END + again.replace("BARRIER", "bar.sync 0;"), NUMBERS)
    # In lockstep and under other seeds the wait may come before or after the other's store.
    for seed in SEEDS:
        with pytest.raises(EmulatorError, match=r"source of a copy|no order|no proxy") as found:
            run(bench, STORE + READ_END + again.replace("BARRIER", ""), seed=seed)
        assert found.value.kind in ("async", "race")
    caught(bench, STORE.replace("bar.sync 0;", "") + END + "GO_ON: ret;", "no order",
           "bulk.global.shared", kind="race")
    # A barrier between the asking and the wait says nothing of the wait.
    body = STORE + "GO_ON: bar.sync 0;\n@!first bra OTHERS;\n" + READ_END + (
        "ret;\nOTHERS: st.shared.b32 [a], t;\nret;")
    for seed in SEEDS:
        with pytest.raises(EmulatorError, match=r"source of a copy|no order|no proxy"):
            run(bench, body, seed=seed)


def test_other_threads_need_a_barrier_around_a_destination(bench):
    body = COPY + "bar.sync 0;\n" + DONE + "xor.b32 a, a, 512;\n" + READ + GIVE
    for seed in SEEDS:
        with pytest.raises(EmulatorError, match=r"destination of a copy|no order"):
            run(bench, body, seed=seed)
    # What others still read may not be asked to be overwritten.
    used = FILL + ("xor.b32 a, a, 512;\nld.shared.b32 v0, [a];\nxor.b32 a, a, 512;\n"
                   "fence.proxy.async.shared::cta;\nBARRIER\n")
    for copy in (COPY + DONE, LOAD.replace(INIT, "") + WAIT_FULL):
        body = INIT + used + copy + READ + GIVE
        alike(bench, body.replace("BARRIER", "bar.sync 0;"), X)
        caught(bench, body.replace("BARRIER", ""), "has read at|has written at", "cp.async",
               kind="race")


def test_leaving_with_copies_outstanding(bench):
    caught(bench, COPY + "ret;", "outstanding", "ret")
    caught(bench, STORE + "GO_ON: ret;", "outstanding", "ret")
    caught(bench, LOAD + "ret;", "nobody waited for this copy", "cp.async.bulk")
    spin = "mov.u32 n, 0;\nL: add.u32 n, n, 1; setp.lt.u32 q, n, 40; @q bra L;\nret;"
    caught(bench, LOAD + spin, "nobody waited for this copy", "cp.async.bulk")
    # Whose source was read may end with the grid.
    alike(bench, STORE + READ_END + "GO_ON: ret;", NUMBERS, outputs=("y",))


def test_a_producer_may_leave_once_an_mbarrier_is_promised(bench):
    """Warp 0 copies and leaves, warp 1 waits; if it does not, nobody did."""
    body = INIT.replace("[full], 1", "[full], 32") + "setp.ge.u32 p, t, 32;\n@p bra TAKE;\n" + (
        COPY + "cp.async.mbarrier.arrive.noinc.shared.b64 [full];\nret;\nTAKE: sub.u32 a, a, 512;\n"
        "sub.u64 to, to, 512;\n")
    for seed in SEEDS:
        got = run(bench, body + WAIT_FULL + READ + GIVE, seed=seed)
        assert np.array_equal(got[:128], X[:128]), seed
        with pytest.raises(EmulatorError, match="nobody waited"):
            run(bench, body + "ret;", seed=seed)
        silent = body.replace("cp.async.mbarrier.arrive.noinc.shared.b64 [full];", "")
        # Nor does an arrival promise what was asked for after it.
        later = body.replace("[full];\nret;", "[full];\nmov.u32 n, two; shl.b32 s, t, 4;\n"
                             "add.u32 n, n, s;\n" + COPY.replace("[a]", "[n]") + "ret;")
        for wrong in (silent, later):
            with pytest.raises(EmulatorError, match="outstanding"):
                run(bench, wrong + WAIT_FULL + READ + GIVE, seed=seed)


def test_a_wait_covers_its_own_mbarrier_alone(bench):
    """Two loads over two mbarriers; whoever waits for one may not touch what the other brings."""
    both = INIT + "@!first bra WAITING;\n" + ASK.format("r", "full") + ASK.format("n", "other") + (
        "WAITING:\n")
    alike(bench, both + WAIT_FULL + WAIT.format(1, "other") + READ + GIVE, X)
    for now, wrong in (("full", "two"), ("other", "buf")):
        rest = {"full": "other", "other": "full"}[now]
        body = both + WAIT.format(0, now) + f"ld.shared.b32 v0, [{wrong}];\n"
        caught(bench, body + WAIT.format(1, rest) + "ret;", "destination of a copy",
               f"allocation {wrong}")


def test_an_arrival_covers_the_copies_before_it_alone(bench):
    body = INIT.replace("[full], 1", "[full], 64") + COPY + (
        "cp.async.mbarrier.arrive.noinc.shared.b64 [full];\n"
        "cp.async.cg.shared.global [a+1024], [at], 16;\n" + WAIT_FULL)
    layout = START.replace("buf[1024]", "buf[2048]")
    assert layout != START
    for seed in SEEDS:
        good = layout + body + READ + DONE + GIVE
        got = bench.kernel(good, {"x": X, "y": 1024}, block=64, seed=seed)["y"]
        assert np.array_equal(got.view(np.uint32), X)
        with pytest.raises(EmulatorError, match="destination of a copy"):
            bench.kernel(layout + body + READ.replace("[a]", "[a+1024]") + DONE + GIVE,
                         {"x": X, "y": 1024}, block=64, seed=seed)


def test_a_landed_copy_tells_nothing_of_its_thread(bench):
    """Stores after the copy was asked for are not published by its mbarrier."""
    flag = ".shared .b32 word;\n" + LOAD.replace("WAITING:", "st.shared.b32 [word], t;\nWAITING:")
    caught(bench, flag + WAIT_FULL + "@first bra ON;\nld.shared.b32 v0, [word];\nON: ret;",
           "no order", "ld.shared", kind="race")


def test_races_of_copies_between_blocks(bench):
    """Block 0 writes y; block 1 copies it without having heard of that."""
    split = "mov.u32 s, %ctaid.x; setp.eq.u32 p, s, 0;\n@p bra WRITE;\n"
    body = split + COPY.replace("[at]", "[to]") + DONE + "ret;\nWRITE: st.global.b32 [to], t; ret;"
    for seed in SEEDS:
        with pytest.raises(EmulatorError, match="another CTA") as found:
            run(bench, body, seed=seed, grid=2)
        assert found.value.kind == "race"
    body = STORE + END + "GO_ON: ret;"
    with pytest.raises(EmulatorError, match=r"another CTA|destination of a copy"):
        run(bench, body, grid=2)


def test_a_buffer_goes_round(bench):
    """Four rounds through one buffer: full and empty mbarriers, and each way to forget one."""
    body = """
    @!first bra READY_;
    mbarrier.init.shared.b64 [full], 1; mbarrier.init.shared.b64 [other], 32;
    READY_: bar.sync 0;
    mov.u32 n, 0; setp.ge.u32 p, t, 32; @p bra CONSUME;
    @!first bra LEAVE;
    PRODUCE: and.b32 s, n, 1; xor.b32 s, s, 1;
    FREE: mbarrier.try_wait.parity.shared.b64 q, [other], s; @!q bra FREE;
    mbarrier.arrive.expect_tx.shared.b64 _, [full], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r], [x], 256, [full];
    add.u64 x, x, 256; add.u32 n, n, 1; setp.lt.u32 q, n, 4; @q bra PRODUCE;
    LEAVE: ret;
    CONSUME: and.b32 a, t, 31; shl.b32 a, a, 3; mul.wide.u32 off, a, 1; add.u64 to, y, off;
    add.u32 a, a, r;
    ROUND: and.b32 s, n, 1;
    FILLED: mbarrier.try_wait.parity.shared.b64 q, [full], s; @!q bra FILLED;
    ld.shared.v2.b32 {v0, v1}, [a];
    fence.proxy.async.shared::cta;
    mbarrier.arrive.shared.b64 _, [other];
    st.global.v2.b32 [to], {v0, v1};
    add.u64 to, to, 256; add.u32 n, n, 1; setp.lt.u32 q, n, 4; @q bra ROUND;
    ret;
    """
    alike(bench, body, X)
    # A released slot is refilled under loads that are still on their way, unless they are fenced.
    caught(bench, body.replace("fence.proxy.async.shared::cta;", ""), "no proxy fence of theirs",
           "cp.async.bulk")
    # Few seeds: it takes a while until nobody can go on.
    for seed in (0, 1):
        for loop in ("@!q bra FREE;", "@!q bra FILLED;"):
            with pytest.raises(EmulatorError) as found:
                run(bench, body.replace(loop, ""), seed=seed)
            assert found.value.kind in ("async", "race", "barrier", "deadlock")
    with pytest.raises(EmulatorError, match="nobody can go on"):
        run(bench, body.replace("[full], 256;\n    cp", "[full], 272;\n    cp"), seed=1)
