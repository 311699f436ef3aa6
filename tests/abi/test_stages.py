"""Layer stages and activation frames: a split model equals the whole one bit for bit.

Two and three stages of both tiny models, through the frame calls of the ABI, in one process.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts.mspec import open_mspec
from engine.errors import Status
from reference.config import TINY
from reference.synthetic import lively
from skippy_abi import client
from tests import tiny_hybrid
from tests.abi.stages import Stages

PROMPT = [11, 40, 7, 99, 250, 3, 3, 18, 77, 200, 31, 5, 60]


@pytest.fixture(scope="module")
def hybrid_path(tmp_path_factory: pytest.TempPathFactory, tiny_path: Path) -> Path:
    """A tiny hybrid, served beside the tiny dense models."""
    folder = tmp_path_factory.mktemp("hybrid")
    path = tiny_hybrid.write(folder / "hybrid.mspec", lively(TINY, seed=5))
    table = Path(os.environ["MESH_SPECIALIZE_SERVES"])
    with open_mspec(path) as file:
        digest = file.identity.weights_id
    row = f'\n[[artifact]]\npackage = "qwen3_8_27b:tiny"\ncontent_sha256 = "{digest}"\n'
    table.write_text(table.read_text() + row)
    return path


def whole(host: client.Host, path: Path, n_tokens: int) -> list[int]:
    model = client.OpenModel(host, path, ctx_size=128)
    session = model.session()
    token = session.prefill_sampled(PROMPT)
    chosen = [token]
    for _ in range(n_tokens):
        token = session.decode(token)
        chosen.append(token)
    session.free()
    model.free()
    return chosen


CASES = [("dense", [0, 1, 2]), ("hybrid", [0, 3, 8]), ("hybrid", [0, 2, 5, 8]),
         ("hybrid", [0, 1, 4, 8])]


@pytest.mark.parametrize(("kind", "edges"), CASES, ids=str)
def test_a_split_model_equals_the_whole_one(
    runtime: client.Host, tiny_path: Path, hybrid_path: Path, kind: str, edges: list[int]
) -> None:
    path, d_model = (tiny_path, 48) if kind == "dense" else (hybrid_path, 96)
    expected = whole(runtime, path, 12)
    stages = Stages(runtime, path, edges, d_model)
    token = stages.prefill(PROMPT)
    chosen = [token]
    for _ in range(12):
        token = stages.decode(token)
        chosen.append(token)
    stages.free()
    assert chosen == expected
    assert len(set(chosen)) >= 3


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_rejected_window_is_undone_on_every_stage(
    runtime: client.Host, hybrid_path: Path, kept: int
) -> None:
    expected = whole(runtime, hybrid_path, 8)
    stages = Stages(runtime, hybrid_path, [0, 2, 5, 8], 96)
    token = stages.prefill(PROMPT)
    window = [token, *expected[1:kept], *[9] * (4 - max(kept, 1))]
    assert stages.verify(window)[: max(kept, 1)] == expected[1 : max(kept, 1) + 1]
    stages.trim(len(PROMPT) + kept)
    chosen = expected[: kept + 1]
    for _ in range(8 - kept):
        chosen.append(stages.decode(chosen[-1]))
    stages.free()
    assert chosen == expected


def test_frames_that_do_not_fit_are_refused(
    runtime: client.Host, hybrid_path: Path
) -> None:
    ffi = runtime.ffi
    stages = Stages(runtime, hybrid_path, [0, 3, 8], 96)
    ids = ffi.new("int32_t[]", PROMPT)
    first = stages.call("skippy_prefill_chunk_frame", 0, [ids, len(PROMPT)], None, [], len(PROMPT))
    second = stages.sessions[1]

    def status(desc: Any, payload: Any) -> int:
        return runtime.raw("skippy_prefill_chunk_frame", second.handle, ids, len(PROMPT), desc,
                           payload, ffi.NULL, ffi.NULL, 0, ffi.NULL)[0]

    assert status(ffi.NULL, ffi.NULL) == Status.INVALID_ARGUMENT
    good = first[0][0]
    changes = {"version": 2, "dtype": 2, "layout": 0, "layer_end": 4, "token_count": 12,
               "sequence_count": 0, "payload_bytes": good.payload_bytes - 4, "flags": 1}
    for name, value in changes.items():
        desc = ffi.new("struct skippy_activation_desc *", good)
        setattr(desc, name, value)
        assert status(desc, first[1]) == Status.INVALID_ARGUMENT, name
    assert status(first[0], ffi.cast("void *", 64)) == Status.INVALID_ARGUMENT
    assert second.position == 0
    assert status(*first) == Status.OK
    assert second.position == len(PROMPT)
    stages.free()


def test_an_emitting_stage_wants_room_before_it_runs(
    runtime: client.Host, hybrid_path: Path
) -> None:
    ffi = runtime.ffi
    stages = Stages(runtime, hybrid_path, [0, 3, 8], 96)
    ids, n_bytes = ffi.new("int32_t[]", PROMPT), ffi.new("size_t *")
    needed = len(PROMPT) * 96 * 4
    small = ffi.new("char[]", needed - 1)

    def status(payload: Any, capacity: int) -> int:
        return runtime.raw("skippy_prefill_chunk_frame", stages.sessions[0].handle, ids,
                           len(PROMPT), ffi.NULL, ffi.NULL, ffi.NULL, payload, capacity, n_bytes)[0]

    assert status(ffi.NULL, needed) == Status.INVALID_ARGUMENT
    assert status(small, needed - 1) == Status.BUFFER_TOO_SMALL
    assert n_bytes[0] == needed
    assert stages.sessions[0].position == 0
    session = stages.sessions[0].handle
    token = ffi.new("int32_t *")
    assert runtime.raw("skippy_decode_step_sampled", session, 5, ffi.NULL, ffi.NULL, 0, ffi.NULL,
                       0, ffi.NULL, token)[0] == Status.UNSUPPORTED
    stages.free()


@pytest.mark.parametrize(("config", "status"), [
    ({"layer_start": 0, "layer_end": 9, "include_output": True}, Status.INVALID_ARGUMENT),
    ({"layer_start": 0, "layer_end": 4, "include_output": True}, Status.INVALID_ARGUMENT),
    ({"layer_start": 0, "layer_end": 4, "include_embeddings": False}, Status.INVALID_ARGUMENT),
    ({"layer_start": 2, "layer_end": 4, "include_embeddings": True}, Status.INVALID_ARGUMENT),
    ({"layer_start": 4, "layer_end": 4}, Status.INVALID_ARGUMENT),
    ({"layer_start": -1, "layer_end": 4}, Status.INVALID_ARGUMENT),
    ({"layer_start": 2, "layer_end": 4, "filter_tensors_on_load": False}, Status.UNSUPPORTED),
], ids=str)
def test_ranges_that_no_chain_can_hold(
    runtime: client.Host, hybrid_path: Path, config: dict[str, Any], status: Status
) -> None:
    values = {"filter_tensors_on_load": True, "include_embeddings": config["layer_start"] == 0,
              "include_output": False, **config}
    with pytest.raises(client.AbiError) as caught:
        client.OpenModel(runtime, hybrid_path, ctx_size=64, **values)
    assert caught.value.status == status
