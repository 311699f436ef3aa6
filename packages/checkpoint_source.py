"""Owns a Hugging Face checkpoint folder as a source: config, shards and index, tokenizer, template.

Reads only what the folder itself holds: a shard name that leads elsewhere is refused (a link that
has such a name is followed, as hubs' caches use them). Index and shards must agree exactly.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

from engine.artifacts.mapped_file import printable
from engine.artifacts.mspec_format import Kind
from engine.artifacts.safetensors import FLOATS, SafetensorsFile, SafetensorsTensor
from engine.artifacts.strict_json import parse_json, read_small_file
from engine.errors import ModelError
from packages.sources import (
    CHAT_TEMPLATE,
    TOKENIZER,
    Convertible,
    Files,
    SourceTensor,
    Text,
    check_ids,
    shown,
)

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARDS = 1024


class CheckpointSource:
    """An open checkpoint (`packages.sources.Source`)."""

    def __init__(self, folder: Path, model: Convertible) -> None:
        """Open and check everything but the numbers; ModelError names file, field, tensor."""
        self.folder, self.shown = folder, shown(folder)
        self._read: dict[str, bytes] = {}
        model.check_config(self._json(CONFIG), f"{self.shown}: {CONFIG}")
        self._shards: dict[str, SafetensorsFile] = {}
        try:
            stored = self._stored()
            self.tensors, self.left_out = _by_text_name(stored, model, self.shown)
            self.texts = self._texts(model)
        except BaseException:
            self.close()
            raise
        contents = {name: hashlib.sha256(raw).hexdigest() for name, raw in self._read.items()}
        contents |= {name: file.header_sha256 for name, file in self._shards.items()}
        self._files = Files([folder / name for name in contents], contents)
        self.identity, self.n_bytes = self._files.identity, self._files.n_bytes
        self.file_ids = self._files.file_ids

    def require_unchanged(self) -> None:
        """ModelError when a file is not the one that was opened any more."""
        self._files.require_unchanged()

    def close(self) -> None:
        """Let go of the files."""
        for shard in self._shards.values():
            shard.close()

    def _bad(self, what: str) -> ModelError:
        return ModelError(f"{self.shown}: {what}")

    def _bytes(self, name: str) -> bytes:
        self._read[name] = read_small_file(self.folder / name)
        return self._read[name]

    def _json(self, name: str) -> Any:
        return parse_json(self._bytes(name), f"{self.shown}: {name}")

    def _has(self, name: str) -> bool:
        # A dangling link counts: what stands there is reported when it is read.
        return os.path.lexists(self.folder / name)

    def _stored(self) -> dict[str, SafetensorsTensor]:
        """Every tensor by its stored name."""
        if not self._has(INDEX):
            if not self._has(SINGLE):
                raise self._bad(f"neither {INDEX} nor {SINGLE}: not a checkpoint in safetensors")
            return dict(self._open(SINGLE).tensors)
        where = self._index()
        found: dict[str, tuple[str, SafetensorsTensor]] = {}
        for shard in sorted(set(where.values())):
            for name, tensor in self._open(shard).tensors.items():
                if name in found:
                    raise self._bad(
                        f"tensor {printable(name)} is in two shards,"
                        f" {printable(found[name][0])} and {printable(shard)}"
                    )
                if where.get(name) != shard:
                    raise self._bad(
                        f"tensor {printable(name)} is in {printable(shard)},"
                        f" {INDEX} has it in {printable(str(where.get(name)))}"
                    )
                found[name] = (shard, tensor)
        for name, shard in where.items():
            if name not in found:
                raise self._bad(
                    f"{INDEX} has tensor {printable(name)} in {printable(shard)}, it is not there"
                )
        return {name: tensor for name, (_, tensor) in found.items()}

    def _index(self) -> dict[str, str]:
        index = self._json(INDEX)
        where = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(where, dict) or not where:
            raise self._bad(f"{INDEX}: weight_map is not a map of tensor names to files")
        for name, shard in where.items():
            if not isinstance(shard, str) or not _is_plain(shard):
                raise self._bad(
                    f"{INDEX}: tensor {printable(name, 80)} is in {printable(str(shard), 80)},"
                    " which is not the name of a file in this folder"
                )
        if len(set(where.values())) > MAX_SHARDS:
            raise self._bad(f"{INDEX}: {len(set(where.values()))} shards, at most {MAX_SHARDS}")
        return where

    def _open(self, name: str) -> SafetensorsFile:
        if not self._has(name):
            raise self._bad(f"shard {printable(name)} is missing, {INDEX} names it")
        self._shards[name] = SafetensorsFile(self.folder / name)
        return self._shards[name]

    def _texts(self, model: Convertible) -> dict[str, Text]:
        texts = {}
        if self._has(TOKENIZER):
            document = self._json(TOKENIZER)
            check_ids(document, model.n_ids, f"{self.shown}: {TOKENIZER}")
            texts[TOKENIZER] = Text(Kind.JSON, self._read[TOKENIZER].decode())
        elif not model.is_twin:
            raise self._bad(f"{TOKENIZER} is missing; only a twin is converted without one")
        template = self._template()
        if template:
            texts[CHAT_TEMPLATE] = Text(Kind.TEXT, template)
        return texts

    def _template(self) -> str:
        """The chat template: the file of its own goes before the field; "" for none."""
        if self._has(TEMPLATE):
            try:
                return self._bytes(TEMPLATE).decode()
            except UnicodeDecodeError as e:
                raise self._bad(f"{TEMPLATE}: not UTF-8 at byte {e.start}") from e
        if not self._has(TOKENIZER_CONFIG):
            return ""
        document = self._json(TOKENIZER_CONFIG)
        found = document.get("chat_template", "") if isinstance(document, dict) else None
        if not isinstance(found, str):
            raise self._bad(f"{TOKENIZER_CONFIG}: chat_template is not one text")
        try:
            found.encode()
        except UnicodeEncodeError as e:
            raise self._bad(f"{TOKENIZER_CONFIG}: chat_template is not text: {e.reason}") from e
        return found


def _is_plain(name: str) -> bool:
    """Whether a name stays in its folder, on this system and in a message."""
    return name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name) and name.isprintable()


def _by_text_name(
    stored: dict[str, SafetensorsTensor], model: Convertible, what: str
) -> tuple[dict[str, SourceTensor], dict[str, int]]:
    tensors: dict[str, SourceTensor] = {}
    left_out: dict[str, int] = {}
    for name, tensor in stored.items():
        part = model.left_out(name)
        if part is not None:
            left_out[part] = left_out.get(part, 0) + 1
            continue
        text_name = model.text_name(name)
        if text_name in tensors:
            raise ModelError(
                f"{what}: tensor {printable(text_name)} is stored twice, as"
                f" {printable(tensors[text_name].stored)} and {printable(name)}"
            )
        tensors[text_name] = SourceTensor(
            name, tensor.dtype, tensor.shape, tensor.dtype in FLOATS, tensor.blocks
        )
    return tensors, left_out

