"""The engine's greedy ids on tiny hybrids against transformers on the CPU, in float32.

3 checkpoints, 8 prompts, 64 ids; the rule for near ties is in `tests/hybrid_greedy.py`. The engine
reads a float32 .mspec, transformers a float32 checkpoint folder of the same weights.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reference.hybrid import Hybrid
from reference.synthetic import write_checkpoint
from tests import hybrid_greedy as greedy
from tests import tiny_hybrid

torch = pytest.importorskip("torch", reason="the control extra is not installed")
transformers = pytest.importorskip("transformers", reason="the control extra is not installed")

pytestmark = pytest.mark.control


def theirs(model: Any, prompt: Sequence[int]) -> list[int]:
    with torch.no_grad():
        out = model.generate(
            torch.tensor([list(prompt)]), max_new_tokens=greedy.N_TOKENS, do_sample=False,
            eos_token_id=None,
        )
    return list(out[0, len(prompt) :].tolist())


@pytest.mark.parametrize("seed", greedy.SEEDS)
def test_greedy_ids_equal_transformers(tmp_path: Path, seed: int) -> None:
    weights = greedy.weights(seed)
    ours = greedy.engine_ids(tiny_hybrid.write(tmp_path / "tiny.mspec", weights))
    write_checkpoint(
        tmp_path / "upstream", weights, greedy.CONFIG, dtype="F32", naming="text", mtp=False
    )
    model, loading = transformers.Qwen3_5ForCausalLM.from_pretrained(
        tmp_path / "upstream", dtype=torch.float32, output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    oracle, tally = Hybrid(weights, greedy.CONFIG), greedy.Tally()
    for prompt, mine in zip(greedy.PROMPTS, ours, strict=True):
        greedy.judge(oracle, prompt, mine, theirs(model, prompt), tally)
    assert tally.n_near_ties <= 1, tally
    assert tally.n_equal >= 0.85 * len(greedy.PROMPTS) * greedy.N_TOKENS, tally
