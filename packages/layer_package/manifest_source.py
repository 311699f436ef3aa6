"""Owns the manifest's `source_model`: what the package was made from (check 8).

It must not know the package's own files. Nothing named here is ever opened.
"""

from packages.layer_package.errors import ManifestError
from packages.layer_package.manifest_fields import U64, Members, members_at
from packages.layer_package.model import SourceFile, SourceModel
from packages.layer_package.paths import check_path

_IDENTITY = ("repo", "revision", "primary_file", "canonical_ref", "distribution_id")


def read_source_model(source: Members) -> SourceModel | None:
    """The record; None when `path` or `sha256` is missing or wrong. All faults go to the report."""
    path = source.filled("path", "empty_source_model_path")
    sha256 = source.digest("sha256", "invalid_source_model_sha256")
    kind = "empty_source_identity"
    identity = {name: source.filled(name, kind, required=False) for name in _IDENTITY}
    files = _read_files(source)
    _check_primary(source, identity["primary_file"], sha256, files)
    if path is None or sha256 is None:
        return None
    return SourceModel(path, sha256, **identity, files=files)


def _read_files(source: Members) -> tuple[SourceFile, ...]:
    found: dict[str, SourceFile] = {}
    for index, value in enumerate(source.array("files", required=False) or ()):
        entry = members_at(value, f"{source.at('files')}/{index}", source.report)
        file = None if entry is None else _read_file(entry)
        if entry is None or file is None:
            continue
        if file.path in found:
            entry.fail("duplicate_source_file", "the path of an earlier source file", "path")
        found.setdefault(file.path, file)
    return tuple(found.values())


def _read_file(entry: Members) -> SourceFile | None:
    path = entry.filled("path", "empty_source_file_path")
    if path is not None:
        try:
            check_path(path, entry.at("path"), "unsafe_source_file_path")
        except ManifestError as e:
            entry.report.add(e)
            path = None
    n_bytes = entry.integer("size_bytes", U64, required=False)
    if n_bytes == 0:
        entry.fail("invalid_source_file_size", "size_bytes is 0, needs to be more", "size_bytes")
    sha256 = entry.digest("sha256", "invalid_source_file_sha256", required=False)
    return None if path is None else SourceFile(path, n_bytes, sha256)


def _check_primary(
    source: Members, primary: str | None, sha256: str | None, files: tuple[SourceFile, ...]
) -> None:
    if primary is None or not files:
        return
    listed = next((file for file in files if file.path == primary), None)
    if listed is None:
        source.report.warn(
            "primary_file_not_listed", "primary_file is none of the files",
            pointer=source.at("primary_file"),
        )  # fmt: skip
    elif sha256 is not None and listed.sha256 not in (None, sha256):
        source.fail(
            "source_digest_conflict",
            f"sha256 is {sha256}, but {listed.sha256} where its file is listed", "sha256",
        )  # fmt: skip
