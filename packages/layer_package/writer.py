"""Owns writing a package, step by step; the manifest comes last and is the mark that all is there.

It must not know formats: what fragments hold is `write_plan.py`'s, files are `package_output.py`'s.
Choices: with `force` the old manifest is removed before the first fragment is written, once all
checks have passed, for until the end the folder is no whole package. With a transform nothing is
kept on resuming, for its result cannot be foretold. `engine native` is refused: this writer calls
no native library.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from packages.layer_package.abi_version import AbiVersion
from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.errors import Report, WriterError
from packages.layer_package.manifest import read_manifest
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.package_output import PackageOutput
from packages.layer_package.package_readme import README_NAME, readme_bytes
from packages.layer_package.source_input import resolve_input
from packages.layer_package.source_model import Source, open_source
from packages.layer_package.write_fragment import Plan
from packages.layer_package.write_generation import generation_of
from packages.layer_package.write_manifest import (
    created_at_unix_secs,
    manifest_bytes,
    manifest_document,
)
from packages.layer_package.write_options import WriteOptions, WriteResult, WrittenArtifact
from packages.layer_package.write_plan import pair_bytes, plan_fragments
from packages.layer_package.write_projectors import open_projectors
from packages.layer_package.write_run import WriteRun

_EXTRA_PERCENT = 1


def write_package(
    model: str | Path,
    out_dir: Path,
    options: WriteOptions | None = None,
    *,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> WriteResult:
    """Write a package of `model` (a coordinate, or a GGUF file or shard) into `out_dir`.

    Streams: memory is the headers and under 64 MiB, whatever the model's size. `progress` gets
    bytes written plus bytes of the source hashed, and both in all; `cancelled` is asked every piece
    of 4 MiB. WriterError and the errors of what it calls, each with a kind; then there is no
    manifest and no temporary, and finished files stay for `resume`.
    """
    options = options or WriteOptions()
    if options.engine != "python":
        raise WriterError(
            "native_writer_unavailable",
            f"engine {options.engine} is not offered: this writer calls no native library",
            hint="use the engine python",
        )
    report = Report()
    found = resolve_input(model, options)
    abi_version = _abi_version(options)
    created_at = created_at_unix_secs()
    with open_source(found.path) as source, open_projectors(options.projectors, report) as extra:
        generation = generation_of(source, options, report)
        plans: list[Plan] = [
            *plan_fragments(source, lean=options.fragment_metadata == "lean"),
            *extra,
        ]
        needed = _needed_bytes(source, plans)
        if options.dry_run:
            return WriteResult(tuple(map(_planned, plans)), needed, report=report)
        with PackageOutput(out_dir) as output:
            _refuse_existing(output, options)
            run = WriteRun(source, plans, output, options, progress=progress, cancelled=cancelled)
            run.check_target(needed)
            output.remove_manifest()
            artifacts, digests = run.write_all()
            document = manifest_document(
                source, found.identity, artifacts, digests,
                abi_version=abi_version, created_at=created_at, generation=generation,
            )  # fmt: skip
            data = manifest_bytes(document)
            # what no reader would take is not written
            read_manifest(data, strict=options.strict)
            sha256 = hashlib.sha256(data).hexdigest()
            if options.readme:
                output.write(README_NAME, [readme_bytes(document, sha256)])
            output.write(MANIFEST_NAME, [data])
    return WriteResult(artifacts, needed, data, sha256, report)


def _abi_version(options: WriteOptions) -> str:
    given = options.abi_version
    if given is None or not given.strip():
        raise WriterError(
            "missing_abi_version", "no library is linked that has an ABI version",
            hint="give --abi-version",
        )  # fmt: skip
    AbiVersion.parse(given)
    return given


def _refuse_existing(output: PackageOutput, options: WriteOptions) -> None:
    if output.has_manifest() and not options.force:
        raise WriterError(
            "output_exists", f"{MANIFEST_NAME} is there already", artifact=MANIFEST_NAME,
            hint="choose another folder, or give --force",
        )  # fmt: skip


def _needed_bytes(source: Source, plans: Sequence[Plan]) -> int:
    """Source, projectors, the pairs once for each fragment, and one percent."""
    projectors = sum(plan.artifact_bytes for plan in plans if plan.role == "projector")
    total = source.n_bytes + projectors + (source.layer_count + 3) * pair_bytes(source)
    return total + -(-total * _EXTRA_PERCENT // 100)


def _planned(plan: Plan) -> WrittenArtifact:
    return WrittenArtifact(
        plan.role, plan.path, len(plan.planned), plan.tensor_bytes, plan.artifact_bytes,
        plan.layer_index,
    )  # fmt: skip
