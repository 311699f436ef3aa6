"""Protects programmatic launches: what the launch ahead writes is touched after a wait alone."""

import numpy as np
import pytest

from ptx.devices.emulator import EmulatorDevice
from ptx.emulator import EmulatorError, Machine, Memory, Output, parse
from ptx.op import Launch

SEEDS = range(4)
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry "
START = """(.param .u64 p_x, .param .u64 p_y, .param .u64 p_z) {
.reg .pred p, q; .reg .b32 t, r, s, v<4>; .reg .b64 x, y, z, off, at;
.shared .align 16 .b8 buf[1024]; .shared .align 8 .b8 full[8];
ld.param.u64 x, [p_x]; ld.param.u64 y, [p_y]; ld.param.u64 z, [p_z];
mov.u32 r, %ctaid.x; mov.u32 t, %tid.x; mad.lo.u32 t, r, 64, t; mul.wide.u32 off, t, 4;
add.u64 x, x, off; add.u64 y, y, off; add.u64 z, z, off;
"""
WAIT = "griddepcontrol.wait;\n"
READ = "ld.global.u32 s, [y];\n"
GIVE = "add.u32 s, s, 1;\nst.global.u32 [z], s;\nret;}"
# Writes the first half of y: 64 of 128 words.
WRITER = HEAD + "writer" + START + "griddepcontrol.launch_dependents;\nst.global.u32 [y], t;\nret;}"
N_CELLS = 128


class Sequence:
    """Launches one after the other on the buffers x, y, z of 128 words."""

    def __init__(self, seed=0):
        self.memory = Memory()
        self.machine = Machine(self.memory, "sm_90a", seed)
        self.places = [self.memory.allocate(4 * N_CELLS, name) for name in "xyz"]
        for place in self.places:
            self.memory.write(place, np.full(N_CELLS, 7, np.uint32))

    def launch(self, text, name, programmatic=True, grid=1, outputs=(1, 2)):
        n_bytes = 4 * N_CELLS
        extents = [Output(self.places[at], n_bytes, False) for at in outputs]
        self.machine.launch(
            parse(text), name, grid, 64, 0, self.places, extents, programmatic=programmatic
        )

    def cells(self, at):
        got = np.zeros(N_CELLS, np.uint32)
        self.memory.read(self.places[at], got)
        return got


def after_writer(body, seed=0, **options):
    steps = Sequence(seed)
    steps.launch(WRITER, "writer", False)
    steps.launch(HEAD + "reader" + START + body, "reader", **options)
    return steps


def caught(body, marked, words="wrote, before griddepcontrol.wait", **options):
    for seed in SEEDS:
        with pytest.raises(EmulatorError, match=words) as found:
            after_writer(body, seed, **options)
        error = found.value
        assert error.kind == "dependency"
        assert "writer" in str(error)
        assert error.kernel == "reader"
        assert marked in error.text
        assert error.line is not None
        assert error.allocation == "y"
        assert error.address is not None


def test_a_wait_makes_it_right():
    for seed in SEEDS:
        steps = after_writer(WAIT + READ + GIVE, seed)
        assert steps.cells(2)[:64].tolist() == list(range(1, 65))
        # What the launch ahead does not write may be read before: x, and the rest of y.
        body = "ld.global.u32 s, [x];\nld.global.u32 r, [y+256];\nadd.u32 s, s, r;\n" + WAIT + GIVE
        assert (after_writer(body, seed).cells(2)[:64] == 15).all()
        # One thread waits for its block; the others learn of it at the barrier.
        first = "setp.eq.u32 p, t, 0;\n@p griddepcontrol.wait;\nbar.sync 0;\n"
        steps = after_writer(first + READ + GIVE, seed)
        assert steps.cells(2)[:64].tolist() == list(range(1, 65))


def test_reads_and_writes_before_the_wait():
    caught(READ + WAIT + GIVE, "ld.global.u32 s, [y]")
    caught(READ + GIVE, "ld.global.u32 s, [y]")
    caught("mov.u32 s, 1;\nst.global.u32 [y], s;\n" + WAIT + GIVE, "st.global.u32 [y], s")
    caught("atom.global.add.u32 s, [y], 1;\n" + WAIT + GIVE, "atom.global")
    caught("ld.relaxed.gpu.global.u32 s, [y];\n" + WAIT + GIVE, "ld.relaxed")
    caught("ld.u32 s, [y];\n" + WAIT + GIVE, "ld.u32")
    one = "setp.ne.u32 p, t, 0;\n@p exit;\nld.global.u8 v0, [y+255];\n"
    caught(one + WAIT + "ret;}", "ld.global.u8")
    # A prefetch reads nothing.
    for seed in SEEDS:
        after_writer("prefetch.global.L2 [y];\n" + WAIT + READ + GIVE, seed)


def test_one_word_of_two_is_enough():
    last = WRITER.replace("st.global", "setp.eq.u32 p, t, 63;\n@p st.global")
    for offset, wrong in ((240, False), (248, True), (256, False)):
        body = f"setp.ne.u32 p, t, 0;\n@p exit;\nld.global.v2.u32 {{v0, v1}}, [y+{offset}];\nret;}}"
        steps = Sequence()
        steps.launch(last, "writer", False)
        if wrong:
            with pytest.raises(EmulatorError, match="writer wrote"):
                steps.launch(HEAD + "reader" + START + body, "reader")
        else:
            steps.launch(HEAD + "reader" + START + body, "reader")


def test_copies_before_the_wait():
    place = "mov.u32 r, buf; shl.b32 s, t, 4; add.u32 s, s, r; sub.u64 y, y, off;\n"
    one = "setp.ne.u32 p, t, 0;\n@p exit;\n"
    body = place + one + "cp.async.cg.shared.global [s], [y], 16;\n" + WAIT + "cp.async.wait_all;\n"
    caught(body + "ret;}", "cp.async.cg")
    load = one + place + (
        "mbarrier.init.shared.b64 [full], 1;\nmbarrier.arrive.expect_tx.shared.b64 _, [full], 64;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r], [y], 64, [full];\n"
        "W: mbarrier.try_wait.parity.shared.b64 p, [full], 0; @!p bra W;\n" + WAIT + "ret;}")
    caught(load, "cp.async.bulk")
    store = one + place + (
        "st.shared.v4.b32 [r], {t, t, t, t};\nfence.proxy.async.shared::cta;\n"
        "cp.async.bulk.global.shared::cta.bulk_group [y], [r], 16;\n"
        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n" + WAIT + "ret;}")
    caught(store, "cp.async.bulk")


def test_a_wait_of_one_warp_is_not_everybodys():
    first = "setp.lt.u32 p, t, 32;\n@p griddepcontrol.wait;\n"
    caught(first + READ + GIVE, "ld.global.u32 s, [y]")
    caught("bar.sync 0;\n" + first + READ + GIVE, "ld.global.u32 s, [y]")
    # Nor that of one block.
    block = "mov.u32 r, %ctaid.x; setp.eq.u32 p, r, 0;\n@p griddepcontrol.wait;\n"
    caught(block + "and.b32 r, t, 63; sub.u32 r, r, t; mul.wide.s32 off, r, 4; add.u64 y, y, off;\n"
           + READ + "ret;}", "ld.global.u32 s, [y]", grid=2)


def test_a_flag_carries_the_wait_to_other_blocks():
    body = """
    mov.u32 r, %ctaid.x; setp.ne.u32 p, r, 0; mov.u32 r, %tid.x; setp.ne.u32 q, r, 0;
    add.u64 at, z, 256; sub.u64 at, at, off; @p bra OTHER;
    @q exit; griddepcontrol.wait; st.release.gpu.global.u32 [at], 1; ret;
    OTHER: @q bra READ;
    LOOK: ld.acquire.gpu.global.u32 s, [at]; setp.ne.u32 p, s, 1; @p bra LOOK;
    READ: bar.sync 0; ld.global.u32 s, [y+-256]; ret;}
    """
    for seed in SEEDS:
        after_writer(body, seed, grid=2)
        with pytest.raises(EmulatorError, match="before griddepcontrol"):
            after_writer(body.replace("griddepcontrol.wait;", ""), seed, grid=2)


def test_ordinary_launches_and_copies_wait_for_everything():
    reader = HEAD + "reader" + START + READ + GIVE
    for seed in SEEDS:
        after_writer(READ + GIVE, seed, programmatic=False)
        # The launch between has ended before the last one begins, and so has what was before it.
        steps = Sequence(seed)
        steps.launch(WRITER, "writer", False)
        steps.launch(HEAD + "idle" + START + "ret;}", "idle", False)
        steps.launch(reader, "reader")
        steps = Sequence(seed)
        steps.launch(WRITER, "writer", False)
        steps.machine.settle()
        steps.launch(reader, "reader")
    alone = Sequence()
    alone.launch(HEAD + "reader" + START + WAIT + READ + GIVE, "reader")
    assert (alone.cells(2)[:64] == 8).all()


def test_a_wait_says_nothing_of_launches_that_nobody_waited_for():
    reader = HEAD + "reader" + START + WAIT + READ + GIVE
    idle = HEAD + "idle" + START + "WAIT ret;}"
    for seed in SEEDS:
        steps = Sequence(seed)
        steps.launch(WRITER, "writer", False)
        steps.launch(idle.replace("WAIT", WAIT), "idle")
        steps.launch(reader, "reader")
        steps = Sequence(seed)
        steps.launch(WRITER, "writer", False)
        steps.launch(idle.replace("WAIT", ""), "idle")
        with pytest.raises(EmulatorError, match="writer wrote, which may still run: idle did not"):
            steps.launch(reader, "reader")
        # A fault ends the sequence.
        steps.launch(reader, "reader")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_device_has_the_same_attribute(seed):
    device = EmulatorDevice(seed=seed)
    buffers = [device.allocate((N_CELLS,), "u32", name) for name in "xyz"]
    values = [buffer.address for buffer in buffers]
    outputs = [(buffer.address, buffer.nbytes, False) for buffer in buffers[1:]]
    writer = device._load(WRITER, "writer", "writer.ptx")
    reader = device._load(HEAD + "reader" + START + READ + GIVE, "reader", "reader.ptx")
    early, late = Launch(1, 64, programmatic=True), Launch(1, 64)
    assert early != late
    for buffer in buffers:
        device.upload(buffer, np.zeros(N_CELLS))
    device._run(writer, early, values, outputs, "writer")
    device._run(reader, late, values, outputs, "reader")
    device._run(writer, late, values, outputs, "writer")
    with pytest.raises(EmulatorError, match="dependency: reader line"):
        device._run(reader, early, values, outputs, "reader")
    for between in (
        lambda: device.download(buffers[0]), device.synchronize,
        lambda: device.copy(buffers[0], buffers[2]),
        lambda: device.upload(buffers[0], np.zeros(N_CELLS)),
    ):
        device._run(writer, late, values, outputs, "writer")
        between()
        device._run(reader, early, values, outputs, "reader")
