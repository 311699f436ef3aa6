"""llama.cpp's greedy ids on our `qwen35` GGUF against the oracle's: names and layouts are right.

A wrong name does not load; a wrong head order, gain or decay gives other ids at once.
"""

import dataclasses
from pathlib import Path

from reference.checkpoint import Checkpoint
from reference.config import TINY
from reference.hybrid import Hybrid
from reference.synthetic import lively, write_checkpoint
from tests import qwen_gguf, tiny_hybrid
from tests.judge_llama_cpp import llama_cpp_greedy, llama_cpp_server

CONFIG = dataclasses.replace(TINY, max_positions=512)
N_TOKENS = 16
PROMPTS = [[5, 25, 203, 17, 99, 140, 3], [(7 * t * t + 13 * t + 5) % 256 for t in range(48)]]


def test_greedy_ids_of_llama_cpp_are_the_oracles(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "upstream", lively(CONFIG, 1), CONFIG)
    upstream = Checkpoint(tmp_path / "upstream")
    vocabulary = tiny_hybrid.tokenizer_json(CONFIG.n_vocab)
    path = qwen_gguf.write(tmp_path / "tiny.gguf", upstream, CONFIG, tokenizer=vocabulary)
    oracle = Hybrid(upstream, CONFIG)
    with llama_cpp_server(path) as address:
        for prompt in PROMPTS:
            found = llama_cpp_greedy(address, prompt, N_TOKENS, ignore_eos=True)
            wanted = oracle.greedy(prompt, N_TOKENS)
            # A near tie may fall either way in float32; up to the first one the ids are equal.
            near = [i for i, margin in enumerate(wanted.margins) if margin < 1e-3]
            n_sure = near[0] if near else N_TOKENS
            assert n_sure >= 8, wanted.margins
            assert found[:n_sure] == wanted.ids[:n_sure]
