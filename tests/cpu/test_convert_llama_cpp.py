"""llama.cpp's greedy ids on our `qwen35` GGUF against the oracle's: names and layouts are right.

A wrong name does not load; a wrong head order, gain or decay gives other ids at once.
"""

import dataclasses
import json
import urllib.request
from pathlib import Path

import pytest

from reference.checkpoint import Checkpoint
from reference.config import TINY
from reference.hybrid import Hybrid
from reference.synthetic import lively, write_checkpoint
from tests import qwen_gguf, tiny_hybrid

CONFIG = dataclasses.replace(TINY, max_positions=512)
N_TOKENS = 16
PROMPTS = [[5, 25, 203, 17, 99, 140, 3], [(7 * t * t + 13 * t + 5) % 256 for t in range(48)]]


def theirs(address: str, prompt: list[int]) -> list[int]:
    body = {"prompt": prompt, "n_predict": N_TOKENS, "temperature": 0, "return_tokens": True,
            "cache_prompt": False, "samplers": ["top_k"], "top_k": 1, "ignore_eos": True}
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=280) as answer:
        return list(json.load(answer)["tokens"])


def test_greedy_ids_of_llama_cpp_are_the_oracles(tmp_path: Path) -> None:
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp is what is asked here")
    write_checkpoint(tmp_path / "upstream", lively(CONFIG, 1), CONFIG)
    upstream = Checkpoint(tmp_path / "upstream")
    vocabulary = tiny_hybrid.tokenizer_json(CONFIG.n_vocab)
    path = qwen_gguf.write(tmp_path / "tiny.gguf", upstream, CONFIG, tokenizer=vocabulary)
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 256
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.warmup = False
    params.verbosity = -1
    server = xllamacpp.Server(params)
    oracle = Hybrid(upstream, CONFIG)
    for prompt in PROMPTS:
        found, wanted = theirs(server.listening_address, prompt), oracle.greedy(prompt, N_TOKENS)
        # A near tie may fall either way in float32; up to the first one the ids are equal.
        near = [i for i, margin in enumerate(wanted.margins) if margin < 1e-3]
        n_sure = near[0] if near else N_TOKENS
        assert n_sure >= 8, wanted.margins
        assert found[:n_sure] == wanted.ids[:n_sure]
    del server
