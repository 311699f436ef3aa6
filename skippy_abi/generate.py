"""Owns what is written from an ABI table: C declarations, cffi declarations, the C front, lists.

Knows no ABI version and no export by name, except the three that C answers alone. Everything here
is text for the build folder; nothing of it is kept in the tree. The contract is `table.py`.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from engine.errors import ModelError
from skippy_abi import fallback_c, fallback_front, memory
from skippy_abi.leaving import LEAVE_C
from skippy_abi.startup import START_C
from skippy_abi.table import Abi, Struct, Symbol

MODULE = "_mesh_specialize_ffi"
INCLUDES = "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>"
ERROR_OUT = "struct skippy_error **"


@dataclass(frozen=True)
class Home:
    """What the build records about its Python: byte strings, as the operating system spells them.

    home         prefix of the interpreter
    stdlib       the standard library, relative to `home`; `dynload` its extension modules
    executable   the interpreter's own file, for code that asks `sys.executable`
    paths        folders of Python code, ours first
    """

    home: bytes
    stdlib: bytes
    dynload: bytes
    executable: bytes
    paths: tuple[bytes, ...]


def c_string(value: bytes) -> str:
    """A C string literal for any bytes without NUL: only plain file name characters stay as is."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/.-"
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in value) + '"'


def _block(opening: str, lines: Iterable[str], closing: str = "};") -> list[str]:
    return [opening, *(f"    {line}" for line in lines), closing]


def _members(keyword: str, struct: Struct) -> list[str]:
    lines = [f"{field.declaration};" for field in struct.fields]
    return _block(f"{keyword} {struct.name} {{", lines)


def types(abi: Abi) -> str:
    """Every type and constant of the table, in text that C and cffi both read."""
    bits = {name: 1 << bit for name, bit in abi.feature_bits.items()}
    lines = [f"#define {name} {value}" for name, value in {**abi.constants, **bits}.items()]
    lines += [f"struct {name};" for name in (*abi.handles, *(s.name for s in abi.structs))]
    for enum in abi.enums:
        tag = "" if enum.is_typedef else f" {enum.name}"
        values = [f"{name} = {value}," for name, value in enum.values.items()]
        lines += _block(f"enum{tag} {{", values)
        if enum.is_typedef:
            lines.append(f"typedef {enum.underlying} {enum.name};")
    for call in abi.callbacks:
        params = ", ".join(p.declaration for p in call.params) or "void"
        lines.append(f"typedef {call.returns} (*{call.name})({params});")
    for union in abi.unions:
        lines += _members("union", union)
    for struct in abi.structs:
        lines += _members("struct", struct)
    return "\n".join(lines) + "\n"


def layout_checks(abi: Abi) -> str:
    """C assertions that the compiler lays out every struct as the table records it."""
    lines = []
    for struct in abi.structs:
        size = f"sizeof(struct {struct.name}) == {struct.total_bytes}"
        lines.append(f'_Static_assert({size}, "{struct.name}");')
        for field in struct.fields:
            at = f"offsetof(struct {struct.name}, {field.name}) == {field.offset_bytes}"
            lines.append(f'_Static_assert({at}, "{struct.name}.{field.name}");')
    return "\n".join(lines) + "\n"


def layout_probe(abi: Abi) -> str:
    """A C program that prints `struct bytes align` and `struct.field offset` as the compiler sees.

    Independent of the numbers in the table, so its output can be compared with them.
    """
    lines = []
    for struct in abi.structs:
        name = f"struct {struct.name}"
        lines.append(f'printf("{struct.name} %zu %zu\\n", sizeof({name}), _Alignof({name}));')
        for field in struct.fields:
            at = f"offsetof({name}, {field.name})"
            lines.append(f'printf("{struct.name}.{field.name} %zu\\n", {at});')
    body = "\n".join(_block("int main(void) {", [*lines, "return 0;"], "}"))
    return f"#include <stdio.h>\n{INCLUDES}\n{types(abi)}{body}\n"


def version_script(names: Iterable[str]) -> str:
    """The linker's list of exports: these names and nothing else."""
    return "{\n  global:\n" + "".join(f"    {name};\n" for name in names) + "  local: *;\n};\n"


def exported_names(abi: Abi, library: str) -> list[str]:
    """The exact names that `library` exports, in table order."""
    return [symbol.name for symbol in abi.of(library)]


def _python_prototype(symbol: Symbol) -> str:
    # A status crosses as a plain int, so that a wrong number can be caught on the way out.
    returns = "int" if symbol.is_status else symbol.returns
    return f"{returns} py_{symbol.prototype};"


def cdef(abi: Abi) -> str:
    """The declarations for cffi: types, the C helpers that Python calls, and Python's functions."""
    helpers = [
        "int ms_fail(struct skippy_error **out_error, int status, const char *text, size_t n);",
        "void ms_start_failed(const char *text, size_t n);",
    ]
    functions = [_python_prototype(symbol) for symbol in abi.served]
    python = _block('extern "Python" {', ["int py_alive(void);", *functions], "}")
    return "\n".join([types(abi), *helpers, memory.CDEF, fallback_c.CDEF, *python, ""])


def init_code(boot: str) -> str:
    """What the embedded interpreter runs first: one import, whose failure is kept as text."""
    return f"""
try:
    import {boot}
except BaseException as error:
    import traceback
    from {MODULE} import lib
    text = f"{{error!r}}\\n{{traceback.format_exc()}}".encode("utf-8", "replace")
    lib.ms_start_failed(text, len(text))
"""


def _c_answers(abi: Abi) -> Mapping[str, str]:
    version = ", ".join(str(part) for part in abi.version)
    return {
        "skippy_abi_version": f"return (struct skippy_abi_version){{{version}}};",
        "skippy_abi_features": f"return UINT64_C({abi.features_mask});",
        "skippy_error_free": "if (!ms_free_foreign_error(error)) ms_error_free(error);",
    }


def _body(symbol: Symbol, names: Container[str]) -> list[str]:
    """The statements of one served export."""
    arguments = ", ".join(p.name for p in symbol.params)
    call = f"py_{symbol.name}({arguments})"
    reports = any(p.c_type == ERROR_OUT for p in symbol.params) and not symbol.leaves_out_error
    lines = fallback_front.before(symbol, names)
    if reports:
        lines.append("if (out_error) ms_clear(out_error);")
    lines += [
        f"if ({p.name}) ms_clear({p.name});"
        for p in symbol.params
        if p.c_type.startswith("struct ") and p.c_type.endswith("**") and p.c_type != ERROR_OUT
    ]
    if symbol.is_status:
        ok, absent = " SKIPPY_STATUS_OK", f" ms_not_started({'out_error' if reports else 'NULL'})"
        value = f"ms_checked({call}, out_error)" if reports else f"ms_in_range({call})"
    else:
        ok = absent = f" {symbol.neutral}" if symbol.neutral else ""
        value = call
    if symbol.null_ok:
        lines.append(f"if (!{symbol.null_ok}) return{ok};")
    lines.append(f"if (!ms_enter()) return{absent};")
    return lines + fallback_front.after(symbol, value, names)


def _export(symbol: Symbol, answers: Mapping[str, str], names: Container[str]) -> list[str]:
    if symbol.in_c and symbol.name not in answers:
        raise ModelError(f"ABI table: {symbol.name} is marked in_c, and C has no answer for it")
    lines = [answers[symbol.name]] if symbol.in_c else _body(symbol, names)
    return _block(f"CFFI_DLLEXPORT {symbol.returns} {symbol.prototype} {{", lines, "}")


def front(abi: Abi, home: Home, boot: str) -> str:
    """The C source that cffi places before its own: types, start-up, and every export."""
    status = next(e for e in abi.enums if e.name == "skippy_status")
    paths = "".join(f"{c_string(path)}, " for path in home.paths)
    macros = {
        "MS_VERSION": ", ".join(map(str, abi.version)),
        "MS_FIRST_HANDLE": f"UINT64_C({fallback_front.FIRST_HANDLE:#x})",
        "MS_LAST_STATUS": str(max(status.values.values())),
        "MS_BOOT": c_string(boot.encode()),
        "MS_HOME": c_string(home.home),
        "MS_STDLIB": c_string(home.stdlib),
        "MS_DYNLOAD": c_string(home.dynload),
        "MS_EXECUTABLE": c_string(home.executable),
        "MS_PATHS": paths,
    }
    lines = [f"#define {name} {value}" for name, value in macros.items()]
    prototypes = [f"static {_python_prototype(symbol)}" for symbol in abi.served]
    answers = _c_answers(abi)
    names = {symbol.name for symbol in abi.served}
    exports = [line for symbol in abi.of("skippy") for line in _export(symbol, answers, names)]
    return "\n".join([
        INCLUDES, types(abi), layout_checks(abi), *lines, memory.SOURCE, START_C, LEAVE_C,
        fallback_front.provider(abi), fallback_c.SOURCE, *prototypes, *exports, ""
    ])
