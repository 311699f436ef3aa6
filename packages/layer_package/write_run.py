"""Owns one run over the planned files: room, writing or keeping each, its check, its commands.

It must not know manifests. The order is that of the plans; each file is finished, checked and given
to the caller's command before the next begins, so that a command may move files away as they come.
A kept file is given to the command as well: the run that wrote it may have ended before it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from packages.layer_package.artifact_hooks import command_words, run_hook
from packages.layer_package.digests import IsCancelled, Progress
from packages.layer_package.errors import ArtifactError, WriterError
from packages.layer_package.fragments import PIECE_BYTES
from packages.layer_package.meter import Meter
from packages.layer_package.package_output import PackageOutput, Written
from packages.layer_package.paths import open_artifact
from packages.layer_package.source_digests import SourceDigests
from packages.layer_package.source_model import Source, refuse_changed
from packages.layer_package.write_fragment import (
    Plan,
    existing_file,
    refuse_other_content,
    transformed,
)
from packages.layer_package.write_options import WriteOptions, WrittenArtifact


class WriteRun:
    """Writes the files of `plans` into `output`."""

    def __init__(
        self,
        source: Source,
        plans: Sequence[Plan],
        output: PackageOutput,
        options: WriteOptions,
        *,
        progress: Progress | None,
        cancelled: IsCancelled | None,
    ) -> None:
        """WriterError `invalid_hook_command`."""
        total = source.n_bytes + sum(plan.artifact_bytes for plan in plans)
        self._source, self._plans, self._output = source, plans, output
        self._resume = options.resume
        self._after = command_words(options.after_artifact, "--after-artifact-command")
        self._change = command_words(options.transform_artifact, "--transform-artifact-command")
        self._cancelled = cancelled
        self._meter = Meter(total, progress, cancelled, "writing a package")
        self._buffer = bytearray(PIECE_BYTES)
        self._digests = SourceDigests(source)
        self._pool: dict[bytes, bytes] = {}
        self._n_hashed = 0

    def check_target(self, needed_bytes: int) -> None:
        """WriterError `insufficient_space`, `output_is_source`."""
        sources = {shard.opened.identity[:2] for shard in self._source.shards}
        for plan in self._plans:
            if self._identity(plan.path) in sources:
                raise WriterError(
                    "output_is_source", "the source lies where this file goes", artifact=plan.path
                )
        if self._resume:
            sizes = ((plan.artifact_bytes, self._output.n_bytes_of(plan.path))
                     for plan in self._plans)  # fmt: skip
            needed_bytes -= sum(planned for planned, found in sizes if planned == found)
        free = self._output.free_bytes()
        if free < needed_bytes:
            raise WriterError(
                "insufficient_space", f"{needed_bytes} bytes are needed, {free} are free"
            )

    def write_all(self) -> tuple[tuple[WrittenArtifact, ...], list[str]]:
        """The files, and the digests of the source's files."""
        with self._digests as digests:
            artifacts = tuple(self._finish(plan) for plan in self._plans)
            of_source = digests.wait(self._tick)
        refuse_changed(self._source)
        self._meter.finish()
        return artifacts, of_source

    def _finish(self, plan: Plan) -> WrittenArtifact:
        kept = None
        if self._resume and self._change is None:
            kept = existing_file(self._output.root, plan, self._source, self._buffer, self._step)
        artifact = self._write(plan) if kept is None else _artifact(plan, kept, kept=True)
        if self._after is not None:
            run_hook(self._after, self._output.root / plan.path, plan.path, self._cancelled)
        return artifact

    def _write(self, plan: Plan) -> WrittenArtifact:
        if self._change is None:
            written = self._output.write(plan.path, self._counted(plan))
            refuse_other_content(self._output.root, plan, written.n_bytes, self._pool)
            return _artifact(plan, written)
        words, tensor_bytes = self._change, 0

        def transform(file: Path) -> Written:
            nonlocal tensor_bytes
            run_hook(words, file, plan.path, self._cancelled)
            made, fragment = transformed(file, plan, self._cancelled)
            tensor_bytes = fragment.tensor_bytes
            return made

        written = self._output.write(plan.path, self._counted(plan), transform)
        return _artifact(plan, written, tensor_bytes)

    def _counted(self, plan: Plan) -> Iterator[bytes | memoryview]:
        for piece in plan.content(self._source, self._buffer):
            yield piece
            self._step(len(piece))

    def _step(self, n_bytes: int) -> None:
        """Bytes written, and those of the source hashed meanwhile."""
        n_hashed = self._digests.n_bytes_done
        self._meter.add(n_bytes + n_hashed - self._n_hashed)
        self._n_hashed = n_hashed

    def _tick(self) -> None:
        self._step(0)

    def _identity(self, path: str) -> tuple[int, ...] | None:
        try:
            with open_artifact(self._output.root, path) as opened:
                return opened.identity[:2]
        except ArtifactError:
            return None


def _artifact(
    plan: Plan, written: Written, tensor_bytes: int | None = None, *, kept: bool = False
) -> WrittenArtifact:
    return WrittenArtifact(
        plan.role, plan.path, len(plan.planned),
        plan.tensor_bytes if tensor_bytes is None else tensor_bytes,
        written.n_bytes, plan.layer_index, written.sha256, kept,
    )  # fmt: skip
