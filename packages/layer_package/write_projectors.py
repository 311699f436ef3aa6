"""Owns the projectors that go into a package: opened, checked, copied bit for bit.

It must not know the model's fragments. A projector keeps its file's name. One that says neither
`general.type` `mmproj` nor anything of `clip.` is taken with the warning `unusual_projector`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.artifacts.mapped_file import printable
from packages.layer_package.errors import PackageError, Report, WriterError
from packages.layer_package.fragments import Fragment, FragmentTensor, pieces, read_fragment
from packages.layer_package.opened_file import OpenedFile, open_file
from packages.layer_package.paths import check_path

_SHOWN = 120


@dataclass(frozen=True, slots=True)
class ProjectorPlan:
    """An open projector and the path it gets."""

    path: str
    opened: OpenedFile
    fragment: Fragment
    role: Literal["projector"] = "projector"
    layer_index: None = None

    @property
    def planned(self) -> tuple[FragmentTensor, ...]:
        """The tensors of the file."""
        return self.fragment.tensors

    @property
    def tensor_bytes(self) -> int:
        """Bytes of them without padding."""
        return self.fragment.tensor_bytes

    @property
    def artifact_bytes(self) -> int:
        """Bytes of the file."""
        return self.opened.n_bytes

    def content(self, source: object, buffer: bytearray) -> Iterator[bytes | memoryview]:
        """The file's bytes in pieces that share `buffer`."""
        yield from pieces(self.opened, self.path, 0, self.opened.n_bytes, buffer)


@contextlib.contextmanager
def open_projectors(files: Sequence[Path], report: Report) -> Iterator[list[ProjectorPlan]]:
    """The projectors in the given order. WriterError `invalid_projector`,
    `duplicate_projector_name` (names that differ only in case are one)."""
    with contextlib.ExitStack() as stack:
        plans: list[ProjectorPlan] = []
        seen: set[str] = set()
        for file in files:
            name = file.name
            shown = printable(name, _SHOWN)
            if name.casefold() in seen:
                raise WriterError("duplicate_projector_name", f"two projectors are called {shown}")
            seen.add(name.casefold())
            try:
                path = check_path(f"projectors/{name}", None)
                opened = stack.enter_context(open_file(file, path))
                fragment = read_fragment(opened, path)
            except PackageError as e:
                why = f"{shown}: {e.kind}: {e.issue.message}"
                raise WriterError("invalid_projector", why) from e
            if not fragment.tensors:
                raise WriterError("invalid_projector", f"{shown} has no tensors")
            if not _is_usual(fragment):
                message = "neither general.type mmproj nor any key of clip. is there"
                report.warn("unusual_projector", message, artifact=path)
            plans.append(ProjectorPlan(path, opened, fragment))
        yield plans


def _is_usual(fragment: Fragment) -> bool:
    is_clip = any(pair.key.startswith("clip.") for pair in fragment.pairs)
    return is_clip or fragment.text("general.type") == "mmproj"
