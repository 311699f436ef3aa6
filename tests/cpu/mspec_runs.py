"""Owns small runs of the .mspec writer for tests: the hand-made file written, whole or in parts."""

from pathlib import Path

from engine.artifacts.mspec_format import Origin
from engine.artifacts.mspec_writer import MspecWriter
from tests.cpu import mspec_cases as cases

ITEMS = cases.sound_items()
WHOLE = cases.mspec(ITEMS)
ORIGIN = Origin("tiny", "bf16", cases.RECIPE_SHA256)
KIND_NAMES = ("", "tensor", "text", "json", "blob")


def put(writer: MspecWriter, item: cases.Item, n: int = 7) -> None:
    """Write an item of the hand-made files, its data in pieces of n bytes."""
    data = item.data
    writer.write(
        item.name.decode(), KIND_NAMES[item.kind], cases.DTYPE_NAMES[item.dtype], item.dims(),
        cases.LAYOUT_NAMES[item.layout], (data[i : i + n] for i in range(0, len(data), n)),
    )  # fmt: skip


def convert(path: Path, origin: Origin = ORIGIN, key: str = "key") -> int:
    """A run as the converter has it; the number of objects it found done."""
    with MspecWriter(path, origin, key) as writer:
        n_done = len(writer.done)
        for item in ITEMS:
            if item.name.decode() not in writer.done:
                put(writer, item, 300)
        writer.finish()
    return n_done


def stopped(path: Path, n_objects: int, key: str = "key") -> None:
    """A run that begins, or goes on, and ends after so many objects."""
    with MspecWriter(path, ORIGIN, key) as writer:
        for item in ITEMS[len(writer.done) : n_objects]:
            put(writer, item)
