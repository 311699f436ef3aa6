"""Owns the dump format: every named tensor of one run of a model, in a .npz file.

    python -m reference.dump CHECKPOINT --ids 1,2,3 --out FILE [--rounding bf16] [--chunk 64]
        [--mtp]

An .npz (zip of .npy, no pickles) with these entries; an engine may write the same:

    meta              0-d string, JSON: {"format": 1, "made_by": "...", "rounding": "...", ...}
    ids               int64 [T], the ids of the call
    positions         int64 [3, T]
    model.<tap>       embed, final_norm, logits
    layer.<l>.<tap>   one for each name of TAPS, those of the layer's kind
    state.<l>.<part>  after the call: k, v [n, G, E]; or conv [W-1, C], matrix [Nv, Dv, Dk],
                      n_tokens 0-d
    mtp.<tap>         the MTP head over the same tokens, next ids: ids[1:] and the greedy choice

Tensors are float32 or float64; rows are tokens. An entry may be absent; none may be invented.
"""

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.checkpoint import Checkpoint
from reference.errors import OracleError
from reference.hybrid import Hybrid
from reference.rope import triples
from reference.rounding import POLICIES
from reference.state import Taps

Array = npt.NDArray[Any]

FORMAT = 1
STATE_PARTS = ("n_tokens", "conv", "matrix", "k", "v")

# Tap -> shape, in the order of computation: the first that differs is the first to look at.
TAPS: dict[str, str] = {
    "embed": "[T, D] residual before layer 0",
    "embed_norm": "[T, D] MTP: normed embedding of the next id",
    "hidden_norm": "[T, D] MTP: normed hidden of the main model",
    "fc": "[T, D] MTP: residual before its layer",
    "input_norm": "[T, D]",
    "q_raw": "[T, H, E] query rows of q_proj",
    "gate": "[T, H, E] gate rows of q_proj, raw",
    "k_raw": "[T, G, E]",
    "q_norm": "[T, H, E] before rotation",
    "k_norm": "[T, G, E] before rotation",
    "conv_in": "[T, C] in_proj_qkv result",
    "z": "[T, Nv, Dv]",
    "a": "[T, Nv]",
    "b": "[T, Nv]",
    "conv_out": "[T, C] after SiLU",
    "q_l2": "[T, Nk, Dk] 1/sqrt(Dk) included",
    "k_l2": "[T, Nk, Dk]",
    "q": "[T, H, E] after rotation",
    "k": "[T, G, E] after rotation, as cached",
    "v": "[T, G, E] or [T, Nv, Dv]",
    "scores": "[T, H, n] scaled, -inf where hidden; optional",
    "attn_sum": "[T, H, E] before the gate",
    "attn_out": "[T, H, E] input of o_proj",
    "g": "[T, Nv] log decay",
    "beta": "[T, Nv]",
    "delta_out": "[T, Nv, Dv] before the gated norm",
    "gated": "[T, Nv, Dv] input of out_proj",
    "mixer_out": "[T, D] o_proj or out_proj result",
    "resid_mid": "[T, D]",
    "post_norm": "[T, D]",
    "mlp_gate": "[T, F]",
    "mlp_up": "[T, F]",
    "mlp_act": "[T, F] input of down_proj",
    "mlp_out": "[T, D]",
    "resid": "[T, D] residual after the layer",
    "final_norm": "[T, D]",
    "logits": "[T, V]",
}
NAME = re.compile(r"(model|mtp|layer\.\d{1,4}|state\.\d{1,4})\.([a-z0-9_]+)")


@dataclass(frozen=True)
class Dump:
    """One run: ids [T], positions [3, T], tensors by dump name, meta."""

    ids: Array
    positions: Array
    tensors: Mapping[str, Array]
    meta: Mapping[str, Any] = field(default_factory=dict)


def tensor_names(taps: Taps) -> dict[str, Array]:
    """Recorded taps (`Output.taps`, `MtpOutput.taps`) under their dump names."""
    return {
        f"{scope if isinstance(scope, str) else f'layer.{scope}'}.{tap}": array
        for scope, group in taps.items()
        for tap, array in group.items()
    }


def write_dump(path: Path | str, dump: Dump) -> None:
    """Write a dump; OracleError for a tensor name that the format does not have."""
    for name in dump.tensors:
        _check_name(name)
    meta = json.dumps({"format": FORMAT, **dump.meta})
    head: dict[str, Any] = {"meta": meta, "ids": dump.ids, "positions": dump.positions}
    with Path(path).open("wb") as file:
        np.savez(file, **head | dict(dump.tensors))


def read_dump(path: Path | str) -> Dump:
    """Read a dump; OracleError for a file that is none or says something the format does not."""
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(str(arrays.pop("meta")))
        ids, positions = arrays.pop("ids"), arrays.pop("positions")
        version = meta["format"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError,
            zipfile.BadZipFile) as error:
        raise OracleError(f"{path}: not a dump: {error}") from error
    if version != FORMAT:
        raise OracleError(f"{path}: format {version!r}, this reads {FORMAT}")
    if ids.ndim != 1 or positions.shape != (3, ids.size):
        raise OracleError(f"{path}: ids {ids.shape}, positions {positions.shape}")
    for name, array in arrays.items():
        _check_name(name)
        if array.dtype.kind not in "fi":
            raise OracleError(f"{path}: {name} is {array.dtype}, not a number")
    return Dump(ids, positions, arrays, meta)


def _check_name(name: str) -> None:
    found = NAME.fullmatch(name)
    known = STATE_PARTS if name.startswith("state.") else tuple(TAPS)
    if not found or found[2] not in known:
        raise OracleError(f"{name!r} is not the name of a tensor in a dump")


def run(model: Hybrid, ids: Any, positions: Any = None, mtp: bool = False) -> Dump:
    """One call over ids int [T] from an empty sequence, recorded whole."""
    ids = np.asarray(ids)
    out = model.forward(ids, positions=positions, record=True)
    tensors = tensor_names(out.taps) | out.state.arrays()
    where = triples(np.arange(ids.size) if positions is None else positions, ids.size)
    if mtp:
        following = [*ids[1:].tolist(), model.best(out.logits[-1])[0]]
        tensors |= tensor_names(model.mtp(out.hidden, following, positions=where).taps)
    meta = {"made_by": "reference.dump", "rounding": model.rounding.name, "chunk": model.chunk}
    return Dump(ids.astype(np.int64), where, tensors, meta)


def _main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record one run of the oracle.")
    parser.add_argument("checkpoint", help="upstream checkpoint folder")
    parser.add_argument("--ids", required=True, help="token ids, separated by commas")
    parser.add_argument("--out", required=True, help="file to write (.npz)")
    parser.add_argument("--rounding", choices=sorted(POLICIES), default="exact")
    parser.add_argument("--chunk", type=int, help="chunked delta rule of that length")
    parser.add_argument("--mtp", action="store_true", help="record the MTP head too")
    given = parser.parse_args(arguments)
    try:
        ids = [int(word) for word in given.ids.split(",")]
    except ValueError as error:
        parser.error(f"--ids: {error}")
    try:
        checkpoint = Checkpoint(given.checkpoint)
        model = Hybrid(checkpoint, checkpoint.config, POLICIES[given.rounding], given.chunk)
        write_dump(given.out, run(model, ids, mtp=given.mtp))
    except (OracleError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(_main())
