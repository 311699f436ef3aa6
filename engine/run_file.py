"""Owns JSON files in which a run keeps what it knows, for a later one to go on from.

It must not know what they hold beyond their schema.
"""

import json
from pathlib import Path
from typing import Any

from engine.artifacts.output_file import new_file
from engine.errors import InvalidArgument


def read_run(path: Path, what: str, schema: int) -> dict[str, Any]:
    """What a file holds; InvalidArgument, led by `what`, for no JSON and for another schema."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{what}: {path.name}: {error}") from None
    found = held.get("schema") if isinstance(held, dict) else None
    if found != schema:
        raise InvalidArgument(f"{what}: {path.name} has schema {found!r}, {schema} is needed")
    return dict(held)


def write_run(path: Path | None, data: dict[str, Any], indent: int | None = None) -> None:
    """Write the file, whole or not at all; nothing for no path."""
    if path is not None:
        with new_file(path) as out:
            out.write(json.dumps(data, indent=indent).encode())
