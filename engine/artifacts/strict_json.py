"""Owns reading JSON that came from somebody else: bounded, exact, and refused in words.

Knows nothing of what the document is for. Stricter than the standard library where that one is
quietly wrong: a name that occurs twice in an object is refused, and so are NaN and Infinity.
"""

import json
from collections import Counter
from typing import Any

from engine.artifacts.mapped_file import MappedFile, PathLike, printable
from engine.errors import ModelError

# The largest real one (a tokenizer) has 20 MB; a hostile one takes some 25 times its length.
MAX_FILE_BYTES = 32 << 20


def parse_json(raw: bytes, what: str) -> Any:
    """The parsed document; ModelError beginning with `what` for anything that is not JSON."""
    try:
        return json.loads(
            raw.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as e:
        raise ModelError(f"{what}: not UTF-8 at byte {e.start} of {len(raw)}") from e
    except RecursionError as e:
        raise ModelError(f"{what}: nested too deeply") from e
    except ValueError as e:
        # json's own errors, those of the two hooks, and integers of thousands of digits.
        raise ModelError(f"{what}: not JSON: {e}") from e


def read_small_file(path: PathLike, limit: int = MAX_FILE_BYTES) -> bytes:
    """All bytes of a regular file of at most `limit`; ModelError otherwise."""
    file = MappedFile(path)
    if file.n_bytes > limit:
        raise ModelError(f"{file.shown} has {file.n_bytes} bytes, the limit is {limit}")
    return bytes(file.view)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"name {printable(twice, 80)} occurs twice in one object")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")
