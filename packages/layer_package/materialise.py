"""Owns the materialised stage: its cache key, a hit, and making the file whole or not at all.

It must not know how parts are joined (`compose.py`) nor how stages are dropped (`pins.py`). A
stage's file is shared by everything that has its key, wherever the package lies. So the digest of
every part is compared with the manifest here, for local packages too: a key that promises content
which the file does not have would spoil the stage for the package that really has it.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.artifacts.gguf import open_gguf
from engine.artifacts.gguf_writer import TensorSource, stream_gguf
from engine.errors import EngineError, IoFailure
from packages.layer_package import stage_cache
from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.compose import COMPOSER, Part, composed_pairs, composed_tensors
from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.errors import ArtifactError, CacheError, ContentError
from packages.layer_package.fragments import read_fragment
from packages.layer_package.meter import Meter
from packages.layer_package.model import Artifact, Manifest
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.paths import open_artifact
from packages.layer_package.pins import Pin
from packages.layer_package.selection import Selection
from packages.layer_package.verification import verify_digest, verify_size

KEY_CHARACTERS = 24
_count = itertools.count()


def stage_key(manifest: Manifest, selection: Selection) -> str:
    """24 hex digits over everything that a stage's bytes depend on, and nothing else."""
    text = json.dumps(_identity(manifest, selection), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_CHARACTERS]


def materialise(
    package: PackageDir,
    selection: Selection,
    *,
    root: Path | None = None,
    stage: str = "stage",
    lock_seconds: float = stage_cache.LOCK_SECONDS,
    checksum_cache: ChecksumCache | None = None,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> Path:
    """One GGUF file of the selected parts, made or found in the cache at `root`.

    `stage` is for the file's name alone. Progress counts the bytes that are hashed, then those that
    are copied. Raises the families of ArtifactError, GgufError and ContentError for the parts;
    CacheError `materialize_lock_timeout`, `cache_not_writable`, `insufficient_space`,
    `materialize_check_failed`; Cancelled. With a `checksum_cache` files that it vouches for are not
    hashed again. After a failure nothing of it is left. Another process
    may prune the file at any time: `materialise_pinned` keeps it.
    """
    with materialise_pinned(
        package, selection, root=root, stage=stage, lock_seconds=lock_seconds,
        checksum_cache=checksum_cache, progress=progress, cancelled=cancelled,
    ) as pin:  # fmt: skip
        return pin.path


def materialise_pinned(
    package: PackageDir,
    selection: Selection,
    *,
    root: Path | None = None,
    stage: str = "stage",
    lock_seconds: float = stage_cache.LOCK_SECONDS,
    checksum_cache: ChecksumCache | None = None,
    progress: Progress | None = None,
    cancelled: IsCancelled | None = None,
) -> Pin:
    """As `materialise`; the file stays until the pin is closed."""
    folder = stage_cache.cache_root(root)
    stage_cache.prepare(folder)
    key = stage_key(package.manifest, selection)
    meter = Meter(2 * selection.artifact_bytes, progress, cancelled, "materialising")
    identity = _identity(package.manifest, selection)
    with stage_cache.locked(folder, key, seconds=lock_seconds, ask=meter.ask):
        path = None if stage_cache.is_forced() else _hit(folder, key, identity)
        if path is None:
            name = stage_cache.file_name(
                package.manifest.model_id, stage, selection.layer_start, selection.layer_end, key
            )
            path = folder / name
            _make(package, selection, path, meter, checksum_cache)
            _record(path, identity)
        meter.finish()
        return Pin(folder, key, path)


def _identity(manifest: Manifest, selection: Selection) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "composer": COMPOSER,
        "manifest_sha256": manifest.sha256,
        "layer_start": selection.layer_start,
        "layer_end": selection.layer_end,
        "include_embeddings": selection.include_embeddings,
        "include_output": selection.include_output,
        "parts": [[p.role, p.layer_index, p.path, p.sha256] for p in selection.parts],
    }


def _hit(folder: Path, key: str, identity: dict[str, Any]) -> Path | None:
    """A file of that key which is the recorded one and still opens; its use is noted."""
    for path in stage_cache.files_of(folder, key):
        facts = stage_cache.file_facts(path)
        if facts is None or stage_cache.read_record(path) != {**identity, **facts}:
            continue
        try:
            open_gguf(path).close()
            os.utime(stage_cache.record_path(path))
        except (EngineError, OSError):
            continue
        return path
    return None


def _record(path: Path, identity: dict[str, Any]) -> None:
    """Written after the rename, which changes the file's ctime."""
    facts = stage_cache.file_facts(path)
    if facts is None:
        raise CacheError("materialize_check_failed", "the file that was made is gone")
    try:
        stage_cache.write_record(path, {**identity, **facts})
    except IoFailure as error:
        cause = error.__cause__
        raise stage_cache.not_writable(cause if isinstance(cause, OSError) else OSError()) from None


def _make(
    package: PackageDir, selection: Selection, path: Path, meter: Meter,
    checksum_cache: ChecksumCache | None,
) -> None:
    """Compose into `.staging`, look at the result, and rename it to `path`."""
    staged = path.parent / ".staging" / f"{path.name}.tmp-{os.getpid()}-{next(_count)}"
    with ExitStack() as opened:
        parts = _open_parts(package, selection.parts, opened, meter, checksum_cache)
        pairs = composed_pairs(selection, parts)
        tensors = composed_tensors(parts, meter.add)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(staged, flags, 0o600), "wb", buffering=1 << 20) as out:
                stream_gguf(out, pairs, tensors, parts[0].fragment.alignment)
                out.flush()
                os.fsync(out.fileno())
            for part in parts:
                if not part.opened.still_same():
                    raise _changed(part.artifact)
            _check_made(staged, tensors)
            os.replace(staged, path)
        except OSError as error:
            raise stage_cache.not_writable(error) from None
        finally:
            staged.unlink(missing_ok=True)


def _open_parts(
    package: PackageDir, artifacts: Sequence[Artifact], opened: ExitStack, meter: Meter,
    checksum_cache: ChecksumCache | None,
) -> list[Part]:
    """All parts opened, verified and read. Pairs are kept of the first alone: a tokenizer that
    every layer repeats would take gigabytes."""
    parts: list[Part] = []
    for artifact in artifacts:
        file = opened.enter_context(
            open_artifact(package.root, artifact.path, repository=package.repository)
        )
        verify_size(file, artifact)
        verify_digest(
            file, package.manifest, artifact, cache=checksum_cache,
            progress=meter.part(), cancelled=meter.cancelled,
        )  # fmt: skip
        fragment = read_fragment(file, artifact.path)
        if parts and fragment.architecture != parts[0].fragment.architecture:
            raise ContentError(
                "architecture_mismatch",
                f"architecture {fragment.architecture!r}, that of {artifacts[0].path} is"
                f" {parts[0].fragment.architecture!r}",
                artifact=artifact.path,
            )
        parts.append(Part(artifact, file, replace(fragment, pairs=()) if parts else fragment))
    return parts


def _changed(artifact: Artifact) -> ArtifactError:
    return ArtifactError(
        "artifact_changed", "the file was written to or replaced while it was composed",
        pointer=artifact.pointer, artifact=artifact.path,
    )  # fmt: skip


def _check_made(path: Path, tensors: Sequence[TensorSource]) -> None:
    """CacheError unless the file opens and holds what was composed."""
    wanted = [(t.name, t.dims, t.ggml_type, t.n_bytes) for t in tensors]
    try:
        with open_gguf(path) as made:
            found = [(t.name, t.dims, t.ggml_type, t.n_bytes) for t in made.tensors]
    except EngineError:
        found = []
    if found != wanted:
        raise CacheError(
            "materialize_check_failed",
            f"the composed file does not open with its {len(wanted)} tensors",
        )
