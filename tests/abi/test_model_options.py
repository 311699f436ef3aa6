"""Guards what opening a model refuses besides bad files: strangers, devices, layers, odd flags."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel
from tests import tiny
from tests.abi.model_files import Files, ids_of
from tests.abi.seam import live_handles


@pytest.fixture
def files(runtime: Host) -> Iterator[Files]:
    runtime.symbol("skippy_session_position")(runtime.ffi.NULL)
    before = live_handles()
    yield Files(runtime)
    assert live_handles() == before


def test_a_model_that_is_not_served_is_named_beside_those_that_are(
    files: Files, tmp_path: Path
) -> None:
    stranger = tiny.write(tmp_path / "stranger.gguf", seed=99)
    out = files.ffi.new("struct skippy_model **", files.ffi.cast("struct skippy_model *", 8))
    status, message = files.host.raw(
        "skippy_model_open", files.ffi.new("char[]", bytes(stranger)), files.ffi.NULL, out
    )
    assert (status, out[0]) == (Status.UNSUPPORTED, files.ffi.NULL)
    for words in ("model not served", "tiny twin", "sha256:", "SmolLM2-135M-Instruct"):
        assert words in (message or "")


@pytest.mark.parametrize("device", ["CUDA0", "cpu", "CPU1", "GPU", "CPU ", "é"])
def test_unknown_devices_are_found_before_the_file(files: Files, device: str) -> None:
    name = files.ffi.new("char[]", device.encode())
    with pytest.raises(AbiError, match=f"unknown selected backend device: {device}") as error:
        OpenModel(files.host, Path("/gone.gguf"), selected_backend_device=name)
    assert error.value.status == Status.INVALID_ARGUMENT


@pytest.mark.parametrize("device", ["CPU", "CPU0"])
def test_the_cpu_has_two_names(files: Files, tiny_path: Path, device: str) -> None:
    name = files.ffi.new("char[]", device.encode())
    OpenModel(files.host, tiny_path, ctx_size=16, selected_backend_device=name).free()


def test_the_inventory_names_what_opens(files: Files, tiny_path: Path) -> None:
    count, ffi = files.ffi.new("size_t *"), files.ffi
    files.host.call("skippy_backend_device_count", count)
    assert count[0] >= 1
    for index in range(count[0]):
        device = ffi.new("struct skippy_backend_device *")
        files.host.call("skippy_backend_device_at", index, device)
        assert device.version == 1
        assert 0 < device.memory_free <= device.memory_total
        OpenModel(files.host, tiny_path, ctx_size=16, selected_backend_device=device.name).free()
    for index in (count[0], 2**31, 2**64 - 1):
        status, _ = files.host.raw("skippy_backend_device_at", index, device)
        assert status == Status.INVALID_ARGUMENT


LAYERS = {"filter_tensors_on_load": True, "include_embeddings": True, "include_output": True}


@pytest.mark.parametrize(("config", "status"), [
    ({"layer_start": 1, "layer_end": 2}, Status.UNSUPPORTED),
    ({"layer_start": 0, "layer_end": 99}, Status.OK),
    ({"layer_start": 0, "layer_end": -4, "include_output": False}, Status.OK),
    ({**LAYERS, "layer_start": 0, "layer_end": 2}, Status.OK),
    ({**LAYERS, "layer_start": 0, "layer_end": 3}, Status.INVALID_ARGUMENT),
    ({**LAYERS, "layer_start": 0, "layer_end": 0}, Status.INVALID_ARGUMENT),
    ({**LAYERS, "layer_start": 1, "layer_end": 1}, Status.INVALID_ARGUMENT),
    ({**LAYERS, "layer_start": -1, "layer_end": 2}, Status.INVALID_ARGUMENT),
    ({**LAYERS, "layer_start": 2, "layer_end": 1}, Status.INVALID_ARGUMENT),
    ({"mtp_source": 1}, Status.OK),
    ({"n_gpu_layers": 99, "flash_attn_type": 1, "cache_type_k": 8, "cache_type_v": 2}, Status.OK),
    ({"cache_type_k": -1, "n_threads": -5, "n_ubatch": -1, "stage_index": -1}, Status.OK),
])
def test_layer_filters_and_hints(
    files: Files, tiny_path: Path, config: dict[str, Any], status: Status
) -> None:
    values = {"ctx_size": 32, **config}
    if status == Status.OK:
        assert len(ids_of(OpenModel(files.host, tiny_path, **values))) == 8
        return
    with pytest.raises(AbiError) as error:
        OpenModel(files.host, tiny_path, **values)
    assert error.value.status == status


def test_a_bool_that_is_neither_is_refused(files: Files, tiny_path: Path) -> None:
    ffi = files.ffi
    config = ffi.new("struct skippy_runtime_config *", {"ctx_size": 16})
    offset = ffi.offsetof("struct skippy_runtime_config", "filter_tensors_on_load")
    ffi.buffer(config)[offset : offset + 1] = b"\x07"
    out = ffi.new("struct skippy_model **")
    status, message = files.host.raw(
        "skippy_model_open", ffi.new("char[]", bytes(tiny_path)), config, out
    )
    assert (status, "neither 0 nor 1" in (message or "")) == (Status.INVALID_ARGUMENT, True)


def test_attaching_a_draft_is_refused(files: Files, tiny_path: Path) -> None:
    model = OpenModel(files.host, tiny_path, ctx_size=16)
    path = files.ffi.new("char[]", bytes(tiny_path))
    for source, status in ((0, Status.INVALID_ARGUMENT), (2, Status.UNSUPPORTED)):
        config = files.ffi.new("struct skippy_runtime_config *", {"mtp_source": source})
        found, _ = files.host.raw("skippy_model_attach_mtp_draft_model", model.handle, path, config)
        assert found == status
    model.free()
