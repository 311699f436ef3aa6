"""Owns checks 3 to 14 of a manifest: its JSON document to the record, every fault to a report.

It must not know bytes or files. The order of the checks is that of the contract, with
`schema_version` looked at before the other members, since which of them are required depends on it;
after an unknown version or format nothing else is read.
"""

from collections.abc import Collection
from dataclasses import dataclass

from packages.layer_package.abi_version import check_abi
from packages.layer_package.errors import CompatibilityError, ManifestError, Report
from packages.layer_package.generation import check_generation
from packages.layer_package.manifest_artifacts import (
    check_coverage,
    read_layers,
    read_projectors,
    read_shared,
)
from packages.layer_package.manifest_fields import U32, U64, Members, members_at, shown
from packages.layer_package.manifest_hints import read_hints
from packages.layer_package.manifest_source import read_source_model
from packages.layer_package.model import FORMAT, SCHEMA_VERSION, Manifest
from packages.layer_package.paths import check_unique
from packages.layer_package.references import is_model_coordinate


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller asks of a manifest: see `read_manifest`."""

    runtime_abi: str | None
    strict: bool
    projector_kinds: Collection[str]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The top-level members of the right type (check 3); None where absent or reported."""

    format: str | None
    model_id: str | None
    source: Members | None
    layer_count: int | None
    activation_width: int | None
    shared: Members | None
    layers: list[object] | None
    projectors: list[object] | None
    generation: Members | None
    abi: str | None
    created: int | None


def read_document(
    document: object, sha256: str, options: Options, report: Report
) -> Manifest | None:
    """The record of a manifest of that digest; None when the report got an error."""
    top = members_at(document, "", report)
    if top is None or not _check_version(top):
        return None
    shape = _read_shape(top)
    if not _check_format(shape.format, report):
        return None
    return _read_members(top, shape, options, sha256)


def _check_version(top: Members) -> bool:
    found = top.integer("schema_version", U32)
    if found is not None and found != SCHEMA_VERSION:
        top.report.add(CompatibilityError(
            "unsupported_schema_version",
            f"schema_version is {found}, this reader has {SCHEMA_VERSION}",
            pointer=top.at("schema_version"),
            hint=f"this is package format {found}: use a runtime that has it",
        ))  # fmt: skip
    return found == SCHEMA_VERSION


def _check_format(found: str | None, report: Report) -> bool:
    if found is not None and found != FORMAT:
        report.add(CompatibilityError(
            "invalid_format", f"format is {shown(found)}, needs {FORMAT!r}", pointer="/format"
        ))  # fmt: skip
    return found == FORMAT


def _read_shape(top: Members) -> _Shape:
    return _Shape(
        format=top.text("format"),
        model_id=top.text("model_id"),
        source=top.child("source_model"),
        layer_count=top.integer("layer_count", U32),
        activation_width=top.integer("activation_width", U32, required=False),
        # an absent one is missing artifacts, check 9
        shared=top.child("shared") if "shared" in top.value else None,
        layers=top.array("layers", required=True),
        projectors=top.array("projectors", required=False),
        generation=top.child("generation") if top.has("generation") else None,
        # an absent one is check 6
        abi=top.text("skippy_abi_version", required=False),
        created=top.integer("created_at_unix_secs", U64, required=False),
    )


def _read_members(top: Members, shape: _Shape, options: Options, sha256: str) -> Manifest | None:
    """Checks 6 to 14 on what has the right type."""
    report = top.report
    # an absent version fails as a blank one does, unless its type was reported
    if shape.abi is not None or not top.has("skippy_abi_version"):
        check_abi(shape.abi or "", options.runtime_abi, report)
    _check_model_id(shape.model_id, report)
    source = None if shape.source is None else read_source_model(shape.source)
    shared = read_shared(top, shape.shared)
    projectors = read_projectors(top, shape.projectors or (), options.projector_kinds)
    layers = read_layers(top, shape.layers or ())
    if shape.layer_count is not None and shape.layers is not None:
        check_coverage(top, layers, len(shape.layers), shape.layer_count)
    check_unique((a for a in (*shared.values(), *projectors, *layers) if a.path), report)
    _check_width(top, shape.activation_width, options.strict)
    if shape.generation is not None and shape.layer_count:
        check_generation(
            shape.generation.value, shape.layer_count, report, strict=options.strict
        )
    hints = read_hints(top, shape.layer_count or 0)
    if not report.valid or source is None or shape.model_id is None or shape.layer_count is None:
        return None
    return Manifest(
        model_id=shape.model_id,
        source_model=source,
        layer_count=shape.layer_count,
        activation_width=shape.activation_width,
        metadata=shared["metadata"],
        embeddings=shared["embeddings"],
        output=shared["output"],
        layers=tuple(sorted(layers, key=lambda layer: layer.layer_index or 0)),
        projectors=tuple(projectors),
        skippy_abi_version=shape.abi or "",
        sha256=sha256,
        created_at_unix_secs=shape.created,
        generation=None if shape.generation is None else shape.generation.value,
        selection_hints=hints,
        document=top.value,
    )


def _check_model_id(model_id: str | None, report: Report) -> None:
    if model_id is None:
        return
    if not model_id.strip():
        report.add(ManifestError("empty_model_id", "model_id is blank", pointer="/model_id"))
    elif not is_model_coordinate(model_id):
        report.warn(
            "model_id_not_coordinate",
            f"model_id is {shown(model_id)}, not org/repo[@revision][:distribution]",
            pointer="/model_id",
        )


def _check_width(top: Members, width: int | None, strict: bool) -> None:
    kind, pointer = "missing_activation_width", top.at("activation_width")
    if width == 0:
        message = "activation_width is 0, needs to be more"
        top.fail("invalid_activation_width", message, "activation_width")
    elif top.has("activation_width"):
        return
    elif strict:
        top.fail(kind, "activation_width is missing", "activation_width")
    else:
        top.report.warn(kind, "activation_width is missing", pointer=pointer)
