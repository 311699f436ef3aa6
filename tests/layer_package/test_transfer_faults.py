"""Owns the tests of a worker's disk and peers that fail: nothing outside, nothing half there."""

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.errors import TransferError
from packages.layer_package.transfer.client import ArtifactClient
from packages.layer_package.transfer.frames import ByteStream, write_all
from packages.layer_package.transfer.messages import ArtifactRequest
from tests.layer_package.transfer_cases import (
    FEATURES,
    LIMITS,
    PEER,
    REPOSITORY,
    REVISION,
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


def test_two_workers_of_one_cache_both_succeed(coordinator: Coordinator, cache: Path) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            coordinator.client(cache).fetch_stage(coordinator.last_load, features=FEATURES)
        except TransferError as e:
            errors.append(e)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []
    source = files_of(coordinator.cache)
    assert files_of(cache) == {path: source[path] for path in LAST}


@pytest.mark.parametrize("where", [REPOSITORY, f"{REPOSITORY}/snapshots",
                                   f"{REPOSITORY}/snapshots/{REVISION}",
                                   f"{REPOSITORY}/snapshots/{REVISION}/layers"])  # fmt: skip
def test_nothing_is_written_through_a_link_out_of_the_cache(
    coordinator: Coordinator, cache: Path, tmp_path: Path, where: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (cache / where).parent.mkdir(parents=True)
    (cache / where).symlink_to(outside)
    error = failure(coordinator.client(cache), coordinator.last_load)
    assert error.kind in ("artifact_escapes_root", "transfer_not_stored")
    assert str(tmp_path) not in str(error)
    assert list(outside.iterdir()) == []


def test_a_folder_in_the_place_of_a_file_is_a_failure(
    coordinator: Coordinator, cache: Path
) -> None:
    (snapshot(cache) / LAYER / "x").mkdir(parents=True)
    error = failure(coordinator.client(cache), coordinator.last_load)
    assert error.kind == "transfer_not_stored"
    assert partials(cache) == []


def test_a_disk_that_is_full_leaves_no_partial(
    coordinator: Coordinator, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_manifest(coordinator, cache)
    real = os.pwrite
    n_writes = 0

    def full(descriptor: int, data: Any, offset: int) -> int:
        nonlocal n_writes
        n_writes += 1
        if n_writes > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    assert failure(coordinator.client(cache), coordinator.last_load).kind == "transfer_not_stored"
    assert partials(cache) == []


@pytest.mark.parametrize("stalls", ["answer", "body", "end"])
def test_a_peer_that_stalls_is_left(coordinator: Coordinator, cache: Path, stalls: str) -> None:
    with_manifest(coordinator, cache)
    limits = replace(LIMITS, idle_seconds=0.1, open_seconds=0.1)
    wanted = files_of(coordinator.cache)[LAYER]
    gone = threading.Event()

    def answer(stream: ByteStream, request: ArtifactRequest) -> None:
        if stalls != "answer":
            size = len(wanted) if stalls == "end" else 100
            send(len(wanted), coordinator.entry(LAYER)["sha256"], wanted[:size])(stream, request)
        gone.wait(20)

    with fake_peer(answer) as connect:

        def impatient() -> ByteStream:
            stream = connect()
            stream._socket.settimeout(0.1)
            return stream

        began = time.monotonic()
        client = ArtifactClient(impatient, PEER, cache, limits=limits)
        assert failure(client, coordinator.last_load).kind == "transfer_timeout"
        assert time.monotonic() - began < 10
        gone.set()


def test_a_peer_that_drips_is_left(coordinator: Coordinator, cache: Path) -> None:
    with_manifest(coordinator, cache)
    limits = replace(LIMITS, idle_seconds=0.2)
    wanted = files_of(coordinator.cache)[LAYER]

    def answer(stream: ByteStream, request: ArtifactRequest) -> None:
        send(len(wanted), coordinator.entry(LAYER)["sha256"], b"")(stream, request)
        for i in range(len(wanted)):
            write_all(stream, wanted[i : i + 1])
            time.sleep(0.02)

    with fake_peer(answer) as connect:
        client = ArtifactClient(connect, PEER, cache, limits=limits)
        assert failure(client, coordinator.last_load).kind == "transfer_timeout"


@pytest.mark.parametrize("error", [OSError(111, "refused"), TransferError("transfer_timeout", "x")])
def test_a_coordinator_that_cannot_be_reached(
    coordinator: Coordinator, cache: Path, error: Exception
) -> None:
    def connect() -> ByteStream:
        raise error

    assert failure(coordinator.client(cache, connect), coordinator.last_load)
    assert files_of(cache) == {}
