"""Guards which opens fall through to another runtime, and what becomes of them there.

What must fail to load runs in a child process: `test_fallback_load.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.errors import Status
from skippy_abi import client, table
from skippy_abi.fallback_front import FIRST_HANDLE
from tests import tiny
from tests.cpu.mspec_cases import mspec, sound_items

if TYPE_CHECKING:
    # Left to pytest_plugins at run time, as for every module of fixtures.
    from tests.abi.provider import Provider


pytest_plugins = ["tests.abi.provider"]
SYMBOLS = {symbol.name: symbol for symbol in table.load().served}
OPENS = [name for name in SYMBOLS if name.startswith("skippy_model_open")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tiny_path: Path) -> dict[str, Path]:
    """Files that are no model of ours, by what is wrong with them."""
    folder = tmp_path_factory.mktemp("files")
    whole, sound = tiny_path.read_bytes(), mspec(sound_items())
    contents = {
        "other weights": tiny.write(folder / "w", seed=77).read_bytes(),
        "newer version": b"GGUF\x63\0\0\0" + whole[8:],
        "cut off": whole[:5000], "empty": b"", "text": b"no model at all",
        "foreign mspec": sound, "damaged mspec": sound[:-1],
    }
    made = {"missing": folder / "missing", "folder": folder}
    for name, content in contents.items():
        made[name] = folder / name
        made[name].write_bytes(content)
    return made


@pytest.mark.parametrize("name", OPENS)
def test_every_open_forwards_its_arguments(
    runtime: client.Host, other: Provider, foreign_path: Path, name: str
) -> None:
    ffi, seen = runtime.ffi, []

    @ffi.callback("void(const struct skippy_runtime_event_v1 *, void *)")
    def callback(event: Any, user_data: Any) -> None:
        seen.append(event.kind)

    path = ffi.new("char[]", str(foreign_path).encode())
    reporter = ffi.new("struct skippy_runtime_event_reporter_v1 *", {
        "abi_version": 1, "callback": ffi.cast("skippy_runtime_event_callback", callback),
        "struct_size": ffi.sizeof("struct skippy_runtime_event_reporter_v1"),
    })
    # Nothing of this is right for us, and none of it is ours to judge.
    device = ffi.new("char[]", b"CUDA7")
    config = ffi.new("struct skippy_runtime_config *", {
        "selected_backend_device": device, "cache_type_k": 999, "layer_start": 5,
    })
    values = {
        "path": path, "paths": ffi.new("char *[]", [path]), "path_count": 1, "config": config,
        "reporter": reporter, "out_model": ffi.new("struct skippy_model **"),
        "out_error": ffi.new("struct skippy_error **"),
    }
    given = {p.name: values[p.name] for p in SYMBOLS[name].params}
    assert runtime.symbol(name)(*given.values()) == Status.OK
    assert (other.calls(name), other.arguments(name)) == (1, other.as_kept(given))
    # STARTED is the other runtime's to send.
    assert seen == []
    model = values["out_model"][0]
    assert runtime.raw("skippy_model_free", model) == (Status.OK, None)


def test_an_open_that_it_refuses_fails_with_its_error(
    runtime: client.Host, other: Provider, foreign_path: Path
) -> None:
    other.answer(Status.MODEL_ERROR)
    with pytest.raises(client.AbiError, match="the other runtime says no"):
        client.OpenModel(runtime, foreign_path)
    assert other.errors == 0


@pytest.mark.parametrize(
    ("what", "is_forwarded", "status"),
    [
        ("other weights", True, Status.UNSUPPORTED), ("newer version", True, Status.MODEL_ERROR),
        ("cut off", True, Status.MODEL_ERROR), ("empty", True, Status.MODEL_ERROR),
        ("text", True, Status.MODEL_ERROR), ("missing", True, Status.MODEL_ERROR),
        ("folder", True, Status.MODEL_ERROR), ("foreign mspec", True, Status.UNSUPPORTED),
        ("damaged mspec", False, Status.MODEL_ERROR),
    ],
)
def test_what_falls_through_and_what_it_is_without_a_fallback(
    runtime: client.Host, other: Provider, files: dict[str, Path], what: str, is_forwarded: bool,
    status: Status, monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_forwarded:
        client.OpenModel(runtime, files[what]).free()
    else:
        with pytest.raises(client.AbiError):
            client.OpenModel(runtime, files[what])
    assert other.calls("skippy_model_open") == int(is_forwarded)
    monkeypatch.delenv("MESH_SPECIALIZE_FALLBACK")
    with pytest.raises(client.AbiError) as caught:
        client.OpenModel(runtime, files[what])
    assert caught.value.status == status
    assert other.calls("skippy_model_open") == int(is_forwarded)


def test_bad_pointers_and_bad_options_of_our_models_stay_ours(
    runtime: client.Host, other: Provider, tiny_path: Path, foreign_path: Path
) -> None:
    ffi = runtime.ffi
    out, path = ffi.new("struct skippy_model **"), ffi.new("char[]", str(foreign_path).encode())
    for args in ((ffi.NULL, ffi.NULL, out), (path, ffi.NULL, ffi.NULL),
                 (ffi.cast("char *", 8), ffi.NULL, out)):
        assert runtime.raw("skippy_model_open", *args)[0] == Status.INVALID_ARGUMENT
    device = ffi.new("char[]", b"CUDA7")
    config = ffi.new("struct skippy_runtime_config *", {"selected_backend_device": device})
    own = ffi.new("char[]", str(tiny_path).encode())
    status, message = runtime.raw("skippy_model_open", own, config, out)
    assert (status, "CUDA7" in (message or "")) == (Status.INVALID_ARGUMENT, True)
    assert other.calls("skippy_model_open") == 0


@pytest.mark.parametrize("number", [FIRST_HANDLE, FIRST_HANDLE + 16, 2**64 - 16])
def test_a_handle_that_could_be_ours_is_given_back(
    runtime: client.Host, other: Provider, foreign_path: Path, number: int
) -> None:
    other.next_handle(number)
    with pytest.raises(client.AbiError, match="cannot be kept") as caught:
        client.OpenModel(runtime, foreign_path)
    assert caught.value.status == Status.RUNTIME_ERROR
    assert other.arguments("skippy_model_free")["model"] == number
