"""Owns makers of sound tiny layer packages, and of their manifests, for tests.

Lays fragments out by the format's own words, on purpose without the project's reader and writer:
the product's writer must give the same bytes. The makers of models are in `model_cases.py` and are
found here too. Long because the example manifest stands here in full.
"""

import copy
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.cpu.gguf_cases import BOOL, pair
from tests.layer_package.model_cases import D_MODEL as D_MODEL
from tests.layer_package.model_cases import INT32 as INT32
from tests.layer_package.model_cases import Model as Model
from tests.layer_package.model_cases import Pair as Pair
from tests.layer_package.model_cases import Tensor as Tensor
from tests.layer_package.model_cases import gguf_bytes as gguf_bytes
from tests.layer_package.model_cases import made as made
from tests.layer_package.model_cases import number as number
from tests.layer_package.model_cases import projector_gguf as projector_gguf
from tests.layer_package.model_cases import source_gguf as source_gguf
from tests.layer_package.model_cases import source_shards as source_shards
from tests.layer_package.model_cases import string as string
from tests.layer_package.model_cases import tiny_model as tiny_model

MODEL_ID = "acme-lab/TinyDemo-GGUF:Q8_0"
REPO = "acme-lab/TinyDemo-GGUF"
REVISION = "0123456789abcdef0123456789abcdef01234567"
PRIMARY = "TinyDemo-Q8_0.gguf"
ABI = "0.1.39"
CREATED = 1790000000


def fragment_of(model: Model, name: str) -> str:
    """Where a tensor of that name belongs: `metadata`, `embeddings`, `output` or a layer number."""
    layer = re.match(r"blk\.(\d+)\.", name) or re.fullmatch(r"cache_.+_l(\d+)", name)
    if layer:
        return layer[1]
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "embeddings"
    return "output" if name.startswith(("output.", "output_norm.")) else "metadata"


def fragment_bytes(model: Model, fragment: str, n_layers: int) -> bytes:
    """The exact bytes of one fragment of the model."""
    return gguf_bytes(
        fragment_pairs(model, fragment, n_layers),
        [t for t in model.tensors if fragment_of(model, t.name) == fragment],
        model.alignment,
    )


def fragment_pairs(model: Model, fragment: str, n_layers: int) -> list[Pair]:
    """The source's pairs and those by which a fragment describes itself."""
    stage, start, end = {
        "metadata": (0, 0, 0), "embeddings": (1, 0, 0), "output": (2, n_layers, n_layers),
    }.get(fragment) or (1000 + int(fragment), int(fragment), int(fragment) + 1)  # fmt: skip
    pairs = [p for p in model.pairs if not p.key.startswith(("split.", "skippy."))]
    if all(p.key != "general.alignment" for p in pairs):
        pairs.append(number("general.alignment", model.alignment))
    for key, value in (("stage_index", stage), ("layer_start", start), ("layer_end", end)):
        pairs.append(number(f"skippy.slice.{key}", value, INT32))
    for key in ("embeddings", "output"):
        name = f"skippy.slice.include_{key}"
        pairs.append(Pair(name, pair(name.encode(), BOOL, bytes([fragment == key]))))
    return pairs


def write_tiny_package(
    folder: Path,
    *,
    projector: bool = False,
    hints: bool = True,
    repeat_common: bool = False,
    model: Model | None = None,
    **kinds: Any,
) -> Path:
    """Write a sound package of the model (arguments of `tiny_model`) into `folder`, and return it.

    Its source is the file that `source_gguf` writes with the same arguments. `repeat_common` puts
    the tensors without an owner into every fragment, as the reference writer does.
    """
    model = tiny_model(**kinds) if model is None else model
    owners = {fragment_of(model, t.name) for t in model.tensors}
    n_layers = 1 + max(int(owner) for owner in owners if owner.isdigit())
    places = {name: f"shared/{name}.gguf" for name in ("metadata", "embeddings", "output")}
    places |= {str(i): f"layers/layer-{i:05d}.gguf" for i in range(n_layers)}
    entries = {}
    for fragment, path in places.items():
        kept = [
            t for t in model.tensors
            if (owner := fragment_of(model, t.name)) == fragment
            or (repeat_common and owner == "metadata")
        ]  # fmt: skip
        pairs = fragment_pairs(model, fragment, n_layers)
        data = gguf_bytes(pairs, kept, model.alignment)
        entries[fragment] = _entry(folder, path, data, kept)
    manifest = _manifest(model, entries, n_layers)
    # what is optional stands before the version, as the format lists it; hints stand last
    last = {name: manifest.pop(name) for name in ("skippy_abi_version", "created_at_unix_secs")}
    if projector:
        target = projector_gguf(folder / "projectors/mmproj-TinyDemo.gguf")
        own = _entry(folder, "projectors/mmproj-TinyDemo.gguf", target.read_bytes(),
                     [made("v.patch_embd.weight", (8, 4))])  # fmt: skip
        manifest["projectors"] = [{"kind": "mmproj", **own}]
    generation = generation_of(model)
    if generation:
        manifest["generation"] = generation
    manifest |= last
    if hints:
        manifest["selection_hints"] = hints_of(model, n_layers)
    write_manifest(folder, manifest)
    return folder


def _entry(folder: Path, path: str, data: bytes, tensors: Sequence[Tensor]) -> dict[str, Any]:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return {
        "path": path,
        "tensor_count": len(tensors),
        "tensor_bytes": sum(len(t.data) for t in tensors),
        "artifact_bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _manifest(model: Model, entries: dict[str, dict[str, Any]], n_layers: int) -> dict[str, Any]:
    source = gguf_bytes(*model)
    digest = hashlib.sha256(source).hexdigest()
    return {
        "schema_version": 1,
        "format": "layer-package",
        "model_id": MODEL_ID,
        "source_model": {
            "path": PRIMARY,
            "sha256": digest,
            "repo": REPO,
            "revision": REVISION,
            "primary_file": PRIMARY,
            "canonical_ref": f"{REPO}@{REVISION}/{PRIMARY}",
            "distribution_id": "Q8_0",
            "files": [{"path": PRIMARY, "size_bytes": len(source), "sha256": digest}],
        },
        "layer_count": n_layers,
        "activation_width": D_MODEL,
        "shared": {name: entries[name] for name in ("metadata", "embeddings", "output")},
        "layers": [{"layer_index": i, **entries[str(i)]} for i in range(n_layers)],
        "skippy_abi_version": ABI,
        "created_at_unix_secs": CREATED,
    }


def hints_of(model: Model, n_layers: int) -> dict[str, Any]:
    """The selection hints of the model."""
    names = [t.name for t in model.tensors]
    blocks = [
        i for i in range(n_layers) if any(n.startswith(f"blk.{i}.nextn.") for n in names)
    ]
    lacks = any(f"blk.{i}.nextn.embed_tokens.weight" not in names for i in blocks)
    consumers: Any = []
    if "per_layer_token_embd.weight" in names:
        wanted = re.compile(r"blk\.(\d+)\.(ple_|per_layer_model_proj|per_layer_proj|"
                            r"per_layer_input_gate)")  # fmt: skip
        consumers = sorted({int(m[1]) for n in names if (m := wanted.match(n))}) or "all"
    return {
        "role_map": 1,
        "tied_output": "output.weight" not in names,
        "prediction_layers": blocks,
        "prediction_needs_embeddings": lacks,
        "per_layer_embedding_layers": consumers,
    }


def generation_of(model: Model) -> dict[str, Any] | None:
    """The generation block that a model with one prediction block gets."""
    blocks = sorted({int(m[1]) for t in model.tensors
                     if (m := re.match(r"blk\.(\d+)\.nextn\.", t.name))})  # fmt: skip
    if len(blocks) != 1:
        return None
    window = {"default": "fixed", "initial_window": 1, "min_window": 1, "max_window": 1}
    return {
        "speculative_decoding": {
            "default": "mtp",
            "proposers": {
                "mtp": {"type": "native-mtp", "prediction_depth": 1, "layer_indices": blocks}
            },
            "strategies": {
                "mtp": {"type": "native-mtp", "proposer": "mtp", "window_policy": window}
            },
        }
    }


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest as the writer does: two spaces, a final newline."""
    folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n"
    (folder / "model-package.json").write_bytes(data)


def read_json(folder: Path) -> dict[str, Any]:
    """The manifest of a package as plain JSON."""
    found: dict[str, Any] = json.loads((folder / "model-package.json").read_bytes())
    return found


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Read the manifest, let `change` alter it, write it again."""
    manifest = read_json(folder)
    change(manifest)
    write_manifest(folder, manifest)


def entries_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """All artifact entries: shared, layers, projectors."""
    shared = [manifest["shared"][n] for n in ("metadata", "embeddings", "output")]
    return [*shared, *manifest["layers"], *manifest.get("projectors", [])]


def replace_artifact(folder: Path, path: str, data: bytes, tensors: Sequence[Tensor] = ()) -> None:
    """Give a fragment other bytes, and its entry their size and digest (counts where given)."""

    def change(manifest: dict[str, Any]) -> None:
        (entry,) = (e for e in entries_of(manifest) if e["path"] == path)
        entry.update(artifact_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        if tensors:
            n_bytes = sum(len(t.data) for t in tensors)
            entry.update(tensor_count=len(tensors), tensor_bytes=n_bytes)

    (folder / path).write_bytes(data)
    change_manifest(folder, change)


def valid_manifest() -> dict[str, Any]:
    """The smallest valid manifest: two layers, tied. A fresh copy each time."""
    return copy.deepcopy(_EXAMPLE)


def _example_entry(
    path: str, tensor_count: int, tensor_bytes: int, artifact_bytes: int, sha256: str
) -> dict[str, Any]:
    return {
        "path": path, "tensor_count": tensor_count, "tensor_bytes": tensor_bytes,
        "artifact_bytes": artifact_bytes, "sha256": sha256,
    }  # fmt: skip


_DIGEST = "1f3a5c7e9b0d2f4a6c8e0a2c4e6f8091a3b5c7d9e1f30527496b8dafc1e3052a"
_EXAMPLE: dict[str, Any] = {
    "schema_version": 1,
    "model_id": MODEL_ID,
    "source_model": {
        "path": PRIMARY,
        "sha256": _DIGEST,
        "repo": REPO,
        "revision": REVISION,
        "primary_file": PRIMARY,
        "canonical_ref": f"{REPO}@{REVISION}/{PRIMARY}",
        "distribution_id": "Q8_0",
        "files": [{"path": PRIMARY, "size_bytes": 51904, "sha256": _DIGEST}],
    },
    "format": "layer-package",
    "layer_count": 2,
    "activation_width": 64,
    "shared": {
        "metadata": _example_entry("shared/metadata.gguf", 1, 64, 2176,
            "2b4d6f8193a5b7c9dbedf0f1e2d3c4b5a69788796a5b4c3d2e1f001122334455"),
        "embeddings": _example_entry("shared/embeddings.gguf", 1, 17408, 19520,
            "3c5e708294a6b8cadcee01f2e3d4c5b6a79889806b5c4d3e2f10112233445566"),
        "output": _example_entry("shared/output.gguf", 1, 256, 2368,
            "4d6f8193a5b7c9dbedff02f3e4d5c6b7a8998a817c6d5e4f3021223344556677"),
    },
    "layers": [
        {"layer_index": 0, **_example_entry("layers/layer-00000.gguf", 9, 12288, 14976,
            "5e708294a6b8cadceef103f4e5d6c7b8a99a8b928d7e6f504132334455667788")},
        {"layer_index": 1, **_example_entry("layers/layer-00001.gguf", 9, 12288, 14976,
            "6f8193a5b7c9dbedff0204f5e6d7c8b9aaab8ca39e8f70615243445566778899")},
    ],
    "skippy_abi_version": "0.1.0",
    "created_at_unix_secs": CREATED,
}  # fmt: skip
