"""Owns the proof of which paths a manifest may hold (rules 1 to 5), by text alone."""

import os
import random
from pathlib import PurePosixPath, PureWindowsPath

import pytest

from packages.layer_package.errors import ManifestError, Report
from packages.layer_package.model import Artifact
from packages.layer_package.paths import check_path, check_unique
from tests.layer_package.manifest_cases import UNSAFE

BAD = [
    *(path for _, path in UNSAFE),
    # what climbs or is absolute
    "..", ".", "a/..", "a/../b", "a/./b", "/", "//", "/a", "a//", "//a", "~", "~/a", "~root/a",
    # what another system reads otherwise
    "a:b", "a/b:c", "\\a", "a/..\\b", "con", "CON", "con.gguf", "a/NUL.txt", "com1", "Com9.a.b",
    "lpt1.gguf", "aux/b", "prn .x", "a /b", "a./b", "a.", "a ", "...", "a/...", "nul\u0020",
    # controls
    "\0", "a\tb", "a\x1fb", "a\x7fb", "a\rb", "a\n",
    # lengths, in bytes
    "a" * 256, "é" * 128, "x/" * 512 + "a", "é/" * 400, "a" * 10_000_000,
    # the manifest's own name
    "Model-Package.JSON", "model-package.json/x",
    # not text
    "\ud800", "a/\udfff.gguf",
]  # fmt: skip
GOOD = [
    "a", "layer-000.gguf", "layers/layer-00000.gguf", "a b/c d", " a", "a/~b", "a~", "-", "..a",
    ".hidden", "a..b", "...a", "a" * 255, "é" * 127, "/".join(["x" * 127] * 8), "a/" * 511 + "b",
    "contents", "com0", "com10", "console.gguf", "lpt", "a%2e%2e", "é", "e\u0301", "\u202egguf.x",
    "日本/語", "\x80", "a*?<>|\"'b", "sub/model-package.json", "a/b.con",
]  # fmt: skip


@pytest.mark.parametrize("path", BAD, ids=[ascii(path)[:30] for path in BAD])
def test_what_is_unsafe(path: str) -> None:
    for kind in ("unsafe_artifact_path", "unsafe_source_file_path"):
        with pytest.raises(ManifestError) as caught:
            check_path(path, "/layers/3/path", kind)
        issue = caught.value.issue
        assert (issue.kind, issue.pointer) == (kind, "/layers/3/path")
        assert issue.message.isprintable()
        assert len(issue.message) < 300


@pytest.mark.parametrize("path", GOOD, ids=[ascii(path)[:30] for path in GOOD])
def test_what_is_safe(path: str) -> None:
    assert check_path(path, "/p") == path


@pytest.mark.parametrize("path", [None, 1, b"a", ["a"], True])
def test_what_is_no_text(path: object) -> None:
    with pytest.raises(ManifestError) as caught:
        check_path(path, "/p")
    assert caught.value.kind == "invalid_field_type"


def test_whatever_is_accepted_stays_below_a_folder() -> None:
    rng = random.Random(5)
    alphabet = "ab./\\:~ \0\n.cCoOnN1é/."
    n_accepted = 0
    for _ in range(20_000):
        path = "".join(rng.choices(alphabet, k=rng.randint(0, 9)))
        try:
            check_path(path, "/p")
        except ManifestError:
            continue
        n_accepted += 1
        whole = os.path.normpath(os.path.join("/base", path))
        assert whole == f"/base/{path}", "no two spellings of one path"
        windows = PureWindowsPath(path)
        assert not windows.drive
        assert not windows.root
        assert ".." not in windows.parts
        assert PurePosixPath(path).parts == windows.parts == tuple(path.split("/"))
    assert n_accepted > 500


def artifacts(*paths: str) -> list[Artifact]:
    return [Artifact("layer", path, 1, 1, 1, "0" * 64, f"/layers/{i}", i)
            for i, path in enumerate(paths)]  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "pointers"),
    [
        (["a", "a"], ["1"]),
        (["a", "A"], ["1"]),
        (["straße", "STRASSE"], ["1"]),
        (["ﬁ", "fi"], ["1"]),
        (["K", "k"], ["1"]),  # the Kelvin sign
        (["a/b", "A"], ["1"]),
        (["A", "a/b/c"], ["1"]),
        (["a", "b", "a", "a"], ["2", "3"]),
        (["a/b/c", "x", "a/B"], ["2"]),
        (["a", "a-b", "a/b", "a.b"], ["2"]),
        (["a", "a!", "a b", "a/x", "a/y"], ["3"]),
        (["a", "a/b", "b", "b/c"], ["1", "3"]),
        (["a", "b", "c"], []),
        (["a/b", "ab", "a.b", "a-b"], []),
        (["a/b", "b/a", "a/c", "aa/b"], []),
        (["shared/metadata.gguf", "shared/metadata.ggu", "shared.gguf"], []),
        (["é", "e\u0301"], []),  # nothing is normalised
        ([], []),
    ],
)
def test_m33_m34_paths_are_unique(paths: list[str], pointers: list[str]) -> None:
    report = Report()
    check_unique(artifacts(*paths), report)
    assert [i.pointer for i in report] == [f"/layers/{pointer}/path" for pointer in pointers]
    assert set(report.kinds()) <= {"duplicate_artifact_path"}
    if pointers:
        with pytest.raises(ManifestError) as caught:
            check_unique(artifacts(*paths))
        assert caught.value.issue == next(iter(report))
    else:
        check_unique(artifacts(*paths))


def test_random_sets_of_paths_against_the_rule_as_it_is_written() -> None:
    rng = random.Random(9)
    n_clashes = 0
    for _ in range(3000):
        paths = ["/".join(rng.choices(["a", "A", "b", "a-", "a.x"], k=rng.randint(1, 3)))
                 for _ in range(rng.randint(1, 5))]  # fmt: skip
        clashes = any(
            one.casefold() == two.casefold() or two.casefold().startswith(one.casefold() + "/")
            for i, one in enumerate(paths) for j, two in enumerate(paths) if i != j
        )  # fmt: skip
        report = Report()
        check_unique(artifacts(*paths), report)
        assert report.valid != clashes, paths
        n_clashes += clashes
    assert 300 < n_clashes < 2700


def test_many_deep_paths_take_no_quadratic_time() -> None:
    deep = "/".join(["a"] * 500)
    check_unique(artifacts(*(f"{deep}/{i}" for i in range(5000))))
