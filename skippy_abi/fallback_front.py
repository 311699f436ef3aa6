"""Owns what is generated from the ABI table so that a fallback runtime answers for its models.

A model that is not ours may be opened by another library with the same ABI. From then on the calls
on its handles go from C to C, with the arguments as they came and no Python in between. An open is
forwarded when Python has asked for it, since only Python knows which models are ours; so is a
call of `ASKED`, which has no handle to tell by. Which library that is, and when it is loaded, is
`fallback.py`'s business; what the statements made here call is in `fallback_c.py`.
"""

from collections.abc import Container

from skippy_abi.table import Abi, Symbol

# Above any user-space mapping of x86-64 and AArch64, so that a handle that is dereferenced by
# mistake faults at once.
FIRST_HANDLE = 0x5E50_0000_0000_0000

KINDS = {"struct skippy_model": "MS_MODEL", "struct skippy_session": "MS_SESSION"}
ASKED = ("skippy_parse_chat_response_json",)
WITH_EVENTS = "_with_events"


def _kind(c_type: str) -> str | None:
    """The kind of a parameter that is a model or a session."""
    return KINDS.get(c_type.removeprefix("const ").removesuffix("*").strip())


def _made_kind(c_type: str) -> str | None:
    return KINDS.get(c_type.removesuffix("**").strip()) if c_type.endswith("**") else None


def _handle(symbol: Symbol) -> tuple[str, str] | None:
    """Name and kind of the parameter that says whose call it is."""
    found = ((p.name, _kind(p.c_type)) for p in symbol.params)
    return next(((name, kind) for name, kind in found if kind), None)


def _made(symbol: Symbol) -> tuple[str, str] | None:
    """Name and kind of the handle that the call gives out."""
    found = ((p.name, _made_kind(p.c_type)) for p in symbol.params)
    return next(((name, kind) for name, kind in found if kind), None)


def _batch(symbol: Symbol) -> str | None:
    array = "struct skippy_session * const *"
    return next((p.name for p in symbol.params if p.c_type == array), None)


def is_asked(symbol: Symbol) -> bool:
    """Whether Python decides about forwarding the call: it has no handle to tell by."""
    opens = _made(symbol) is not None and _handle(symbol) is None
    return opens or symbol.name in ASKED


def forwarded(abi: Abi) -> list[Symbol]:
    """The exports that a fallback may answer, in table order."""
    return [s for s in abi.served if _handle(s) or _batch(s) or is_asked(s)]


def provider(abi: Abi) -> str:
    """The C record of the fallback's functions, and the list that fills it."""
    symbols = [*forwarded(abi), *(s for s in abi.of("skippy") if s.name == "skippy_error_free")]
    lines = ["struct ms_provider {"]
    for symbol in symbols:
        params = ", ".join(p.declaration for p in symbol.params)
        lines.append(f"    {symbol.returns} (*{symbol.name})({params});")
    lines += [
        "};", "static struct ms_provider ms_other;",
        "static const struct { const char *name; size_t place; int is_required; } ms_provided[] = {"
    ]
    for symbol in symbols:
        place = f"offsetof(struct ms_provider, {symbol.name})"
        lines.append(f'    {{"{symbol.name}", {place}, {int(symbol.need == "required")}}},')
    return "\n".join([*lines, "};"])


def _forward(symbol: Symbol, names: Container[str]) -> str:
    """The call of the other runtime's function, an optional one only where it is there."""
    arguments = [p.name for p in symbol.params]
    call = f"ms_other.{symbol.name}({', '.join(arguments)})"
    if not symbol.is_status:
        return call
    told = f"ms_told({call}, out_error)"
    if symbol.need == "required":
        return told
    absent = f'ms_absent("{symbol.name}", out_error)'
    plain = symbol.name.removesuffix(WITH_EVENTS)
    if plain != symbol.name and plain in names:
        kept = ", ".join(name for name in arguments if name != "reporter")
        absent = f"ms_told(ms_other.{plain}({kept}), out_error)"
    return f"(ms_other.{symbol.name} ? {told} : {absent})"


def _adopted(symbol: Symbol, call: str) -> str:
    """The call, and the handle it gives out entered into the set."""
    made, handle = _made(symbol), _handle(symbol)
    if made is None:
        return call
    return f"ms_adopt({made[1]}, {handle[0] if handle else 'NULL'}, {made[0]}, {call}, out_error)"


def before(symbol: Symbol, names: Container[str]) -> list[str]:
    """The first statements of an export: a call on the other runtime's handles ends here."""
    handle, batch = _handle(symbol), _batch(symbol)
    if handle is None and batch is None:
        return ["ms_asked = 0;"] if is_asked(symbol) else []
    call = _forward(symbol, names)
    if batch is not None:
        return [
            f"int whose = ms_batch({batch}, request_count, out_error);",
            f"if (whose == MS_FOREIGN) return {call};",
            "if (whose == MS_MIXED) return SKIPPY_STATUS_INVALID_ARGUMENT;",
        ]
    assert handle is not None
    name, kind = handle
    if symbol.name.endswith("_free"):
        return [
            f"struct ms_entry *entry = ms_take({name}, {kind});",
            f"if (entry != NULL) return ms_freed(entry, {call});",
        ]
    return [f"if (ms_is_foreign({name}, {kind})) return {_adopted(symbol, call)};"]


def after(symbol: Symbol, value: str, names: Container[str]) -> list[str]:
    """The last statements of an export that Python answers with the C expression `value`."""
    if not is_asked(symbol):
        if symbol.returns == "void":
            return [f"{value};", "ms_left();"]
        kept = "int" if symbol.is_status else symbol.returns
        return [f"{kept} answer = {value};", "ms_left();", "return answer;"]
    return [
        f"int status = {value};",
        "ms_left();",
        f"return ms_asked ? {_adopted(symbol, _forward(symbol, names))} : status;",
    ]
