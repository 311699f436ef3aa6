"""Owns the malformed manifests M06 to M46: one change of a valid one, and what it is refused with.

Changes of the bytes (M03 to M05, M07 to M09) are in `test_json_text.py` and
`test_manifest_file.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from packages.layer_package.errors import CompatibilityError, ManifestError, Report
from packages.layer_package.json_text import json_bytes
from packages.layer_package.manifest import read_manifest
from packages.layer_package.model import Manifest
from tests.layer_package.package_cases import valid_manifest

Change = Callable[[dict[str, Any]], object]
RUNTIME_ABI = "0.1.39"


class Malformed(NamedTuple):
    """A change of a valid manifest; the first error's kind and pointer, and its family."""

    name: str
    change: Change
    kind: str
    pointer: str
    family: type[ManifestError] = ManifestError


class Warned(NamedTuple):
    """A change that leaves a manifest valid; the warning's kind and pointer."""

    name: str
    change: Change
    kind: str
    pointer: str


def changed(change: Change) -> bytes:
    """The bytes of the valid manifest with that change."""
    manifest = valid_manifest()
    change(manifest)
    return json_bytes(manifest)


def read(change: Change, report: Report | None = None) -> Manifest | None:
    """What `read_manifest` makes of it."""
    return read_manifest(changed(change), runtime_abi=RUNTIME_ABI, report=report)


def put(pointer: str, value: Any) -> Change:
    """Sets the member at that pointer."""

    def change(manifest: dict[str, Any]) -> None:
        parent, name = _parent(manifest, pointer)
        parent[name] = value

    return change


def drop(pointer: str) -> Change:
    """Removes the member at that pointer."""

    def change(manifest: dict[str, Any]) -> None:
        parent, name = _parent(manifest, pointer)
        del parent[name]

    return change


def both(*changes: Change) -> Change:
    """One change after the other."""

    def change(manifest: dict[str, Any]) -> None:
        for each in changes:
            each(manifest)

    return change


def _parent(manifest: dict[str, Any], pointer: str) -> tuple[Any, Any]:
    *steps, last = pointer.removeprefix("/").split("/")
    found: Any = manifest
    for step in steps:
        found = found[int(step)] if isinstance(found, list) else found[step]
    return found, int(last) if isinstance(found, list) else last


def projector(**members: Any) -> dict[str, Any]:
    """A valid projector entry, with these members changed."""
    return {
        "kind": "mmproj", "path": "projectors/mmproj.gguf", "tensor_count": 1, "tensor_bytes": 64,
        "artifact_bytes": 128, "sha256": "ab" * 32, **members,
    }  # fmt: skip


def _path(name: str, path: object, kind: str = "unsafe_artifact_path") -> Malformed:
    return Malformed(name, put(f"{LAYER}/path", path), kind, f"{LAYER}/path")


def _abi(name: str, version: object, kind: str) -> Malformed:
    pointer = "/skippy_abi_version"
    return Malformed(name, put(pointer, version), kind, pointer, CompatibilityError)


def _missing(pointer: str) -> Malformed:
    return Malformed(f"missing {pointer}", drop(pointer), "missing_field", pointer)


def _typed(pointer: str, value: object) -> Malformed:
    name = f"type {pointer} {type(value).__name__}"
    return Malformed(name, put(pointer, value), "invalid_field_type", pointer)


LAYER, OUTPUT = "/layers/0", "/shared/output"
SOURCE, FILE = "/source_model", "/source_model/files/0"
UNSAFE = [
    ("M29", "../x.gguf"), ("M30 absolute", "/abs/x.gguf"), ("M30 drive", "C:x.gguf"),
    ("M30 backslash", "a\\b.gguf"), ("M30 empty component", "a//b"), ("M30 dot", "./a"),
    ("M30 trailing slash", "a/"), ("M30 empty", ""), ("M31 NUL", "a\0b"), ("M31 newline", "a\nb"),
    ("M32", "model-package.json"),
]  # fmt: skip

WRONG_TYPES: list[tuple[str, object]] = [
    ("/format", 1), ("/format", None), ("/model_id", None), (SOURCE, []), (SOURCE, None),
    ("/layer_count", "2"), ("/layer_count", 2.0), ("/activation_width", True),
    ("/shared", []), ("/shared", None), (OUTPUT, None), (OUTPUT, "x"), ("/layers", {}),
    ("/layers", None), (LAYER, None), (LAYER, []), ("/projectors", None), ("/projectors", {}),
    ("/generation", []), ("/skippy_abi_version", 1), ("/created_at_unix_secs", "now"),
    ("/created_at_unix_secs", 1.5), (f"{SOURCE}/path", 1), (f"{SOURCE}/repo", 1),
    (f"{SOURCE}/files", None), (f"{SOURCE}/files", {}), (FILE, "x"),
    (f"{FILE}/size_bytes", "1"),
    (f"{LAYER}/path", 1), (f"{LAYER}/path", None), (f"{LAYER}/sha256", 1),
    (f"{LAYER}/tensor_count", False), (f"{LAYER}/artifact_bytes", 1e3),
    (f"{LAYER}/layer_index", None),
]  # fmt: skip

MALFORMED = [
    Malformed("M10", put("/schema_version", 2), "unsupported_schema_version", "/schema_version",
              CompatibilityError),
    *(Malformed(f"M11 {value!r}", put("/schema_version", value), "invalid_field_type",
                "/schema_version") for value in ("1", True, 1.0)),
    Malformed("M12", put("/format", "layer_package"), "invalid_format", "/format",
              CompatibilityError),
    Malformed("M13", put("/model_id", "  "), "empty_model_id", "/model_id"),
    Malformed("M15", drop(SOURCE), "missing_field", SOURCE),
    Malformed("M16", put(f"{SOURCE}/path", ""), "empty_source_model_path", f"{SOURCE}/path"),
    *(Malformed(f"M17 {name}", put(f"{SOURCE}/sha256", digest), "invalid_source_model_sha256",
                f"{SOURCE}/sha256")
      for name, digest in (("63 digits", "a" * 63), ("g", "a" * 63 + "g"), ("newline",
                           "a" * 64 + "\n"), ("full width", "１" * 64))),
    *(Malformed(f"M18 {name}", put(f"{SOURCE}/{name}", value), "empty_source_identity",
                f"{SOURCE}/{name}")
      for name, value in (("repo", ""), ("revision", " "), ("primary_file", ""),
                          ("canonical_ref", "\t"), ("distribution_id", ""))),
    Malformed("M19", put(f"{FILE}/path", ""), "empty_source_file_path", f"{FILE}/path"),
    Malformed("M20", put(f"{FILE}/sha256", ""), "invalid_source_file_sha256", f"{FILE}/sha256"),
    Malformed("M21", put(f"{FILE}/sha256", "c" * 64), "source_digest_conflict",
              f"{SOURCE}/sha256"),
    Malformed("M22", drop(OUTPUT), "missing_shared_artifact", OUTPUT),
    Malformed("M22 all", drop("/shared"), "missing_shared_artifact", "/shared"),
    Malformed("M23", both(put("/layer_count", 0), put("/layers", [])), "invalid_layer_count",
              "/layer_count"),
    Malformed("M24", drop("/layers/1"), "missing_layer", "/layers"),
    Malformed("M25", put("/layers/1/layer_index", 0), "duplicate_layer", "/layers/1/layer_index"),
    Malformed("M26", put("/layers/1/layer_index", 2), "layer_index_out_of_range",
              "/layers/1/layer_index"),
    *(Malformed(f"M27 {value}", put(f"{LAYER}/layer_index", value), "integer_out_of_range",
                f"{LAYER}/layer_index") for value in (-1, 2**32, 10**600)),
    *(_path(name, path) for name, path in UNSAFE),
    *(Malformed(f"M33 {path}", put("/layers/1/path", path), "duplicate_artifact_path",
                "/layers/1/path") for path in ("layers/layer-00000.gguf", "Layers/LAYER-00000.gguf",
                                               "shared/metadata.gguf")),
    Malformed("M34", put(f"{LAYER}/path", "shared"), "duplicate_artifact_path", f"{LAYER}/path"),
    Malformed("M35", put(f"{LAYER}/artifact_bytes", 0), "empty_artifact",
              f"{LAYER}/artifact_bytes"),
    Malformed("M36", both(put(f"{OUTPUT}/tensor_count", 0), put(f"{OUTPUT}/tensor_bytes", 1)),
              "invalid_tensor_bytes", f"{OUTPUT}/tensor_bytes"),
    Malformed("M37", put(f"{OUTPUT}/tensor_bytes", 0), "invalid_tensor_bytes",
              f"{OUTPUT}/tensor_bytes"),
    Malformed("M38", put(f"{LAYER}/tensor_bytes", 14977), "invalid_artifact_bytes",
              f"{LAYER}/artifact_bytes"),
    Malformed("M39", put(f"{LAYER}/sha256", "x" * 64), "invalid_artifact_sha256",
              f"{LAYER}/sha256"),
    Malformed("M41 vae", put("/projectors", [projector(kind="vae")]),
              "unsupported_projector_kind", "/projectors/0/kind"),
    Malformed("M41 empty", put("/projectors", [projector(kind="")]), "empty_projector_kind",
              "/projectors/0/kind"),
    Malformed("M42", put("/activation_width", 0), "invalid_activation_width",
              "/activation_width"),
    _abi("M44", "", "missing_skippy_abi_version"),
    *(_abi(f"M45 {version}", version, "invalid_abi_version")
      for version in ("1", "1.x", "1.2.3.4", "+1.2")),
    _abi("M46 major", "1.0.0", "incompatible_abi_version"),
    _abi("M46 minor", "0.2.0", "incompatible_abi_version"),
]  # fmt: skip

# Rules of the tables in the contract's section 3 that have no number of their own.
MORE = [
    *map(_missing, ("/schema_version", "/format", "/model_id", "/layer_count", "/layers",
                    f"{SOURCE}/path", f"{SOURCE}/sha256", f"{FILE}/path", f"{LAYER}/layer_index",
                    f"{LAYER}/path", f"{LAYER}/tensor_count", f"{LAYER}/tensor_bytes",
                    f"{LAYER}/artifact_bytes", f"{LAYER}/sha256", f"{OUTPUT}/sha256")),
    *(_typed(pointer, value) for pointer, value in WRONG_TYPES),
    *(Malformed(f"range {pointer} {value}", put(pointer, value), "integer_out_of_range", pointer)
      for pointer, value in (
          ("/schema_version", -1), ("/layer_count", 2**32), ("/layer_count", -1),
          ("/activation_width", 2**32), ("/created_at_unix_secs", 2**64),
          (f"{LAYER}/tensor_count", -1), (f"{LAYER}/tensor_bytes", 2**64),
          (f"{LAYER}/artifact_bytes", -1), (f"{FILE}/size_bytes", 2**64))),
    Malformed("absent ABI", drop("/skippy_abi_version"), "missing_skippy_abi_version",
              "/skippy_abi_version", CompatibilityError),
    Malformed("no source bytes", put(f"{FILE}/size_bytes", 0), "invalid_source_file_size",
              f"{FILE}/size_bytes"),
    Malformed("unsafe source file", put(f"{FILE}/path", "../x"), "unsafe_source_file_path",
              f"{FILE}/path"),
    Malformed("source file twice", put(f"{SOURCE}/files", [{"path": "a"}, {"path": "a"}]),
              "duplicate_source_file", f"{SOURCE}/files/1/path"),
    Malformed("a million and one tensors", put(f"{LAYER}/tensor_count", 1_000_001),
              "invalid_tensor_count", f"{LAYER}/tensor_count"),
    Malformed("empty layer", both(put(f"{LAYER}/tensor_count", 0), put(f"{LAYER}/tensor_bytes", 0)),
              "empty_layer", f"{LAYER}/tensor_count"),
    Malformed("empty projector", put("/projectors", [projector(tensor_count=0, tensor_bytes=0)]),
              "empty_projector", "/projectors/0/tensor_count"),
    Malformed("projector on a layer's path", put("/projectors", [projector(
              path="LAYERS/layer-00001.gguf")]), "duplicate_artifact_path", "/layers/1/path"),
    Malformed("more layers than entries", put("/layer_count", 2**32 - 1), "missing_layer",
              "/layers"),
]  # fmt: skip

WARNED = [
    Warned("M14", put("/model_id", "model-a"), "model_id_not_coordinate", "/model_id"),
    Warned("M43", drop("/activation_width"), "missing_activation_width", "/activation_width"),
    Warned("width null", put("/activation_width", None), "missing_activation_width",
           "/activation_width"),
    Warned("primary not listed", put(f"{SOURCE}/primary_file", "other.gguf"),
           "primary_file_not_listed", f"{SOURCE}/primary_file"),
    Warned("newer patch", put("/skippy_abi_version", "0.1.40"), "abi_patch_newer",
           "/skippy_abi_version"),
    Warned("hints no object", put("/selection_hints", []), "invalid_selection_hints",
           "/selection_hints"),
    Warned("hint of a wrong type", put("/selection_hints", {"prediction_layers": [2]}),
           "invalid_selection_hints", "/selection_hints/prediction_layers"),
]  # fmt: skip
