"""Guards every kind of call of the C ABI on a device with kernels: the compiled schedule, run by
references that do everything late. What it computes is judged in `tests/cpu/test_compiled_*`; here
calls that must agree are held against each other, bit for bit.
"""

import importlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import devices
from engine.artifacts.mspec import open_mspec
from engine.compiled.program import CompiledProgram
from engine.devices import DeviceEntry
from engine.errors import Status
from engine.model import Model
from ptx.device import DeviceError
from skippy_abi.client import AbiError, Host, OpenModel, OpenSession
from tests import compiled_hybrid as mini
from tests.abi import hybrid, steps
from tests.abi.stages import Stages
from tests.abi.steps import batch, call, decoded, greedy, restore, save, trim, verify
from tests.deferred_host import DeferredHost

N_LAYERS = mini.DIMS.n_layers
PROMPT = [(7 * t * t + 13 * t + 5) % 1021 for t in range(40)]
DEVICE = DeferredHost()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_path: Path) -> Path:
    """The mini twin in integers, which is served from now on."""
    path = mini.write(tmp_path_factory.mktemp("mini") / "mini.mspec", "groupwise-int")
    with open_mspec(path) as file:
        digest = file.identity.weights_id
    table = Path(os.environ["MESH_SPECIALIZE_SERVES"])
    row = f'\n[[artifact]]\npackage = "qwen3_8_27b:mini"\ncontent_sha256 = "{digest}"\n'
    table.write_text(table.read_text() + row)
    return path


@pytest.fixture
def model(runtime: Host, served: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenModel]:
    """The twin on that device, 4 lanes; nothing of it is left afterwards."""
    here = devices.inventory()
    entry = DeviceEntry("KERNELS0", "references, late", "kernels", lambda: DEVICE, "sm_90")
    monkeypatch.setattr(devices, "inventory", lambda: (*here, entry))
    # The first call starts what the library has inside.
    runtime.call("skippy_backend_device_count", runtime.ffi.new("size_t *"))
    handles = importlib.import_module("skippy_abi.handles")
    before = handles.live()
    opened = OpenModel(runtime, served, "KERNELS0", lane_count=4, ctx_size=512, n_batch=64)
    yield opened
    opened.free()
    devices._opened.cache_clear()
    assert handles.live() == before


def export(session: OpenSession) -> bytes:
    return bytes(session.host.sized("skippy_export_full_state", session.handle, 0, N_LAYERS))


def load(session: OpenSession, data: bytes) -> None:
    source = session.host.ffi.new("char[]", data)
    call(session, "import_full_state", 0, N_LAYERS, source, len(data))


def filled(model: OpenModel, tokens: list[int] = PROMPT) -> OpenSession:
    session = model.session()
    session.prefill(tokens)
    return session


def test_it_is_the_compiled_schedule_that_runs(model: OpenModel) -> None:
    handles = importlib.import_module("skippy_abi.handles")
    (found,) = [m for m in handles._objects.values() if isinstance(m, Model)]
    assert isinstance(found.program, CompiledProgram)


def test_a_batch_is_its_sessions_alone(model: OpenModel) -> None:
    """Greedy, sampled by the device, and sampled with penalties; several turns."""
    configs = [None, model.host.sampling(seed=3, temperature=1.2),
               model.host.sampling(**steps.PENALISED)]  # fmt: skip
    together = [filled(model, PROMPT[: 20 + i]) for i in range(3)]
    alone = model.session()
    tokens = [[5], [6], [7]]
    for _ in range(5):
        status, message, found = batch(together, [t[-1] for t in tokens], configs)
        assert status == Status.OK, message
        for said, token in zip(tokens, found, strict=True):
            said.append(token)
    for i, (session, said) in enumerate(zip(together, tokens, strict=True)):
        alone.reset()
        alone.prefill(PROMPT[: 20 + i])
        assert decoded(alone, said[0], 5, configs[i]) == said[1:]
        assert export(alone) == export(session)


def test_a_window_that_was_taken_back_left_nothing(model: OpenModel) -> None:
    session, fresh = filled(model), filled(model)
    for n_right in (0, 2, 4):
        start = session.position
        said = verify(session, PROMPT[:4])
        trim(session, start + n_right)
        if n_right:
            assert verify(fresh, PROMPT[:n_right]) == said[:n_right]
        assert export(session) == export(fresh)
    assert greedy(session, 9, 3) == greedy(fresh, 9, 3)


def test_a_sequence_moves_whole_and_in_parts(model: OpenModel) -> None:
    source, other, third = filled(model), filled(model, PROMPT[3:9]), model.session()
    data = export(source)
    load(other, data)
    parts = (*steps.page(source, 0, len(PROMPT), (0, N_LAYERS)), hybrid.recurrent(source))
    hybrid.restore_parts(third, parts)
    for session in (other, third):
        assert session.position == len(PROMPT)
        assert export(session) == data
    want = greedy(source, 9, 4)
    assert greedy(other, 9, 4) == greedy(third, 9, 4) == want


def test_sessions_begin_with_a_saved_prefix(model: OpenModel) -> None:
    source = filled(model)
    save(source, 100, len(PROMPT))
    want = greedy(source, 9, 4)
    others = [model.session() for _ in range(2)]
    for other in others:
        restore(other, 100, PROMPT)
    status, message, first = batch(others, [9, 9])
    assert (status, first) == (Status.OK, want[:1] * 2), message
    assert greedy(others[0], first[0], 3) == want[1:]


def test_stages_give_the_whole_models_tokens(model: OpenModel, served: Path) -> None:
    def stage(index: int, start: int, end: int) -> OpenModel:
        return OpenModel(
            model.host, served, "KERNELS0", ctx_size=128, stage_index=index, layer_start=start,
            layer_end=end, filter_tensors_on_load=True, include_embeddings=start == 0,
            include_output=end == N_LAYERS,
        )

    whole = model.session()
    token = whole.prefill_sampled(PROMPT)
    want = [token, *greedy(whole, token, 4)]
    parts = Stages(model.host, served, [0, 2, N_LAYERS], mini.DIMS.d_model, stage)
    found = [parts.prefill(PROMPT)]
    for _ in range(4):
        found.append(parts.decode(found[-1]))
    assert found == want
    for one in parts.models:
        one.free()


def test_threads_do_not_feel_each_other(model: OpenModel) -> None:
    want = {}
    for i in range(4):
        session = filled(model, PROMPT[: 10 + i])
        want[i] = greedy(session, i, 6)
        session.free()
    found: dict[int, list[int]] = {}

    def run(i: int) -> None:
        session = filled(model, PROMPT[: 10 + i])
        found[i] = greedy(session, i, 6)
        session.free()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == want


def test_a_step_that_the_device_refuses_moves_nobody(
    model: OpenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other = filled(model), filled(model, PROMPT[:20])
    token = greedy(session, 9, 3)[-1]
    before = session.position, export(session), export(other)
    with monkeypatch.context() as patch:
        patch.setattr(DEVICE, "synchronize", fails)
        with pytest.raises(AbiError, match="planted") as caught:
            session.decode(token)
        assert caught.value.status == Status.RUNTIME_ERROR
        status, message, _ = batch([session, other], [token, 5])
        assert (status, "planted" in (message or "")) == (Status.RUNTIME_ERROR, True)
    assert (session.position, export(session), export(other)) == before
    fresh = model.session()
    load(fresh, before[1])
    assert greedy(session, token, 3) == greedy(fresh, token, 3)
    greedy(other, 5, 2)


def fails() -> None:
    raise DeviceError("planted")


def test_a_full_context_is_refused_and_nothing_moves(model: OpenModel) -> None:
    session, other = filled(model, PROMPT * 12), filled(model, PROMPT[:30])
    before = export(session)
    with pytest.raises(AbiError, match="510 cells used, 40 more wanted, 512 in total"):
        session.prefill(PROMPT)
    assert export(session) == before
    assert len(greedy(session, 3, 2)) == 2
    other.free()
    session.prefill(PROMPT[:20])


def test_a_session_freed_while_another_decodes(model: OpenModel) -> None:
    keeper = filled(model)
    want = greedy(keeper, 9, 20)
    keeper.reset()
    keeper.prefill(PROMPT)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            session = filled(model, PROMPT[:17])
            greedy(session, 1, 2)
            session.free()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert greedy(keeper, 9, 20) == want
    finally:
        stop.set()
        thread.join(60)
