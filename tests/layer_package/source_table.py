"""Owns the table of packages that differ from their source, and what is said of each.

The ids M.. are those of the malformed cases. Entries of changed files are made right again, so that
only the comparison with the source can tell.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.layer_package.check_cases import flip
from tests.layer_package.package_cases import (
    Model,
    change_manifest,
    fragment_of,
    fragment_pairs,
    gguf_bytes,
    made,
    number,
    replace_artifact,
    string,
    tiny_model,
)

LAYER, METADATA = "layers/layer-00001.gguf", "shared/metadata.gguf"
KINDS: dict[str, Any] = {"rope_table": True, "mtp": True}


class Case(NamedTuple):
    """A change of a sound package, the kinds it gives, and members of the result."""

    change: Callable[[Path], object]
    kinds: list[str]
    members: dict[str, Any]


def rewritten(root: Path, path: str, owner: str, model: Model) -> None:
    """A fragment of another model, its entry made right."""
    kept = [t for t in model.tensors if fragment_of(model, t.name) == owner]
    data = gguf_bytes(fragment_pairs(model, owner, 3), kept, model.alignment)
    replace_artifact(root, path, data, kept)
    if not kept:
        # which `replace_artifact` takes for "leave the counts alone"
        change_manifest(root, lambda m: m["shared"][owner].update(tensor_count=0, tensor_bytes=0))


def layer_of(change: Callable[[Model], Model], path: str = LAYER, owner: str = "1") -> Any:
    return lambda root: rewritten(root, path, owner, change(tiny_model(**KINDS)))


def without(name: str) -> Callable[[Model], Model]:
    return lambda m: m._replace(tensors=[t for t in m.tensors if t.name != name])


def added(name: str) -> Callable[[Model], Model]:
    return lambda m: m._replace(tensors=[*m.tensors, made(name, (4,))])


def altered(name: str, **parts: Any) -> Callable[[Model], Model]:
    return lambda m: m._replace(
        tensors=[t._replace(**parts) if t.name == name else t for t in m.tensors]
    )


def other_byte(name: str, offset: int) -> Callable[[Model], Model]:
    def change(model: Model) -> Model:
        data = bytearray(next(t.data for t in model.tensors if t.name == name))
        data[offset] ^= 1
        return altered(name, data=bytes(data))(model)

    return change


def moved(root: Path) -> None:
    """A tensor of layer 1 lies in layer 2's file alone."""
    model = tiny_model(**KINDS)
    name = "blk.1.attn_q.weight"
    layer_of(without(name))(root)
    tensors = [t for t in model.tensors if fragment_of(model, t.name) == "2" or t.name == name]
    data = gguf_bytes(fragment_pairs(model, "2", 3), tensors)
    replace_artifact(root, "layers/layer-00002.gguf", data, tensors)


def common_in_a_layer(root: Path) -> None:
    """A common tensor lies in layer 1 alone, where the other stages do not get it."""
    model = tiny_model(**KINDS)
    name = "rope_freqs.weight"
    layer_of(without(name), METADATA, "metadata")(root)
    tensors = [t for t in model.tensors if fragment_of(model, t.name) == "1" or t.name == name]
    replace_artifact(root, LAYER, gguf_bytes(fragment_pairs(model, "1", 3), tensors), tensors)


def doubled(root: Path) -> None:
    """M69 at the level of the source: an embedding lies in the output too."""
    model = tiny_model(**KINDS)
    tensors = [t for t in model.tensors
               if t.name == "token_embd.weight" or fragment_of(model, t.name) == "output"]
    data = gguf_bytes(fragment_pairs(model, "output", 3), tensors)
    replace_artifact(root, "shared/output.gguf", data, tensors)


def pairs(change: Callable[[list[Any]], list[Any]]) -> Callable[[Model], Model]:
    return lambda m: m._replace(pairs=change(m.pairs))


def lean(model: Model) -> Model:
    return model._replace(pairs=[p for p in model.pairs if not p.key.startswith("tokenizer.")])


def manifest(**members: Any) -> Callable[[Path], object]:
    return lambda root: change_manifest(root, lambda document: document.update(members))


Q = "blk.1.attn_q.weight"
CASES = {
    "M71": Case(layer_of(without(Q)), ["missing_owned_tensor"], {"missing_owned_tensors": [Q]}),
    "M72": Case(layer_of(added("blk.1.extra.weight")), ["tensor_not_in_source"], {}),
    "M72 common": Case(layer_of(added("extra.weight"), METADATA, "metadata"),
                       ["tensor_not_in_source"], {}),
    "M73": Case(layer_of(other_byte(Q, -1)), ["payload_mismatch"], {
        "payload_mismatches": [{"path": LAYER, "tensor": Q, "offset": 4351}]}),
    "M73 first byte": Case(layer_of(other_byte(Q, 0)), ["payload_mismatch"], {
        "payload_mismatches": [{"path": LAYER, "tensor": Q, "offset": 0}]}),
    "type": Case(layer_of(altered("blk.1.ffn_bias.weight", ggml_type=26)),
                 ["tensor_layout_mismatch"], {"payload_mismatches": []}),
    "shape": Case(layer_of(altered("blk.1.ffn_up.weight", dims=(32, 64))),
                  ["tensor_layout_mismatch"], {"payload_mismatches": []}),
    "misplaced": Case(moved, ["misplaced_owned_tensor"], {
        "misplaced_owned_tensors": [Q], "missing_owned_tensors": []}),
    "duplicate": Case(doubled, ["duplicate_owned_tensor"], {
        "duplicate_owned_tensors": ["token_embd.weight"], "misplaced_owned_tensors": []}),
    "no rope table": Case(layer_of(without("rope_freqs.weight"), METADATA, "metadata"),
                          ["missing_common_tensor"], {}),
    "rope table in a layer alone": Case(common_in_a_layer, ["missing_common_tensor"], {}),
    "value of a pair": Case(layer_of(pairs(lambda p: [p[0], string("general.name", "x"), *p[2:]])),
                            ["metadata_pair_mismatch"], {}),
    "type of a pair": Case(
        layer_of(pairs(lambda p: [
            number(q.key, 128, 5) if q.key.endswith("context_length") else q for q in p])),
        ["metadata_pair_mismatch"], {}),
    "pair too many": Case(layer_of(pairs(lambda p: [*p, number("more", 1)])),
                          ["metadata_pair_mismatch"], {}),
    "pair too few": Case(layer_of(pairs(lambda p: [p[0], *p[2:]])),
                         ["metadata_pair_mismatch"], {}),
    "pairs in another order": Case(layer_of(pairs(lambda p: p[::-1])), [], {}),
    "lean layer": Case(layer_of(lean), [], {}),
    "lean metadata": Case(layer_of(lean, METADATA, "metadata"), ["metadata_pair_mismatch"], {}),
    "half a tokenizer": Case(layer_of(pairs(lambda p: [q for q in p if "merges" not in q.key])),
                             ["metadata_pair_mismatch"], {}),
    "projector flipped": Case(lambda root: flip(root / "projectors/mmproj-TinyDemo.gguf"),
                              ["artifact_sha256_mismatch"], {"checked_projector_count": 1}),
    "flipped": Case(lambda root: flip(root / LAYER), ["artifact_sha256_mismatch"], {
        "checked_artifact_count": 6}),
    "missing": Case(lambda root: (root / LAYER).unlink(),
                    ["missing_artifact", "missing_owned_tensor"], {"checked_artifact_count": 5}),
    "width": Case(manifest(activation_width=65), [], {
        "activation_width_matches_model": False, "manifest_activation_width": 65}),
    "no width": Case(lambda root: change_manifest(root, lambda m: m.pop("activation_width")), [], {
        "activation_width_matches_model": False, "manifest_activation_width": None}),
}
