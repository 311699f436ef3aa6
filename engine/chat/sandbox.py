"""Owns running a chat template: the Jinja sandbox, its extra names, and what bounds it.

Knows nothing of messages, tools or formats. A template comes from the model file and is not
trusted. Bounded: the text produced (MAX_TEXT_CHARS), the items that all `range` calls of one
rendering yield (MAX_RANGE_ITEMS), repetition by `*`, powers by `**`, and recursion; no file, no
attribute of Python's own and no clock but `strftime_now` is in reach. NOT bounded: the memory of a
string that a template builds by doubling or padding before it prints it, and the time of loops over
the messages nested in each other. The names that draw random values are taken out, so that a
rendering depends on its input alone.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from types import TracebackType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import Unsupported

MAX_TEXT_CHARS = 64 << 20
MAX_RANGE_ITEMS = 1_000_000
MAX_POWER_BITS = 4096


class _Refused(jinja2.TemplateError):
    """The template said no, or reached a bound; its message may be shown."""


class _GenerationTag(Extension):
    """Marks what the assistant wrote, for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for text, count in ((left, right), (right, left)):
                if isinstance(text, str | list | tuple) and isinstance(count, int):
                    _hold(len(text) * count, MAX_TEXT_CHARS, "a repetition")
        elif isinstance(left, int) and isinstance(right, int):
            _hold(left.bit_length() * right, MAX_POWER_BITS, "the bits of a power")
        return super().call_binop(context, operator, left, right)


class _Range:
    """`range` for one rendering: all its uses together stay under the limit."""

    def __init__(self) -> None:
        self._n_items = 0

    def __call__(self, *bounds: int) -> range:
        items = range(*bounds)
        # len() of a range fails past 64 bits; the difference never does.
        self._n_items += max(0, (items.stop - items.start) // items.step + 1)
        _hold(self._n_items, MAX_RANGE_ITEMS, "the items of range")
        return items


class Renderer:
    """A compiled template; may be used from several threads at once."""

    def __init__(self, source: str) -> None:
        """Compiles `source`. Raises Unsupported with the line when it does not compile."""
        if not source.strip():
            raise Unsupported("chat template: the model file has none")
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise Unsupported(
                f"chat template: does not compile, line {error.lineno}: {_clean(str(error))}"
            ) from None
        except _RAISED as error:
            # The compiler evaluates the template's constants, so that can fail as well.
            raise Unsupported(f"chat template: does not compile: {_reason(error)}") from None

    def __call__(self, names: dict[str, Any]) -> str:
        """The text for a context. Raises Unsupported for whatever goes wrong inside."""
        try:
            return "".join(_bounded(self._template.generate({**names, "range": _Range()})))
        except _RAISED as error:
            # Python's own words name classes and paths of ours; say what happened in our words.
            raise Unsupported(f"chat template: {_reason(error)}{_line(error)}") from None


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    del environment.filters["random"], environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter is made for HTML and would escape markup, quotes and all non-ASCII.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise _Refused(str(message))


def _hold(amount: int, limit: int, thing: str) -> None:
    if amount > limit:
        raise _Refused(f"{thing} would be {amount}, the limit is {limit}")


def _bounded(chunks: Iterator[str]) -> Iterator[str]:
    n_chars = 0
    for chunk in chunks:
        n_chars += len(chunk)
        _hold(n_chars, MAX_TEXT_CHARS, "the characters of the text")
        yield chunk


# Whatever template code can raise; Jinja wraps none of what Python's operators do.
_RAISED = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (SecurityError, "did what the sandbox forbids"),
    (jinja2.UndefinedError, "used a value that is not there"),
    (TypeError, "combined values of kinds that do not fit"),
    (RecursionError, "recursed too deep"),
    (MemoryError, "asked for too much memory"),
)


def _reason(error: Exception) -> str:
    if isinstance(error, _Refused):
        return _clean(str(error))
    return next((words for kind, words in _REASONS if isinstance(error, kind)), "failed")


def _clean(text: str) -> str:
    return text[:500].encode(errors="replace").decode().replace("\0", "?")


def _line(error: BaseException) -> str:
    line, step = 0, error.__traceback__
    while isinstance(step, TracebackType):
        if step.tb_frame.f_code.co_filename == "<template>":
            line = step.tb_lineno
        step = step.tb_next
    return f" (line {line} of the template)" if line else ""


Render = Callable[[dict[str, Any]], str]
