"""Owns reading an upstream checkpoint folder: config.json, shards and index, tokenizer's id range.

Names are normalised to the text-only form; vision tensors are left out by rule. Any other tensor
that the configuration does not imply is refused, as is a missing or misshapen one.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy.typing as npt

from reference.config import Config
from reference.errors import OracleError
from reference.safetensors import SafetensorsFile
from reference.weights import check

Array = npt.NDArray[Any]

MULTIMODAL_PREFIX, TEXT_PREFIX = "model.language_model.", "model."
VISION_PREFIX = "model.visual."
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def text_name(name: str) -> str | None:
    """A stored tensor's text-only name, or None for one of the vision tower."""
    if name.startswith(VISION_PREFIX):
        return None
    if name.startswith(MULTIMODAL_PREFIX):
        return TEXT_PREFIX + name.removeprefix(MULTIMODAL_PREFIX)
    return name


class Checkpoint:
    """A checkpoint as a source of weights (`reference.weights.Weights`), with its `config`."""

    def __init__(self, folder: Path | str) -> None:
        """OracleError names the file, tensor or field that is missing, extra or contradictory."""
        self.folder = Path(folder)
        self.config = self._config()
        self._where: dict[str, tuple[SafetensorsFile, str]] = {}
        for stored, file in self._stored().items():
            name = text_name(stored)
            if name is None:
                continue
            if name in self._where:
                raise OracleError(f"tensor {name} is stored under two names")
            self._where[name] = (file, stored)
        has_mtp = any(name.startswith("mtp.") for name in self._where)
        expected = self.config.tensors(mtp=has_mtp)
        if extra := sorted(set(self._where) - set(expected)):
            raise OracleError(f"tensor {extra[0]} and {len(extra) - 1} more are not of this model")
        check(self, expected)

    def names(self) -> list[str]:
        """Text-only names of all text and MTP tensors."""
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; OracleError when there is none of that name."""
        file, stored = self._find(name)
        return file.entries[stored].shape

    def dtype(self, name: str) -> str:
        """Stored dtype word: BF16, F16 or F32."""
        file, stored = self._find(name)
        return file.entries[stored].dtype

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Rows start..stop of a tensor, float64; OracleError names a tensor with NaN or Inf."""
        file, stored = self._find(name)
        return file.rows(stored, start, stop)

    def _find(self, name: str) -> tuple[SafetensorsFile, str]:
        if name not in self._where:
            raise OracleError(f"no tensor {name!r} in {self.folder.name}")
        return self._where[name]

    def _config(self) -> Config:
        config = Config.from_json(_read_json(self.folder / "config.json"))
        tokenizer = self.folder / "tokenizer.json"
        if not tokenizer.is_file():
            return config
        return dataclasses.replace(config, n_vocab_real=_id_count(_read_json(tokenizer)))

    def _stored(self) -> dict[str, SafetensorsFile]:
        """Every stored tensor name -> its file; index and shards must agree exactly."""
        if not (self.folder / INDEX).is_file():
            file = SafetensorsFile(self.folder / SINGLE)
            return dict.fromkeys(file.entries, file)
        index = _read_json(self.folder / INDEX)
        where = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(where, dict) or not all(isinstance(f, str) for f in where.values()):
            raise OracleError(f"{INDEX}: weight_map is not a map of names")
        if outside := [f for f in where.values() if Path(f).name != f]:
            raise OracleError(f"{INDEX}: shard {outside[0]!r} is not a plain file name")
        files = {name: SafetensorsFile(self.folder / name) for name in sorted(set(where.values()))}
        found = {(tensor, shard) for shard, file in files.items() for tensor in file.entries}
        if odd := sorted(found ^ set(where.items())):
            raise OracleError(f"{INDEX} and shards disagree on {odd[0][0]} in {odd[0][1]}")
        return {tensor: files[shard] for tensor, shard in where.items()}


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise OracleError(f"{path.name}: {error}") from error


def _id_count(tokenizer: Any) -> int:
    """One more than the largest id that a parsed tokenizer.json can produce."""
    try:
        added = [int(token["id"]) for token in tokenizer.get("added_tokens") or []]
        return max([*map(int, tokenizer["model"]["vocab"].values()), *added]) + 1
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OracleError(f"tokenizer.json: no vocabulary of ids: {error!r}") from error
