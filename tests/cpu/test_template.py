"""Protects the kernels' sources: how they render, what is refused, and entries equal to op.py."""

import os
import re
import struct

import pytest

from ptx.inventory import PTX, examples_of, ops, targets
from ptx.op import OpError
from ptx.template import f32, f64, render, source_of, text_of

KERNELS = [(op, kernel) for op in ops().values() for kernel in op.kernels]
NAMES = [f"{op.name}/{kernel.stem}" for op, kernel in KERNELS]
ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\((.*?)\)", re.S)
PARAM = re.compile(r"\.param\s+\.(\w+)\s+(\w+)")
MAP = re.compile(r"\.param\s+\.align\s+64\s+\.b8\s+(\w+)_map\[128\]")
PTX_TYPES = {"f32": "f32", "f64": "f64", "u32": "u32", "i32": "u32", "bool": "u32"}


def _source(tmp_path, text):
    path = tmp_path / "toy.ptx"
    path.write_text(text)
    return path


# Rendering


def test_values_and_lines(tmp_path):
    path = _source(tmp_path, "//% for i in range(n)\nmov.b64 p, {a${i}, %r};\n//% endfor\nret;\n")
    assert render(path, {"n": 2}) == "mov.b64 p, {a0, %r};\nmov.b64 p, {a1, %r};\nret;\n"
    assert render(path, {"n": 0}) == "ret;\n"


def test_a_changed_source_renders_anew_whatever_its_times(tmp_path):
    path = _source(tmp_path, "${n};\n")
    times = path.stat()
    assert render(path, {"n": 1}) == "1;\n"
    path.write_text("-${n};\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert render(path, {"n": 1}) == "-1;\n"


def test_literals_hold_the_bits():
    assert f32(1) == "0f3F800000"
    assert f32(-0.0) == "0f80000000"
    assert f32(0.1) == "0f3DCCCCCD"
    assert f64(1) == "0d3FF0000000000000"
    assert struct.unpack(">d", bytes.fromhex(f64(0.1)[2:])) == (0.1,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ret;\n${n};\n", r"toy\.ptx:2: 'n' is undefined"),
        ("ret;\nret;\n//% for i in 3\nret;\n", r"toy\.ptx:\d: Unexpected end"),
        ("//% if\nret;\n", r"toy\.ptx:1: "),
        ("ret;\n${1 / 0};\n", r"toy\.ptx:2: division by zero"),
        ("ret;\n${f32(1e39)};\n", r"toy\.ptx:2: "),
        ("ret;\n${-n};\n", r"toy\.ptx:2: .*loses its minus"),
        ('//% include "no/such.ptx"\n', r"no/such\.ptx: No such file"),
    ],
)
def test_a_bad_source_names_its_line(tmp_path, text, message):
    with pytest.raises(OpError, match=message):
        render(_source(tmp_path, text), {})


def test_a_source_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OpError, match=r"none\.ptx"):
        render(tmp_path / "none.ptx", {})


# The kernels


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=NAMES)
def test_entry_and_parameters_are_those_of_the_op(op, kernel):
    for dims, text in examples_of(op, kernel):
        entries = ENTRY.findall(text)
        assert [name for name, _ in entries] == [op.name]
        numbers = MAP.split(entries[0][1])[0]
        want = [(p.name, "u64" if p.shape else PTX_TYPES[p.dtype]) for p in op.params]
        assert [(name, kind) for kind, name in PARAM.findall(numbers)] == want
        assert entries[0][1].count(".param") == len(want) + len(kernel.maps(dims))
        assert MAP.findall(entries[0][1]) == [wish.param for wish in kernel.maps(dims)]


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=NAMES)
def test_headers_are_those_of_the_target(op, kernel):
    target = targets()[kernel.target]
    for dims, text in examples_of(op, kernel):
        assert re.findall(r"^\.version (.*)$", text, re.M) == [target.ptx_version]
        assert re.findall(r"^\.target (.*)$", text, re.M) == [target.arch]
        assert re.findall(r"^\.address_size (.*)$", text, re.M) == ["64"]
        assert text_of(op, kernel, dims) == text
        launch = kernel.launch(dims)
        bound = re.search(r"^\.(?:max|req)ntid (\d+), (\d+), (\d+)$", text, re.M)
        block = launch.block if isinstance(launch.block, tuple) else (launch.block,)
        assert bound is not None
        assert tuple(map(int, bound.groups())) == (*block, 1, 1)[:3]


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=NAMES)
def test_float_arithmetic_says_how_it_rounds(op, kernel):
    # Without .rn the assembler may contract a product and a sum into one rounding.
    loose = re.compile(r"^\s*(?:@!?\w+ )?(?:add|sub|mul|fma|div|sqrt)\.f(?:32|64)", re.M)
    for _, text in examples_of(op, kernel):
        assert not loose.findall(text)


@pytest.mark.parametrize("op", ops().values(), ids=ops())
def test_examples_name_every_axis_and_hold_what_the_op_requires(op):
    axes = {axis for param in op.params for axis in param.shape or ()}
    for dims in op.examples:
        assert set(dims) == axes
        assert all(holds(dims) for holds in op.requires.values())


def test_sources_are_short_and_say_what_they_are():
    for path in PTX.rglob("*.ptx"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 400, path
        assert all(len(line) <= 100 for line in lines), path
        assert lines[0].startswith("// "), path
    for op, kernel in KERNELS:
        source = source_of(op, kernel)
        first = source.read_text(encoding="utf-8").splitlines()[0]
        assert re.match(rf"// (?:\$\{{entry\}}|{op.name}), {kernel.stem}: ", first), source
