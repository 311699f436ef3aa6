"""Owns the table of an artifact's tensors, by which a part of the artifact is known.

A stage of a layer package holds some of a model's tensors, so neither its file nor its content has
the artifact's digest. The table lists every tensor of the artifact with the digest of its data;
with the metadata of the part it must give the artifact's own content digest, and each tensor of the
part must be in it. So a part is as exact as the whole, and the table itself is not trusted.

A table is TOML: under `[tensors]`, name = "GGML-TYPE DIMxDIM SHA256", dims innermost first.
`python -m packages.tensor_table FILE.gguf` prints one.
"""

import json
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.artifacts.content_digest import TensorDigest, digest_with, tensor_digests
from engine.artifacts.gguf import GgufFile, open_gguf
from engine.errors import InvalidArgument
from packages.package import Artifact


def holds_part(artifact: Artifact, source: GgufFile, found: Sequence[TensorDigest]) -> bool:
    """Whether `found`, all tensors of an open file or of its parts, are some of the artifact's."""
    if artifact.tensor_table is None:
        return False
    listed = read_table(artifact.tensor_table)
    by_name = {tensor.name: tensor for tensor in listed}
    are_listed = bool(found) and all(by_name.get(tensor.name) == tensor for tensor in found)
    return are_listed and digest_with(source, listed) == artifact.content_sha256


def read_table(path: Path) -> tuple[TensorDigest, ...]:
    """The tensors of a table; InvalidArgument when it is not one."""
    try:
        rows = tomllib.loads(path.read_text("utf-8"))["tensors"]
        return tuple(_tensor(name, row) for name, row in rows.items())
    except (OSError, KeyError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"tensor table {path.name} is not usable: {error}") from None


def _tensor(name: str, row: str) -> TensorDigest:
    ggml_type, dims, sha256 = row.split(" ")
    shape = tuple(int(dim) for dim in dims.split("x"))
    return TensorDigest(name, int(ggml_type), shape, bytes.fromhex(sha256))


def table_text(tensors: Iterable[TensorDigest]) -> str:
    """The table of these tensors."""
    rows = (
        f'{json.dumps(name, ensure_ascii=False)} = "{ggml_type} {_times(dims)} {sha256.hex()}"'
        for name, ggml_type, dims, sha256 in tensors
    )
    return "\n".join(("[tensors]", *rows, ""))


def _times(dims: Iterable[int]) -> str:
    return "x".join(map(str, dims))


def main(path: str) -> int:
    """Print the table of a GGUF file."""
    with open_gguf(path) as file:
        sys.stdout.write(table_text(tensor_digests(file)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
