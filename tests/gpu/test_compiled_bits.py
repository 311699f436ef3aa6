"""The first layers of the compiled hybrid at their full widths: the same step, captured, again and
again. Launches overlap there as they do in the whole model, and a model hides small errors well
(KNOWLEDGE/pitfalls/a-released-slot-is-refilled-under-loads.md)."""

from collections.abc import Iterator

import pytest

from engine.model import Model
from engine.options import RuntimeOptions
from engine.records import Stage
from packages.synthetic import synthetic_plan
from ptx.devices.cuda import CudaDevice, available

pytestmark = pytest.mark.gpu
PROMPT, LATER = list(range(40, 59)), (7, 70, 700, 7000)
N_LAYERS, N_LANES, N_TIMES = 8, 16, 8


@pytest.fixture(scope="module", params=["groupwise-int", "bf16"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    if isinstance(found := available(), str):
        pytest.skip(found)
    options = RuntimeOptions(
        n_context=64 * N_LANES, n_lanes=N_LANES, n_batch=64, stage=Stage(0, N_LAYERS, True, False),
    )
    made = Model(synthetic_plan("qwen3_8_27b", recipe=request.param), options, CudaDevice())
    yield made
    made.close()


@pytest.mark.parametrize("n_sessions", [1, 2, 4, 9, 16])
def test_a_step_has_the_same_bits_every_time(model: Model, n_sessions: int) -> None:
    sessions = [model.create_session() for _ in range(n_sessions)]
    told = []
    for _ in range(N_TIMES):
        steps = []
        for index, session in enumerate(sessions):
            session.reset()
            session.prefill([*PROMPT, index])
        for token in LATER:
            rows = model.run_batch(sessions, [token] * n_sessions, [None] * n_sessions)
            steps.append([row.tobytes() for row in rows if row is not None])
        told.append(steps)
    for session in sessions:
        session.free()
    # The first time launch by launch, then as a graph.
    assert len(told[0][0]) == n_sessions
    assert told[1:] == told[:1] * (N_TIMES - 1)
