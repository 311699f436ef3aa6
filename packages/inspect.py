"""Owns the description of an .mspec file, for people and for programs.

Reads the header and directory, and every byte only when asked to verify. Knows no model: whether
anything here serves the file is `select.py`'s business.
"""

from typing import Any, NamedTuple

from engine.artifacts.mapped_file import PathLike, printable
from engine.artifacts.mspec import MspecFile, Verify, open_mspec
from engine.artifacts.mspec_format import Kind
from engine.errors import ModelError


class Report(NamedTuple):
    """`lines` for people; `facts` the same for `json.dumps`, `facts["ok"]` False for damage."""

    lines: list[str]
    facts: dict[str, Any]


def inspect(path: PathLike, *, verify: bool = False) -> Report:
    """Describe the file; with `verify`, compare every object with its digest and list the damaged.

    ModelError when the file cannot be opened at all.
    """
    with open_mspec(path, Verify.NEVER) as file:
        facts = _facts(file)
        lines = _lines(file.shown, facts)
        if verify:
            damaged = _damaged(file)
            facts["ok"] = not damaged
            facts["verified"] = {"objects": len(file.objects), "damaged": damaged}
            lines += _verified_lines(len(file.objects), damaged)
    return Report(lines, facts)


def _facts(file: MspecFile) -> dict[str, Any]:
    identity = file.identity
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in file.objects.values():
        if entry.kind == Kind.TENSOR:
            new = {"dtype": str(entry.dtype), "layout": str(entry.layout), "tensors": 0, "bytes": 0}
            row = groups.setdefault((entry.dtype, entry.layout), new)
            row["tensors"] += 1
            row["bytes"] += entry.length
    texts = [
        {"name": entry.name, "kind": str(entry.kind), "bytes": entry.length}
        for entry in file.objects.values()
        if entry.kind != Kind.TENSOR
    ]
    return {
        "ok": True,
        "model_id": identity.model_id,
        "weights_id": identity.weights_id,
        "recipe": identity.recipe,
        "recipe_sha256": identity.recipe_sha256,
        "file_bytes": file.n_bytes,
        "weights": list(groups.values()),
        "others": texts,
    }


def _lines(shown: str, facts: dict[str, Any]) -> list[str]:
    lines = [
        shown,
        f"model_id    {printable(facts['model_id'])}",
        f"weights_id  {facts['weights_id']}",
        f"recipe      {printable(facts['recipe'])} ({facts['recipe_sha256']})",
        f"file        {facts['file_bytes']:,} bytes",
    ]
    for row in facts["weights"]:
        lines.append(
            f"weights     {row['tensors']:,} x {row['dtype']} in {row['layout']},"
            f" {row['bytes']:,} bytes"
        )
    for row in facts["others"]:
        lines.append(f"{row['kind']:<11} {printable(row['name'])}, {row['bytes']:,} bytes")
    return lines


def _damaged(file: MspecFile) -> list[dict[str, str]]:
    """Name and reason of every object that does not verify."""
    damaged = []
    for name in file.objects:
        try:
            file.check(name)
        except ModelError as error:
            damaged.append({"name": name, "reason": str(error)})
    return damaged


def _verified_lines(n_objects: int, damaged: list[dict[str, str]]) -> list[str]:
    if not damaged:
        return [f"verified    all {n_objects:,} objects are as their digests say"]
    return [
        f"DAMAGED     {len(damaged):,} of {n_objects:,} objects",
        *(f"  {row['reason']}" for row in damaged),
    ]
