"""Owns handing a checked stage to a loader that takes paths.

It must not know what the loader does. With `pin` every file stays open from its check to the load
and is compared once more right before it: by its path, with the descriptor that was read. What
remains is the moment until the loader opens the paths itself; so a package's folder must not be
writable by others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from packages.layer_package.checks import check_manifest, check_stage, header_reader
from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.errors import Report
from packages.layer_package.examine import Examiner, Held
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.selection import Selection, StageRequest
from packages.layer_package.verification import must_verify

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageFiles:
    """What a native loader gets: absolute paths of the parts in load order, and of a projector.

    Its flags `include_embeddings` and `include_output` are those of the selection.
    """

    selection: Selection
    paths: tuple[Path, ...]
    projector: Path | None


def load_stage(
    package: PackageDir,
    stage: StageRequest,
    loader: Callable[[StageFiles], T],
    *,
    pin: bool = True,
    verify: bool | None = None,
    checksum_cache: ChecksumCache | None = None,
    expected_manifest_sha256: str | None = None,
    runtime_abi: str | None = None,
    report: Report | None = None,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> T:
    """Validate the stage, then call `loader` with its files; what the loader returns.

    Fails fast with the errors of scope "stage"; with `pin` also ArtifactError `artifact_changed`.
    `report` gets the warnings and notes. Descriptors are closed when the loader is done.
    """
    found = Report(fail_fast=True)
    held = Held()
    try:
        examiner = Examiner(
            package, found, hashes=must_verify(package.ref, verify), checksum_cache=checksum_cache,
            progress=progress, cancelled=cancelled, held=held if pin else None,
        )  # fmt: skip
        check_manifest(
            package, found, expected_sha256=expected_manifest_sha256, runtime_abi=runtime_abi
        )
        selection = stage.select(package.manifest, header_reader(package), found)
        check_stage(examiner, stage, selection)
        held.refuse_changed()
        return loader(_files(package, selection))
    finally:
        held.close()
        if report is not None:
            report.issues.extend(found.issues)


def _files(package: PackageDir, selection: Selection) -> StageFiles:
    root = package.root.absolute()
    projector = selection.projector_path
    if selection.projector is not None:
        projector = root / selection.projector.path
    return StageFiles(
        selection,
        tuple(root / part.path for part in selection.parts),
        None if projector is None else projector.absolute(),
    )
