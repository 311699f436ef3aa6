"""Protects matrix instructions: fragments spelled out element by element, products in integers.

It is long because fragments are spelled out.
"""

import numpy as np
import pytest

from ptx.emulator import EmulatorError
from ptx.emulator.mma_cases import (
    LANES,
    a_element,
    b_element,
    c_element,
    c_words,
    names,
    packed,
    run,
    unpacked,
)

RNG = np.random.default_rng(2)


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_halves_into_f32(bench, name, depth):
    a, b = RNG.integers(-16, 17, (16, depth)), RNG.integers(-16, 17, (depth, 8))
    c = RNG.integers(-100, 100, (16, 8)).astype(np.float32)

    def code(m):
        single = m.astype(np.float32)
        return single.astype("f2").view("u2") if name == "f16" else (single.view("u4") >> 16)

    kind, n = f"f16k{depth}", depth // 2
    got = run(bench, f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{name}.{name}.f32 "
              f"{names('d', 4)}, {names('a', n // 2)}, {names('b', n // 4)}, {names('c', 4)};",
              packed(code(a), a_element, kind, n, 16), packed(code(b), b_element, kind, n // 2, 16),
              c_words(c))
    assert np.array_equal(unpacked(got), a @ b + c)


def test_one_rounding_of_the_whole_sum(bench):
    # 2^24 + 1 + ... would stick at 2^24 if every addition were rounded to f32.
    a, b = np.ones((16, 16), np.float16), np.ones((16, 8), np.float16)
    c = np.full((16, 8), 2.0**24, np.float32)
    line = ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            f"{names('d', 4)}, {names('a', 4)}, {names('b', 2)}, {names('c', 4)};")
    got = run(bench, line, packed(a.view("u2"), a_element, "f16k16", 8, 16),
              packed(b.view("u2"), b_element, "f16k16", 4, 16), c_words(c))
    assert (unpacked(got) == 2.0**24 + 16).all()


def test_halves_into_f16(bench):
    a, b = RNG.integers(-8, 8, (16, 16)), RNG.integers(-8, 8, (16, 8))
    zero = np.zeros((32, 2), np.uint32)
    line = ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {d0, d1}, "
            f"{names('a', 4)}, {names('b', 2)}, {{c0, c1}};")
    got = run(bench, line, packed(a.astype("f2").view("u2"), a_element, "f16k16", 8, 16),
              packed(b.astype("f2").view("u2"), b_element, "f16k16", 4, 16), zero, 2)
    for lane in LANES:
        halves = got[lane].view(np.float16)
        for i in range(4):
            assert halves[i] == np.float16((a @ b)[c_element(lane, i)])


def test_tf32_ignores_low_bits(bench):
    a, b = RNG.integers(-99, 99, (16, 8)), RNG.integers(-99, 99, (8, 8))
    noise = 0x1FFF
    line = ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
            f"{names('d', 4)}, {names('a', 4)}, {names('b', 2)}, {names('c', 4)};")
    got = run(bench, line, packed(a.astype("f4").view("u4") | noise, a_element, "tf32k8", 4, 32),
              packed(b.astype("f4").view("u4") | noise, b_element, "tf32k8", 2, 32),
              np.zeros((32, 4), np.uint32))
    assert np.array_equal(unpacked(got), a @ b)


@pytest.mark.parametrize(("a_type", "b_type"), [("s8", "s8"), ("u8", "s8"), ("s8", "u8")])
@pytest.mark.parametrize("depth", [16, 32])
def test_bytes_into_s32(bench, a_type, b_type, depth):
    a, b = RNG.integers(0, 256, (16, depth)), RNG.integers(0, 256, (depth, 8))
    c = RNG.integers(-2**31, 2**31, (16, 8)).astype(np.int32)
    kind, n = f"b8k{depth}", depth // 2
    line = (f"mma.sync.aligned.m16n8k{depth}.row.col.s32.{a_type}.{b_type}.s32 "
            f"{names('d', 4)}, {names('a', n // 4)}, {names('b', n // 8)}, {names('c', 4)};")
    got = run(bench, line, packed(a, a_element, kind, n, 8), packed(b, b_element, kind, n // 2, 8),
              c_words(c))
    wide = [m.astype("u1").view("i1").astype(int) if t == "s8" else m
            for m, t in ((a, a_type), (b, b_type))]
    want = (wide[0] @ wide[1] + c).astype(np.int32)
    assert np.array_equal(unpacked(got, np.int32), want)


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E2M1 = np.array(E2M1 + [-x for x in E2M1])


def ue4m3(code):
    exponent, mantissa = code >> 3, code & 7
    return (mantissa / 8) * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def test_block_scaled_fp4(bench):
    a, b = RNG.integers(0, 16, (16, 64)), RNG.integers(0, 16, (64, 8))
    scale_a, scale_b = RNG.integers(0, 0x70, (16, 4)), RNG.integers(0, 0x70, (8, 4))
    words = RNG.integers(0, 2**32, (32, 2), np.uint32)
    for g in range(8):
        # Row g in lane t = 0 of the group, row g + 8 in lane t = 1; column g in lane t = 0.
        for lane, row in ((4 * g, g), (4 * g + 1, g + 8)):
            words[lane, 0] = sum(int(s) << 8 * j for j, s in enumerate(scale_a[row]))
        words[4 * g, 1] = sum(int(s) << 8 * j for j, s in enumerate(scale_b[g]))
    line = ("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X"
            ".f32.e2m1.e2m1.f32.ue4m3 "
            f"{names('d', 4)}, {names('a', 4)}, {names('b', 2)}, {names('c', 4)}, "
            "s0, {0, 0}, s1, {0, 0};")
    got = run(bench, line, packed(a, a_element, "b4k64", 32, 4),
              packed(b, b_element, "b4k64", 16, 4), np.zeros((32, 4), np.uint32), extra=words)
    wide_a, wide_b = np.zeros((16, 64)), np.zeros((64, 8))
    for k in range(64):
        wide_a[:, k] = E2M1[a[:, k]] * [ue4m3(int(s)) for s in scale_a[:, k // 16]]
        wide_b[k] = E2M1[b[k]] * [ue4m3(int(s)) for s in scale_b[:, k // 16]]
    assert np.array_equal(unpacked(got), (wide_a @ wide_b).astype(np.float32))


def test_block_scales_by_powers_of_two_and_selectors(bench):
    a, b = RNG.integers(0, 16, (16, 64)), RNG.integers(0, 16, (64, 8))
    scale_a, scale_b = RNG.integers(120, 134, (16, 2)), RNG.integers(120, 134, (8, 2))
    words = RNG.integers(0, 2**32, (32, 2), np.uint32)
    for g in range(8):
        # Selector {2, 1} of A: bytes 2 and 3 of lanes t = 2 and 3; {0, 3} of B: bytes 0 and 1.
        for lane, row in ((4 * g + 2, g), (4 * g + 3, g + 8)):
            words[lane, 0] = (int(scale_a[row, 0]) << 16) | (int(scale_a[row, 1]) << 24)
        words[4 * g + 3, 1] = int(scale_b[g, 0]) | (int(scale_b[g, 1]) << 8)
    line = ("mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col"
            ".f32.e2m1.e2m1.f32.ue8m0 "
            f"{names('d', 4)}, {names('a', 4)}, {names('b', 2)}, {names('c', 4)}, "
            "s0, {2, 1}, s1, {0, 3};")
    got = run(bench, line, packed(a, a_element, "b4k64", 32, 4),
              packed(b, b_element, "b4k64", 16, 4), np.zeros((32, 4), np.uint32), extra=words)
    wide_a = E2M1[a] * np.repeat(2.0 ** (scale_a - 127.0), 32, axis=1)
    wide_b = E2M1[b] * np.repeat(2.0 ** (scale_b - 127.0), 32, axis=1).T
    assert np.array_equal(unpacked(got), (wide_a @ wide_b).astype(np.float32))
    with pytest.raises(EmulatorError, match="selector"):
        run(bench, line.replace("{2, 1}", "{1, 1}"), packed(a, a_element, "b4k64", 32, 4),
            packed(b, b_element, "b4k64", 16, 4), np.zeros((32, 4), np.uint32), extra=words)


def test_mma_needs_the_target_and_the_warp(bench):
    a = np.zeros((32, 4), np.uint32)
    line = ("mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X"
            ".f32.e2m1.e2m1.f32.ue8m0 {d0,d1,d2,d3}, {a0,a1,a2,a3}, {b0,b1}, {c0,c1,c2,c3}, "
            "a0, {0,0}, a0, {0,0};")
    with pytest.raises(EmulatorError, match="needs sm_120a"):
        run(bench, line, a, a[:, :2], a, target="sm_90a")
    line = (".reg .pred p; setp.lt.u32 p, t, 16; @p mma.sync.aligned.m16n8k16.row.col.f32.f16.f16"
            ".f32 {d0,d1,d2,d3}, {a0,a1,a2,a3}, {b0,b1}, {c0,c1,c2,c3};")
    with pytest.raises(EmulatorError, match="elsewhere"):
        run(bench, line, a, a[:, :2], a)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_and_stmatrix(bench, count, trans):
    """Lane L gets from row L/4 word L%4; stmatrix puts it back."""
    rows = RNG.integers(0, 2**16, (32, 8), np.uint16)
    regs = ", ".join(f"d{r}" for r in range(count))
    body = f"""
    .reg .b32 t, a, s, d<{count}>; .reg .b64 at, off; .shared .align 16 .b8 buf[512];
    .shared .align 16 .b8 out[512];
    .reg .b32 v<4>; mov.u32 t, %tid.x; mul.wide.u32 off, t, 16; add.u64 at, x, off;
    ld.global.v4.b32 {{v0, v1, v2, v3}}, [at]; shl.b32 a, t, 4; mov.u32 s, buf; add.u32 s, s, a;
    st.shared.v4.b32 [s], {{v0, v1, v2, v3}};
    mov.b32 v0, 0; mov.u32 t, out; add.u32 t, t, a; st.shared.v4.b32 [t], {{v0, v0, v0, v0}};
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{regs}}}, [s];
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [t], {{{regs}}};
    bar.sync 0;
    ld.shared.v4.b32 {{v0, v1, v2, v3}}, [t];
    add.u64 at, z, off; st.global.v4.b32 [at], {{v0, v1, v2, v3}};
    mov.u32 a, %tid.x; mul.wide.u32 off, a, {4 * count}; add.u64 at, y, off;
    """ + "".join(f"st.global.b32 [at+{4 * r}], d{r};\n" for r in range(count)) + "ret;"
    got = bench.kernel(body, {"x": rows, "y": 128 * count, "z": 512}, outputs=("y", "z"))
    words = got["y"].view(np.uint16).reshape(32, count, 2)
    for m in range(count):
        tile = rows[8 * m : 8 * m + 8]
        for lane in LANES:
            for half in range(2):
                row, column = lane // 4, 2 * (lane % 4) + half
                want = tile[column, row] if trans else tile[row, column]
                assert words[lane, m, half] == want
    back = got["z"].view(np.uint16).reshape(32, 8)
    assert np.array_equal(back[: 8 * count], rows[: 8 * count])
    assert not back[8 * count :].any()


def test_ldmatrix_of_a_misaligned_row(bench):
    body = (".reg .b32 d, a; .shared .align 16 .b8 buf[512]; mov.u32 a, buf; add.u32 a, a, 8;\n"
            "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {d}, [a]; ret;")
    with pytest.raises(EmulatorError, match=r"alignment: k line \d+: `ldmatrix"):
        bench.kernel(body, {})


def test_movmatrix(bench):
    words = RNG.integers(0, 2**32, 32, np.uint32)
    body = (".reg .b32 t, v; .reg .b64 at, off; mov.u32 t, %tid.x; mul.wide.u32 off, t, 4;\n"
            "add.u64 at, x, off; ld.global.b32 v, [at];\n"
            "movmatrix.sync.aligned.m8n8.trans.b16 v, v;\nst.global.b32 [at], v; ret;")
    got = bench.kernel(body, {"x": words})["x"]
    tile = words.view(np.uint16).reshape(8, 8)
    assert np.array_equal(got.view(np.uint16).reshape(8, 8), tile.T)
