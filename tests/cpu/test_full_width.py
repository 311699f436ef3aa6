"""The twin `cut`, full widths in four layers, against the oracle: minutes and 13 GB, so on demand.

    MESH_SPECIALIZE_BIG_TESTS=1 pytest tests/cpu/test_full_width.py

Rungs 5 and 6 at the real shapes: a synthetic checkpoint, converted by both recipes, 8 tokens in and
4 out. The oracle reads its weights block by block, from the checkpoint where they are BF16.
Measured: KNOWLEDGE/findings/full-width-cut-on-the-host.md.
"""

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.artifacts.mspec import MspecFile, open_mspec
from packages.convert import convert
from packages.qwen3_8_27b import PACKAGE
from ptx.numerics import Array
from reference.checkpoint import Checkpoint
from reference.compare import mismatch
from reference.hybrid import Hybrid
from reference.rounding import EXACT
from reference.synthetic import lively, write_checkpoint
from reference.weights import Weights
from tests import hybrid_greedy as greedy
from tests import rungs, tiny_hybrid

BIG_TESTS = "MESH_SPECIALIZE_BIG_TESTS"
pytestmark = [
    pytest.mark.skipif(os.environ.get(BIG_TESTS) != "1", reason=f"{BIG_TESTS} is not 1"),
    pytest.mark.timeout(3600),
]

DIMS = PACKAGE.dims["cut"]
CONFIG = rungs.config_of(DIMS)
PROMPT = [5, 1025, 203, 17, 4095, 140, 3, 2048]
N_NEW = 4


class MspecWeights:
    """A .mspec as the oracle's source of weights: what its integer codes stand for."""

    def __init__(self, file: MspecFile) -> None:
        self._file, self._shapes = file, CONFIG.tensors(mtp=False)

    def names(self) -> list[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def rows(self, name: str, start: int, stop: int) -> Array:
        found = self._file.tensor(name).rows_to_float32(start, stop).astype(np.float64)
        return found.reshape(stop - start, *self._shapes[name][1:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("cut")
    tokenizer = tiny_hybrid.tokenizer_json(DIMS.n_vocab_real).encode()
    write_checkpoint(
        made / "upstream", lively(CONFIG, 1, mtp=False), CONFIG, mtp=False, tokenizer=tokenizer
    )
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("recipe", ["bf16", "groupwise-int"])
def test_rungs_5_and_6_at_full_width(folder: Path, recipe: str) -> None:
    path = folder / f"{recipe}.mspec"
    convert(
        folder / "upstream", path, package="qwen3_8_27b:cut", recipe=recipe,
        progress=lambda *_: None,
    )
    with open_mspec(path) as file:
        weights: Weights = Checkpoint(folder / "upstream")
        if recipe != "bf16":
            weights = MspecWeights(file)
        for rounds in (False, True):
            ids, rows = engine_run(path, rounds)
            oracle = Hybrid(weights, CONFIG, rungs.FUSED_BF16 if rounds else EXACT)
            want = oracle.forward([*PROMPT, *ids[:-1]]).logits
            report = mismatch(rows, want, "bf16_path" if rounds else "f32_path", "logits")
            assert report is None, report
            near = greedy.BF16_NEAR_TIE if rounds else greedy.NEAR_TIE
            for step, row in enumerate(want[len(PROMPT) - 1 :]):
                best, lead = oracle.best(row)
                assert ids[step] == best or lead < near, (step, ids, best, lead)
            print(recipe, rounds, ids, mismatch(rows, want, "exact", "logits"))


def engine_run(path: Path, rounds: bool) -> tuple[list[int], Array]:
    """The engine's greedy ids, and its logits after every token that was fed."""
    model = greedy.engine_model(rungs.plan_of(path, DIMS, rounds))
    ids = greedy.engine_greedy(model, PROMPT, N_NEW)
    rows = greedy.engine_logits(model, [*PROMPT, *ids[:-1]])
    del model
    # 6 GB of weights go before the next plan's are read.
    gc.collect()
    return ids, rows
