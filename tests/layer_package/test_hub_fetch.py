"""Owns what the hub's client library is asked for and what its failures become, without a network.

The library is replaced by a stand-in with its error types: what is held here is our side.
"""

import errno
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.download import FetchRequest
from packages.layer_package.errors import Cancelled, PackageError
from packages.layer_package.hub_fetch import fetch_from_hub
from packages.layer_package.model import MANIFEST_NAME, MAX_MANIFEST_BYTES
from packages.layer_package.resolve import resolve_package
from tests.layer_package.hub_cases import COMMIT, REF, leftovers
from tests.layer_package.package_cases import write_tiny_package


class HTTPError(Exception):
    response: Any = None


class HfHubHTTPError(HTTPError, OSError):
    pass


class EntryNotFoundError(Exception):
    pass


class RemoteEntryNotFoundError(HfHubHTTPError, EntryNotFoundError):
    pass


class LocalEntryNotFoundError(FileNotFoundError, EntryNotFoundError):
    pass


class XetDownloadError(Exception):
    pass


class Library:
    """Stands for `huggingface_hub`: serves `content` or raises `error`, notes its calls."""

    content, n_bytes = b"content", 7
    error: Exception | None = None

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def hf_hub_download(self, **given: Any) -> Any:
        self.calls.append(given)
        if self.error is not None:
            raise self.error
        if given.get("dry_run"):
            return types.SimpleNamespace(commit_hash=COMMIT, file_size=self.n_bytes)
        target = Path(given["local_dir"]) / given["filename"]
        target.parent.mkdir(parents=True, exist_ok=True)
        # As the library has it for its large files: one bar for the network, one for the disk.
        bars = [given["tqdm_class"](total=len(self.content), unit="B", desc="x", name="hub")
                for _ in range(2)]  # fmt: skip
        for start in range(0, len(self.content), 4):
            for bar in bars:
                bar.update(len(self.content[start : start + 4]))
        target.write_bytes(self.content)
        return str(target)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    library = Library()
    module: Any = types.ModuleType("huggingface_hub")
    module.hf_hub_download = library.hf_hub_download
    errors: Any = types.ModuleType("huggingface_hub.errors")
    for kind in (HTTPError, HfHubHTTPError, EntryNotFoundError, LocalEntryNotFoundError,
                 XetDownloadError):  # fmt: skip
        setattr(errors, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return library


@pytest.fixture
def request_(tmp_path: Path) -> FetchRequest:
    (tmp_path / "in").mkdir()
    return FetchRequest("acme-lab/x", "main", "layers/a.gguf", tmp_path / "in" / "arriving", 7, 7)


def test_a_file_is_taken_from_the_commit_that_the_revision_is_now(
    library: Library, request_: FetchRequest
) -> None:
    told: list[tuple[int, int]] = []
    request = replace(request_, progress=lambda *done: told.append(done))
    assert fetch_from_hub(request) == COMMIT
    assert request.target.read_bytes() == b"content"
    asked, got = library.calls
    assert (asked["revision"], asked["dry_run"]) == ("main", True)
    assert got["revision"] == COMMIT
    for call in library.calls:
        assert (call["repo_id"], call["filename"]) == ("acme-lab/x", "layers/a.gguf")
        # The library's own cache may link out of the repository, so it gets none.
        assert Path(call["local_dir"]).is_relative_to(request.target.parent)
        assert Path(call["cache_dir"]).is_relative_to(request.target.parent)
    assert told == sorted(told)
    assert told[-1] == (7, 7)


@pytest.mark.parametrize(
    ("n_bytes", "changes", "kind"),
    [
        (8, {}, "artifact_size_mismatch"),
        (MAX_MANIFEST_BYTES + 1,
         {"path": MANIFEST_NAME, "n_bytes": None, "max_bytes": MAX_MANIFEST_BYTES},
         "manifest_too_large"),
    ],
    ids=["artifact", "manifest"],
)  # fmt: skip
def test_a_wrong_length_is_refused_before_the_first_byte(
    library: Library, request_: FetchRequest, n_bytes: int, changes: dict[str, Any], kind: str
) -> None:
    library.n_bytes = n_bytes
    with pytest.raises(PackageError) as caught:
        fetch_from_hub(replace(request_, **changes))
    assert caught.value.kind == kind
    assert len(library.calls) == 1


def _http(code: int, kind: type[HTTPError] = HfHubHTTPError) -> HTTPError:
    error = kind("https://hub.example/secret?token=1")
    error.response = types.SimpleNamespace(status_code=code)
    return error


@pytest.mark.parametrize(
    ("error", "path", "kind", "text"),
    [
        (_http(404, RemoteEntryNotFoundError), MANIFEST_NAME, "missing_manifest", "has no model-"),
        (_http(404, RemoteEntryNotFoundError), "a.gguf", "missing_artifact", "has no such file"),
        (_http(401), "a.gguf", "download_failed", "HfHubHTTPError, HTTP 401"),
        (HTTPError("secret"), "a.gguf", "download_failed", "HTTPError"),
        (LocalEntryNotFoundError("secret"), "a.gguf", "download_failed", "LocalEntry"),
        (ConnectionError("secret"), "a.gguf", "download_failed", "ConnectionError"),
        (ConnectionResetError(errno.ECONNRESET, "secret"), "a.gguf", "download_failed", "Reset"),
        (ValueError("secret"), "a.gguf", "download_failed", "ValueError"),
        (RuntimeError("secret"), "a.gguf", "download_failed", "RuntimeError"),
        (XetDownloadError("secret"), "a.gguf", "download_failed", "XetDownloadError"),
    ],
)
def test_what_failures_of_the_library_become(
    library: Library, request_: FetchRequest, error: Exception, path: str, kind: str, text: str
) -> None:
    library.error = error
    with pytest.raises(PackageError) as caught:
        fetch_from_hub(replace(request_, path=path))
    assert caught.value.kind == kind
    assert text in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_full_disk_stays_an_oserror_for_the_cache_to_tell(
    library: Library, request_: FetchRequest
) -> None:
    library.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        fetch_from_hub(request_)


def swallowing(library: Library) -> Callable[..., Any]:
    """The library's large-file path may lose what a progress bar raises."""
    real = library.hf_hub_download

    def download(**given: Any) -> Any:
        try:
            return real(**given)
        except Cancelled as error:
            raise RuntimeError("a callback failed") from error

    return download


@pytest.mark.parametrize("how", ["raised", "as another error"])
def test_cancelling_stops_the_library(
    library: Library, request_: FetchRequest, how: str
) -> None:
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 1

    if how == "as another error":
        sys.modules["huggingface_hub"].hf_hub_download = swallowing(library)  # type: ignore[attr-defined]
    with pytest.raises(Cancelled):
        fetch_from_hub(replace(request_, cancelled=cancelled))
    assert len(asked) == 2
    assert not request_.target.exists()


def test_without_the_library_the_way_to_get_it_is_told(
    request_: FetchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(PackageError) as caught:
        fetch_from_hub(request_)
    assert caught.value.kind == "hub_client_missing"
    assert "[hub]" in str(caught.value.issue.hint)


def test_a_package_comes_through_the_library_whole(library: Library, tmp_path: Path) -> None:
    package = write_tiny_package(tmp_path / "p")
    real = library.hf_hub_download

    def serve(**given: Any) -> Any:
        library.content = (package / given["filename"]).read_bytes()
        library.n_bytes = len(library.content)
        return real(**given)

    sys.modules["huggingface_hub"].hf_hub_download = serve  # type: ignore[attr-defined]
    cache = tmp_path / "cache"
    found = resolve_package(REF, scope="package", cache=cache, fetch=fetch_from_hub)
    for artifact in found.manifest.artifacts:
        assert (found.root / artifact.path).read_bytes() == (package / artifact.path).read_bytes()
    assert leftovers(cache) == []
