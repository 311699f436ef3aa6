"""Owns what an endurance run knows, in a file that a later process goes on from.

    schema    1
    identity  what a later process must have in common
    outputs   by the name of a request: {tokens, digest}, those of its first cycle
    cycles    how many have ended, of all processes;  seconds, requests, tokens: likewise
    samples   [{process, cycle, counts by name}], the newest last
    failures  [sentences], the first ones; n_failures counts all
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import InvalidArgument
from engine.run_file import read_run, write_run

SCHEMA, MAX_FAILURES, MAX_SAMPLES = 1, 50, 10_000
NUMBERS = ("cycles", "processes", "seconds", "requests", "tokens", "n_failures")


class State:
    """A run's knowledge; `path` None keeps it in memory."""

    def __init__(self, path: Path | None, identity: Mapping[str, Any]) -> None:
        """What the file at `path` holds, or nothing yet; InvalidArgument for another run's."""
        self.path = path
        self.data: dict[str, Any] = {
            "schema": SCHEMA, "identity": dict(identity), **dict.fromkeys(NUMBERS, 0),
            "outputs": {}, "samples": [], "failures": [],
        }
        if path is not None and path.exists():
            self.data = _read(path, self.data["identity"])
        self.process = self.data["processes"]
        self.data["processes"] += 1

    def fail(self, sentence: str) -> None:
        """Keep a failure."""
        self.data["n_failures"] += 1
        if len(self.data["failures"]) < MAX_FAILURES:
            self.data["failures"].append(sentence)

    def sampled(self, counts: Mapping[str, int | None]) -> None:
        """Keep the counts at the end of a cycle."""
        samples = self.data["samples"]
        samples.append({"process": self.process, "cycle": self.data["cycles"], **counts})
        del samples[:-MAX_SAMPLES]

    def save(self) -> None:
        """Write the file, whole or not at all."""
        write_run(self.path, self.data)


def _read(path: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    held = read_run(path, "state", SCHEMA)
    known = held.get("identity")
    if not isinstance(known, dict) or not isinstance(held.get("outputs"), dict):
        raise InvalidArgument(f"state: {path.name} lacks a part")
    if any(type(held.get(name)) not in (int, float) for name in NUMBERS) or not all(
        isinstance(held.get(name), list) for name in ("samples", "failures")
    ):
        raise InvalidArgument(f"state: {path.name} lacks a part")
    for name, value in identity.items():
        if known.get(name) != value:
            raise InvalidArgument(
                f"state: {name} is {value!r} here, {known.get(name)!r} in {path.name}"
            )
    return held
