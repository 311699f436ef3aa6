"""Eight threads, four lanes, mixed calls: every completion equals the one made alone.

The threads are Python's, but the calls are C calls made without any lock of the caller. Threads
that Python has never seen are the native host's part (`test_native_host.py`).
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.errors import Status
from skippy_abi import client

N_THREADS, N_ROUNDS, N_LANES, N_TOKENS = 8, 50, 4, 12


def completion(model: client.OpenModel, lanes: threading.Semaphore, job: int) -> tuple[object, ...]:
    """One chat completion with calls of every kind in between; all of its visible results."""
    text, metadata = model.template(json.dumps([{"role": "user", "content": f"the {job} and on"}]))
    prompt = model.tokenize(text)
    sampling = model.host.sampling(temperature=0.7, seed=job + 1, top_k=20) if job % 3 else None
    with lanes:
        session = model.session()
        if job % 2:
            session.configure_chat(metadata, len(prompt), sampling)
            token = session.prefill_sampled(prompt, sampling)
        else:
            cut = 1 + job % (len(prompt) - 2)
            session.prefill(prompt[:cut])
            session.prefill(prompt[cut:-1])
            token = session.decode(prompt[-1], sampling)
        chosen = [token]
        for _ in range(N_TOKENS):
            model.detokenize(chosen)
            model.is_eog(token)
            token = session.decode(token, sampling)
            chosen.append(token)
        position = session.position
        if job % 5 == 0:
            session.reset()
        session.free()
    answer = model.detokenize(chosen)
    status, _ = model.host.raw("skippy_session_reset", session.handle)
    assert status == Status.INVALID_ARGUMENT
    return tuple(chosen), position, answer


def test_completions_from_many_threads_equal_the_serial_ones(
    runtime: client.Host, tiny_path: Path
) -> None:
    model = client.OpenModel(runtime, tiny_path, lane_count=N_LANES, ctx_size=512)
    lanes = threading.Semaphore(N_LANES)
    jobs = range(N_THREADS * N_ROUNDS)
    alone = [completion(model, lanes, job) for job in jobs]
    with ThreadPoolExecutor(N_THREADS) as threads:
        together = list(threads.map(lambda job: completion(model, lanes, job), jobs))
    model.free()
    assert together == alone
    assert len({chosen for chosen, _, _ in alone}) > N_ROUNDS
