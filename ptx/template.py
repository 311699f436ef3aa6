"""Owns how a kernel's source file becomes the PTX text that a device loads.

It must not know ops by name, nor devices. A source is PTX with Jinja2 in it: `${...}` for values,
`//%` for statements, one a line, so that it still reads as PTX. Nothing has a default: a name that
the recipe does not give is an error. Paths in `include` and `import` start at this folder.
"""

import math
import struct
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined, TemplateError, TemplateSyntaxError

from ptx.op import Constant, Dims, Kernel, Op, OpError

PTX = Path(__file__).parent


def f32(value: float) -> str:
    """The PTX literal of `value` rounded to float32: `0f3F800000`. OverflowError past its range."""
    return f"0f{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"


def f64(value: float) -> str:
    """The PTX literal of a float64: `0d3FF0000000000000`."""
    return f"0d{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def source_of(op: Op, kernel: Kernel) -> Path:
    """The file that a kernel is written in."""
    return PTX / op.name / f"{kernel.stem}.ptx"


def text_of(op: Op, kernel: Kernel, dims: Dims) -> str:
    """The PTX text of a kernel for `dims`."""
    return render(source_of(op, kernel), kernel.constants(dims))


def render(path: Path, constants: Mapping[str, Constant]) -> str:
    """The text of a source with its constants put in; equal inputs give equal bytes.

    Parsed sources are kept for as long as the content of their file stands. Raises OpError naming
    file and line for a source that is not well formed, misses a constant or cannot be read.
    """
    try:
        return _environment().get_template(str(path)).render(dict(constants))
    except TemplateSyntaxError as error:
        raise OpError(f"{_shown(error.filename or str(path))}:{error.lineno}: {error}") from error
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise OpError(f"{_where(error, path)}: {error}") from error
    except OSError as error:
        raise OpError(f"{_shown(error.filename or str(path))}: {error.strerror}") from error


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_load),
        variable_start_string="${",
        variable_end_string="}",
        # PTX has "{%" in vector operands; blocks are written as lines alone.
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        line_statement_prefix="//%",
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=False,
    )
    environment.globals.update(f32=f32, f64=f64, sqrt=math.sqrt, ln2=math.log(2), pi=math.pi)
    return environment


def _load(name: str) -> tuple[str, str, Callable[[], bool]]:
    """Source text, file name, and whether the text still stands; content decides, not times."""
    path = PTX / name
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if "${-" in line:
            # To Jinja this minus asks to strip blanks: -8 would come out as 8, and assemble.
            raise TemplateSyntaxError("write ${(-x)}, ${-x} loses its minus", number, name, name)
    return text, str(path), lambda: path.is_file() and path.read_text(encoding="utf-8") == text


def _where(error: BaseException, path: Path) -> str:
    """File and line of the innermost source line that an error passed through."""
    place, frames = str(path), error.__traceback__
    while frames is not None:
        name = frames.tb_frame.f_code.co_filename
        if name.endswith(".ptx"):
            place = f"{name}:{frames.tb_lineno}"
        frames = frames.tb_next
    return _shown(place)


def _shown(place: str) -> str:
    """A place without the folder that the project lies in."""
    return place.removeprefix(f"{PTX.parent}/")
