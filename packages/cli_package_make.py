"""Owns the commands that make files of a layer package, or find it: write, resolve, materialize."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from engine.artifacts.output_file import new_file
from engine.artifacts.strict_json import read_small_file
from packages.cli_package_common import (
    VALID,
    add_package,
    add_stage,
    emit,
    guarded,
    resolved,
    runtime_abi,
    say,
    stages_of,
)
from packages.layer_package.checks import header_reader
from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.errors import Report, WriterError
from packages.layer_package.json_text import parse_json
from packages.layer_package.materialise import materialise
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.pins import prune
from packages.layer_package.selection import Selection
from packages.layer_package.write_options import WriteOptions, WriteResult
from packages.layer_package.writer import write_package
from packages.progress_bar import Bar

MAX_GENERATION_BYTES = 1 << 20


def add(commands: Any) -> None:
    """Add the commands to the subcommands of `package`."""
    _add_write(commands)
    found = commands.add_parser("resolve", help="find a package and the files of a stage")
    add_package(found)
    add_stage(found)
    found.set_defaults(run=guarded(_resolve))
    made = commands.add_parser("materialize", help="make one GGUF file of a stage")
    add_package(made)
    add_stage(made)
    made.add_argument("--name", default="stage", help="the stage's word in the file's name")
    made.add_argument("--dir", type=Path, help="the cache of materialised stages")
    made.set_defaults(run=guarded(_materialize))
    pruned = commands.add_parser("prune", help="remove materialised stages that nobody uses")
    pruned.add_argument("--dir", type=Path, help="the cache of materialised stages")
    pruned.add_argument("--max-bytes", type=int, default=0, help="how much may stay")
    pruned.add_argument("--json", action="store_true", help="one JSON document on stdout")
    pruned.set_defaults(run=guarded(_prune))


def _add_write(commands: Any) -> None:
    made = commands.add_parser("write", help="write a package from a GGUF model")
    made.add_argument("model", metavar="MODEL", help="a GGUF file, or org/repo[@rev][:dist]")
    made.add_argument("--out-dir", type=Path, required=True, metavar="DIR")
    made.add_argument("--projector", type=Path, action="append", default=[], metavar="FILE")
    made.add_argument("--model-id", metavar="ID", help="for a local file")
    made.add_argument("--source-repo", metavar="REPO", help="for a local file")
    made.add_argument("--source-revision", metavar="COMMIT", help="for a local file")
    made.add_argument("--source-file", metavar="FILE", help="its path in the repository")
    made.add_argument("--abi-version", metavar="V")
    made.add_argument("--after-artifact-command", metavar="CMD")
    made.add_argument("--transform-artifact-command", metavar="CMD")
    made.add_argument("--resume-existing-artifacts", action="store_true")
    made.add_argument("--force", action="store_true", help="allow a manifest that is there")
    made.add_argument("--generation", type=Path, metavar="FILE", help="JSON to merge")
    made.add_argument("--policy-profile", default="auto", metavar="auto|none|NAME")
    made.add_argument("--fragment-metadata", choices=("full", "lean"), default="full")
    made.add_argument("--engine", choices=("python", "native"), default="python")
    made.add_argument("--dry-run", action="store_true", help="say what would be written")
    made.add_argument("--readme", action="store_true", help="write a README.md too")
    made.add_argument("--strict", action="store_true", help="warnings of readers are errors")
    made.add_argument("--report", type=Path, metavar="FILE", help="write the result as JSON")
    made.add_argument("--cache", type=Path, metavar="DIR", help="root of the hub's cache")
    made.add_argument("--json", action="store_true", help="the result on stdout, not the manifest")
    made.set_defaults(run=guarded(_write))


def _write(options: argparse.Namespace) -> int:
    """Standard output is the manifest, as the contract has it; the report with `--json`."""
    wanted = WriteOptions(
        model_id=options.model_id, source_repo=options.source_repo,
        source_revision=options.source_revision, source_file=options.source_file,
        projectors=options.projector, abi_version=options.abi_version or runtime_abi(),
        after_artifact=options.after_artifact_command,
        transform_artifact=options.transform_artifact_command,
        resume=options.resume_existing_artifacts, force=options.force,
        generation=_generation(options.generation), policy_profile=options.policy_profile,
        fragment_metadata=options.fragment_metadata, engine=options.engine,
        dry_run=options.dry_run, readme=options.readme, strict=options.strict,
        hub_cache=options.cache,
    )  # fmt: skip
    with Bar() as bar:
        result = write_package(options.model, options.out_dir, wanted, progress=bar.show)
    for issue in result.report:
        say(issue)
    if options.report is not None:
        with new_file(options.report) as out:
            out.write(json.dumps(result.as_json(), indent=2, ensure_ascii=False).encode() + b"\n")
    emit(options, result.as_json(), _written(result))
    return VALID


def _written(result: WriteResult) -> list[str]:
    if result.manifest:
        return [result.manifest.decode().removesuffix("\n")]
    rows = [f"{a.artifact_bytes:>14,} bytes  {a.path}" for a in result.artifacts]
    return [*rows, f"{result.needed_bytes:>14,} bytes are needed"]


def _generation(path: Path | None) -> Any:
    if path is None:
        return None
    found = parse_json(read_small_file(path, MAX_GENERATION_BYTES))
    if not isinstance(found, dict):
        raise WriterError("invalid_generation_file", f"{path.name} does not hold a JSON object")
    return found


def _stages(options: argparse.Namespace) -> tuple[PackageDir, list[Selection]]:
    """The package with the files of the stages here, and the parts of each."""
    report = Report()
    found: list[Selection] = []
    planned = resolved(options, "manifest", report=report)
    for stage in stages_of(options, planned.manifest.layer_count):
        with Bar() as bar:
            package = resolved(options, "stage", stage=stage, progress=bar.show)
        found.append(stage.select(package.manifest, header_reader(package), report))
    for issue in report:
        say(issue)
    return package, found


def _resolve(options: argparse.Namespace) -> int:
    package, selections = _stages(options)
    root = os.path.abspath(package.root)
    document = {
        "package_ref": package.ref.canonical,
        "root": root,
        "model_id": package.manifest.model_id,
        "manifest_sha256": package.manifest.sha256,
        "stages": [
            {
                **_range(selection),
                "artifact_bytes": selection.artifact_bytes,
                "parts": [part.path for part in selection.parts],
                "projector": selection.projector and selection.projector.path,
            }
            for selection in selections
        ],
    }
    paths = {part.path: None for selection in selections for part in selection.parts}
    emit(options, document, [os.path.join(root, path) for path in paths])
    return VALID


def _materialize(options: argparse.Namespace) -> int:
    package, selections = _stages(options)
    # What a hub gives is hashed once and then vouched for; a local file is hashed each time.
    vouched = ChecksumCache() if package.is_hub else None
    made = []
    for selection in selections:
        with Bar() as bar:
            path = materialise(
                package, selection, root=options.dir, stage=options.name, checksum_cache=vouched,
                progress=bar.show,
            )  # fmt: skip
        made.append((os.path.abspath(path), path.stat().st_size, selection))
    document = {
        "manifest_sha256": package.manifest.sha256,
        "stages": [
            {"path": path, "file_bytes": n_bytes, **_range(selection)}
            for path, n_bytes, selection in made
        ],
    }
    emit(options, document, [path for path, _, _ in made])
    return VALID


def _range(selection: Selection) -> dict[str, Any]:
    names = ("layer_start", "layer_end", "include_embeddings", "include_output")
    return {name: getattr(selection, name) for name in names}


def _prune(options: argparse.Namespace) -> int:
    found = prune(options.dir, max_bytes=max(options.max_bytes, 0))
    document = {
        "removed": list(found.removed), "freed_bytes": found.freed_bytes,
        "busy": list(found.busy), "kept_bytes": found.kept_bytes,
    }  # fmt: skip
    emit(options, document, [f"{len(found.removed)} removed, {found.freed_bytes:,} bytes"])
    return VALID


