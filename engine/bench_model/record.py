"""Owns the report of a model's benchmark while it is made: rows by phase, kept in a file as each
comes, and taken up again by a later run.

    schema    2
    identity  what a later run must have in common: package, recipe, artifact, artifact_bytes,
              device, is_card, steps
    model     model_id, weights ("int4", "bf16"), forms: bytes of matrices by form; null before
    runs      [{command, started, driver, python, read_rate, card_used_bytes}]; `read_rate` is
              bytes in a second of pure reads in that run, null where the device cannot tell
    load      [{source, file_bytes, read_s, plan_s, load_s, bytes_per_s}]
    memory    [{weights_bytes, state_bytes, scratch_bytes, n_cells, n_lanes, taken_bytes,
              most_bytes, beyond_bytes}]: planned, then what the device says: once loaded, at most
    prefill   [{n_tokens, first_s, tokens_per_s}]
    decode    [{n_context, n_batch, step_ms, least_ms, most_ms, tokens_per_s, device_ms,
    batch       host_us_per_token, read_bytes}]
    steps     [what `step_times.step_row` gives]
    peer      [what `peer.measure` gives]
    failed    [{phase, key, reason}]

A row has the number of its `run`; null is "not known". Times end in their unit.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import InvalidArgument
from engine.run_file import read_run, write_run

SCHEMA = 2
# Of each phase, what tells its rows apart.
KEYS = {
    "load": "source", "prefill": "n_tokens", "decode": "n_context", "batch": "n_batch",
    "steps": "shape", "peer": "peer",
}
LISTS = ("runs", "memory", "failed", *KEYS)


class Record:
    """A report in a file, or in memory alone when `path` is None."""

    def __init__(self, path: Path | None, identity: Mapping[str, Any]) -> None:
        """An empty one; nothing is written yet."""
        self.path = path
        self.data: dict[str, Any] = {
            "schema": SCHEMA, "identity": dict(identity), "model": None,
            **{name: [] for name in LISTS},
        }

    def resume(self, source: Path) -> None:
        """Go on from a report of the same identity; InvalidArgument for any other file."""
        held = _read(source)
        known = held["identity"]
        for name, value in self.data["identity"].items():
            if known.get(name) != value:
                raise InvalidArgument(
                    f"resume: {name} is {value!r} here, {known.get(name)!r} in {source.name}"
                )
        self.data = held

    def begin(self, run: Mapping[str, Any]) -> None:
        """Enter this run; rows from now on are of it."""
        self.data["runs"].append(dict(run))
        self.save()

    @property
    def run(self) -> dict[str, Any]:
        """This run's own entry."""
        entry: dict[str, Any] = self.data["runs"][-1]
        return entry

    def has(self, phase: str, key: Any) -> bool:
        """Whether a row of that key was measured before."""
        return any(row[KEYS[phase]] == key for row in self.data[phase])

    def add(self, phase: str, row: Mapping[str, Any]) -> None:
        """Keep a row, on disk too; an earlier failure of the same key is forgotten."""
        key = row.get(KEYS.get(phase, ""))
        self.data[phase].append({**row, "run": len(self.data["runs"]) - 1})
        self.data["failed"] = [
            old for old in self.data["failed"] if (old["phase"], old["key"]) != (phase, key)
        ]
        self.save()

    def fail(self, phase: str, key: Any, reason: str) -> None:
        """Keep why a row could not be measured."""
        self.data["failed"].append({
            "phase": phase, "key": key, "reason": reason, "run": len(self.data["runs"]) - 1,
        })
        self.save()

    def failures(self) -> int:
        """How many rows of this run have failed."""
        run = len(self.data["runs"]) - 1
        return sum(row["run"] == run for row in self.data["failed"])

    def save(self) -> None:
        """Write the file, whole or not at all."""
        write_run(self.path, self.data, indent=1)


def _read(source: Path) -> dict[str, Any]:
    held = read_run(source, "resume", SCHEMA)
    lists = all(isinstance(held.get(name), list) for name in LISTS)
    if not lists or not isinstance(held.get("identity"), dict):
        raise InvalidArgument(f"resume: {source.name} lacks a part of a report")
    rows = [(phase, row) for phase in KEYS for row in held[phase]]
    for phase, row in rows:
        if not isinstance(row, dict) or KEYS[phase] not in row:
            raise InvalidArgument(f"resume: {source.name}: a row of {phase} has no {KEYS[phase]}")
    return held
