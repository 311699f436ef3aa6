"""Owns the validation report that is kept in a package: `validation-report.json`.

Additive to schema version 1: the manifest never names it, and readers of packages ignore it. It
says which manifest it is about by that one's SHA-256, so one that a later manifest has outlived is
told. It is a statement of who wrote it, to be believed no more than the folder that it lies in.

    {"format_version": 1, "tool": ..., "checked_at_unix_secs": ..., "manifest_sha256": ...,
     "scope": ..., "valid": ..., "issues": [...], and what else the check found out}
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.artifacts.output_file import new_file
from packages.layer_package.errors import PackageError
from packages.layer_package.json_text import json_bytes, parse_json
from packages.layer_package.manifest_file import read_manifest_file
from packages.layer_package.opened_file import open_below
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.write_manifest import created_at_unix_secs

REPORT_NAME = "validation-report.json"
FORMAT_VERSION = 1
TOOL = "mesh-specialize"
MAX_REPORT_BYTES = 64 << 20


def store_report(root: Path, facts: Mapping[str, Any]) -> Path:
    """Write the report beside the manifest of a local package, whole or not at all; its path.

    `facts` have `scope`, `valid` and `issues`, and `manifest_sha256` unless the manifest was
    refused; then that of the file as it is. ManifestError `missing_manifest`; IoFailure when the
    system refuses. SOURCE_DATE_EPOCH is the time where it is set.
    """
    sha256 = facts.get("manifest_sha256")
    if sha256 is None:
        sha256 = hashlib.sha256(read_manifest_file(root)).hexdigest()
    document = {
        "format_version": FORMAT_VERSION,
        "tool": TOOL,
        "checked_at_unix_secs": created_at_unix_secs(),
        **facts,
        "manifest_sha256": sha256,
    }
    path = root / REPORT_NAME
    with new_file(path) as out:
        out.write(json_bytes(document))
    return path


def read_report(package: PackageDir) -> dict[str, Any] | None:
    """The report in the package, of whichever manifest; None when there is none to be read."""
    try:
        with open_below(package.root, REPORT_NAME, package.repository) as opened:
            if opened.n_bytes > MAX_REPORT_BYTES:
                return None
            with open(opened.fd, "rb", closefd=False) as file:
                found = parse_json(file.read(MAX_REPORT_BYTES))
    except (PackageError, OSError):
        return None
    is_report = isinstance(found, dict) and found.get("format_version") == FORMAT_VERSION
    return found if is_report else None
