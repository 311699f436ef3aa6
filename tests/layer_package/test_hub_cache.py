"""Owns reading a hub cache that is not trusted: refs, snapshots, links, and where it lies."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from packages.layer_package.cache_roots import hub_cache_root, is_offline, user_cache_folder
from packages.layer_package.checks import validate
from packages.layer_package.errors import ArtifactError, CacheError
from packages.layer_package.hub_cache import HubRepository
from packages.layer_package.references import PackageRef
from packages.layer_package.resolve import resolve_package
from packages.layer_package.selection import StageRequest
from tests.layer_package.hub_cases import COMMIT, FOLDER, MOVING, REF, cached
from tests.layer_package.package_cases import write_tiny_package

STAGE = StageRequest(0, 1)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache where the package is whole, as `main` and as its commit."""
    root = tmp_path / "cache"
    cached(root, write_tiny_package(tmp_path / "p"), ref="main")
    return root


def repository(cache: Path) -> HubRepository:
    return HubRepository.of(PackageRef.parse(REF), cache)


def test_m53_a_link_into_the_repositorys_own_blobs_is_sound(cache: Path) -> None:
    package = resolve_package(REF, scope="stage", layers=(0, 1), cache=cache)
    assert package.root == cache / FOLDER / "snapshots" / COMMIT
    assert package.repository == cache / FOLDER
    assert (package.root / package.manifest.metadata.path).is_symlink()
    assert validate(package, "stage", stage=STAGE).valid


@pytest.mark.parametrize("where", ["another repository", "another root", "relative", "folder"])
def test_m54_a_link_out_of_the_repository_is_an_escape(
    cache: Path, tmp_path: Path, where: str
) -> None:
    root = cache / FOLDER / "snapshots" / COMMIT
    package = resolve_package(REF, scope="stage", layers=(0, 1), cache=cache)
    link = root / package.manifest.layers[0].path
    data = link.read_bytes()
    other = cache / "models--acme-lab--other" / "blobs" / "x"
    if where == "another root":
        other = tmp_path / "x"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(data)
    if where == "folder":
        outside = tmp_path / "outside"
        os.rename(link.parent, outside)
        os.symlink(outside, link.parent)
    else:
        link.unlink()
        link.symlink_to(os.path.relpath(other, link.parent) if where == "relative" else other)
    for call in (
        lambda: validate(package, "stage", stage=STAGE),
        lambda: resolve_package(REF, scope="stage", layers=(0, 1), cache=cache),
    ):
        with pytest.raises(ArtifactError) as caught:
            call()
        assert caught.value.kind == "artifact_escapes_root"
        assert caught.value.issue.artifact == package.manifest.layers[0].path
        assert str(tmp_path) not in str(caught.value)


def test_a_blob_in_the_clients_shared_store_is_refused_with_a_way_out(cache: Path) -> None:
    package = resolve_package(REF, scope="manifest", cache=cache)
    blob = (package.root / package.manifest.metadata.path).resolve()
    shared = cache / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    os.rename(blob, shared)
    blob.symlink_to(os.path.relpath(shared, blob.parent))
    with pytest.raises(ArtifactError) as caught:
        resolve_package(REF, scope="metadata", cache=cache)
    assert caught.value.kind == "artifact_escapes_root"
    assert "HF_HUB_DISABLE_SHARED_BLOBS" in str(caught.value.issue.hint)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def linked(path: Path) -> None:
    good = path.with_name("good")
    good.write_text(COMMIT)
    path.symlink_to(good)


BAD_REFS: dict[str, str | Callable[[Path], None]] = {
    "M94": "../../x",
    "empty": "",
    "newline": COMMIT + "\n",
    "41 digits": COMMIT + "0",
    "39 digits": COMMIT[:-1],
    "upper case": COMMIT.upper(),
    "bytes": "\udcff" * 40,
    "a path": "0123456789/../../../../../../../etc/pass",
    "a folder": lambda path: path.mkdir(),
    "a link": linked,
    "a FIFO": fifo,
}


@pytest.mark.parametrize("case", BAD_REFS)
def test_a_ref_that_holds_no_commit_is_corrupt(cache: Path, tmp_path: Path, case: str) -> None:
    ref = cache / FOLDER / "refs" / "main"
    ref.unlink()
    content = BAD_REFS[case]
    if callable(content):
        content(ref)
    else:
        ref.write_text(content, errors="surrogateescape")
    with pytest.raises(CacheError) as caught:
        resolve_package(MOVING, scope="manifest", cache=cache, fetch=lambda _: COMMIT)
    assert caught.value.kind == "corrupt_cache_ref"
    assert str(tmp_path) not in str(caught.value)


def test_a_linked_folder_of_refs_is_not_followed(cache: Path, tmp_path: Path) -> None:
    refs = cache / FOLDER / "refs"
    os.rename(refs, tmp_path / "refs")
    refs.symlink_to(tmp_path / "refs")
    assert repository(cache).commit_of("main") is None


def test_where_a_revision_is_looked_for(cache: Path) -> None:
    found = repository(cache)
    snapshot = cache / FOLDER / "snapshots" / COMMIT
    assert found.locate(COMMIT) == snapshot
    assert found.locate("main") == snapshot
    assert found.locate("v1") is None
    assert found.locate("0" * 40) is None
    (cache / FOLDER / "refs" / "release").mkdir()
    (cache / FOLDER / "refs" / "release" / "v1").write_text(COMMIT)
    assert found.locate("release/v1") == snapshot
    (snapshot / "layers" / "model-package.json").write_bytes(b"{}")
    assert found.locate(f"{COMMIT}/layers") is None
    (cache / FOLDER / "refs" / "gone").write_text("0" * 40)
    assert found.commit_of("gone") == "0" * 40
    assert found.locate("gone") is None


def test_where_the_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub_cache_root() == tmp_path / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert hub_cache_root() == tmp_path / "x" / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", "~/h")
    assert hub_cache_root() == tmp_path / "h" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", "$HOME/c")
    assert hub_cache_root() == tmp_path / "c"
    monkeypatch.setenv("HF_HUB_CACHE", " ")
    assert hub_cache_root() == tmp_path / "h" / "hub"
    assert hub_cache_root(tmp_path / "a") == tmp_path / "a"
    monkeypatch.chdir(tmp_path)
    assert hub_cache_root(Path("a")) == tmp_path / "a"


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(CacheError) as caught:
        user_cache_folder()
    assert caught.value.kind == "no_cache_folder"


@pytest.mark.parametrize(
    ("variable", "argument", "expected"),
    [(None, None, False), ("1", None, True), ("true", None, True), ("0", None, False),
     ("", None, False), ("1", False, False), (None, True, True)],
)  # fmt: skip
def test_offline(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, argument: bool | None, expected: bool
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if variable is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", variable)
    assert is_offline(argument) is expected
