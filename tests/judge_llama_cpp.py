"""Owns llama.cpp as a judge for tests: a server in this process, and its greedy ids."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest


@contextlib.contextmanager
def llama_cpp_server(path: Path) -> Iterator[str]:
    """Address of a llama.cpp server on a model file; the test is skipped without llama.cpp."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp is the oracle here")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 512
    params.n_parallel = 1
    # Its threads spin: one is faster than two when other tests share the cores.
    params.cpuparams.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.warmup = False
    params.verbosity = -1
    server = xllamacpp.Server(params)
    yield server.listening_address
    del server


def llama_cpp_greedy(
    address: str, tokens: Sequence[int], n_tokens: int, ignore_eos: bool = False
) -> list[int]:
    """llama.cpp's greedy continuation; the end token may or may not be in it, unless ignored."""
    body = {"prompt": list(tokens), "n_predict": n_tokens, "temperature": 0, "return_tokens": True,
            "cache_prompt": False, "samplers": ["top_k"], "top_k": 1,
            "ignore_eos": ignore_eos}
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=280) as answer:
        return list(json.load(answer)["tokens"])
