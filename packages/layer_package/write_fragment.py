"""Owns judging one file of a package against its plan: kept from an earlier run, or just written.

It must not know the order of writing. `artifact_plan_mismatch` says that what lies on the disk is
not what was planned.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from packages.layer_package.digests import IsCancelled, digest_of
from packages.layer_package.errors import ArtifactError, WriterError
from packages.layer_package.fragments import Fragment, read_fragment
from packages.layer_package.opened_file import open_file
from packages.layer_package.package_output import Written
from packages.layer_package.paths import open_artifact
from packages.layer_package.source_model import Source
from packages.layer_package.write_plan import FragmentPlan
from packages.layer_package.write_projectors import ProjectorPlan

Plan = FragmentPlan | ProjectorPlan


def existing_file(
    root: Path, plan: Plan, source: Source, buffer: bytearray, step: Callable[[int], None]
) -> Written | None:
    """What lies at the plan's path, if that is byte for byte what would be written; else None.

    `step` gets bytes as they are compared and may raise.
    """
    try:
        opened = open_artifact(root, plan.path)
    except ArtifactError:
        return None
    digest, at = hashlib.sha256(), 0
    with opened:
        if opened.n_bytes != plan.artifact_bytes:
            return None
        own = bytearray()
        for piece in plan.content(source, buffer):
            if len(own) < len(piece):
                own = bytearray(len(piece))
            room = memoryview(own)[: len(piece)]
            if not _read_fully(opened.fd, room, at) or not _equal(room, piece):
                return None
            digest.update(room)
            at += len(piece)
            step(len(piece))
        return Written(at, digest.hexdigest())


def refuse_other_content(root: Path, plan: Plan, n_bytes: int, pool: dict[bytes, bytes]) -> None:
    """Open the written file again. WriterError `artifact_plan_mismatch` where its names, types,
    shapes or sizes are not those of the plan; ArtifactError, GgufError. `pool` as the reader's."""
    with open_artifact(root, plan.path) as opened:
        found = read_fragment(opened, plan.path, pool=pool)
        if opened.n_bytes != n_bytes or n_bytes != plan.artifact_bytes:
            message = f"it has {opened.n_bytes} bytes, {plan.artifact_bytes} are planned"
            raise WriterError("artifact_plan_mismatch", message, artifact=plan.path)
    wanted = [(t.name, t.dims, t.ggml_type, t.n_bytes) for t in plan.planned]
    if [(t.name, t.dims, t.ggml_type, t.n_bytes) for t in found.tensors] != wanted:
        message = f"its {len(found.tensors)} tensors are not the {len(wanted)} planned ones"
        raise WriterError("artifact_plan_mismatch", message, artifact=plan.path)


def transformed(file: Path, plan: Plan, cancelled: IsCancelled | None) -> tuple[Written, Fragment]:
    """What a caller's command made of a file: sound by the rules of reading, with the same names.

    WriterError `artifact_plan_mismatch` for other names; ArtifactError, GgufError.
    """
    with open_file(file, plan.path) as opened:
        found = read_fragment(opened, plan.path)
        names, wanted = found.by_name.keys(), {t.name for t in plan.planned}
        if names != wanted:
            raise WriterError(
                "artifact_plan_mismatch",
                f"the transform made {len(names - wanted)} tensors of other names and lost"
                f" {len(wanted - names)}",
                artifact=plan.path,
            )
        sha256 = digest_of(opened, artifact=plan.path, cancelled=cancelled)
        return Written(opened.n_bytes, sha256), found


def _read_fully(fd: int, room: memoryview, at: int) -> bool:
    while room:
        try:
            n_read = os.preadv(fd, [room], at)
        except OSError:
            return False
        if n_read == 0:
            return False
        room, at = room[n_read:], at + n_read
    return True


def _equal(one: memoryview, other: bytes | memoryview) -> bool:
    # memoryviews compare element by element
    return bool(np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)))
