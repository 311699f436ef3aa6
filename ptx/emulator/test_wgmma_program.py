"""Protects wgmma in its usual place: one warp brings tiles, a warpgroup multiplies them."""

import numpy as np
import pytest

from ptx.assemble import assemble_all, find_ptxas
from ptx.emulator import EmulatorError
from ptx.emulator.wgmma_cases import (
    COMMIT,
    FENCE,
    WAIT,
    from_threads,
    line,
    place_rows,
    store_registers,
)

N_ROUNDS = 7
RNG = np.random.default_rng(4)
A, B = RNG.integers(-8, 9, (64, 16 * N_ROUNDS)), RNG.integers(-8, 9, (8, 16 * N_ROUNDS))


def placed(matrix, r):
    codes = matrix[:, 16 * r : 16 * r + 16].astype(np.float32).view(np.uint32) >> 16
    return place_rows(codes.astype(np.uint16), 0)


LEFT, RIGHT = ([placed(m, r) for r in range(N_ROUNDS)] for m in (A, B))
IMAGE = np.concatenate([p.image for pair in zip(LEFT, RIGHT, strict=True) for p in pair])
MMA = line("m64n8k16.f32.bf16.bf16", 4, "da", "db", "1, 1, 0, 0")

# Stage s is at 2304 s of `buf`, its mbarriers at 8 s of `full` and `empty`.
BODY = f"""
.reg .pred p, q, keep; .reg .b32 t, round, s, parity, addr, f, e, before, v;
.reg .b64 at, off, da, db; .reg .b32 d<4>;
.shared .align 128 .b8 buf[4608]; .shared .align 8 .b8 full[16]; .shared .align 8 .b8 empty[16];
mov.u32 t, %tid.x; mov.u32 round, 0;
setp.ne.u32 q, t, 0; @q bra READY_;
mbarrier.init.shared.b64 [full], 1; mbarrier.init.shared.b64 [full+8], 1;
mbarrier.init.shared.b64 [empty], 128; mbarrier.init.shared.b64 [empty+8], 128;
READY_: bar.sync 0;
setp.lt.u32 q, t, 128; @q bra CONSUME;

setp.ne.u32 q, t, 128; @q bra GONE;
PRODUCE:
and.b32 s, round, 1; shr.u32 parity, round, 1; and.b32 parity, parity, 1; xor.b32 parity, parity, 1;
mov.u32 addr, buf; mad.lo.u32 addr, s, 2304, addr;
mov.u32 f, full; mad.lo.u32 f, s, 8, f; mov.u32 e, empty; mad.lo.u32 e, s, 8, e;
FREE: mbarrier.try_wait.parity.shared.b64 q, [e], parity; @!q bra FREE;
mbarrier.arrive.expect_tx.shared.b64 _, [f], 2304;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [addr], [x], 2304, [f];
add.u64 x, x, 2304; add.u32 round, round, 1; setp.lt.u32 q, round, {N_ROUNDS}; @q bra PRODUCE;
GONE: ret;

CONSUME:
setp.ne.u32 keep, t, t;
ROUND:
and.b32 s, round, 1; shr.u32 parity, round, 1; and.b32 parity, parity, 1;
mov.u32 addr, buf; mad.lo.u32 addr, s, 2304, addr;
mov.u32 f, full; mad.lo.u32 f, s, 8, f; mov.u32 e, empty; mad.lo.u32 e, s, 8, e;
FILLED: mbarrier.try_wait.parity.shared.b64 q, [f], parity; @!q bra FILLED;
shr.u32 v, addr, 4; cvt.u64.u32 da, v; add.u64 db, da, 128;
or.b64 da, da, {LEFT[0].bits}; or.b64 db, db, {RIGHT[0].bits};
{FENCE}{MMA}{COMMIT}
setp.eq.u32 keep, t, t;
// The round before is over, this one may run on.
wgmma.wait_group.sync.aligned 1;
setp.eq.u32 p, round, 0; xor.b32 before, e, 8;
@!p mbarrier.arrive.shared.b64 _, [before];
add.u32 round, round, 1; setp.lt.u32 q, round, {N_ROUNDS}; @q bra ROUND;
{WAIT}
{store_registers("w", "d", 4)}
ret;
"""
# The mbarriers are 16-byte aligned so that one is 8 away from the other by a bit.
BODY = BODY.replace(".align 8", ".align 16")


def run(bench, body, **options):
    got = bench.kernel(body, {"x": IMAGE, "w": 2048}, block=160, outputs=("w",), **options)
    return from_threads(got["w"].view(np.float32).reshape(128, 4))


def test_stages_go_round(bench):
    for seed in range(6):
        assert np.array_equal(run(bench, BODY, seed=seed), A @ B.T), seed


@pytest.mark.parametrize(("right", "wrong"), [
    # The stage that is still read is given back.
    ("[before]", "[e]"), ("wait_group.sync.aligned 1", "wait_group.sync.aligned 2"),
    ("@!q bra FILLED;", ""), ("@!q bra FREE;", ""), (WAIT, ""), (FENCE, ""),
    ("setp.eq.u32 keep, t, t;", "mov.b32 d0, d0;"), (COMMIT, ""),
    (".b64 [empty], 128", ".b64 [empty], 96"),
])
def test_ways_to_forget_something(bench, right, wrong):
    body = BODY.replace(right, wrong)
    assert body != BODY
    for seed in range(4):
        with pytest.raises(EmulatorError) as found:
            run(bench, body, seed=seed)
        assert found.value.kind in ("async", "race", "barrier", "deadlock"), found.value


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_ptxas_takes_it_for_one_target_alone(bench):
    targets = ("sm_90a", "sm_90", "sm_100a", "sm_120a")
    taken, *others = assemble_all(
        [(bench.kernel_text(BODY, ["x", "w"], target), target) for target in targets]
    )
    assert taken.clean
    assert all("wgmma" in report.error for report in others)
