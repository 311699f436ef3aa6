"""Protects which forms of mma run: those of the ISA, which ptxas takes, and the rest refused."""

import pytest

from ptx import assemble
from ptx.assemble import find_ptxas
from ptx.emulator import EmulatorError
from ptx.emulator.mma_cases import N_BITS, SMALL_FLOATS, line_of

HEAD = ".version 9.0\n.target sm_120a\n.address_size 64\n.visible .entry k() {\n"
REGISTERS = ".reg .b32 a<4>, b<4>, c<4>, d<4>, s<2>; .reg .b64 at;\n"
FORMS = [
    *((line_of(a, a, d, depth, n_bits=16), a == "f16" or d == "f32")
      for a in ("f16", "bf16") for d in ("f32", "f16") for depth in (8, 16)),
    *((line_of("tf32", "tf32", d, depth, n_bits=32), d == "f32")
      for d in ("f32", "f16") for depth in (4, 8)),
    (line_of("f16", "bf16", "f32", 16, n_bits=16), False),
    *((line_of(a, b, "s32", depth), a[1] == b[1] and depth in {"8": (16, 32), "4": (32, 64)}[a[1]])
      for a in ("s8", "u8", "s4", "u4") for b in ("s8", "u4") for depth in (16, 32, 64)),
    *((line_of(a, b, d, depth), "8" not in b and d != "s32" and depth < 64)
      for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2", "s8") for d in ("f32", "f16", "s32")
      for depth in (16, 32, 64)),
    *((line_of(a, b, d, 32, kind, n_bits=8), bool(kind) or not {a, b} & {"e3m2", "e2m3", "e2m1"})
      for a in SMALL_FLOATS for b in SMALL_FLOATS for d in ("f32", "f16")
      for kind in ("", ".kind::f8f6f4") if kind or N_BITS.get(a, 8) == 8),
    (line_of("s8", "s8", "f32", 32, ".kind::f8f6f4"), False),
    (line_of("e3m2", "e2m1", "f32", 16, ".kind::f8f6f4"), False),
    *((line_of("e4m3", "e2m3", d, 32, ".kind::mxf8f6f4", f".{scales}", f".block_scale{vector}", 8),
       d == "f32" and scales == "ue8m0" and vector in ("", ".scale_vec::1X"))
      for d in ("f32", "f16") for scales in ("ue8m0", "ue4m3")
      for vector in ("", ".scale_vec::1X", ".scale_vec::2X", ".scale_vec::4X")),
    *((line_of("e2m1", "e2m1", d, 64, kind, f".{scales}", f".block_scale{vector}", 4),
       d == "f32" and (kind[7:], scales, vector[-2:]) in (
           ("mxf4", "ue8m0", ""), ("mxf4", "ue8m0", "2X"), ("mxf4nvf4", "ue8m0", "2X"),
           ("mxf4nvf4", "ue4m3", "4X")))
      for d in ("f32", "f16") for kind in (".kind::mxf4", ".kind::mxf4nvf4")
      for scales in ("ue8m0", "ue4m3")
      for vector in ("", ".scale_vec::1X", ".scale_vec::2X", ".scale_vec::4X")),
    (line_of("e2m1", "e2m1", "f32", 64, n_bits=4), False),
    (line_of("e2m1", "e2m1", "f32", 64, ".kind::mxf4", n_bits=4), False),
    (line_of("s8", "s8", "s32", 32, mods=".satfinite"), True),
    (line_of("f16", "f16", "f32", 16, mods=".satfinite"), False),
    (line_of("f16", "f16", "f32", 16).replace(".sync", ""), False),
    (line_of("f16", "f16", "f32", 16).replace(".col", ""), False),
    (line_of("f16", "f16", "f32", 16).replace(".f32 {", ".f16 {"), False),
]


def test_other_forms_are_refused_with_their_line(bench):
    head = "mov.b32 s0, 0; mov.b32 s1, 0;\n"
    head += "".join(f"mov.b32 {letter}{r}, 0;\n" for letter in "abc" for r in range(4))
    for line, exists in FORMS:
        body = REGISTERS + head + line + "\nret;"
        if exists:
            bench.kernel(body, {}, target="sm_120a")
            continue
        with pytest.raises(EmulatorError) as found:
            bench.kernel(body, {}, target="sm_120a")
        assert found.value.kind == "subset", line
        assert found.value.text == line[:-1]
        assert found.value.line is not None


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_the_assembler_knows_the_same_forms():
    texts = [HEAD + REGISTERS + line + "\nret; }\n" for line, _ in FORMS]
    reports = assemble.assemble_all([(text, "sm_120a") for text in texts])
    for (line, exists), report in zip(FORMS, reports, strict=True):
        assert bool(report.error) != exists, (line, report.error)
