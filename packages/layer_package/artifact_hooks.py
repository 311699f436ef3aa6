"""Owns running a caller's command on one file of a package, without a shell.

It must not know packages. The command's standard output goes to standard error, for the writer's
own holds the manifest alone; its standard input is empty. Only the caller's words are run, and
nothing of the package becomes one: the file's path is in the environment.
"""

import os
import shlex
import subprocess
from pathlib import Path

from packages.layer_package.digests import IsCancelled
from packages.layer_package.errors import Cancelled, WriterError
from packages.layer_package.write_options import Command

PATH_VARIABLE = "SKIPPY_PACKAGE_ARTIFACT_PATH"
RELATIVE_VARIABLE = "SKIPPY_PACKAGE_ARTIFACT_RELATIVE_PATH"
_POLL_SECONDS = 0.1
_STOP_SECONDS = 5.0


def command_words(command: Command | None, option: str) -> list[str] | None:
    """The words of a command; None for none. WriterError `invalid_hook_command`."""
    if command is None:
        return None
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as e:
        raise WriterError("invalid_hook_command", f"{option}: {e}") from e
    if not words or any("\0" in word for word in words):
        raise WriterError("invalid_hook_command", f"{option} names no command")
    return words


def run_hook(
    words: list[str], file: Path, artifact: str, cancelled: IsCancelled | None = None
) -> None:
    """Run it on the file and wait. WriterError `artifact_hook_failed`, Cancelled."""
    environment = {**os.environ, PATH_VARIABLE: os.fspath(file), RELATIVE_VARIABLE: artifact}
    try:
        # standard error by number: `sys.stderr` may be a caller's object without a descriptor
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=2)
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or "it is no command"
        raise _failed(artifact, f"{words[0]!r:.80} cannot be run: {why}") from e
    try:
        code = _wait(process, cancelled)
    finally:
        _stop(process)
    if code is None:
        raise Cancelled("a command on an artifact", artifact=artifact)
    if code:
        how = f"ended with code {code}" if code > 0 else f"was ended by signal {-code}"
        raise _failed(artifact, f"{words[0]!r:.80} {how}")


def _wait(process: "subprocess.Popen[bytes]", cancelled: IsCancelled | None) -> int | None:
    """The exit code; None when the caller wants no more."""
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if cancelled is not None and cancelled():
                return None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _failed(artifact: str, message: str) -> WriterError:
    return WriterError("artifact_hook_failed", message, artifact=artifact)
