"""Protects every rule of the sanitiser: a planted bug each, and the line that is named.

It is long because every rule has its planted bug.
"""

import numpy as np
import pytest

from ptx.emulator import CollectedErrors, EmulatorError, Machine, Memory, parse

THREADS = np.arange(64, dtype=np.uint32)
# Registers and the thread's number, for bodies below.
START = """
.reg .pred p, q; .reg .b32 t, r, s, m; .reg .b16 h; .reg .f32 f, g; .reg .b64 at, off;
.shared .align 16 .b8 buf[1024];
mov.u32 t, %tid.x; mul.wide.u32 off, t, 4; add.u64 at, x, off; shl.b32 m, t, 2;
"""
X = np.arange(64, dtype=np.uint32)


def caught(bench, body, kind, marked, buffers=None, **options):
    """Run a body that is wrong in its line with the mark `// BUG`; returns the error."""
    buffers = {"x": X} if buffers is None else buffers
    with pytest.raises(EmulatorError) as found:
        bench.kernel(START + body, buffers, **{"block": 64, **options})
    assert found.value.kind == kind, found.value
    line = next(text for text in body.splitlines() if "// BUG" in text)
    assert found.value.text is not None
    assert found.value.text.split()[0] in line, found.value
    assert " ".join(line.partition(";")[0].split()) == found.value.text
    assert found.value.kernel == "k"
    assert marked in str(found.value)
    return found.value


def test_load_one_byte_past_an_allocation(bench):
    body = "add.u64 at, at, 1;\nld.global.u8 r, [at+3]; // BUG\nret;"
    error = caught(bench, body, "bounds", "allocation x offset 256")
    assert (error.cta, error.warp, error.lane) == ((0, 0, 0), 1, 31)
    assert error.offset == 256


@pytest.mark.parametrize("offset", [-4, 256, 100000, -(2**40)])
def test_store_outside_is_found_on_both_sides(bench, offset):
    body = f"mov.u32 r, 1;\nst.global.u32 [x+{offset}], r; // BUG\nret;"
    caught(bench, body, "bounds", "not inside one allocation")


def test_vector_that_straddles_the_end(bench):
    body = "ld.global.v2.u32 {r, s}, [x+248];\nld.global.v4.u32 {r,s,m,t}, [x+256]; // BUG\nret;"
    caught(bench, body, "bounds", "16 bytes")


def test_shared_variables_do_not_touch(bench):
    body = ".shared .b8 other[16];\nmov.u32 r, 7;\nst.shared.u32 [m+2048], r; // BUG\nret;"
    caught(bench, body, "bounds", "shared")
    body = "mov.u32 r, buf;\nld.shared.u8 s, [r+1024]; // BUG\nret;"
    caught(bench, body, "bounds", "allocation buf offset 1024")


def test_null_in_every_space(bench):
    caught(bench, "mov.u64 at, 0;\nld.u32 r, [at]; // BUG\nret;", "bounds", "address 0x0")
    caught(bench, "mov.u32 r, 0;\nld.shared.u32 r, [r]; // BUG\nret;", "bounds", "address 0x0")


@pytest.mark.parametrize(("line", "n"), [
    ("ld.global.u32 r, [x+2];", 4), ("ld.global.v2.u32 {r,s}, [x+4];", 8),
    ("st.global.u16 [x+1], h;", 2), ("ld.global.v4.u32 {r,s,m,t}, [x+8];", 16),
])
def test_alignment(bench, line, n):
    caught(bench, f"mov.u16 h, 1;\n{line} // BUG\nret;", "alignment", f"multiple of {n}")


def test_unwritten_register(bench):
    caught(bench, "add.u32 s, r, 1; // BUG\nret;", "uninitialised", "register r was never")
    # Written on one path only.
    body = ("setp.lt.u32 p, t, 5;\n@p bra OVER;\nmov.u32 r, 1;\nOVER:\n"
            "add.u32 s, r, 1; // BUG\nret;")
    error = caught(bench, body, "uninitialised", "register r")
    assert error.lane == 0


def test_unwritten_memory(bench):
    buffers = {"x": X, "y": 256}
    body = "ld.global.u32 r, [y];\nadd.u32 r, r, 1; // BUG\nret;"
    caught(bench, body, "uninitialised", "nobody wrote", buffers)
    body = "ld.shared.u32 r, [buf];\nsetp.eq.u32 p, r, 0; // BUG\nret;"
    caught(bench, body, "uninitialised", "nobody wrote")
    body = ".local .b8 own[16];\nld.local.u32 r, [own];\nneg.s32 r, r; // BUG\nret;"
    caught(bench, body, "uninitialised", "nobody wrote")
    body = "red.global.add.u32 [y], 1; // BUG\nret;"
    caught(bench, body, "uninitialised", "nobody wrote", buffers)


def test_copies_carry_what_nobody_wrote(bench):
    buffers = {"x": X, "y": 256, "z": 256}
    copy = ("add.u64 at, y, off; ld.global.u32 r, [at]; mov.b32 s, r; add.u64 at, z, off;\n"
            "st.global.u32 [at], s;")
    bench.kernel(START + copy + "ret;", buffers, block=64)
    body = copy + "\nld.global.u32 r, [at];\nor.b32 r, r, 1; // BUG\nret;"
    caught(bench, body, "uninitialised", "nobody wrote", buffers)


def test_race_between_warps(bench):
    body = ("mov.u32 r, buf; add.u32 s, r, m; st.shared.u32 [s], t;\nxor.b32 m, m, 128;\n"
            "add.u32 s, r, m;\nld.shared.u32 r, [s]; // BUG\nret;")
    error = caught(bench, body, "race", "`st.shared.u32 [s], t`")
    assert error.allocation == "buf"
    fixed = body.replace("xor.b32 m, m", "bar.sync 0; xor.b32 m, m")
    bench.kernel(START + fixed, {"x": X}, block=64)


def test_race_write_after_read(bench):
    body = ("mov.u32 r, buf; add.u32 s, r, m; st.shared.u32 [s], t;\nbar.sync 0;\n"
            "xor.b32 m, m, 128; add.u32 m, m, r; ld.shared.u32 f, [m];\n"
            "st.shared.u32 [s], t; // BUG\nret;").replace(" f,", " q_,").replace("q_", "h_")
    body = ".reg .b32 h_;\n" + body
    caught(bench, body, "race", "read at")
    bench.kernel(START + body.replace("\nst.shared.u32 [s], t; //", "bar.sync 0; st.shared.u32 [s],"
                                      " t; //"), {"x": X}, block=64)


def test_race_between_lanes_of_a_warp(bench):
    body = ("mov.u32 r, buf; add.u32 s, r, m; st.shared.u32 [s], t;\nxor.b32 m, m, 4;\n"
            "add.u32 s, r, m;\nld.shared.u32 r, [s]; // BUG\nret;")
    caught(bench, body, "race", "no order")
    fixed = body.replace("xor", "bar.warp.sync 0xffffffff; xor")
    bench.kernel(START + fixed, {"x": X}, block=64)


def test_two_lanes_write_one_cell(bench):
    caught(bench, "st.shared.u32 [buf], t; // BUG\nret;", "race", "no order")
    # Neighbouring bytes are not the same cell.
    bench.kernel(START + "mov.u32 r, buf; add.u32 r, r, t; st.shared.u8 [r], t; ret;", {"x": X},
                 block=64)


def test_race_between_ctas(bench):
    error = caught(bench, "st.global.u32 [at], t; // BUG\nret;", "race", "another CTA", grid=2)
    assert "has written at" in str(error)
    assert str(error).count("st.global.u32 [at], t") == 2, "one site is not the store"
    body = ("mov.u32 r, %ctaid.x; setp.eq.u32 p, r, 0; @p st.global.u32 [at], t;\n"
            "@!p ld.global.u32 r, [at]; // BUG\nret;")
    caught(bench, body, "race", "another CTA", grid=2)


FLAG = """
mov.u32 r, %ctaid.x; setp.ne.u32 p, r, 0; @p bra CONSUME;
st.global.u32 [at], t; bar.sync 0; setp.ne.u32 q, t, 0; @q bra END;
FENCE @flag
bra END;
CONSUME:
setp.ne.u32 q, t, 0; @q bra READ;
WAIT: ld.acquire.gpu.global.u32 s, [y]; setp.eq.u32 p, s, 0; @p bra WAIT;
READ: bar.sync 0;
ld.global.u32 r, [at]; // BUG
END: ret;
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_released_flag_orders_ctas(bench, seed):
    good = FLAG.replace("FENCE @flag", "red.release.gpu.global.add.u32 [y], 1;")
    buffers = {"x": X, "y": np.zeros(1, np.uint32)}
    bench.kernel(START + good, buffers, block=64, grid=2, seed=seed)
    fence = FLAG.replace("FENCE @flag", "fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [y], 1;")
    bench.kernel(START + fence, buffers, block=64, grid=2, seed=seed)
    bad = FLAG.replace("FENCE @flag", "red.relaxed.gpu.global.add.u32 [y], 1;")
    error = caught(bench, bad, "race", "another CTA", buffers, grid=2, seed=seed)
    assert "has written at" in str(error)
    assert "`st.global.u32 [at], t`" in str(error)


# One CTA after the other: the first thread of each waits for its turn, the rest of its warp for it.
TURNS = """
setp.ne.u32 q, t, 0; @q bra READ;
mov.u32 r, %ctaid.x;
WAIT: ld.acquire.gpu.global.u32 s, [y]; setp.ne.u32 p, s, r; @p bra WAIT;
READ: bar.sync 0;
@q bra NEXT;
red.release.gpu.global.add.u32 [y], 1;
NEXT: bar.sync 0;
ret;
"""


@pytest.mark.parametrize("seed", range(6))
def test_warps_that_wait_for_a_lane_do_not_drag_each_other_along(bench, seed):
    buffers = {"x": X, "y": np.zeros(1, np.uint32)}
    bench.kernel(START + TURNS, buffers, block=64, grid=5, seed=seed)


def test_divergent_barrier(bench):
    body = "setp.lt.u32 p, t, 5;\n@p bra OVER;\nbar.sync 0; // BUG\nOVER:\nret;"
    caught(bench, body.replace("OVER:\nret;", "OVER: bar.sync 1;\nret;"), "barrier", "elsewhere")


def test_wrong_counts(bench):
    caught(bench, "bar.sync 0, 33; // BUG\nret;", "barrier", "multiple of 32")
    caught(bench, "bar.sync 17; // BUG\nret;", "barrier", "barrier 17")
    body = "setp.lt.u32 p, t, 32;\n@p bar.sync 1, 64;\n@!p bar.sync 1, 96; // BUG\nret;"
    caught(bench, body, "barrier", "pending with count 64")
    body = "bar.sync 1, 32; // BUG\nret;"
    caught(bench, body, "barrier", "64 threads arrive")


def test_member_masks(bench):
    body = "setp.gt.u32 p, t, 3;\n@p exit;\nshfl.sync.idx.b32 r, t, 0, 31, 0xffffffff; // BUG\nret;"
    caught(bench, body, "barrier", "has exited")
    body = "shfl.sync.idx.b32 r, t, 0, 31, 0xffff; // BUG\nret;"
    caught(bench, body, "barrier", "own member mask")


def test_output_not_written(bench):
    body = "setp.lt.u32 p, t, 63; add.u64 at, y, off; @p st.global.u32 [at], t; ret;"
    with pytest.raises(EmulatorError, match=r"outputs.*4 of 256 bytes.*offset 252"):
        bench.kernel(START + body, {"x": X, "y": X}, block=64, outputs=("y",))


def test_write_to_an_input(bench):
    caught(bench, "st.global.u32 [at], t; // BUG\nret;", "const", "may only read",
           {"x": X, "y": 4}, outputs=())
    caught(bench, "red.global.add.u32 [at], 1; // BUG\nret;", "const", "may only read",
           {"x": X}, outputs=())


def test_limits(bench):
    for options, words in (
        ({"block": (64, 32)}, "2048 threads in a CTA, at most 1024"),
        ({"shared_bytes": 228 * 1024}, "234496 bytes of shared memory, sm_90a has 232448"),
        ({"block": (1, 1, 65)}, "block axis"),
    ):
        with pytest.raises(EmulatorError, match=words) as found:
            bench.kernel(START + "ret;", {"x": X}, **options)
        assert found.value.kind == "limits"
    with pytest.raises(EmulatorError, match="needs sm_80, the module's target is sm_70") as found:
        bench.kernel(START + "cp.async.wait_all;\nret;", {"x": X}, target="sm_70")
    assert found.value.text == "cp.async.wait_all"
    text = ".version 7.0\n.target sm_70\n.entry k() .maxntid 32 { ret; }"
    with pytest.raises(EmulatorError, match="maxntid allows 32"):
        Machine(Memory()).launch(parse(text), "k", 1, 64)


def test_deadlock_says_who_waits(bench):
    body = "setp.lt.u32 p, t, 32;\n@p bar.sync 1, 64; // BUG\nret;"
    error = caught(bench, body, "deadlock", "waits for a barrier")
    assert "warps [0]" in str(error)
    body = "WAIT: ld.volatile.global.u32 r, [x];\nsetp.eq.u32 p, r, 0; @p bra WAIT;\nret;"
    with pytest.raises(EmulatorError, match="nobody can go on") as found:
        bench.kernel(START + body, {"x": X})
    assert found.value.kind == "deadlock"


def test_endless_loops_end(bench):
    with pytest.raises(EmulatorError, match="no end after 1000"):
        bench.kernel(START + "LOOP: bra LOOP;", {"x": X}, max_steps=1000)


def test_undefined_results(bench):
    caught(bench, "mov.u32 s, 0;\ndiv.u32 r, t, s; // BUG\nret;", "undefined", "zero")
    caught(bench, "trap; // BUG\nret;", "undefined", "trapped")


@pytest.mark.parametrize("statement", [
    "tex.2d.v4.f32.f32 {f,f,f,f}, [x, {f,f}];", "call foo;", "frobnicate.u32 r, t;",
    "add.u32.strange r, t, 1;", "mov.u64 r, off;", "add.u32 r, t;", "bra NOWHERE;",
    "add.f32 f, g, t_undeclared;", "mov.u32 r, %nosuch;",
])
def test_what_is_outside_the_subset_is_named(bench, statement):
    with pytest.raises(EmulatorError) as found:
        bench.kernel(START + statement + "\nret;", {"x": X})
    assert found.value.kind == "subset"
    assert found.value.line is not None
    assert found.value.text is not None
    assert found.value.text.split()[0] == statement.split()[0].rstrip(";")


def test_collecting_goes_on(bench):
    body = ("setp.eq.u32 p, t, 3; @p ld.global.u32 r, [x+1024];\n"
            "setp.eq.u32 p, t, 40; @p ld.global.u32 r, [x+2];\n"
            "add.u64 at, y, off; st.global.u32 [at], t; ret;")
    with pytest.raises(CollectedErrors) as found:
        bench.kernel(START + body, {"x": X, "y": X}, block=64, max_errors=10)
    assert [error.kind for error in found.value.errors] == ["bounds", "alignment"]
    assert [error.lane for error in found.value.errors] == [3, 8]


def test_without_the_sanitiser_races_pass(bench):
    body = "st.shared.u32 [buf], t; ld.shared.u32 r, [buf]; ret;"
    bench.kernel(START + body, {"x": X}, block=64, sanitise=False)
