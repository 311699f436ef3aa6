"""Owns what the tests of a worker share: its last stage, partials, peers that lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.errors import TransferError
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.transfer.client import ArtifactClient, StageLoad
from packages.layer_package.transfer.frames import ByteStream, write_all, write_frame
from packages.layer_package.transfer.messages import ArtifactRequest, ArtifactResponse
from tests.layer_package.transfer_cases import FEATURES, Coordinator, Tampered, files_of, snapshot

LAST = {MANIFEST_NAME, "shared/metadata.gguf", "layers/layer-00001.gguf",
        "layers/layer-00002.gguf", "shared/output.gguf"}  # fmt: skip


LAYER = "layers/layer-00001.gguf"


def failure(client: ArtifactClient, load: StageLoad, **options: Any) -> TransferError:
    with pytest.raises(TransferError) as caught:
        client.fetch_stage(load, features=FEATURES, **options)
    return caught.value


def partials(cache: Path) -> list[Path]:
    return sorted(snapshot(cache).rglob(".*"))


def leave(cache: Path, path: str, data: bytes, name: str = "7.8") -> Path:
    """A partial of an earlier process."""
    target = snapshot(cache) / path
    target.parent.mkdir(parents=True, exist_ok=True)
    left = target.with_name(f".{target.name}.{name}.part")
    left.write_bytes(data)
    return left


def tampered(
    coordinator: Coordinator, change: Callable[[bytes], bytes]
) -> Callable[[], ByteStream]:
    """Streams whose reads after the answer pass through `change`."""

    def connect() -> ByteStream:
        n_reads = 0

        def counted(data: bytes) -> bytes:
            nonlocal n_reads
            n_reads += 1
            # the answer's length and the answer
            return data if n_reads <= 2 else change(data)

        return Tampered(coordinator.connect(), counted)

    return connect


def send(total_size: int, sha256: str | None, body: bytes) -> Callable[[ByteStream, Any], None]:
    def answer(stream: ByteStream, request: ArtifactRequest) -> None:
        write_frame(stream, ArtifactResponse(True, total_size, sha256).encode())
        write_all(stream, body[request.offset :])

    return answer


def with_manifest(coordinator: Coordinator, cache: Path) -> None:
    """Only the layers are missing."""
    for path in LAST - {LAYER}:
        target = snapshot(cache) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(files_of(coordinator.cache)[path])
