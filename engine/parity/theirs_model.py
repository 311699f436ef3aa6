"""Owns transformers' model over our numbers: found, made without memory, given its tensors.

torch and transformers are imported by name, when asked for: they are no part of the product.
Matrices are bf16; what is small is float32, as on our side. It must not know how the model is run.
"""

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from engine.compiled.weights import GROUP
from engine.errors import EngineError
from engine.parity.records import PeerFailure
from engine.parity.values import Piece, pieces
from engine.records import ModelPlan
from ptx.device import Device
from ptx.op import PtxError

# torch's OutOfMemoryError and driver errors are RuntimeErrors; the rest is another version's API,
# or our device while it makes numbers.
ERRORS = (
    ImportError, RuntimeError, OSError, ValueError, TypeError, AttributeError, KeyError,
    EngineError, PtxError,
)


@contextmanager
def failures_named(doing: str) -> Iterator[None]:
    """What torch or transformers raise is a PeerFailure that says where."""
    try:
        yield
    except ERRORS as error:
        said = str(error).strip().partition("\n")[0][:300]
        raise PeerFailure(f"{doing}: {type(error).__name__}: {said}") from error


def libraries(device: Device) -> tuple[Any, Any]:
    """torch and transformers, able to use the device; PeerFailure says what is missing."""
    # Nothing is to be fetched: all of it is here or it is not run.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with failures_named("transformers is not here"):
        torch, transformers = (importlib.import_module(n) for n in ("torch", "transformers"))
        importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")
        if device.name == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("torch sees no card")
        # Float32 means float32, in convolutions too.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return torch, transformers


def model_of(
    torch: Any, library: Any, where: str, device: Device, plan: ModelPlan,
    document: Mapping[str, Any],
) -> Any:
    """`Qwen3_5ForCausalLM` of a config.json, on torch's device `where`, over a plan's numbers."""
    config = library.Qwen3_5TextConfig(**document, attn_implementation="sdpa")
    with torch.device("meta"):
        model = library.Qwen3_5ForCausalLM(config).eval()
    body = model.model
    # Its table of frequencies is no weight: made again, where there is memory.
    body.rotary_emb = type(body.rotary_emb)(config=config).to(where)
    for name in plan.weights:
        _assign(torch, model, name, _tensor(torch, where, device, plan, name))
    left = [
        name for tensors in (model.named_parameters(), model.named_buffers())
        for name, cells in tensors if cells.is_meta
    ]
    if left:
        raise ValueError(f"{len(left)} tensors of theirs got no numbers, first {left[0]}")
    return model


def _tensor(torch: Any, where: str, device: Device, plan: ModelPlan, name: str) -> Any:
    """A weight in torch's memory, one piece after another."""
    made = None
    for piece in pieces(device, plan, name):
        part = decoded(torch, where, piece)
        if made is None:
            made = torch.empty(plan.weights[name].shape, dtype=part.dtype, device=where)
        made[piece.start : piece.stop] = part
    return made


def decoded(torch: Any, where: str, piece: Piece) -> Any:
    """What `values.decoded` is, by torch, as bf16 (float32 where the form is)."""
    cells, scales = piece.stored
    if piece.form == "f32":
        return _moved(torch, where, np.asarray(cells, np.float32))
    if piece.form == "bf16":
        return _moved(torch, where, np.asarray(cells).view(np.int16)).view(torch.bfloat16)
    q = _moved(torch, where, np.asarray(cells))
    if piece.form == "int4_tiles":
        q = torch.stack([q & 15, q >> 4], dim=-1).reshape(len(q), -1).to(torch.int8)
        q = torch.where(q > 7, q - 16, q)
    wide = _moved(torch, where, np.asarray(scales).view(np.int16)).view(torch.bfloat16).float()
    products = q.float().reshape(len(q), -1, GROUP) * wide[:, :, None]
    return products.reshape(len(q), -1).to(torch.bfloat16)


def _moved(torch: Any, where: str, cells: Any) -> Any:
    # A file's cells are read-only, which torch would warn of; nothing writes here.
    cells = cells if cells.flags.writeable and cells.flags.c_contiguous else cells.copy()
    return torch.from_numpy(cells).to(where)


def _assign(torch: Any, model: Any, name: str, cells: Any) -> None:
    """Give a parameter its cells; the convolution has an axis more there."""
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    known = getattr(module, leaf)
    if known.numel() != cells.numel():
        raise ValueError(f"{name} is {list(cells.shape)}, theirs is {list(known.shape)}")
    made = torch.nn.Parameter(cells.reshape(known.shape), requires_grad=False)
    setattr(module, leaf, made)
