"""Protects reading PTX text: line numbers, scopes, literals, constants, refusals."""

import numpy as np
import pytest

from ptx.emulator import EmulatorError, Machine, Memory, parse

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"


def test_lines_survive_comments_and_breaks():
    text = HEAD + "/* one\ntwo */ .visible .entry k(\n.param .u64 a // x {\n)\n{\n" \
        "  .reg .b32 r; mov.b32 r,\n   1; // ;\n\n  @!p mov.b32 r, 2;\n}"
    with pytest.raises(EmulatorError, match=r"line 12: `@!p mov\.b32 r, 2` p is not declared"):
        parse(text)
    kernel = parse(text.replace("@!p ", "")).kernels["k"]
    assert [source.line for source in kernel.code] == [9, 12]


def test_debug_lines_are_skipped():
    text = HEAD + '.entry k() {\n.loc 1 2 3\n.pragma "nounroll";\nret;\n}'
    assert [source.opcode for source in parse(text).kernels["k"].code] == ["ret"]


def test_inner_scopes_hide_names():
    text = HEAD + (".entry k() {\n.reg .b32 r; mov.b32 r, 1;\n{ .reg .b64 r; mov.b64 r, 2; }\n"
                   "mov.b32 r, 3; }")
    kernel = parse(text).kernels["k"]
    first, inner, last = (source.operands[0].name for source in kernel.code)
    assert first == last != inner
    assert kernel.registers[inner] == "b64"


@pytest.mark.parametrize(("literal", "value"), [
    ("0x10", 16), ("-1", 2**32 - 1), ("010", 8), ("0b101", 5), ("7U", 7), ("(3+4)*2", 14),
    ("1<<5", 32), ("~0", 2**32 - 1), ("WARP_SZ", 32), ("100/7", 14), ("100%7", 2),
])
def test_integer_literals(bench, literal, value):
    got = bench.evaluate(f"mov.u32 d, {literal};", "u32", ("u32", np.zeros(1, np.uint32)))
    assert got.tolist() == [value]


@pytest.mark.parametrize(("literal", "bits"), [
    ("0f3F800001", 0x3F800001), ("1.5", 0x3FC00000), ("0d3FF8000000000000", 0x3FC00000),
    ("-2.0", 0xC0000000), ("1e-3", 0x3A83126F), ("0fFFC12345", 0xFFC12345),
])
def test_float_literals(bench, literal, bits):
    got = bench.evaluate(f"mov.f32 d, {literal};", "u32", ("u32", np.zeros(1, np.uint32)))
    assert got.tolist() == [bits]


@pytest.mark.parametrize("text", [
    "", ".version 7.0\n", HEAD + ".entry k() {", HEAD + ".func f() { call f; }", HEAD + "garbage",
    HEAD + ".entry k(.param .texref t) { ret; }", HEAD + ".entry k() { .reg .b33 r; }",
    HEAD + ".entry k() { ret }", HEAD + ".entry k() { L: L: ret; }",
    HEAD + ".entry k() { .reg .b32 r, r; ret; }", HEAD + ".entry k() .whatever 3 { ret; }",
    HEAD + ".entry k() { .shared .b8 a[1/0]; ret; }",
    HEAD + ".entry k() { .shared .b8 a[1<<9999999999]; ret; }", "}" * 50, "{" * 50,
    HEAD + ".entry k() { .reg .b32 r; mov.b32 r, " + "(" * 500 + "1" + ")" * 500 + "; }",
])
def test_bad_text_is_refused(text):
    with pytest.raises(EmulatorError) as found:
        parse(text)
    assert found.value.kind == "subset"


def test_wrong_launches_are_refused():
    module = parse(HEAD + ".entry k(.param .u32 n, .param .f32 f) { ret; }")
    machine = Machine(Memory(), "sm_70")
    machine.launch(module, "k", 1, 32, 0, [1, 2.0])
    for entry, args in (("other", [1, 2.0]), ("k", [1]), ("k", [2**40, 1.0]), ("k", [1, b"abc"])):
        with pytest.raises(EmulatorError):
            machine.launch(module, entry, 1, 32, 0, args)
    with pytest.raises(EmulatorError, match="target is sm_90a, the device is sm_120a"):
        Machine(Memory(), "sm_120a").launch(
            parse(HEAD.replace("sm_70", "sm_90a") + ".entry k() { ret; }"), "k", 1, 1)


def test_module_variables_keep_their_values_between_launches():
    memory = Memory()
    machine = Machine(memory)
    module = parse(HEAD + ".global .u32 count = 5;\n.entry k(.param .u64 y) { .reg .b64 a, b;"
                   ".reg .b32 r; mov.u64 a, count; ld.param.u64 b, [y];"
                   "atom.global.add.u32 r, [a], 1; st.global.u32 [b], r; ret; }")
    y = memory.allocate(4, "y")
    for want in (5, 6):
        machine.launch(module, "k", 1, 1, 0, [y])
        got = np.zeros(1, np.uint32)
        memory.read(y, got)
        assert got[0] == want
