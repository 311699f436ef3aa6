"""Owns the tests of transfers that break off and go on: which partials, from where, how often."""

import fcntl
import os
import stat
from pathlib import Path

import pytest

from packages.layer_package.errors import Cancelled
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.transfer.frames import ByteStream, write_frame
from packages.layer_package.transfer.messages import ArtifactRequest, ArtifactResponse
from tests.layer_package.transfer_cases import (
    FEATURES,
    LIMITS,
    Coordinator,
    fake_peer,
    files_of,
    snapshot,
)
from tests.layer_package.worker_cases import (
    LAYER,
    failure,
    leave,
    partials,
    send,
    tampered,
    with_manifest,
)

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path / "cache", package={"projector": True})


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "worker"


@pytest.mark.parametrize("cut", [1, 500, 1000, 1700])
def test_a_dropped_connection_is_resumed_where_it_was(
    coordinator: Coordinator, cache: Path, cut: int
) -> None:
    with_manifest(coordinator, cache)
    wanted = files_of(coordinator.cache)[LAYER]
    assert cut < len(wanted)
    left = [cut]

    def drop(data: bytes) -> bytes:
        taken = data[: left[0]]
        left[0] -= len(taken)
        return taken

    client = coordinator.client(cache, tampered(coordinator, drop))
    assert failure(client, coordinator.last_load).kind == "transfer_truncated"
    (partial,) = partials(cache)
    assert partial.read_bytes() == wanted[:cut]
    assert stat.S_IMODE(partial.stat().st_mode) == 0o600
    name, pid, nanos, end = partial.name.rsplit(".", 3)
    assert (name, int(pid), end) == (".layer-00001.gguf", os.getpid(), "part")
    assert int(nanos) > 0
    coordinator.join()
    coordinator.sent.clear()
    progress: list[int] = []
    coordinator.client(cache).fetch_stage(
        coordinator.last_load, features=FEATURES, progress=lambda done, _: progress.append(done)
    )
    coordinator.join()
    assert coordinator.sent == [len(wanted) - cut]
    assert progress[0] == cut
    assert files_of(cache)[LAYER] == wanted
    assert partials(cache) == []


def test_the_largest_usable_partial_is_continued_and_larger_ones_are_deleted(
    coordinator: Coordinator, cache: Path
) -> None:
    with_manifest(coordinator, cache)
    wanted = files_of(coordinator.cache)[LAYER]
    leave(cache, LAYER, wanted[:10], "1.1")
    leave(cache, LAYER, wanted[:700], "1.2")
    too_large = leave(cache, LAYER, wanted + b"x", "1.3")
    others = [
        leave(cache, "layers/layer-00002.gguf", b"x", "1.4"),
        leave(cache, LAYER, b"x", "1.x"),
        leave(cache, "layers/layer-00001_gguf", b"x", "1.5"),
        snapshot(cache) / "layers/.layer-00001.gguf.part",
    ]
    others[-1].write_bytes(b"x")
    client = coordinator.client(cache)
    client.fetch_stage(coordinator.last_load, features=FEATURES)
    coordinator.join()
    assert coordinator.sent == [len(wanted) - 700]
    assert files_of(cache)[LAYER] == wanted
    assert not too_large.exists()
    assert partials(cache) == sorted(others)


def test_a_partial_with_wrong_bytes_is_dropped_and_the_file_fetched_once_more(
    coordinator: Coordinator, cache: Path
) -> None:
    with_manifest(coordinator, cache)
    wanted = files_of(coordinator.cache)[LAYER]
    leave(cache, LAYER, b"x" * 700)
    leave(cache, LAYER, b"y" * 800, "7.9")
    coordinator.client(cache).fetch_stage(coordinator.last_load, features=FEATURES)
    coordinator.join()
    # one restart, and from 0: not from the other partial
    assert coordinator.sent == [len(wanted) - 800, len(wanted)]
    assert files_of(cache)[LAYER] == wanted
    assert partials(cache) == []


def test_a_peer_that_refuses_the_offset_is_asked_from_zero(
    coordinator: Coordinator, cache: Path
) -> None:
    with_manifest(coordinator, cache)
    wanted = files_of(coordinator.cache)[LAYER]
    leave(cache, LAYER, wanted[:100])
    asked: list[int] = []

    def answer(stream: ByteStream, request: ArtifactRequest) -> None:
        asked.append(request.offset)
        if request.offset:
            refusal = ArtifactResponse(False, error="invalid transfer offset")
            write_frame(stream, refusal.encode())
        else:
            send(len(wanted), coordinator.entry(LAYER)["sha256"], wanted)(stream, request)

    with fake_peer(answer) as connect:
        client = coordinator.client(cache, connect)
        client.fetch_stage(coordinator.last_load, features=FEATURES)
    assert asked == [100, 0]


def test_partials_that_are_links_or_in_use_are_left_alone(
    coordinator: Coordinator, cache: Path, tmp_path: Path
) -> None:
    with_manifest(coordinator, cache)
    wanted = files_of(coordinator.cache)[LAYER]
    outside = tmp_path / "outside"
    outside.write_bytes(wanted[:900])
    link = snapshot(cache) / "layers/.layer-00001.gguf.1.1.part"
    link.symlink_to(outside)
    hard = snapshot(cache) / "layers/.layer-00001.gguf.1.2.part"
    os.link(outside, hard)
    fifo = snapshot(cache) / "layers/.layer-00001.gguf.1.3.part"
    os.mkfifo(fifo)
    busy = leave(cache, LAYER, wanted[:800], "1.4")
    with open(busy, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        coordinator.client(cache).fetch_stage(coordinator.last_load, features=FEATURES)
    coordinator.join()
    assert coordinator.sent == [len(wanted)]
    assert files_of(cache)[LAYER] == wanted
    assert outside.read_bytes() == wanted[:900]
    assert busy.read_bytes() == wanted[:800]


def test_a_caller_that_cancels_keeps_what_came(coordinator: Coordinator, cache: Path) -> None:
    with_manifest(coordinator, cache)
    done: list[int] = []
    with pytest.raises(Cancelled):
        coordinator.client(cache).fetch_stage(
            coordinator.last_load, features=FEATURES,
            progress=lambda n_bytes, _: done.append(n_bytes),
            cancelled=lambda: bool(done) and done[-1] > 0,
        )  # fmt: skip
    (partial,) = partials(cache)
    assert partial.stat().st_size == LIMITS.piece_bytes
    coordinator.client(cache).fetch_stage(coordinator.last_load, features=FEATURES)


def test_revocation_in_mid_stream_is_a_failure_that_can_be_resumed(
    coordinator: Coordinator, cache: Path
) -> None:
    with_manifest(coordinator, cache)

    def progress(n_bytes: int, _: int) -> None:
        if n_bytes >= LIMITS.piece_bytes:
            coordinator.topologies.revoke("split", "run-1")

    # Its send buffer is as small as the system allows, so that it waits for its reader.
    client = coordinator.client(cache, lambda: coordinator.connect(send_bytes=1))
    error = failure(client, coordinator.last_load, progress=progress)
    assert error.kind in ("transfer_truncated", "transfer_disconnected")
    coordinator.topologies.activate(coordinator.topology)
    coordinator.client(cache).fetch_stage(coordinator.last_load, features=FEATURES)
    assert files_of(cache)[LAYER] == files_of(coordinator.cache)[LAYER]


def test_a_manifest_is_never_continued(coordinator: Coordinator, cache: Path) -> None:
    leave(cache, MANIFEST_NAME, coordinator.manifest[:100])
    coordinator.client(cache).fetch_stage(coordinator.last_load, features=FEATURES)
    coordinator.join()
    assert coordinator.sent[0] == len(coordinator.manifest)
    assert partials(cache) == []
