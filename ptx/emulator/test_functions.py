"""Protects device functions: parameters both ways, returns, divergence, lines, and refusals."""

import numpy as np
import pytest

from ptx.assemble import assemble_all, find_ptxas
from ptx.emulator import EmulatorError, parse

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
X = np.arange(64, dtype=np.uint32)
START = """
.reg .pred p, q; .reg .b32 t, r, s; .reg .b64 at, off;
mov.u32 t, %tid.x; mul.wide.u32 off, t, 4; add.u64 at, x, off; ld.global.u32 r, [at];
add.u64 at, y, off;
"""
GIVE = "st.global.u32 [at], r;\nret;\n"


def run(bench, functions, body, seed=0, start=START):
    got = bench.kernel(start + body + GIVE, {"x": X, "y": 256}, block=64, head=functions,
                       outputs=("y",), target="sm_70", seed=seed)
    return got["y"].view(np.uint32).tolist()


TRIPLE = """
.func (.reg .u32 out) triple (.reg .u32 in)
{
    .reg .u32 t;
    mul.lo.u32 t, in, 3;
    mov.u32 out, t;
    ret;
}
"""


def test_registers_as_parameters(bench):
    """The function's t is not the kernel's; each call has names of its own."""
    body = "call.uni (r), triple, (r);\nadd.u32 r, r, t;\ncall (s), triple, (7);\nadd.u32 r, r, s;"
    assert run(bench, TRIPLE, body) == [4 * x + 21 for x in range(64)]


ABI = """
.visible .func (.param .b32 func_retval0) mix(.param .b64 mix_param_0, .param .b32 mix_param_1);
.func (.param .align 8 .b8 func_retval0[16]) pair(.param .b32 pair_param_0)
{
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [pair_param_0];
    add.s32 %r2, %r1, 1;
    st.param.v2.b32 [func_retval0+8], {%r1, %r2};
    st.param.b64 [func_retval0+0], 5;
    ret;
}
.visible .func (.param .b32 func_retval0) mix(
    .param .b64 mix_param_0,
    .param .b32 mix_param_1
)
{
    .reg .b32 %r<9>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [mix_param_0];
    ld.param.u32 %r1, [mix_param_1];
    ld.u32 %r2, [%rd1];
    { // callseq 0, 0
    .param .b32 param0;
    st.param.b32 [param0+0], %r1;
    .param .align 8 .b8 retval0[16];
    call.uni (retval0), pair, (param0);
    ld.param.b64 %rd2, [retval0+0];
    ld.param.v2.b32 {%r3, %r4}, [retval0+8];
    } // callseq 0
    cvt.u32.u64 %r5, %rd2;
    mad.lo.s32 %r6, %r3, %r4, %r2;
    add.s32 %r7, %r6, %r5;
    st.param.b32 [func_retval0+0], %r7;
    ret;
}
"""
CALL = """
{ // callseq 1, 0
.param .b64 param0; .param .b32 param1; .param .b32 retval0;
st.param.b64 [param0+0], at; st.param.b32 [param1+0], t;
call.uni (retval0), mix, (param0, param1);
ld.param.b32 r, [retval0+0];
}
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_parameters_in_their_space_as_compilers_write_them(bench, seed):
    start = START.replace("add.u64 at, y, off;", "")
    twice = CALL + "mov.u32 s, r;\n" + CALL + "add.u32 r, r, s;\nadd.u64 at, y, off;\n"
    assert run(bench, ABI, twice, seed, start) == [2 * (x * (x + 1) + x + 5) for x in range(64)]


def test_registers_and_constants_for_parameters_in_memory(bench):
    functions = """
    .func (.param .b32 out) both (.param .b32 one, .param .b16 two)
    { .reg .b32 a, b; ld.param.u32 a, [one]; ld.param.u16 b, [two]; mad.lo.u32 a, a, 2, b;
      st.param.b32 [out], a; ret; }
    """
    assert run(bench, functions, "call (r), both, (r, 9);") == [2 * x + 9 for x in range(64)]


COLLATZ = """
.func (.reg .u32 n) steps (.reg .u32 v)
{
    .reg .pred p; .reg .u32 b;
    mov.u32 n, 0;
    setp.eq.u32 p, v, 0;
    @p ret;
    LOOP: setp.eq.u32 p, v, 1;
    @p ret;
    and.b32 b, v, 1; setp.eq.u32 p, b, 1;
    @p mad.lo.u32 v, v, 3, 1;
    @!p shr.u32 v, v, 1;
    add.u32 n, n, 1;
    bra LOOP;
}
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lanes_return_when_they_like(bench, seed):
    def steps(v):
        return 0 if v < 2 else 1 + steps(3 * v + 1 if v % 2 else v // 2)

    body = ("setp.lt.u32 p, t, 40;\n@p call (r), steps, (r);\nadd.u32 s, t, 3;\n"
            "call (s), steps, (s);\nmad.lo.u32 r, s, 1000, r;\n")
    want = [(steps(x) if x < 40 else x) + 1000 * steps(x + 3) for x in range(64)]
    assert run(bench, COLLATZ, body, seed) == want


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_functions_may_synchronise(bench, seed):
    functions = """
    .shared .align 4 .b8 cells[256];
    .func (.reg .b32 out) turn (.reg .b32 lane, .reg .b32 value)
    { .reg .b32 a, b; shl.b32 a, lane, 2; mov.u32 b, cells; add.u32 a, a, b;
      st.shared.b32 [a], value; bar.sync 0; xor.b32 a, a, 128; ld.shared.b32 out, [a];
      bar.sync 0; shfl.sync.bfly.b32 out, out, 1, 31, 0xffffffff; ret; }
    """
    body = "call (r), turn, (t, r);\ncall (r), turn, (t, r);\n"
    assert run(bench, functions, body, seed) == list(range(64))
    body = "call (r), turn, (t, r);"
    assert run(bench, functions, body, seed) == [x ^ 32 ^ 1 for x in range(64)]


def test_local_memory_of_a_function(bench):
    functions = """
    .func (.reg .b32 out) through (.reg .b32 in)
    { .local .align 8 .b8 depot[16]; .reg .b64 p, g; mov.u64 p, depot; cvta.local.u64 g, p;
      st.local.u32 [p+4], in; ld.u32 out, [g+4]; ld.local.u32 out, [depot+4]; ret; }
    """
    body = "call (s), through, (t);\ncall (r), through, (r);\nadd.u32 r, r, s;"
    assert run(bench, functions, body) == [2 * x for x in range(64)]


def test_functions_of_functions_without_results(bench):
    functions = TRIPLE + """
    .func put (.reg .b64 to, .reg .b32 what);
    .func nothing { ret; }
    .func twice (.reg .b64 to, .reg .b32 what)
    { .reg .b32 w; call (w), triple, (what); call (w), triple, (w); call put, (to, w); call nothing;
      ret; }
    .func put (.reg .b64 to, .reg .b32 what) { st.global.u32 [to], what; }
    """
    body = "call.uni twice, (at, r);\nld.global.u32 r, [at];\n"
    assert run(bench, functions, body) == [9 * x for x in range(64)]


def test_errors_have_the_functions_line(bench):
    functions = """
.func (.reg .b32 out) far (.reg .b64 from)
{
    ld.global.u32 out, [from + 4096];
    ret;
}
"""
    with pytest.raises(EmulatorError, match="bounds") as found:
        run(bench, functions, "call (r), far, (at);")
    assert (found.value.kernel, found.value.text) == ("k", "ld.global.u32 out, [from + 4096]")
    assert found.value.line == 4 + 3
    # A result that nobody set is as unwritten as any register, or memory.
    for functions, kept in (
        (".func (.reg .b32 out) f (.reg .b32 in) { .reg .pred p; setp.eq.u32 p, in, 5;\n"
         "@p mov.b32 out, in; ret; }", "call (r), f, (t)"),
        (".func (.param .b32 out) f (.reg .b32 in) { .reg .pred p; setp.eq.u32 p, in, 5;\n"
         "@p st.param.b32 [out], in; ret; }", "add.u32 r, r, 1"),
    ):
        with pytest.raises(EmulatorError, match="uninitialised") as found:
            run(bench, functions, "call (r), f, (t);\nadd.u32 r, r, 1;")
        assert found.value.text == kept


@pytest.mark.parametrize(("functions", "body", "words", "marked"), [
    (".func f () { call f; ret; }", "call f;", "f calls itself", "call f"),
    (".func f ();\n.func g () { call f; ret; }\n.func f () { call g; ret; }", "call g;",
     "calls itself", "call"),
    (".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);",
     "call (r), vprintf, (at, at);", "vprintf is not a function with a body", "vprintf"),
    ("", "call nowhere;", "nowhere is not a function", "call nowhere"),
    (TRIPLE, "call (r), triple;", "1 results and 1 parameters", "triple"),
    (TRIPLE, "call triple, (r);", "1 results and 1 parameters", "triple"),
    (TRIPLE, "call (r), at, (r), proto;", "not a direct call", "proto"),
    (".func f (.param .b64 a) { ret; }", ".param .b32 a;\ncall f, (a);", "a has 8 bytes, given 4",
     "call f"),
    (".func f (.param .b32 a) { ret; }", "call f, (x_y);", "no variable in .param space", "call"),
    (".func f (.reg .b32 a) { ret; }", ".param .b32 a;\ncall f, (a);", "a is a register", "call"),
    (".func f () { .shared .b32 s; ret; }", "", "a function's own .shared", ".shared"),
    (".func f () { .reg .b32 a; ld.param.u32 a, [p_x]; ret; }", "", "no parameter of this function",
     "ld.param"),
    (".func f () { add.u32 r, r, 1; ret; }", "call f;", "not a register",
     "add.u32 r, r, 1"),
    (".func f (.param .texref a) { ret; }", "", "not a parameter known here", ".func f"),
    (".func f () { ret; }\n.func f () { ret; }", "", "is a function already", ".func f"),
    (".func f () { L: L: ret; }", "", "is a label already", "L"),
])
def test_what_is_refused(bench, functions, body, words, marked):
    with pytest.raises(EmulatorError, match=words) as found:
        run(bench, functions, body)
    assert found.value.kind == "subset"
    assert marked in str(found.value)
    assert found.value.line is not None


def test_a_function_that_nobody_calls_is_read_all_the_same():
    with pytest.raises(EmulatorError, match=r"line 5: `mov\.u32 nowhere"):
        parse(HEAD + ".func f (.reg .u32 a) {\nmov.u32 nowhere, [a; ret;\n}\n")
    assert parse(HEAD + TRIPLE).kernels == {}


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
@pytest.mark.parametrize(("functions", "body"), [
    (TRIPLE, "call.uni (r), triple, (r);"), (ABI, CALL), (COLLATZ, "call (r), steps, (r);"),
])
def test_the_assembler_takes_the_same_text(functions, body):
    text = HEAD + functions + (
        ".visible .entry k(.param .u64 p_x, .param .u64 p_y) { .reg .b64 x, y;\n"
        "ld.param.u64 x, [p_x]; ld.param.u64 y, [p_y];\n" + START + body + GIVE + "}\n")
    assert not assemble_all([(text, "sm_90a")])[0].error
