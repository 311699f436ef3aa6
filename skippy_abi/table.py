"""Owns the typed view of an ABI version: `load()` reads `symbols_<version>.toml` into records.

Knows nothing of C compilers, of cffi, or of how a call is answered. The contract is the TOML
file; its schema is the fields of the records below. Lists keep file order, which is meaning:
required symbols stand in the order the host looks them up, structs before those that embed them.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engine.errors import IoFailure, ModelError

PINNED = (0, 1, 39)
STATUS = "enum skippy_status"

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Variable:
    """One C variable: a parameter, or a field with `array` elements (0: not an array)."""

    name: str
    c_type: str
    array: int = 0
    offset_bytes: int = -1

    @property
    def declaration(self) -> str:
        """The C declaration without its semicolon."""
        return f"{self.c_type} {self.name}" + (f"[{self.array}]" if self.array else "")


@dataclass(frozen=True)
class Struct:
    """A struct with its recorded layout, or a union (`total_bytes` 0: not recorded)."""

    name: str
    fields: tuple[Variable, ...]
    total_bytes: int = 0
    align_bytes: int = 0


@dataclass(frozen=True)
class Enum:
    """Enumerators by name. `is_typedef`: C spells the type by its bare name."""

    name: str
    underlying: str
    values: dict[str, int]
    is_typedef: bool


@dataclass(frozen=True)
class Callback:
    """A function pointer type."""

    name: str
    returns: str
    params: tuple[Variable, ...]


@dataclass(frozen=True)
class Symbol:
    """One export.

    need              `version`, `required` or `optional`
    library           `skippy` (served by the engine) or `stubs`
    in_c              the C front answers it alone; Python never sees it
    neutral           C expression returned when Python cannot answer, for non-status results
    null_ok           the parameter whose NULL means "nothing to do", answered in C
    leaves_out_error  its `out_error` is never written, even on failure
    """

    name: str
    library: str
    need: str
    returns: str
    params: tuple[Variable, ...]
    used_for: tuple[str, ...]
    in_c: bool
    neutral: str
    null_ok: str
    leaves_out_error: bool

    @property
    def is_status(self) -> bool:
        """True when the result is the ABI's status."""
        return self.returns == STATUS

    @property
    def prototype(self) -> str:
        """`name(type a, type b)`, with `void` for an empty list."""
        params = ", ".join(p.declaration for p in self.params) or "void"
        return f"{self.name}({params})"


@dataclass(frozen=True)
class Abi:
    """One ABI version, whole."""

    version: Version
    handles: tuple[str, ...]
    served_features: tuple[str, ...]
    feature_bits: dict[str, int]
    constants: dict[str, int]
    enums: tuple[Enum, ...]
    callbacks: tuple[Callback, ...]
    unions: tuple[Struct, ...]
    structs: tuple[Struct, ...]
    symbols: tuple[Symbol, ...]

    def of(self, library: str) -> tuple[Symbol, ...]:
        """The symbols that `library` exports."""
        return tuple(s for s in self.symbols if s.library == library)

    def needed(self, need: str) -> tuple[Symbol, ...]:
        """The symbols with that need, in look-up order."""
        return tuple(s for s in self.symbols if s.need == need)

    @property
    def served(self) -> tuple[Symbol, ...]:
        """The symbols that Python answers."""
        return tuple(s for s in self.of("skippy") if not s.in_c)

    @property
    def features_mask(self) -> int:
        """The feature mask that the front announces."""
        return sum(1 << self.feature_bits[name] for name in self.served_features)


def _variable(text: str) -> Variable:
    """`"8: const char * names[4]"`, offset and array optional, as a record."""
    match = re.fullmatch(r"(?:\s*(\d+):\s*)?(.*\S)\s+(\w+)(?:\[(\d+)\])?", text)
    if match is None:
        raise ModelError(f"ABI table: {text!r} is not a C declaration")
    offset, c_type, name, array = match.groups()
    return Variable(name, c_type, int(array or 0), -1 if offset is None else int(offset))


def _variables(row: dict[str, Any], key: str) -> tuple[Variable, ...]:
    return tuple(_variable(text) for text in row.get(key, ()))


def _struct(row: dict[str, Any]) -> Struct:
    return Struct(
        row["name"], _variables(row, "fields"), row.get("total_bytes", 0), row.get("align_bytes", 0)
    )


def _symbol(row: dict[str, Any]) -> Symbol:
    return Symbol(
        name=row["name"],
        library=row["library"],
        need=row["need"],
        returns=row["returns"],
        params=_variables(row, "params"),
        used_for=tuple(row["used_for"]),
        in_c=row.get("in_c", False),
        neutral=row.get("neutral", ""),
        null_ok=row.get("null_ok", ""),
        leaves_out_error=row.get("leaves_out_error", False),
    )


def parse(text: str) -> Abi:
    """An ABI table from TOML text. Raises ModelError when the text does not follow the schema."""
    try:
        data = tomllib.loads(text)
        major, minor, patch = data["version"]
        return Abi(
            version=(major, minor, patch),
            handles=tuple(data["handles"]),
            served_features=tuple(data["served_features"]),
            feature_bits=data["feature_bits"],
            constants=data["constants"],
            enums=tuple(
                Enum(e["name"], e["underlying"], e["values"], e.get("is_typedef", False))
                for e in data["enums"]
            ),
            callbacks=tuple(
                Callback(c["name"], c["returns"], _variables(c, "params"))
                for c in data["callbacks"]
            ),
            unions=tuple(_struct(u) for u in data["unions"]),
            structs=tuple(_struct(s) for s in data["structs"]),
            symbols=tuple(_symbol(s) for s in data["symbols"]),
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"ABI table: {error!r}") from error


def path_of(version: Version) -> Path:
    """Where the table of `version` is kept, whether or not it exists."""
    return Path(__file__).parent / "symbols_{}_{}_{}.toml".format(*version)


@cache
def load(version: Version = PINNED) -> Abi:
    """The table of `version`. Raises IoFailure when this project does not have it."""
    path = path_of(version)
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise IoFailure(f"ABI table for version {version}: {error}") from error
