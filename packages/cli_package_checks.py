"""Owns the commands that judge a layer package: validate, preflight, a profile's contract."""

import argparse
from pathlib import Path
from typing import Any

from packages.cli_package_common import (
    NOT_VALID,
    VALID,
    add_package,
    add_stage,
    emit,
    guarded,
    resolved,
    runtime_abi,
    say,
    stage_of,
)
from packages.layer_package.checks import Scope, validate
from packages.layer_package.errors import (
    ArtifactError,
    ContentError,
    GgufError,
    Issue,
    RefError,
    Report,
    WriterError,
)
from packages.layer_package.glm_dsa import check_glm_dsa
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.preflight import open_package, preflight
from packages.layer_package.references import PackageRef
from packages.layer_package.report_file import store_report
from packages.layer_package.selection import StageRequest
from packages.layer_package.source_model import open_source
from packages.layer_package.validate_source import validate_package
from packages.layer_package.verification import must_verify
from packages.layer_package.write_generation import plain_values
from packages.progress_bar import Bar
from packages.select import select_files

SCOPES = ("manifest", "metadata", "stage", "package")


def add(commands: Any) -> None:
    """Add the commands to the subcommands of `package`."""
    checked = commands.add_parser("validate", help="check a package, also against its source")
    add_package(checked)
    add_stage(checked)
    checked.add_argument("--scope", choices=SCOPES, default="package")
    checked.add_argument("--source", type=Path, metavar="GGUF", help="the model it was made from")
    checked.add_argument("--no-deep", action="store_true", help="do not compare payload bytes")
    checked.add_argument("--strict", action="store_true", help="warnings of readers are errors")
    checked.add_argument("--verify-sha256", action="store_true", help="hash local files too")
    checked.add_argument("--store", action="store_true", help="keep the report in the package")
    checked.set_defaults(run=guarded(_validate))
    flown = commands.add_parser("preflight", help="check a package, and how it would be split")
    add_package(flown)
    flown.add_argument("--stages", type=int, metavar="N", help="an even split into N stages")
    flown.add_argument("--strict", action="store_true", help="warnings of readers are errors")
    flown.add_argument("--verify-sha256", action="store_true", help="hash every file")
    flown.set_defaults(run=guarded(_preflight))
    judged = commands.add_parser(
        "validate-glm-dsa-contract", help="say whether a model may name the profile glm-dsa-v1"
    )
    judged.add_argument("model", type=Path, metavar="GGUF")
    judged.add_argument("--json", action="store_true", help="one JSON document on stdout")
    judged.set_defaults(run=guarded(_glm_dsa))


def _validate(options: argparse.Namespace) -> int:
    kept = _report_folder(options) if options.store else None
    with Bar() as bar:
        if options.source is not None:
            facts = {"scope": "source", **_compared(options, bar)}
        else:
            facts = {"scope": options.scope, **_checked(options, bar)}
    _say_all(options, facts)
    word = "valid" if facts["valid"] else "NOT valid"
    lines = [f"{options.package}: {word} ({facts['scope']} scope)"]
    if kept is not None:
        lines.append(f"report: {store_report(kept, facts).name}")
    emit(options, facts, lines)
    return VALID if facts["valid"] else NOT_VALID


def _report_folder(options: argparse.Namespace) -> Path:
    """Where the report goes; asked before anything is hashed."""
    ref = PackageRef.parse(options.package)
    if ref.kind != "local" or ref.path is None:
        raise RefError(
            "report_not_storable", f"{ref.canonical} is no local folder; a report is kept in one"
        )
    return ref.path


def _say_all(options: argparse.Namespace, facts: dict[str, Any]) -> None:
    for issue in () if options.json else facts["issues"]:
        say(Issue(**issue))


def _target(options: argparse.Namespace, scope: Scope) -> Path | PackageDir:
    """A local folder as it is, whatever its manifest; a package of a hub with the scope's files."""
    ref = PackageRef.parse(options.package)
    if ref.kind == "local" and ref.path is not None:
        return ref.path
    if scope == "stage":
        count = resolved(options, "manifest").manifest.layer_count
        return resolved(options, scope, stage=stage_of(options, count))
    return resolved(options, scope)


def _compared(options: argparse.Namespace, bar: Bar) -> dict[str, Any]:
    """What is raised here is about the source; all about the package is in the answer."""
    target = _target(options, "package")
    try:
        return validate_package(
            options.source, target, deep=not options.no_deep, strict=options.strict,
            runtime_abi=runtime_abi(), progress=bar.show,
        )  # fmt: skip
    except (ArtifactError, ContentError, GgufError) as error:
        issue = error.issue
        raise WriterError(issue.kind, issue.message, artifact=issue.artifact) from None


def _checked(options: argparse.Namespace, bar: Bar) -> dict[str, Any]:
    report = Report()
    verify = True if options.verify_sha256 else None
    target = _target(options, options.scope)
    package = open_package(target, report, runtime_abi(), options.strict)
    if package is not None:
        # It says the manifest's warnings again.
        report = Report()
        stage = None
        if options.scope == "stage":
            stage = stage_of(options, package.manifest.layer_count)
        validate(
            package, options.scope, stage=stage, verify=verify, runtime_abi=runtime_abi(),
            strict=options.strict, report=report, progress=bar.show,
        )  # fmt: skip
    return {
        "valid": report.valid,
        "model_id": package and package.manifest.model_id,
        "manifest_sha256": package and package.manifest.sha256,
        "verified_sha256": package is not None and must_verify(package.ref, verify),
        "issues": report.as_json(),
    }


def _preflight(options: argparse.Namespace) -> int:
    target = _target(options, "package")
    with Bar() as bar:
        facts = preflight(
            target, stages=options.stages, verify_sha256=options.verify_sha256,
            runtime_abi=runtime_abi(), strict=options.strict, progress=bar.show,
        )  # fmt: skip
    facts["execution"] = _execution(options, target) if facts["valid"] else None
    _say_all(options, facts)
    stages = [
        f"stage {s['stage_index']}: layers {s['layer_start']}:{s['layer_end']},"
        f" {s['part_count']} parts, {s['artifact_bytes']:,} bytes" for s in facts["stages"]
    ]
    runs = facts["execution"] is not None and not facts["execution"]["falls_through"]
    lines = [f"{options.package}: {'valid' if facts['valid'] else 'NOT valid'}", *stages,
             f"runs here: {'yes' if runs else 'no'}"]  # fmt: skip
    emit(options, facts, lines)
    return VALID if facts["valid"] else NOT_VALID


def _execution(options: argparse.Namespace, target: Path | PackageDir) -> dict[str, Any] | None:
    """What would run the whole package on this host, with all reasons why not."""
    package = open_package(target, Report(), runtime_abi(), False)
    if package is None:
        return None
    parts = StageRequest(0, package.manifest.layer_count).select(package.manifest).parts
    return select_files([package.root / part.path for part in parts]).as_json()


def _glm_dsa(options: argparse.Namespace) -> int:
    with open_source(options.model) as source:
        names = {entry.tensor.name for entry in source.tensors}
        contract = check_glm_dsa(plain_values(source.first), names)
    word = "holds" if contract.holds else "does NOT hold"
    emit(options, contract.as_json(), [f"glm-dsa-v1 {word}", *contract.failures])
    return VALID if contract.holds else NOT_VALID
