"""Conversion at the real widths and vocabulary, two layers: 14 GB of disk, so on demand.

    MESH_SPECIALIZE_BIG_TESTS=1 pytest tests/cpu/test_convert_full_width.py

Measured: KNOWLEDGE/findings/conversion-costs.md.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.artifacts.mspec import open_mspec
from packages.qwen3_8_27b import PACKAGE
from reference.checkpoint import Checkpoint
from reference.synthetic import lively, write_checkpoint
from reference.weights import tensor
from tests import rungs, tiny_hybrid

BIG_TESTS = "MESH_SPECIALIZE_BIG_TESTS"
pytestmark = [
    pytest.mark.skipif(os.environ.get(BIG_TESTS) != "1", reason=f"{BIG_TESTS} is not 1"),
    pytest.mark.timeout(3600),
]
DIMS = PACKAGE.dims["two_layers"]
MAX_RSS_BYTES = 2 << 30
CHILD = """
import json, resource, sys
from pathlib import Path
from packages.convert import convert
report = convert(Path(sys.argv[1]), Path(sys.argv[2]), package="qwen3_8_27b:two_layers",
                 recipe=sys.argv[3], progress=lambda done, total: None)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"weights_id": report.weights_id, "peak": peak}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A multimodal checkpoint in shards, with vision and MTP tensors beside the text path."""
    config = replace(rungs.config_of(DIMS), max_positions=DIMS.n_context)
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = tiny_hybrid.tokenizer_json(DIMS.n_vocab_real).encode()
    write_checkpoint(folder, lively(config, seed=1), config, shard_bytes=4 << 30, vision=True,
                     tokenizer=tokenizer)
    return folder


@pytest.mark.parametrize("recipe", ["bf16", "groupwise-int"])
def test_a_27b_shaped_checkpoint_converts_in_bounded_memory(
    checkpoint: Path, tmp_path: Path, recipe: str
) -> None:
    target = tmp_path / "out.mspec"
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(checkpoint), str(target), recipe],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["peak"] < MAX_RSS_BYTES
    source = Checkpoint(checkpoint)
    with open_mspec(target) as file:
        assert file.identity.weights_id == told["weights_id"]
        name = "model.layers.1.self_attn.k_proj.weight"
        found, want = file.tensor(name).to_float32(), tensor(source, name)
        # A group's largest code is 7, so half a step is a fourteenth of its largest weight.
        bound = 0.0 if recipe == "bf16" else abs(want).max() / 13
        assert abs(found - want).max() <= bound
    target.unlink()
