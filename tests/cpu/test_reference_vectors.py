"""Owns the oracle's comparison with stored vectors of another implementation, without torch.

`reference/vectors/README.md` names how they were made. The float64 vectors come from a model whose
internal casts were all widened, so they hold to rounding of float64; the float32 ones show how far
an unchanged float32 run of it lies away.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference.compare import mismatch
from reference.config import Config
from reference.hybrid import Hybrid
from reference.state import KvRows
from reference.synthetic import CountedWeights

FOLDER = Path(__file__).resolve().parents[2] / "reference" / "vectors"
CASES = ["tiny", "tiny_seed3", "tiny_mrope", "tiny_yarn", "tiny_two_kv_heads", "mini"]


@cache
def load(case: str) -> tuple[dict[str, Any], Hybrid]:
    with np.load(FOLDER / f"{case}.npz") as archive:
        stored = {name: archive[name] for name in archive.files}
    config = Config.from_json(json.loads(str(stored["config"])))
    seed = int(stored["seed"])
    return stored, Hybrid(CountedWeights(config, None if seed < 0 else seed), config)


def test_every_stored_case_is_compared() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.npz")) == sorted(CASES)


@pytest.mark.parametrize("case", CASES)
def test_hidden_states_logits_and_states(case: str) -> None:
    stored, model = load(case)
    rows = stored["rows"]
    out = model.forward(stored["ids"], positions=stored["positions"], record=True)
    residuals = [out.taps[layer]["resid"] for layer in range(model.config.n_layers - 1)]
    hidden = [out.taps["model"]["embed"], *residuals, out.hidden]
    pairs = [(f"hidden {i}", array[rows], stored["hidden"][i]) for i, array in enumerate(hidden)]
    pairs.append(("logits", out.logits[rows], stored["logits"]))
    for layer, state in enumerate(out.state.layers):
        if isinstance(state, KvRows):
            pairs.append((f"k {layer}", state.k[rows], stored[f"k{layer}"]))
            pairs.append((f"v {layer}", state.v[rows], stored[f"v{layer}"]))
        else:
            pairs.append((f"matrix {layer}", state.matrix[-1, :4], stored[f"matrix{layer}"]))
            pairs.append((f"conv {layer}", state.conv[:, -64:], stored[f"conv{layer}"]))
    for name, got, want in pairs:
        assert (found := mismatch(got, want, "f64_path", name)) is None, found
    narrow = stored["hidden_f32"]
    for layer, array in enumerate(hidden):
        found = mismatch(narrow[layer], array[rows], "f32_path", f"float32 hidden {layer}")
        assert found is None, found
    assert (found := mismatch(stored["logits_f32"], out.logits[rows], "f32_path")) is None, found


@pytest.mark.parametrize("case", [case for case in CASES if case != "tiny_mrope"])
def test_greedy_continuation(case: str) -> None:
    stored, model = load(case)
    chosen = stored["greedy"].tolist()
    logits = model.forward([*stored["ids"], *chosen[:-1]]).logits[len(stored["ids"]) - 1 :]
    assert [model.best(row)[0] for row in logits] == chosen
