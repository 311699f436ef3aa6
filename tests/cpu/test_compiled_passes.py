"""Protects the order of copies and launches of a pass: on a device that does everything late, the
compiled hybrid gives the bits of one that does everything at once."""

from pathlib import Path

import pytest

from engine.errors import RuntimeFailure
from engine.model import Model
from engine.sampling import SamplingConfig
from ptx.device import DeviceError
from tests import compiled_hybrid as mini
from tests.compiled_hybrid import rows
from tests.deferred_host import DeferredHost

HOT = SamplingConfig(
    version=1, flags=1, seed=7, temperature=1.3, top_k=40, repeat_penalty=1.1, penalty_last_n=8
)
IDS = [(7 * t * t + 13 * t + 5) % 1021 for t in range(60)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mini.write(tmp_path_factory.mktemp("mini") / "mini.mspec", "bf16", mini.SHALLOW)


def models(path: Path) -> tuple[DeferredHost, Model, Model]:
    late = DeferredHost()
    plan = mini.plan_of(path, mini.SHALLOW)
    return late, mini.model_of(plan, late), mini.model_of(plan)


def test_late_work_gives_the_same_bits(path: Path) -> None:
    late, *pair = models(path)
    found = []
    for model in pair:
        one, two = model.create_session(), model.create_session()
        told = [rows(model, one, IDS[:40]).tobytes()]
        two.prefill(IDS[:20])
        one.prefill(IDS[40:43])
        token = one.decode(IDS[43], None)
        for _ in range(20):
            token = one.decode(token, None)
            told.append(repr((token, one.last_signal())).encode())
        pairs = [token, token]
        for _ in range(4):
            pairs = model.decode_batch([one, two], pairs, [None, None])
            told += [repr(pairs).encode(), rows(model, two, IDS[5:8]).tobytes()]
        told.append(repr(one.verify(IDS[50:54])).encode())
        found.append(told)
    assert found[0] == found[1]
    assert any(graph.n_replays for graph in late.graphs)


def test_a_decoded_token_waits_once(path: Path) -> None:
    late, model, _ = models(path)
    session = model.create_session()
    session.prefill(IDS[:4])
    token = 1
    for _ in range(4):
        token = session.decode(token, None)
    before = late.n_waits
    session.decode(token, None)
    assert late.n_waits == before + 1


def test_kernels_of_a_token_and_of_a_prompt_are_loaded_at_once(path: Path) -> None:
    late, model, _ = models(path)
    few, many = (
        {step.op.name for step, _ in model.program.launches(n_rows, 1)} for n_rows in (1, 17)
    )
    assert {name for name, _ in late.loads} == few | many
    assert len(late.loads) == len(set(late.loads))


def test_nothing_is_captured_after_a_shape_has_come_twice(path: Path) -> None:
    late, model, _ = models(path)
    session = model.create_session()
    session.prefill(IDS[:20])
    token = session.decode(session.decode(1, None), None)
    n_graphs = len(late.graphs)
    for _ in range(6):
        token = session.decode(token, None)
    assert len(late.graphs) == n_graphs == 2


@pytest.mark.parametrize("config", [None, HOT], ids=["greedy", "drawn"])
def test_a_wait_that_fails_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, config: SamplingConfig | None
) -> None:
    """Answers are waited for once the pass is under way: what fails there is still a refusal."""
    late, *pair = models(path)
    told = []
    for model in pair:
        session = model.create_session()
        token, tokens = session.prefill_sampled(IDS[:7], config), []
        for step in range(8):
            if step in (0, 2, 5) and model is pair[0]:
                with monkeypatch.context() as patch:
                    patch.setattr(late, "synchronize", _broken)
                    before = session.position, list(session.history)
                    with pytest.raises(RuntimeFailure, match="device: planted"):
                        session.decode(token, config)
                assert (session.position, session.history) == before
            token = session.decode(token, config)
            tokens.append(token)
        told.append(tokens)
    assert told[0] == told[1]


def _broken() -> None:
    raise DeviceError("planted")
