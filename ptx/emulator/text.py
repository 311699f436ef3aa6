"""Owns PTX text as a parser walks over it: without comments, with line numbers, and its refusals.

It must not know statements.
"""

import re
from bisect import bisect_left

from ptx.emulator.errors import EmulatorError

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def refuse(line: int, text: str, why: str, kernel: str | None = None) -> EmulatorError:
    """The error for text outside the subset."""
    shown = " ".join(text.split())
    return EmulatorError("subset", why, line=line, text=shown[:120], kernel=kernel)


class Text:
    """The text of a module; places are offsets into `all`."""

    def __init__(self, text: str) -> None:
        # Line numbers survive because a comment leaves its line breaks behind.
        self.all = COMMENT.sub(lambda match: "\n" * match[0].count("\n") or " ", text)
        self._breaks = [match.start() for match in re.finditer("\n", self.all)]

    def line(self, at: int) -> int:
        """The line of a place, from 1."""
        return bisect_left(self._breaks, at) + 1

    def closing(self, at: int) -> int:
        """The place behind the brace that closes the body which starts at `at`."""
        depth = 1
        for match in re.compile(r"[{}]").finditer(self.all, at):
            depth += 1 if match[0] == "{" else -1
            if not depth:
                return match.end()
        raise refuse(self.line(at), "", "the body that starts here has no end")
