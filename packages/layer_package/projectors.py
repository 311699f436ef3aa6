"""Owns which projector (a vision or audio tower) a stage loads, if any.

It must not know how a projector is checked (`checks.py`). Only the stage that starts at layer 0
loads one, and only for multimodal serving; text serving never needs to understand `projectors`.
Nothing is guessed from files that lie nearby.
"""

from pathlib import Path

from packages.layer_package.errors import SelectionError
from packages.layer_package.model import Artifact, Manifest

PICKED_KIND = "mmproj"


def pick_projector(
    manifest: Manifest,
    layer_start: int,
    *,
    multimodal: bool = False,
    projector_path: Path | None = None,
) -> Artifact | Path | None:
    """The caller's file, else for multimodal serving the first `mmproj` entry, else None.

    `projector_path` may lie outside the package. A stage that does not start at layer 0 gets None.
    SelectionError `projector_on_downstream_stage` when such a stage is given a path,
    `projector_required` when multimodal serving finds no entry.
    """
    if layer_start != 0:
        if projector_path is not None:
            raise SelectionError(
                "projector_on_downstream_stage",
                f"a stage from layer {layer_start} was given a projector; only the one from"
                " layer 0 loads it",
            )
        return None
    if projector_path is not None:
        return projector_path
    if not multimodal:
        return None
    for entry in manifest.projectors:
        if entry.kind == PICKED_KIND:
            return entry
    raise SelectionError(
        "projector_required",
        f"multimodal serving needs a projector of kind {PICKED_KIND!r}, and"
        f" none of the package's {len(manifest.projectors)} entries is one",
        pointer="/projectors",
        hint="give a projector file, or serve text only",
    )
