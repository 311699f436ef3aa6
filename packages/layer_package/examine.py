"""Owns the checks of one file at a time: there and regular, its size, its digest, its header.

Checks 17 to 20. It must not know which files a stage needs, nor where a tensor belongs. Two passes:
`locate` (17, 18) over all files first, for it costs nothing, then `read` (19, 20) over each. A file
is opened anew in the second pass, so that a package of any number of layers needs few descriptors;
its identity (device, inode, size, times) must then be what it was, also after reading:
`artifact_changed`.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field

from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.errors import (
    ArtifactError,
    Cancelled,
    GgufError,
    PackageError,
    Report,
)
from packages.layer_package.fragments import Fragment, read_fragment
from packages.layer_package.model import Artifact
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.paths import Identity, OpenedFile, open_artifact
from packages.layer_package.verification import verify_digest


@dataclass(slots=True)
class Finding:
    """What is known of one file; None where a check before could not be done.

    `n_bytes` of the file, whether its digest is the manifest's, `header` when it is a sound GGUF
    file.
    """

    artifact: Artifact
    n_bytes: int | None = None
    has_its_digest: bool | None = None
    header: Fragment | None = None

    @property
    def has_its_size(self) -> bool:
        """Whether the file is as long as the manifest says."""
        return self.n_bytes == self.artifact.artifact_bytes


class Held:
    """Files that stay open from their check to their use, by the names that errors give them."""

    def __init__(self) -> None:
        """None yet."""
        self._files: list[tuple[str, OpenedFile]] = []

    def add(self, name: str, opened: OpenedFile) -> None:
        """Owns the opened file from now on."""
        self._files.append((name, opened))

    def refuse_changed(self) -> None:
        """ArtifactError `artifact_changed` for the first whose path leads to anything else now."""
        for name, opened in self._files:
            if not opened.still_same():
                raise changed(name)

    def close(self) -> None:
        """Close all."""
        while self._files:
            self._files.pop()[1].close()


@dataclass(slots=True)
class Examiner:
    """Examines files of a package and adds what is wrong to a report.

    `hashes` whether digests are taken; `checksum_cache` may answer instead. `held` keeps every file
    open that was read.
    """

    package: PackageDir
    report: Report
    hashes: bool = False
    checksum_cache: ChecksumCache | None = None
    progress: Progress | None = None
    cancelled: IsCancelled | None = None
    held: Held | None = None
    findings: dict[Artifact, Finding] = field(default_factory=dict)
    _identities: dict[Artifact, Identity] = field(default_factory=dict)
    _pool: dict[bytes, bytes] = field(default_factory=dict)
    _done_bytes: int = 0
    _all_bytes: int = 0

    def locate(self, artifact: Artifact) -> Finding:
        """Checks 17 and 18."""
        finding = self.findings.setdefault(artifact, Finding(artifact))
        opened = self._open(artifact)
        if opened is None:
            return finding
        with opened:
            finding.n_bytes = opened.n_bytes
            if finding.has_its_size:
                self._identities[artifact] = opened.identity
                self._all_bytes += opened.n_bytes
            else:
                self.report.add(ArtifactError(
                    "artifact_size_mismatch",
                    f"the file has {opened.n_bytes} bytes, the manifest says"
                    f" {artifact.artifact_bytes}",
                    pointer=f"{artifact.pointer}/artifact_bytes", artifact=artifact.path,
                ))  # fmt: skip
        return finding

    def read(self, artifact: Artifact) -> Finding:
        """Checks 19 and 20, of a file that passed `locate`; of another nothing is done."""
        if self.cancelled is not None and self.cancelled():
            raise Cancelled("checking a package", artifact=artifact.path)
        finding = self.findings[artifact]
        opened = self._open(artifact) if artifact in self._identities else None
        if opened is None:
            return finding
        with ExitStack() as closing:
            if self.held is None:
                closing.enter_context(opened)
            else:
                self.held.add(artifact.path, opened)
            if not self.is_known(artifact, opened):
                self.report.add(changed(artifact.path))
                return finding
            if self.hashes:
                finding.has_its_digest = self._digest_matches(artifact, opened)
            finding.header = self._header(artifact, opened)
            if not opened.still_same():
                self.report.add(changed(artifact.path))
                finding.header = None
        return finding

    def is_known(self, artifact: Artifact, opened: OpenedFile) -> bool:
        """Whether an opened file is the one that was examined."""
        return self._identities.get(artifact) == opened.identity

    def _open(self, artifact: Artifact) -> OpenedFile | None:
        try:
            return open_artifact(
                self.package.root, artifact.path, repository=self.package.repository
            )
        except PackageError as error:
            self.report.add(error)
            return None

    def _digest_matches(self, artifact: Artifact, opened: OpenedFile) -> bool | None:
        """None where the file could not be read."""

        def progress(done: int, _in_all: int) -> None:
            if self.progress is not None:
                self.progress(self._done_bytes + done, self._all_bytes)

        matches: bool | None = True
        try:
            verify_digest(
                opened, self.package.manifest, artifact, cache=self.checksum_cache,
                report=self.report, progress=progress, cancelled=self.cancelled,
            )  # fmt: skip
        except ArtifactError as error:
            self.report.add(error)
            matches = False if error.kind == "artifact_sha256_mismatch" else None
        self._done_bytes += opened.n_bytes
        progress(0, 0)
        return matches

    def _header(self, artifact: Artifact, opened: OpenedFile) -> Fragment | None:
        try:
            header = read_fragment(opened, artifact.path, report=self.report, pool=self._pool)
        except PackageError as error:
            self.report.add(error)
            return None
        for member, found in (
            ("tensor_count", len(header.tensors)),
            ("tensor_bytes", header.tensor_bytes),
        ):
            said = getattr(artifact, member)
            if found != said:
                self.report.add(GgufError(
                    f"{member}_mismatch",
                    f"the file's {member} is {found}, the manifest says {said}",
                    pointer=f"{artifact.pointer}/{member}", artifact=artifact.path,
                ))  # fmt: skip
        return header


def changed(path: str) -> ArtifactError:
    """The refusal of a file that is not the one that was checked."""
    return ArtifactError(
        "artifact_changed",
        "the file was replaced or written to while it was checked",
        artifact=path,
        hint="nobody else may write to a package's folder while it is loaded",
    )
