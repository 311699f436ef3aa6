"""Owns the proof of which texts are references, what they mean, and how they are written back."""

import random
from pathlib import Path

import pytest

from packages.layer_package.errors import RefError
from packages.layer_package.references import ModelCoordinate, PackageRef, is_model_coordinate

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LONG = "a" * 96

BAD_HF = [
    # M93
    "hf://", "hf://a", "hf://a/b/c", "hf://a/b@", "hf://a/b:", "hf:///b", "hf://a/b:x@y",
    "hf://a/b@../c",
    # separators
    "hf://a/", "hf:///", "hf:////", "hf://a//b", "hf://a/b/", "hf://a/b@x@y", "hf://a/b@x:y",
    "hf://a/b:x:y", "hf://a/b:", "hf://@a/b", "hf://a@b/c", "hf://a:b/c", "hf://a/@x", "hf://a/:x",
    # names
    "hf://../b", "hf://a/..", "hf://./b", "hf://a/.", "hf://.a/b", "hf://a/.b", "hf://a./b",
    "hf://a/b.", "hf://-a/b", "hf://a/b-", "hf://a--b/c", "hf://a/b..c", f"hf://{LONG}a/b",
    f"hf://a/{LONG}a",
    # characters
    "hf://a b/c", "hf://a/b c", "hf:///a/b", "hf://a/b ", "hf://a/b\n", "hf://a/b@x\n",
    "hf://a/b%2F", "hf://a%2e/b", "hf://a/b?x", "hf://a/b#x", "hf://a/b\\c", "hf://a/b\0", "hf://ä/b",
    "hf://a/bс", "hf://a/b@x%20", "hf://a/b@\u2028", "hf://a/b@v1~", "hf://a/b\ud800",
    # revisions
    "hf://a/b@/x", "hf://a/b@x/", "hf://a/b@x//y", "hf://a/b@.", "hf://a/b@..", "hf://a/b@x/../y",
    "hf://a/b@x/.", f"hf://a/b@{'r' * 256}", f"hf://a/b@{'r' * 1_000_000}",
]  # fmt: skip

GOOD_HF = [
    ("hf://a/b", ("a", "b", None), "hf://a/b"),
    ("hf://a/b@main", ("a", "b", "main"), "hf://a/b@main"),
    ("hf://a/b:v1.0", ("a", "b", "v1.0"), "hf://a/b@v1.0"),
    ("hf://a/b:refs/pr/7", ("a", "b", "refs/pr/7"), "hf://a/b@refs/pr/7"),
    ("hf://Org_1/Q-2.5_x@-r.", ("Org_1", "Q-2.5_x", "-r."), "hf://Org_1/Q-2.5_x@-r."),
    (f"hf://{LONG}/{LONG}@{'r' * 255}", (LONG, LONG, "r" * 255), None),
    (f"hf://a/b@{COMMIT}", ("a", "b", COMMIT), None),
]


@pytest.mark.parametrize("text", BAD_HF, ids=[repr(text)[:40] for text in BAD_HF])
def test_m93_what_is_no_reference(text: str) -> None:
    with pytest.raises(RefError) as caught:
        PackageRef.parse(text)
    assert caught.value.kind == "invalid_package_ref"
    assert caught.value.issue.message.isprintable()
    assert len(caught.value.issue.message) < 300


@pytest.mark.parametrize(("text", "parts", "canonical"), GOOD_HF)
def test_hub_references(
    text: str, parts: tuple[str, str, str | None], canonical: str | None
) -> None:
    ref = PackageRef.parse(text)
    assert (ref.kind, ref.path) == ("hf", None)
    assert (ref.namespace, ref.repo, ref.revision) == parts
    assert ref.canonical == (canonical or text)
    assert PackageRef.parse(ref.canonical) == ref
    assert ref.effective_revision == (parts[2] or "main")


@pytest.mark.parametrize(
    ("revision", "immutable", "moving", "eligible"),
    [
        (f"@{COMMIT}", True, False, True), (f":{COMMIT}", True, False, False),
        (f"@{COMMIT.upper()}", False, False, True), (f"@{COMMIT[:-1]}", False, False, True),
        (f"@{COMMIT}0", False, False, True), ("", False, True, False),
        ("@main", False, True, False), ("@Main", False, True, False),
        ("@MASTER", False, True, False), ("@latest", False, True, False),
        ("@dev", False, True, False), ("@develop", False, True, False),
        ("@development", False, True, False), ("@v1", False, False, True),
        (":v1", False, False, False), ("@refs/heads/main", False, False, True),
        ("@main2", False, False, True),
    ],
)  # fmt: skip
def test_what_moves(revision: str, immutable: bool, moving: bool, eligible: bool) -> None:
    ref = PackageRef.parse(f"hf://a/b{revision}")
    assert (ref.is_immutable, ref.is_moving) == (immutable, moving)
    assert ref.is_transfer_eligible == eligible
    assert ref.is_pinned() == immutable
    assert ref.is_pinned(allow_named_revisions=True) == (not moving)


def test_the_separator_makes_no_other_package() -> None:
    assert PackageRef.parse("hf://a/b:v1") == PackageRef.parse("hf://a/b@v1")
    assert len({PackageRef.parse("hf://a/b:v1"), PackageRef.parse("hf://a/b@v1")}) == 1


@pytest.mark.parametrize("parts", [("..", "b", None), ("a", "b", "../x"), ("", "", None)])
def test_no_record_holds_what_parse_refuses(parts: tuple[str, str, str | None]) -> None:
    with pytest.raises(RefError):
        PackageRef("hf", *parts)
    with pytest.raises(RefError):
        PackageRef("local")


def test_local_folders(tmp_path: Path) -> None:
    package = tmp_path / "with space@v:1.gguf"
    package.mkdir()
    refuse(str(tmp_path))
    assert PackageRef.parse(str(package)).kind == "gguf"
    (package / "model-package.json").mkdir()
    assert PackageRef.parse(str(package)).kind == "gguf"
    (package / "model-package.json").rmdir()
    (package / "model-package.json").write_text("{}")
    ref = PackageRef.parse(str(package))
    assert (ref.kind, ref.path, ref.canonical) == ("local", package, str(package))
    assert PackageRef.parse(ref.canonical) == ref
    answers = (ref.is_immutable, ref.is_moving, ref.is_transfer_eligible, ref.is_pinned())
    assert not any(answers)
    assert PackageRef.local(tmp_path / "none").kind == "local"


def test_a_manifest_that_is_a_link_is_a_package_for_the_reader_to_judge(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("{}")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot/model-package.json").symlink_to(tmp_path / "blob")
    assert PackageRef.parse(str(tmp_path / "snapshot")).kind == "local"


@pytest.mark.parametrize("text", ["x.gguf", "/a/b/M.GGUF", "../a/b-00001-of-00002.gguf", "~x.gguf"])
def test_direct_files(text: str) -> None:
    ref = PackageRef.parse(text)
    assert (ref.kind, ref.canonical) == ("gguf", text)
    assert not ref.is_transfer_eligible


@pytest.mark.parametrize(
    "text",
    ["", " ", "a/b", "a/b:Q4_K_M", "HF://a/b", "hf:/a/b", "hf:a/b", " hf://a/b", "https://x/a/b",
     "https://x/a/b.gguf", "a\0.gguf", "\ud800", "x" * 100_000, "/" * 5000],
    ids=lambda text: repr(text)[:24],
)  # fmt: skip
def test_anything_else(text: str) -> None:
    refuse(text)


def refuse(text: str) -> None:
    with pytest.raises(RefError) as caught:
        PackageRef.parse(text)
    assert caught.value.kind == "not_a_package_ref"
    assert caught.value.issue.hint
    assert caught.value.issue.message.isprintable()
    assert len(caught.value.issue.message) < 300


COORDINATES = [
    ("org/repo", ("org", "repo", None, None)),
    ("org/repo:Q8_0", ("org", "repo", None, "Q8_0")),
    ("org/repo@v1:UD/Q4", ("org", "repo", "v1", "UD/Q4")),
    (f"org/re.po_1@{COMMIT}", ("org", "re.po_1", COMMIT, None)),
]
NO_COORDINATES = [
    "", " ", "org", "org/", "/org/repo", "./org/repo", "../org/repo", "~/org/repo", ".org/repo",
    "org\\repo", "org/repo\\x", "a/b/c", "a/b/c:Q8", "a/b@x/y", "org/repo.gguf", "org/repo:x.GGUF",
    "org/repo:", "org/repo@", "org/repo@:x", "org/repo:x@y", "org/repo:x:y", "org/repo:..", "a b/c",
    "org/repo:a b", "org/--", "hf://org/repo", "org/repo\n", "org/repo:Q\n", "o" * 97 + "/r",
    "org/repo:" + "q" * 256,
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), COORDINATES)
def test_coordinates(text: str, parts: tuple[str, str, str | None, str | None]) -> None:
    found = ModelCoordinate.parse(text)
    assert (found.namespace, found.repo, found.revision, found.selector) == parts
    assert found.canonical == text


@pytest.mark.parametrize("text", NO_COORDINATES, ids=[repr(t)[:30] for t in NO_COORDINATES])
def test_what_is_no_coordinate(text: str) -> None:
    with pytest.raises(RefError) as caught:
        ModelCoordinate.parse(text)
    assert caught.value.kind == "invalid_model_coordinate"
    assert not is_model_coordinate(text)


def test_a_local_path_is_no_coordinate_for_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    ModelCoordinate.parse("org/repo")
    (tmp_path / "org/repo").symlink_to("nowhere")
    with pytest.raises(RefError, match="local path"):
        ModelCoordinate.parse("org/repo")
    assert is_model_coordinate("org/repo"), "a reader of a manifest looks at no file"


def test_random_references() -> None:
    """Whatever is accepted comes back from its canonical text, and can name no other folder."""
    rng = random.Random(3)

    def word() -> str:
        return "".join(rng.choices("abcdefB9-_." + "/:@% ~\\\0é", [9] * 11 + [1] * 9, k=3))

    accepted: dict[str, PackageRef] = {}
    for _ in range(5000):
        end = rng.choice(["", "@" + word(), ":" + word(), f"@{word()}/{word()}"])
        text = f"hf://{word()}/{word()}{end}"
        try:
            accepted[text] = PackageRef.parse(text)
        except RefError as e:
            if e.kind != "invalid_package_ref":
                raise
    assert 500 < len(accepted) < 4500
    for text, ref in accepted.items():
        assert ref.canonical == (text.replace(":", "@").replace("@", ":", 1))
        assert PackageRef.parse(ref.canonical) == ref
        for name in (ref.namespace, ref.repo, *(ref.revision or "x").split("/")):
            assert name not in ("", ".", "..")
            assert set(name) <= set("abcdefB9-_.x")
