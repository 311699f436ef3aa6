"""Guards the foreign symbols: each says its name once and gives the answer its caller handles."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from abi_stubs import stubs
from engine.errors import ModelError
from skippy_abi import table
from tests.abi.c_host import Libraries

PRELUDE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
lines = []
log = LOG(lambda level, text, data: lines.append((level, text.decode(), data)))
def install(callback, data=None):
    for name in ("llama_log_set", "ggml_log_set", "mtmd_helper_log_set"):
        getattr(library, name)(callback, data)
"""


def in_child(library: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Each script has a process of its own: "once" is once in a process."""
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(library)], capture_output=True, text=True,
        check=True,
    )


def test_every_symbol_says_its_name_once_through_the_callback(built_libraries: Libraries) -> None:
    names = [symbol.name for symbol in table.load().of("stubs")]
    plain = [n for n in names if not n.endswith(("_log_set", "_default_params", "_params_default"))]
    plain.remove("mtmd_init_from_file")
    ran = in_child(built_libraries.stubs, f"""
install(log, 7)
for name in {plain} * 3:
    getattr(library, name)(None, None, None, None, None, None, None, None)
for level, text, data in lines:
    print(level, text.split()[1], text.endswith("is a stub\\n"), data)
""")
    setters = ["llama_log_set", "ggml_log_set", "mtmd_helper_log_set"]
    assert ran.stdout.splitlines() == [f"2 {name} True 7" for name in setters + plain]
    assert ran.stderr == ""


def test_null_callback_brings_standard_error_back(built_libraries: Libraries) -> None:
    ran = in_child(built_libraries.stubs, """
library.mtmd_free(None)
install(log)
library.mtmd_bitmap_free(None)
install(None)
library.mtmd_input_chunks_free(None)
print([text.split()[1] for level, text, data in lines])
""")
    assert ran.stderr.splitlines() == [
        "mesh-specialize: mtmd_free is a stub", "mesh-specialize: mtmd_input_chunks_free is a stub",
    ]
    assert "mtmd_bitmap_free" in ran.stdout


def test_callback_may_change_the_callback(built_libraries: Libraries) -> None:
    ran = in_child(built_libraries.stubs, """
log = LOG(lambda level, text, data: lines.append(text) or library.mtmd_helper_log_set(None, None))
library.mtmd_helper_log_set(log, None)
library.mtmd_free(None)
print(len(lines))
""")
    assert (ran.stdout, ran.stderr) == ("1\n", "mesh-specialize: mtmd_free is a stub\n")


class MediaParams(ctypes.Structure):
    """The 80 bytes that cross by value, written here again from the host's side."""

    _fields_ = (
        ("use_gpu", ctypes.c_bool), ("print_timings", ctypes.c_bool), ("n_threads", ctypes.c_int),
        ("image_marker", ctypes.c_char_p), ("media_marker", ctypes.c_char_p),
        ("flash_attn_type", ctypes.c_int), ("warmup", ctypes.c_bool),
        ("image_min_tokens", ctypes.c_int), ("image_max_tokens", ctypes.c_int),
        ("cb_eval", ctypes.c_void_p), ("cb_eval_user_data", ctypes.c_void_p),
        ("batch_max_tokens", ctypes.c_int32), ("progress_callback", ctypes.c_void_p),
        ("progress_callback_user_data", ctypes.c_void_p),
    )


@pytest.fixture(scope="module")
def library(built_libraries: Libraries) -> ctypes.CDLL:
    return ctypes.CDLL(str(built_libraries.stubs))


def test_media_defaults_and_failing_init(library: ctypes.CDLL) -> None:
    assert ctypes.sizeof(MediaParams) == 80
    library.mtmd_context_params_default.restype = MediaParams
    params = library.mtmd_context_params_default()
    assert (params.batch_max_tokens, params.progress_callback) == (1024, None)
    assert (params.media_marker, params.use_gpu) == (b"<__media__>", False)
    library.mtmd_init_from_file.argtypes = [ctypes.c_char_p, ctypes.c_void_p, MediaParams]
    library.mtmd_init_from_file.restype = ctypes.c_void_p
    assert library.mtmd_init_from_file(b"projector.gguf", None, params) is None


def test_quantising_fails(library: ctypes.CDLL) -> None:
    class Params(ctypes.Structure):
        _fields_ = (("numbers", ctypes.c_int32 * 4), ("rest", ctypes.c_char * 40))

    library.llama_model_quantize_default_params.restype = Params
    params = library.llama_model_quantize_default_params()
    kinds = next(e.values for e in table.load().enums if e.name == "ggml_type")
    assert list(params.numbers) == [0, 0, kinds["GGML_TYPE_COUNT"], kinds["GGML_TYPE_COUNT"]]
    assert library.llama_model_quantize(b"a", b"b", ctypes.byref(params)) != 0


@pytest.mark.parametrize(
    "name",
    ["mtmd_helper_bitmap_init_from_buf", "mtmd_input_chunks_init", "mtmd_input_chunks_get",
     "mtmd_input_chunk_get_tokens_image"],
)
def test_makers_and_getters_give_null(library: ctypes.CDLL, name: str) -> None:
    function = getattr(library, name)
    function.restype = ctypes.c_void_p
    assert function(None, None, ctypes.c_size_t(0)) is None


@pytest.mark.parametrize(
    ("name", "answer"),
    [("mtmd_tokenize", 1), ("mtmd_helper_eval_chunks", 1), ("mtmd_helper_eval_chunk_single", 1),
     ("mtmd_helper_get_n_pos", 0), ("mtmd_input_chunk_get_type", 0), ("mtmd_decode_use_mrope", 0),
     ("mtmd_helper_get_n_tokens", 0), ("mtmd_input_chunks_size", 0),
     ("mtmd_input_chunk_get_n_tokens", 0)],
)
def test_work_fails_and_counts_are_zero(library: ctypes.CDLL, name: str, answer: int) -> None:
    assert getattr(library, name)(None, None, None, 0, 0, 0, False, None) == answer


def test_marker_and_token_count_are_written(library: ctypes.CDLL) -> None:
    library.mtmd_default_marker.restype = ctypes.c_char_p
    assert library.mtmd_default_marker() == b"<__media__>"
    count = ctypes.c_size_t(99)
    library.mtmd_input_chunk_get_tokens_text.restype = ctypes.c_void_p
    assert library.mtmd_input_chunk_get_tokens_text(None, ctypes.byref(count)) is None
    assert count.value == 0


def test_row_without_symbol_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = stubs.answers()
    monkeypatch.setattr(stubs, "answers", lambda: {**rows, "mtmd_unknown": {}})
    with pytest.raises(ModelError, match="mtmd_unknown"):
        stubs.source(table.load())
