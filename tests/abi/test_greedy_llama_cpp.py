"""SmolLM2's greedy ids through the C ABI against llama.cpp's, 20 prompts of 64 tokens.

Ours opens the shipped file. llama.cpp opens a float32 copy that our writer makes, because it
quantises activations for block formats, and keeps its KV cache in float32 for the same reason.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts.gguf import open_gguf
from engine.artifacts.gguf_writer import to_float32_gguf
from skippy_abi import client
from tests.judge_llama_cpp import llama_cpp_greedy, llama_cpp_server

PROMPTS = [
    "Why is the sky blue?", "Name three colours.", "Write a haiku about rain.",
    "What is 17 plus 25?", "Translate 'good morning' to French.", "Who wrote Hamlet?",
    "Explain recursion to a child.", "List five fruits.", "What is the capital of Japan?",
    "Give me a recipe for pancakes.", "def fibonacci(n):", "Summarise the water cycle.",
    "Tell me a joke about cats.", "What does HTTP stand for?", "Describe the colour red.",
    "How do vaccines work?", "Complete: once upon a time", "¿Dónde está la biblioteca?",
    "Compare dogs and cats.", "What is a prime number?",
]
N_TOKENS = 64


@pytest.fixture(scope="module")
def llama_cpp(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a llama.cpp server in this process on the float32 copy."""
    copy = tmp_path_factory.mktemp("float32") / "smollm2.gguf"
    with open_gguf(smollm2_path) as source:
        to_float32_gguf(source, copy)
    with llama_cpp_server(copy) as address:
        yield address
    copy.unlink()


def ours(model: client.OpenModel, session: Any, tokens: list[int]) -> list[int]:
    """Our greedy continuation by the host's calls, end token left out."""
    token = session.prefill_sampled(tokens)
    chosen: list[int] = []
    while not model.is_eog(token) and len(chosen) < N_TOKENS:
        chosen.append(token)
        token = session.decode(token)
    session.reset()
    return chosen


def test_greedy_ids_equal_llama_cpp(
    runtime: client.Host, smollm2_path: Path, llama_cpp: str
) -> None:
    model = client.OpenModel(runtime, smollm2_path, ctx_size=512)
    session = model.session()
    differing = []
    for prompt in PROMPTS:
        text, _ = model.template(json.dumps([{"role": "user", "content": prompt}]))
        tokens = model.tokenize(text)
        mine, other = ours(model, session, tokens), llama_cpp_greedy(llama_cpp, tokens, N_TOKENS)
        # The end token itself may or may not be listed there.
        other = [token for token in other if not model.is_eog(token)]
        if mine != other:
            first = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b),
                         min(len(mine), len(other)))
            differing.append((prompt, first, mine[first:first + 3], other[first:first + 3]))
    session.free()
    model.free()
    assert not differing
