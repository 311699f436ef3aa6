"""Owns the README.md that a package is published with, made from its manifest's values.

It must not know files. Values of strangers are put between backquotes, without any of their own.
"""

import json
from typing import Any

README_NAME = "README.md"


def readme_bytes(document: dict[str, Any], manifest_sha256: str) -> bytes:
    """The text, UTF-8. `document` is the manifest's; `manifest_sha256` of its exact bytes."""
    source = document["source_model"]
    generation = document.get("generation")
    lines = [
        f"# Layer package of {_code(document['model_id'])}",
        "",
        "One GGUF fragment for each layer, and the shared ones; `model-package.json` says which.",
        "",
        "| | |",
        "|---|---|",
        f"| model | {_code(document['model_id'])} |",
        f"| repository | {_code(source['repo'])} |",
        f"| revision | {_code(source['revision'])} |",
        *(f"| source file | {_code(f['path'])}, {f['size_bytes']} bytes, SHA-256 `{f['sha256']}` |"
          for f in source["files"]),
        f"| manifest | SHA-256 `{manifest_sha256}` |",
        f"| layers | {document['layer_count']} |",
        f"| activation width | {document['activation_width']} |",
        f"| Skippy ABI | `{document['skippy_abi_version']}` |",
        *(f"| projector | {_code(p['path'])}, SHA-256 `{p['sha256']}` |"
          for p in document.get("projectors", ())),
        "",
        "## Generation defaults",
        "",
        *(["none"] if generation is None
          else ["```json", *json.dumps(generation, indent=2).splitlines(), "```"]),
        "",
        "## Validation",
        "",
        "```sh",
        "mesh-specialize package validate . --source FULL_MODEL.gguf",
        "```",
        "",
        "The writer re-read every fragment and compared names, types, shapes and sizes with its",
        "plan: equal. The command above also compares every byte with the source; put its result",
        "here.",
        "",
        "## Certification",
        "",
        "Not certified.",
        "",
    ]  # fmt: skip
    return "\n".join(lines).encode()


def _code(text: str) -> str:
    """One line of code; a bar or backquote would end the cell or the code."""
    shown = "".join(c if c.isprintable() and c not in "`|" else "?" for c in text)
    return f"`{shown}`"
