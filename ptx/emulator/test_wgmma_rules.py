"""Protects the rules around wgmma: what is lent until the wait, fences, groups, warpgroups.

It is long because each rule has its right program beside the wrong ones, under several seeds.
"""

import re

import numpy as np
import pytest

from ptx.assemble import assemble_all, find_ptxas
from ptx.emulator import EmulatorError
from ptx.emulator.wgmma_cases import (
    BARRIER,
    COMMIT,
    FENCE,
    PROXY,
    WAIT,
    a_words,
    descriptors,
    from_threads,
    head,
    line,
    load_registers,
    place_rows,
    store_registers,
)

SEEDS = range(5)
RNG = np.random.default_rng(3)
A, B = RNG.integers(-8, 9, (64, 16)), RNG.integers(-8, 9, (8, 16))
WANT = (A @ B.T).astype(np.float32)


def bf16(values):
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


LEFT, RIGHT = place_rows(bf16(A), 0), place_rows(bf16(B), 0)
WORDS = a_words(bf16(A), 16)
IMAGE = np.concatenate([LEFT.image, RIGHT.image, RIGHT.image])
DESCRIPTORS = descriptors("a", [0, 0], LEFT.bits) + descriptors("b", [2048, 2304], RIGHT.bits)
KEEP = "setp.eq.u32 keep, t, t;\n"
HEAD = head(IMAGE, 12, 2)
ZERO = "".join(f"mov.b32 d{r}, 0;\n" for r in range(12))
READY = HEAD + DESCRIPTORS + KEEP + load_registers("y", "a", 4) + ZERO
FORM = "m64n8k16.f32.bf16.bf16"
MMA = line(FORM, 4, "da0", "db0", "1, 1, 0, 0")
MMA_A = line(FORM, 4, "{a0, a1, a2, a3}", "db0", "1, 1, 0")
OTHER = MMA.replace("{d0, d1, d2, d3}", "{d4, d5, d6, d7}")
WIDER = line("m64n16k16.f32.bf16.bf16", 8, "da0", "db0", "1, 1, 0, 0")
GIVE = store_registers("w", "d", 4) + "ret;"
HERE = "// HERE\n"
WAIT_1 = WAIT.replace(" 0;", " 1;")
STORE = "mov.u32 addr, buf;\nst.shared.b32 [addr], t;\n"
FIRST = "setp.eq.u32 q, t, 0;\n@!q bra OVER;\n" + STORE + "OVER:\n"


def run(bench, body, block=128, **options):
    buffers = {"x": IMAGE, "y": WORDS, "w": np.zeros(512 * block // 128, np.uint32)}
    got = bench.kernel(body, buffers, block=block, **options)
    return got["w"].view(np.float32).reshape(block, 4)


def right(bench, body, want=WANT, **options):
    for seed in SEEDS:
        assert np.array_equal(from_threads(run(bench, body, seed=seed, **options)), want), seed


def wrong(bench, body, words, marked, kind="async", **options):
    """An error of that kind at a line that has `marked`, under every seed."""
    for seed in SEEDS:
        with pytest.raises(EmulatorError) as found:
            run(bench, body, seed=seed, **options)
        error = found.value
        assert error.kind == kind, (seed, error)
        assert re.search(words, str(error)), (seed, error)
        assert error.line is not None
        assert marked in (error.text or ""), (seed, error)


def test_right_programs(bench):
    right(bench, READY + FENCE + MMA + COMMIT + WAIT + GIVE)
    right(bench, READY + FENCE + MMA_A + COMMIT + WAIT + GIVE)
    right(bench, READY + FENCE + MMA + MMA_A + COMMIT + MMA + COMMIT + WAIT + GIVE, 3 * WANT)
    # The older of two groups, while the newer one runs on.
    right(bench, READY + FENCE + MMA + COMMIT + OTHER + COMMIT + WAIT_1 + store_registers(
        "w", "d", 4) + WAIT + "ret;")
    # Two products may read the same registers of A.
    second = MMA_A.replace("{d0, d1, d2, d3}", "{d4, d5, d6, d7}")
    right(bench, READY + FENCE + second + MMA_A + COMMIT + WAIT + GIVE)
    # Without scale-d nobody needs to have written D.
    bare = (HEAD + DESCRIPTORS + "setp.ne.u32 keep, t, t;\n" + FENCE + MMA + KEEP + MMA)
    right(bench, bare + COMMIT + WAIT + GIVE, 2 * WANT)


def test_products_run_in_their_order(bench):
    """The first one does not add to D, so the other way round its result would be the only one.

    The predicate is read when a product is asked for: it may change before the wait.
    """
    bare = HEAD + DESCRIPTORS + "setp.ne.u32 keep, t, t;\n" + ZERO.replace(", 0;", ", 0x40E00000;")
    bare += FENCE + MMA + KEEP + MMA
    for seed in range(24):
        got = run(bench, bare + COMMIT + WAIT + GIVE, seed=seed)
        assert np.array_equal(from_threads(got), 2 * WANT), seed


@pytest.mark.parametrize("mma", [MMA, MMA_A], ids=["memory", "registers"])
def test_accumulators_are_lent(bench, mma):
    run_ = READY + FENCE + mma + COMMIT
    words = "register d[0-3] belongs to wgmma.mma_async in line"
    wrong(bench, run_ + GIVE.replace("ret;", WAIT + "ret;"), words, "st.global")
    wrong(bench, run_ + "add.f32 d1, d1, d1;\n" + WAIT + GIVE, words, "add.f32")
    wrong(bench, run_ + "mov.b32 d2, 5;\n" + WAIT + GIVE, words, "mov.b32")
    wrong(bench, run_ + "mov.b32 s, d3;\n" + WAIT + GIVE, words, "mov.b32 s, d3")
    wrong(bench, run_ + "setp.lt.u32 q, t, 1;\n@q mov.b32 d2, 5;\n" + WAIT + GIVE, words, "mov.b32")
    # A product that belongs to no group is not waited for.
    wrong(bench, READY + FENCE + mma + WAIT + GIVE, words, "st.global")
    wrong(bench, run_ + WAIT_1 + GIVE, words, "st.global")
    # Of two groups the newer one has the registers, whatever becomes of the older.
    wrong(bench, run_ + mma + COMMIT + WAIT_1 + GIVE, words, "st.global")


def test_registers_of_a_are_lent(bench):
    run_ = READY + FENCE + MMA_A + COMMIT
    words = "register a[0-3] belongs to wgmma.mma_async in line"
    wrong(bench, run_ + "mov.b32 a0, 5;\n" + WAIT + GIVE, words, "mov.b32 a0")
    wrong(bench, run_ + "mov.b32 s, a1;\n" + WAIT + GIVE, words, "mov.b32 s, a1")
    wrong(bench, run_ + "ld.global.b32 a2, [at];\n" + WAIT + GIVE, words, "ld.global")
    spoilt = MMA.replace("{d0, d1, d2, d3}", "{a0, a1, a2, a3}")
    wrong(bench, run_ + spoilt + COMMIT + WAIT + GIVE, words, "wgmma.mma_async")
    right(bench, run_ + WAIT + "mov.b32 a0, 5;\n" + GIVE)
    used = MMA_A.replace("{a0, a1, a2, a3}", "{d4, d5, d6, d7}")
    wrong(bench, READY + FENCE + OTHER + used + COMMIT + WAIT + GIVE, "register d[4-7] belongs",
          "wgmma.mma_async")


def test_registers_need_a_fence(bench):
    end = COMMIT + WAIT + GIVE
    words = "needs a wgmma.fence after what touched register d0"
    wrong(bench, READY + MMA + end, words, "wgmma.mma_async")
    fresh = HEAD + DESCRIPTORS + "setp.ne.u32 keep, t, t;\n" + MMA + end
    wrong(bench, fresh, words, "wgmma.mma_async")
    wrong(bench, READY + FENCE + "mov.b32 d0, 0;\n" + MMA + end, words, "wgmma.mma_async")
    wrong(bench, READY + FENCE + MMA + COMMIT + WAIT + "mov.b32 s, d0;\n" + MMA + end, words,
          "wgmma.mma_async")
    right(bench, READY + FENCE + MMA + COMMIT + WAIT + "mov.b32 s, d0;\n" + FENCE + MMA + end,
          2 * WANT)
    wrong(bench, READY + FENCE + "mov.b32 a0, a0;\n" + MMA_A + end, words.replace("d0", "a0"),
          "wgmma.mma_async")
    # One lane is enough.
    one = "setp.eq.u32 q, t, 77;\n@q mov.b32 d0, 0;\n"
    wrong(bench, READY + FENCE + one + MMA + end, words, "wgmma.mma_async")
    # Consecutive products of one shape need none, those of another shape do.
    wrong(bench, READY + FENCE + MMA + WIDER.replace("db0", "da1") + end, "register d0 belongs to",
          "m64n16k16")
    changed = READY + FENCE + MMA + COMMIT + WAIT + HERE + WIDER.replace("db0", "da1")
    wrong(bench, changed.replace(HERE, "") + end, words, "m64n16k16")
    for seed in SEEDS:
        run(bench, changed.replace(HERE, FENCE) + end, seed=seed)


def test_shared_memory_is_lent(bench):
    run_ = READY + FENCE + MMA + COMMIT
    words = "writes what wgmma.mma_async in line .* reads, for which nobody waited"
    wrong(bench, run_ + FIRST + WAIT + GIVE, words, "st.shared")
    wrong(bench, run_ + FIRST.replace("[addr]", "[addr+2048]") + WAIT + GIVE, words, "st.shared")
    wrong(bench, run_ + "atom.shared.add.u32 s, [addr], 1;\n" + WAIT + GIVE, words, "atom.shared")
    copy = "mov.u32 addr, buf;\ncp.async.ca.shared.global [addr], [x], 4;\n"
    wrong(bench, run_ + FIRST.replace(STORE, copy) + "cp.async.wait_all;\n" + WAIT + GIVE, words,
          "cp.async")
    # Others may read it; and write it again once all four warps have waited.
    right(bench, run_ + "ld.shared.b32 s, [addr];\n" + WAIT + GIVE)
    right(bench, run_ + WAIT + BARRIER + FIRST + GIVE)
    wrong(bench, run_ + WAIT + FIRST + GIVE, "has read at .*wgmma", "st.shared", kind="race")
    # A barrier between the asking and the wait says nothing of the wait.
    wrong(bench, run_ + BARRIER + WAIT + FIRST + GIVE, "has read at .*wgmma", "st.shared",
          kind="race")


def test_what_only_an_older_product_reads_is_free_again(bench):
    newer = OTHER.replace("db0", "db1")
    body = READY + FENCE + MMA + COMMIT + newer + COMMIT + WAIT_1 + BARRIER + HERE + WAIT + GIVE
    right(bench, body.replace(HERE, FIRST.replace("[addr]", "[addr+2048]")))
    for held in (0, 2304):
        store = FIRST.replace("[addr]", f"[addr+{held}]")
        wrong(bench, body.replace(HERE, store), "for which nobody waited", "st.shared")


def test_a_barrier_after_the_product_is_too_late(bench):
    body = READY.replace(BARRIER, "") + FENCE + MMA + COMMIT + BARRIER + WAIT + GIVE
    for seed in SEEDS:
        with pytest.raises(EmulatorError) as found:
            run(bench, body, seed=seed)
        assert found.value.kind in ("race", "uninitialised", "async"), (seed, found.value)
        assert seed or found.value.kind == "race"


def test_shared_memory_needs_a_proxy_fence_and_a_barrier(bench):
    end = FENCE + MMA + COMMIT + WAIT + GIVE
    words = "ordinary stores or cp.async wrote, with no proxy fence"
    wrong(bench, READY.replace(PROXY, "") + end, words, "wgmma.mma_async")
    late = READY.replace(PROXY + BARRIER, BARRIER + "setp.lt.u32 q, t, 32;\n@q " + PROXY)
    right(bench, late.replace("@q ", "") + end)
    right(bench, READY.replace(PROXY + BARRIER, BARRIER + PROXY + BARRIER) + end)
    for seed in SEEDS:
        with pytest.raises(EmulatorError, match=r"no proxy fence|no order between") as found:
            run(bench, READY.replace(BARRIER, "") + end, seed=seed)
        assert found.value.kind in ("async", "race")
    again = READY + FIRST + HERE + BARRIER + end
    wrong(bench, again.replace(HERE, ""), words, "wgmma.mma_async")
    for seed in SEEDS:
        run(bench, again.replace(HERE, PROXY), seed=seed)
    # cp.async writes by the same path as stores.
    copied = READY + "shl.b32 s, t, 4; mov.u32 addr, buf; add.u32 addr, addr, s;\n" + (
        "cvt.u64.u32 off, s; add.u64 at, x, off; cp.async.cg.shared.global [addr], [at], 16;\n"
        "cp.async.wait_all;\n")
    wrong(bench, copied + BARRIER + end, words, "wgmma.mma_async")
    right(bench, copied + PROXY + BARRIER + end)


LOAD = """
.shared .align 8 .b8 full[8];
setp.eq.u32 q, t, 0;
@q mbarrier.init.shared.b64 [full], 1;
bar.sync 0;
@!q bra ASKED;
mbarrier.arrive.expect_tx.shared.b64 _, [full], 2560;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [addr], [x], 2560, [full];
ASKED:
"""
FULL = "LOOK: mbarrier.try_wait.parity.shared.b64 q, [full], 0; @!q bra LOOK;\n"


def test_what_a_bulk_copy_brings_needs_the_mbarrier_alone(bench):
    declared = HEAD[: HEAD.index("mov.u32 s, t;")]
    ready = declared + LOAD + HERE + DESCRIPTORS + KEEP + ZERO + FENCE + MMA + COMMIT + WAIT + GIVE
    right(bench, ready.replace(HERE, FULL))
    wrong(bench, ready.replace(HERE, ""), "destination of a copy", "wgmma.mma_async")
    # One warp that did not look knows nothing.
    some = "setp.lt.u32 p, t, 96;\n@!p bra ON;\n" + FULL + "ON:\n"
    wrong(bench, ready.replace(HERE, some), "copy", "wgmma.mma_async")


def test_leaving_with_a_product_outstanding(bench):
    wrong(bench, READY + FENCE + MMA + COMMIT + "ret;", "leaves with wgmma.mma_async in line",
          "ret")
    wrong(bench, READY + FENCE + MMA + "ret;", "outstanding", "ret")


def test_operands_that_nobody_wrote(bench):
    end = FENCE + MMA + COMMIT + WAIT + GIVE
    wrong(bench, READY.replace("mov.b32 d3, 0;\n", "") + end, "d3 was never written",
          "wgmma.mma_async", kind="uninitialised")
    wrong(bench, READY.replace(load_registers("y", "a", 4), "") + end.replace(MMA, MMA_A),
          "a0 was never written", "wgmma.mma_async", kind="uninitialised")
    n_words = len(IMAGE) // 4
    short = READY.replace(f"p, s, {n_words};", f"p, s, {n_words - 67};")
    wrong(bench, short + end, "shared memory that nobody wrote", "wgmma.mma_async",
          kind="uninitialised")


def test_descriptors_that_are_wrong(bench):
    end = FENCE + MMA + COMMIT + WAIT + GIVE
    wrong(bench, READY + "add.u64 db0, db0, 17;\n" + end, "not inside one variable",
          "wgmma.mma_async", kind="bounds")
    wrong(bench, READY + "or.b64 db0, db0, 0x4000;\n" + end, "bits outside its fields",
          "wgmma.mma_async", kind="undefined")
    odd = "setp.ge.u32 q, t, 96;\n@q {}\n"
    wrong(bench, READY + odd.format("add.u64 da0, da0, 8;") + end, "disagree on a matrix desc",
          "wgmma.mma_async", kind="undefined")
    wrong(bench, READY + odd.format("setp.ne.u32 keep, t, t;") + end, "disagree on scale-d",
          "wgmma.mma_async", kind="undefined")


def test_a_warpgroup_is_four_warps_that_go_together(bench):
    end = FENCE + MMA + COMMIT + WAIT + GIVE
    for block in (64, 96, 100):
        body = READY.replace("add.u32 s, s, 128;", f"add.u32 s, s, {block};") + end
        with pytest.raises(EmulatorError, match="needs 4 whole warps"):
            bench.kernel(body, {"x": IMAGE, "y": WORDS, "w": 2048}, block=block)
    away = "setp.ge.u32 q, t, 96;\n@q bra AWAY;\n"
    for seed in SEEDS:
        for instead in ("ret;", "bar.sync 1, 32;\n" + FENCE + COMMIT + WAIT + "ret;"):
            with pytest.raises(EmulatorError) as found:
                run(bench, READY + FENCE + away + MMA + COMMIT + WAIT + GIVE + "\nAWAY: " + instead,
                    seed=seed)
            assert found.value.kind in ("barrier", "deadlock"), found.value
    lanes = "and.b32 s, t, 31; setp.lt.u32 q, s, 5;\n@q bra AWAY;\n"
    for seed in SEEDS:
        with pytest.raises(EmulatorError, match="lanes of the warp are elsewhere"):
            run(bench, READY + lanes + end + "\nAWAY: " + end, seed=seed)


def test_two_warpgroups_and_blocks_keep_apart(bench):
    """Each warpgroup has groups of its own; the second one takes B's signs the other way."""
    body = READY.replace("add.u32 s, s, 128;", "add.u32 s, s, 256;")
    body = body.replace(load_registers("y", "a", 4), "and.b32 s, t, 127; mul.wide.u32 off, s, 16;\n"
                        "add.u64 at, y, off;\nld.global.v4.b32 {a0, a1, a2, a3}, [at];\n")
    body += FENCE + "setp.ge.u32 q, t, 128;\n@q bra SECOND;\n" + MMA + COMMIT + WAIT + GIVE
    body += "\nSECOND: " + MMA_A.replace("1, 1, 0", "1, -1, 0") * 2 + COMMIT + WAIT + GIVE
    for seed in SEEDS:
        got = run(bench, body, block=256, seed=seed)
        assert np.array_equal(from_threads(got[:128]), WANT)
        assert np.array_equal(from_threads(got[128:]), -2 * WANT)
    blocks = READY + FENCE + MMA + COMMIT + WAIT + (
        "mov.u32 s, %ctaid.x; mad.lo.u32 t, s, 128, t;\n") + GIVE
    for seed in SEEDS:
        got = bench.kernel(blocks, {"x": IMAGE, "y": WORDS, "w": 3 * 2048}, grid=3, block=128,
                           seed=seed)["w"].view(np.float32).reshape(3, 128, 4)
        assert all(np.array_equal(from_threads(part), WANT) for part in got)


def test_without_the_sanitiser_seeds_tell_early_from_late(bench):
    """What an accumulator holds before the wait, and what operands still give, depend on lots."""
    early = READY + FENCE + MMA + COMMIT + GIVE.replace("ret;", WAIT + "ret;")
    spoilt = READY + FENCE + MMA_A + COMMIT + "mov.b32 a0, 0;\n" + WAIT + GIVE
    late = READY + FENCE + MMA + COMMIT + "st.shared.b32 [addr], 0;\n" + WAIT + GIVE
    for body in (early, spoilt, late):
        found = {run(bench, body, seed=seed, sanitise=False).tobytes() for seed in range(12)}
        assert len(found) == 2
    lockstep = run(bench, early, seed=0, sanitise=False)
    assert not lockstep.any()


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_ptxas_takes_the_right_programs(bench):
    end = COMMIT + WAIT + GIVE
    bodies = [READY + FENCE + mma + end for mma in (MMA, MMA_A, MMA + MMA_A, MMA + OTHER, WIDER)]
    reports = assemble_all([(bench.kernel_text(b, ["x", "y", "w"], "sm_90a"), "sm_90a")
                            for b in bodies])
    assert [report.error for report in reports] == [""] * len(bodies)
