"""Owns the proof of the role map and of the checks that tensors lie where they belong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.errors import ContentError, PackageError, Report
from packages.layer_package.fragments import Fragment, FragmentTensor, read_fragment, tensor_digest
from packages.layer_package.manifest import load_manifest
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.paths import open_artifact
from packages.layer_package.placement import (
    check_metadata_fragment,
    check_native_mtp,
    check_placement,
)
from packages.layer_package.roles import TensorRole, is_prediction, role_of
from tests.layer_package.package_cases import (
    Model,
    Tensor,
    change_manifest,
    fragment_of,
    fragment_pairs,
    gguf_bytes,
    made,
    number,
    replace_artifact,
    string,
    tiny_model,
    write_tiny_package,
)

ROLES = {
    "blk.0.attn_q.weight": ("layer", 0), "blk.17.x": ("layer", 17), "blk.3.": ("layer", 3),
    "blk.4294967295.x": ("layer", 4294967295), "blk.1.nextn.enorm.weight": ("layer", 1),
    "cache_k_l5": ("layer", 5), "cache__l0": ("layer", 0), "cache_a_l2_l3": ("layer", 3),
    "token_embd.weight": ("embedding", None), "per_layer_token_embd.weight": ("embedding", None),
    "output.weight": ("output", None), "output.bias": ("output", None),
    "output_norm.weight": ("final_norm", None), "output_norm.bias": ("final_norm", None),
    "rope_freqs.weight": ("common", None), "token_embd_norm.weight": ("common", None),
    "blk.x.a": ("common", None), "blk.1": ("common", None), "blk.-1.a": ("common", None),
    "blk.+1.a": ("common", None), "blk..a": ("common", None), "xblk.1.a": ("common", None),
    "cache_k_l5x": ("common", None), "cache_l5": ("common", None),
    "output.weight ": ("common", None),
    "blk.\u0661.a": ("common", None), "": ("common", None), "Output.weight": ("common", None),
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), ROLES.items(), ids=repr)
def test_role_by_name(name: str, expected: tuple[str, int | None]) -> None:
    assert role_of(name) == TensorRole(*expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["blk.01.a", "blk.00.a", "blk.4294967296.a", "cache_k_l07", "blk." + "9" * 5000 + ".a"],
    ids=lambda name: name[:20],
)
def test_names_of_no_layer(name: str) -> None:
    with pytest.raises(ContentError) as caught:
        role_of(name)
    assert caught.value.kind == "invalid_layer_name"
    assert len(str(caught.value)) < 400


def test_prediction_tensors_by_name() -> None:
    assert is_prediction("blk.2.nextn.enorm.weight")
    assert not is_prediction("nextn.enorm.weight")
    assert not is_prediction("blk.2.xnextn.a")


EVERY_ROLE = "metadata embeddings output layer"


def read_all(root: Path, roles: str = EVERY_ROLE) -> Any:
    manifest = load_manifest(root)
    found: dict[Artifact, Fragment] = {}
    for artifact in manifest.fragments:
        if artifact.role in roles.split():
            with open_artifact(root, artifact.path) as opened:
                found[artifact] = read_fragment(opened, artifact.path)
    return manifest, found


def placed(
    root: Path, *, deep: bool = True, roles: str = "metadata embeddings output layer"
) -> Any:
    """Issues of check 22 over a package."""
    _, found = read_all(root, roles)

    def digest(artifact: Artifact, tensor: FragmentTensor) -> bytes:
        with open_artifact(root, artifact.path) as opened:
            return tensor_digest(opened, artifact.path, tensor)

    report = Report()
    check_placement(found, report, payload_digest=digest if deep else None)
    return [(issue.kind, issue.artifact) for issue in report]


def repack(root: Path, model: Model, fragment: str, change: Callable[[list[Tensor]], Any]) -> None:
    """Write one fragment of the package again with other tensors."""
    tensors = [t for t in model.tensors if fragment_of(model, t.name) == fragment]
    kept = change(tensors)
    path = (f"layers/layer-{int(fragment):05d}.gguf" if fragment.isdigit()
            else f"shared/{fragment}.gguf")  # fmt: skip
    data = gguf_bytes(fragment_pairs(model, fragment, 3), kept, model.alignment)
    replace_artifact(root, path, data, kept)


def tensor_of(model: Model, name: str) -> Tensor:
    return next(t for t in model.tensors if t.name == name)


L0, L1 = "layers/layer-00000.gguf", "layers/layer-00001.gguf"


@pytest.mark.parametrize("kinds", [{}, {"rope_table": True, "repeat_common": True},
                                   {"tied": True, "mtp": True}], ids=str)  # fmt: skip
def test_m70_sound_packages_are_placed_right(kinds: dict[str, Any], tmp_path: Path) -> None:
    assert placed(write_tiny_package(tmp_path / "p", **kinds)) == []


def test_m68_tensors_of_another_layer(tmp_path: Path) -> None:
    model = tiny_model()
    root = write_tiny_package(tmp_path / "p")
    moved = [t for t in model.tensors if t.name.startswith("blk.1.")]
    repack(root, model, "0", lambda own: own + moved)
    repack(root, model, "1", lambda own: [made("common", (4,))])
    assert placed(root) == [("misplaced_owned_tensor", L0)] * len(moved)
    # a copy: layer 1 still has them
    repack(root, model, "1", lambda own: own)
    assert placed(root) == [("duplicate_owned_tensor", L0)] * len(moved)
    root = write_tiny_package(tmp_path / "q")
    repack(root, model, "metadata", lambda own: [*own, moved[0]])
    assert placed(root, roles="metadata") == [("misplaced_owned_tensor", "shared/metadata.gguf")]


def test_m69_the_embeddings_also_in_the_output(tmp_path: Path) -> None:
    model = tiny_model()
    root = write_tiny_package(tmp_path / "p")
    repack(root, model, "output", lambda own: [*own, tensor_of(model, "token_embd.weight")])
    assert placed(root) == [("duplicate_owned_tensor", "shared/output.gguf")]


def test_m70_a_common_tensor_that_differs(tmp_path: Path) -> None:
    model = tiny_model(rope_table=True)
    table = tensor_of(model, "rope_freqs.weight")
    for other, shallow in (
        (table._replace(data=bytes(64)), []),
        (made("rope_freqs.weight", (8, 2)), [("conflicting_tensor", L1)]),
        (made("rope_freqs.weight", (32,), 1), [("conflicting_tensor", L1)]),
    ):
        root = write_tiny_package(tmp_path / str(other.dims), rope_table=True, repeat_common=True)
        repack(root, model, "1", lambda own, other=other: [*own, other])
        assert placed(root) == [("conflicting_tensor", L1)]
        assert placed(root, deep=False) == shallow


def test_m74_another_architecture(tmp_path: Path) -> None:
    model = tiny_model()
    root = write_tiny_package(tmp_path / "p")
    pairs = [string("general.architecture", "other"), *fragment_pairs(model, "1", 3)[1:]]
    kept = [t for t in model.tensors if t.name.startswith("blk.1.")]
    replace_artifact(root, L1, gguf_bytes(pairs, kept), kept)
    assert placed(root) == [("architecture_mismatch", L1)]


def test_a_name_of_no_layer_is_reported_where_it_lies(tmp_path: Path) -> None:
    model = tiny_model()
    root = write_tiny_package(tmp_path / "p")
    repack(root, model, "1", lambda own: [*own, made("blk.01.x", (4,))])
    assert placed(root) == [("invalid_layer_name", L1)]


def test_the_first_error_is_raised_by_a_report_that_fails_fast(tmp_path: Path) -> None:
    model = tiny_model()
    root = write_tiny_package(tmp_path / "p")
    repack(root, model, "1", lambda own: [*own, tensor_of(model, "output.weight")])
    _, found = read_all(root)
    with pytest.raises(PackageError) as caught:
        check_placement(found, Report(fail_fast=True))
    assert caught.value.issue.pointer == "/layers/1"


METADATA = [
    ({"general.architecture": None}, "missing_architecture"),
    ({"general.architecture": number("general.architecture", 1)}, "missing_architecture"),
    ({"llama.block_count": number("llama.block_count", 4)}, "layer_count_mismatch"),
    ({"llama.block_count": None}, None),
    ({"llama.embedding_length": number("llama.embedding_length", 65)}, "activation_width_mismatch"),
    ({"llama.embedding_length": None}, None),
]


@pytest.mark.parametrize(("change", "kind"), METADATA, ids=lambda value: str(value)[:40])
def test_the_metadata_fragment(change: dict[str, Any], kind: str | None, tmp_path: Path) -> None:
    model = tiny_model()
    root = write_tiny_package(tmp_path / "p")
    pairs = [change.get(p.key, p) for p in fragment_pairs(model, "metadata", 3)]
    data = gguf_bytes([p for p in pairs if p is not None], [])
    replace_artifact(root, "shared/metadata.gguf", data)
    manifest, found = read_all(root, "metadata")
    report = Report()
    check_metadata_fragment(manifest, found[manifest.metadata], report)
    assert report.kinds() == ([] if kind is None else [kind])
    assert report.valid == (kind in (None, "activation_width_mismatch"))


def mtp_issues(root: Path) -> list[tuple[str, str | None]]:
    manifest: Manifest
    manifest, found = read_all(root)
    report = Report()
    check_native_mtp(manifest, found, report)
    return [(issue.kind, issue.pointer) for issue in report]


def test_m84_native_mtp_without_its_tensors(tmp_path: Path) -> None:
    root = write_tiny_package(tmp_path / "p", mtp=True)
    assert mtp_issues(root) == []
    place = "/generation/speculative_decoding/proposers/mtp/layer_indices/0"
    change_manifest(root, lambda m: m["generation"]["speculative_decoding"]["proposers"]["mtp"]
                    .update(layer_indices=[1]))  # fmt: skip
    assert mtp_issues(root) == [("missing_native_mtp_tensors", place)]
