"""Protects the assembly gate: every kernel on every architecture it claims, without spills."""

import json

import pytest

from engine.bench_ops.case import dims_of
from engine.bench_ops.cases import CASES
from ptx import assemble
from ptx.assemble import (
    ARCHS,
    AssemblyError,
    Report,
    archs_of,
    assemble_all,
    find_ptxas,
    read_log,
    resident_warps,
)
from ptx.inventory import examples_of, ops, targets
from ptx.template import text_of

needs_ptxas = pytest.mark.skipif(
    find_ptxas() is None, reason="no ptxas: install nvidia-cuda-nvcc or put ptxas on the path"
)
HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'rope' for 'sm_90a'
ptxas info    : Function properties for rope
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 3072 bytes smem, 372 bytes cmem[0]
"""


# The gate


@needs_ptxas
def test_every_kernel_assembles_everywhere_and_spills_nowhere():
    _assert_clean({
        (text, arch): f"{op.name}/{kernel.stem} {dict(dims)} {arch}"
        for op in ops().values()
        for kernel in op.kernels
        for dims, text in examples_of(op, kernel)
        for arch in archs_of(targets()[kernel.target])
    })


@needs_ptxas
def test_no_kernel_spills_at_a_shape_of_the_benchmark():
    # A text follows its dims: registers at the shapes that a model launches are in no example.
    known = ops()
    _assert_clean({
        (text, arch): f"{case.label}: {op.name}/{kernel.stem} {dims} {arch}"
        for case, op in ((case, known[case.op]) for case in CASES)
        for dims in [dims_of(case, op)]
        for kernel in op.kernels
        if kernel.fits(dims)
        for text in [text_of(op, kernel, dims)]
        for arch in archs_of(targets()[kernel.target])
    })


def _assert_clean(jobs):
    assert jobs
    reports = assemble_all(list(jobs))
    bad = [f"{name}: {r}" for name, r in zip(jobs.values(), reports, strict=True) if not r.clean]
    assert not bad, "\n".join(bad)


@needs_ptxas
def test_what_does_not_assemble_is_told_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(assemble, "_memory", lambda: tmp_path)
    text = HEAD + ".visible .entry toy()\n{\n    jump DONE;\n}\n"
    good = HEAD + ".visible .entry toy()\n{\n    ret;\n}\n"
    bad, fine, other = assemble_all([(text, "sm_90a"), (good, "sm_90a"), (good, "sm_75")])
    assert "kernel.ptx, line 6" in bad.error
    assert not bad.clean
    assert fine.clean
    assert fine.registers > 0
    assert other.clean
    assert len(list(tmp_path.iterdir())) == 3


@needs_ptxas
def test_a_kernel_of_one_chip_is_refused_by_another(tmp_path, monkeypatch):
    monkeypatch.setattr(assemble, "_memory", lambda: tmp_path)
    text = HEAD.replace("7.0", "8.0").replace("sm_70", "sm_90a")
    text += ".visible .entry toy()\n{\n    ret;\n}\n"
    mine, other = assemble_all([(text, "sm_90a"), (text, "sm_100a")])
    assert mine.clean
    assert other.error


@needs_ptxas
def test_answers_are_remembered_and_a_damaged_one_is_asked_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(assemble, "_memory", lambda: tmp_path)
    job = (HEAD + ".visible .entry toy()\n{\n    ret;\n}\n", "sm_80")
    (first,) = assemble_all([job])
    (entry,) = tmp_path.iterdir()
    entry.write_text(json.dumps({"registers": 99}))
    assert assemble_all([job]) == [Report(registers=99)]
    entry.write_text("{")
    assert assemble_all([job]) == [first]
    assert json.loads(entry.read_text())["registers"] == first.registers


def test_without_ptxas_the_tool_says_so(monkeypatch):
    monkeypatch.setattr(assemble, "find_ptxas", lambda: None)
    assemble.version.cache_clear()
    with pytest.raises(AssemblyError, match="no ptxas on the search path"):
        assemble_all([("", "sm_80")])


# What its log means


def test_the_log_is_read():
    assert read_log(LOG) == Report(40, 3072, 8, 16)
    assert not read_log(LOG).clean
    assert "nothing of registers" in read_log("ptxas info : 0 bytes gmem").error


def test_a_target_claims_newer_chips_unless_it_is_of_one():
    known = targets()
    assert archs_of(known["portable"]) == tuple(ARCHS)
    assert archs_of(known["sm_80"]) == tuple(arch for arch in ARCHS if arch != "sm_75")
    assert archs_of(known["sm_90a"]) == ("sm_90a",)
    assert archs_of(known["sm_120a"]) == ("sm_120a",)


@pytest.mark.parametrize(
    ("registers", "threads", "dynamic_bytes", "arch", "want"),
    [
        (32, 256, 0, "sm_90a", 1.0),
        # 32 blocks of one warp are all that fit, of 64 warps.
        (32, 32, 0, "sm_90a", 0.5),
        # 255 registers: 8,192 for a warp after rounding up, 8 warps of 64.
        (255, 128, 0, "sm_90a", 0.125),
        # Two blocks of 100 KiB and 1 KiB each.
        (32, 256, 100 << 10, "sm_90a", 0.25),
        (32, 256, 100 << 10, "sm_120a", 0.0),
        (33, 1024, 0, "sm_75", 1.0),
    ],
)
def test_how_much_of_a_multiprocessor_runs(registers, threads, dynamic_bytes, arch, want):
    assert resident_warps(Report(registers), threads, dynamic_bytes, arch) == want
