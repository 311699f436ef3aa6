"""Owns the names of the files of a sharded model: `PREFIX-00001-of-00003.gguf`.

It must not know files. A name decides: one that is written like a shard's is a shard.
"""

import posixpath
import re
from typing import NamedTuple

_SHARD = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


class ShardName(NamedTuple):
    """Prefix (folders too), number from 1, and how many there are in all."""

    prefix: str
    number: int
    total: int

    def of(self, number: int) -> str:
        """The name of another shard of the same set."""
        return f"{self.prefix}-{number:05d}-of-{self.total:05d}.gguf"


def shard_name(path: str) -> ShardName | None:
    """The parts of a shard's name; None for any other."""
    found = _SHARD.fullmatch(path)
    return None if found is None else ShardName(found[1], int(found[2]), int(found[3]))


def first_of(path: str) -> str:
    """The first shard's name of the set; the path itself for a single file."""
    shard = shard_name(path)
    return path if shard is None else shard.of(1)


def distribution_of(path: str) -> str:
    """The base name without `.gguf` and without what makes it a shard's."""
    shard = shard_name(path)
    return posixpath.basename(path if shard is None else shard.prefix).removesuffix(".gguf")
