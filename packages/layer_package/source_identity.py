"""Owns whether a source model is the one that a manifest names: digests, sizes, layers, width.

It must not know fragments. A listed file is known by its base name; a single one by being the only.
"""

from pathlib import PurePosixPath

from packages.layer_package.digests import digest_of
from packages.layer_package.errors import ContentError, Report
from packages.layer_package.meter import Meter
from packages.layer_package.model import Manifest
from packages.layer_package.source_model import Source


def check_dims(source: Source, manifest: Manifest, report: Report, *, strict: bool) -> None:
    """ContentError `layer_count_mismatch`; `activation_width_mismatch`, a warning unless strict."""
    if manifest.layer_count != source.layer_count:
        report.add(ContentError(
            "layer_count_mismatch",
            f"layer_count is {manifest.layer_count}, the source has {source.layer_count} layers",
            pointer="/layer_count",
        ))  # fmt: skip
    width = manifest.activation_width
    if width == source.activation_width:
        return
    message = f"activation_width is {width}, that of the source is {source.activation_width}"
    if strict:
        report.add(ContentError("activation_width_mismatch", message, pointer="/activation_width"))
    elif width is not None:
        report.warn("activation_width_mismatch", message, pointer="/activation_width")


def check_files(source: Source, manifest: Manifest, report: Report, meter: Meter) -> bool:
    """Digests of the source's files; whether the primary one is the manifest's.

    ContentError `source_sha256_mismatch`, `source_size_mismatch`, `source_file_not_found`.
    """
    digests: dict[str, str] = {}
    for shard in source.shards:
        digests[shard.name] = digest_of(
            shard.opened, artifact=shard.name, progress=meter.part(), cancelled=meter.cancelled
        )
    sizes = {shard.name: shard.opened.n_bytes for shard in source.shards}
    said = manifest.source_model
    first = source.shards[0].name
    primary = PurePosixPath(said.primary_file or said.path).name
    found = digests.get(primary, digests[first])
    if found != said.sha256:
        _add(report, "source_sha256_mismatch", "/source_model/sha256",
             f"the source has SHA-256 {found}, the manifest says {said.sha256}")  # fmt: skip
    for index, file in enumerate(said.files):
        pointer, name = f"/source_model/files/{index}", PurePosixPath(file.path).name
        if name not in digests and len(digests) == len(said.files) == 1:
            name = first
        if name not in digests:
            _add(report, "source_file_not_found", f"{pointer}/path",
                 f"{file.path!r:.120} is none of the source's {len(digests)} files")  # fmt: skip
            continue
        if file.sha256 not in (None, digests[name]):
            _add(report, "source_sha256_mismatch", f"{pointer}/sha256",
                 f"the file has {digests[name]}, the manifest says {file.sha256}")  # fmt: skip
        if file.size_bytes not in (None, sizes[name]):
            _add(report, "source_size_mismatch", f"{pointer}/size_bytes",
                 f"the file has {sizes[name]} bytes, the manifest says"
                 f" {file.size_bytes}")  # fmt: skip
    return found == said.sha256


def _add(report: Report, kind: str, pointer: str, message: str) -> None:
    report.add(ContentError(kind, message, pointer=pointer))
