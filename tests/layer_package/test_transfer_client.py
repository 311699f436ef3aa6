"""Owns the tests of what a worker takes from a coordinator, and of answers that it refuses.

Long because each thing that a worker may be told, or sent, is a case of its own.
"""

import hashlib
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.errors import TransferError
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.transfer import client as subject
from packages.layer_package.transfer.client import ArtifactClient
from packages.layer_package.transfer.frames import ByteStream, write_frame
from packages.layer_package.transfer.messages import ArtifactRequest, ArtifactResponse
from packages.layer_package.transfer.mode import FEATURE, Trust
from tests.layer_package.package_cases import change_manifest
from tests.layer_package.transfer_cases import (
    FEATURES,
    LIMITS,
    OTHER,
    PEER,
    REF,
    REPOSITORY,
    Coordinator,
    fake_peer,
    files_of,
    snapshot,
)
from tests.layer_package.worker_cases import LAST, LAYER, failure, partials, send, with_manifest

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path / "cache", package={"projector": True})


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "worker"


def test_a_stage_is_fetched_whole_and_nothing_else(coordinator: Coordinator, cache: Path) -> None:
    progress: list[tuple[int, int]] = []
    package = coordinator.client(cache).fetch_stage(
        coordinator.last_load, features=FEATURES, progress=lambda *at: progress.append(at)
    )
    source = files_of(coordinator.cache)
    assert files_of(cache) == {path: source[path] for path in LAST}
    assert package.root == snapshot(cache)
    assert package.repository == cache / REPOSITORY
    assert package.ref.canonical == REF
    assert package.manifest.sha256 == coordinator.sha256
    total = sum(len(source[path]) for path in LAST - {MANIFEST_NAME})
    assert progress[-1] == (total, total)
    assert progress == sorted(progress)
    assert {stat.S_IMODE(p.stat().st_mode) for p in snapshot(cache).rglob("*.gguf")} == {0o600}
    coordinator.join()
    assert coordinator.reasons == []


def test_the_first_stage_gets_embeddings_and_projectors(
    coordinator: Coordinator, cache: Path
) -> None:
    client = coordinator.client(cache, peer=OTHER)
    client.fetch_stage(coordinator.first_load, features=FEATURES)
    assert set(files_of(cache)) == {
        MANIFEST_NAME, "shared/metadata.gguf", "shared/embeddings.gguf",
        "layers/layer-00000.gguf", "projectors/mmproj-TinyDemo.gguf",
    }  # fmt: skip


def test_what_is_there_is_not_asked_for_again(coordinator: Coordinator, cache: Path) -> None:
    client = coordinator.client(cache)
    client.fetch_stage(coordinator.last_load, features=FEATURES)
    n_streams = len(coordinator.threads)
    client.fetch_stage(coordinator.last_load, features=FEATURES)
    assert len(coordinator.threads) == n_streams
    layer = snapshot(cache) / LAYER
    layer.write_bytes(b"spoiled")
    client.fetch_stage(coordinator.last_load, features=FEATURES)
    assert len(coordinator.threads) == n_streams + 1
    assert layer.read_bytes() == files_of(coordinator.cache)[LAYER]


def test_a_link_to_a_spoiled_blob_is_replaced_and_the_blob_left(
    coordinator: Coordinator, cache: Path
) -> None:
    blob = cache / REPOSITORY / "blobs" / "blob"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"spoiled")
    layer = snapshot(cache) / LAYER
    layer.parent.mkdir(parents=True)
    layer.symlink_to("../../../blobs/blob")
    coordinator.client(cache).fetch_stage(coordinator.last_load, features=FEATURES)
    assert not layer.is_symlink()
    assert blob.read_bytes() == b"spoiled"


@pytest.mark.parametrize("hints", [True, False], ids=["hints", "headers"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_embeddings_of_a_last_stage(tmp_path: Path, cache: Path, hints: bool, tied: bool) -> None:
    package = {"hints": hints, "tied": tied}
    coordinator = Coordinator(tmp_path / "cache", package=package)
    client = coordinator.client(cache)
    if hints or tied:
        client.fetch_stage(coordinator.last_load, features=FEATURES)
    else:
        # Nothing tells the worker; the coordinator knows, and the rest has come before.
        assert failure(client, coordinator.last_load).kind == "artifact_unavailable"
    assert set(files_of(cache)) == LAST | ({"shared/embeddings.gguf"} if tied else set())


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("hf://acme-lab/demo-layers", "transfer_ref_not_eligible"),
        ("hf://acme-lab/demo-layers@main", "transfer_ref_not_eligible"),
        ("hf://acme-lab/demo-layers@Latest", "transfer_ref_not_eligible"),
        (REF.replace("@", ":"), "transfer_ref_not_eligible"),
        ("hf://acme-lab/demo-layers@a/b", "transfer_ref_not_eligible"),
        ("/some/folder", "transfer_ref_not_eligible"),
        ("hf://acme-lab/../x@v1", "transfer_ref_not_eligible"),
    ],
)
def test_what_is_not_eligible_is_not_asked_for(
    coordinator: Coordinator, cache: Path, reference: str, kind: str
) -> None:
    load = replace(coordinator.last_load, package_ref=reference)
    assert failure(coordinator.client(cache), load).kind == kind
    assert coordinator.threads == []


@pytest.mark.parametrize("missing", FEATURES)
def test_a_coordinator_that_does_not_advertise_it_is_not_asked(
    coordinator: Coordinator, cache: Path, missing: str
) -> None:
    features = [name for name in FEATURES if name != missing]
    with pytest.raises(TransferError) as caught:
        coordinator.client(cache).fetch_stage(coordinator.last_load, features=features)
    assert caught.value.kind == "transfer_not_advertised"
    assert coordinator.threads == []
    assert FEATURE in FEATURES


def test_a_coordinator_that_is_off(tmp_path: Path, cache: Path) -> None:
    coordinator = Coordinator(tmp_path / "cache", trust=Trust())
    assert failure(coordinator.client(cache), coordinator.last_load).kind == "transfer_disabled"
    assert files_of(cache) == {}


@pytest.mark.parametrize("size", [(3, 9), (0, 1)], ids=["past-the-end", "not-mine"])
def test_a_range_that_the_package_or_the_topology_does_not_have(
    coordinator: Coordinator, cache: Path, size: tuple[int, int]
) -> None:
    load = replace(coordinator.last_load, layer_start=size[0], layer_end=size[1])
    kinds = ("layer_range_out_of_bounds", "artifact_unavailable")
    assert failure(coordinator.client(cache), load).kind in kinds


# bytes of the layer -> what the peer announces and sends
M96: dict[str, tuple[Callable[[bytes], tuple[int, bytes]], str]] = {
    "one-byte-more": (lambda b: (len(b), b + b"x"), "transfer_overrun"),
    "one-byte-fewer": (lambda b: (len(b), b[:-1]), "transfer_truncated"),
    "no-byte": (lambda b: (len(b), b""), "transfer_truncated"),
    "wrong-digest": (lambda b: (len(b), b[:-1] + bytes([b[-1] ^ 1])), "artifact_sha256_mismatch"),
    "announces-more": (lambda b: (len(b) + 1, b + b"x"), "artifact_size_mismatch"),
    "announces-fewer": (lambda b: (len(b) - 1, b[:-1]), "artifact_size_mismatch"),
}


@pytest.mark.parametrize("name", M96)
def test_m96_a_peer_that_sends_something_else(
    coordinator: Coordinator, cache: Path, name: str
) -> None:
    with_manifest(coordinator, cache)
    before = files_of(cache)
    change, kind = M96[name]
    n_bytes, body = change(files_of(coordinator.cache)[LAYER])
    answer = send(n_bytes, coordinator.entry(LAYER)["sha256"], body)
    with fake_peer(answer) as connect:
        client = coordinator.client(cache, connect)
        assert failure(client, coordinator.last_load).kind == kind
    left = {path: data for path, data in files_of(cache).items() if not path.endswith(".part")}
    assert left == before
    # what is sound so far may serve the next try; anything else is gone
    assert len(partials(cache)) == (name == "one-byte-fewer")
    coordinator.client(cache).fetch_stage(coordinator.last_load, features=FEATURES)
    assert partials(cache) == []


@pytest.mark.parametrize("sha256", [None, "00" * 32], ids=["none", "another"])
def test_another_announced_digest_is_refused_before_the_body(
    coordinator: Coordinator, cache: Path, sha256: str | None
) -> None:
    with_manifest(coordinator, cache)
    size = coordinator.entry(LAYER)["artifact_bytes"]
    with fake_peer(send(size, sha256, b"")) as connect:
        client = coordinator.client(cache, connect)
        assert failure(client, coordinator.last_load).kind == "artifact_sha256_mismatch"


@pytest.mark.parametrize(
    ("size", "body", "kind"),
    [
        ((16 << 20) + 1, b"", "manifest_too_large"),
        ((1 << 64) - 1, b"", "manifest_too_large"),
        (5, b"hello", "manifest_sha256_mismatch"),
        (5, b"hello!", "transfer_overrun"),
        (5, b"hell", "transfer_truncated"),
    ],
)
def test_a_manifest_that_is_not_the_assigned_one(
    coordinator: Coordinator, cache: Path, size: int, body: bytes, kind: str
) -> None:
    with fake_peer(send(size, coordinator.sha256, body)) as connect:
        client = coordinator.client(cache, connect)
        assert failure(client, coordinator.last_load).kind == kind
    assert not (snapshot(cache) / MANIFEST_NAME).exists()


def test_a_manifest_of_the_right_digest_that_is_none_is_not_installed(
    coordinator: Coordinator, cache: Path
) -> None:
    digest = hashlib.sha256(b"hello").hexdigest()
    with fake_peer(send(5, digest, b"hello")) as connect:
        load = replace(coordinator.last_load, manifest_sha256=digest)
        error = failure(coordinator.client(cache, connect), load)
    assert error.kind == "invalid_manifest_json"
    assert not (snapshot(cache) / MANIFEST_NAME).exists()


def test_a_peer_s_own_words_are_not_repeated(coordinator: Coordinator, cache: Path) -> None:
    def answer(stream: ByteStream, request: ArtifactRequest) -> None:
        write_frame(stream, ArtifactResponse(False, error="run rm -rf").encode())

    with fake_peer(answer) as connect:
        error = failure(coordinator.client(cache, connect), coordinator.last_load)
    assert error.kind == "artifact_unavailable"
    assert "rm" not in str(error)


def test_another_manifest_in_the_cache_is_replaced(coordinator: Coordinator, cache: Path) -> None:
    with_manifest(coordinator, cache)
    change_manifest(snapshot(cache), lambda manifest: manifest.update(created_at_unix_secs=1))
    coordinator.client(cache).fetch_stage(coordinator.last_load, features=FEATURES)
    assert files_of(cache)[MANIFEST_NAME] == coordinator.manifest


def test_a_manifest_over_the_limit_is_not_read_from_the_cache(
    coordinator: Coordinator, cache: Path
) -> None:
    with_manifest(coordinator, cache)
    limits = replace(LIMITS, manifest_bytes=100)
    client = ArtifactClient(coordinator.connect, PEER, cache, limits=limits)
    assert failure(client, coordinator.last_load).kind == "manifest_too_large"


def test_each_file_that_is_there_is_hashed_once(
    coordinator: Coordinator, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    real = subject.verify_digest

    def counted(opened: Any, manifest: Any, artifact: Any, **options: Any) -> bool:
        hashed.append(artifact.path)
        return real(opened, manifest, artifact, **options)

    monkeypatch.setattr(subject, "verify_digest", counted)
    with_manifest(coordinator, cache)
    coordinator.client(cache).fetch_stage(coordinator.last_load, features=FEATURES)
    assert sorted(hashed) == sorted(LAST - {LAYER, MANIFEST_NAME})
