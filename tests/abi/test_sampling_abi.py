"""Guards choices over the C ABI against hostile numbers in the sampling struct."""

import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import Host, OpenModel, OpenSession
from tests.abi.steps import (
    export,
    greedy,
    raw,
    straight,
    trim,
)

N_VOCAB = 320
PROMPT = [10, 20, 30, 40]
INF, NAN = math.inf, math.nan
INVALID = Status.INVALID_ARGUMENT
GREEDY = "greedy"
# fields -> INVALID and the name in the message, or GREEDY: the best token, or None: any token.
TABLE: list[tuple[dict[str, Any], Any]] = [
    ({"logit_bias": [(-1, 1.0)]}, "logit_bias[0].token"),
    ({"logit_bias": [(5, 1.0), (N_VOCAB, 1.0)]}, "logit_bias[1].token"),
    ({"logit_bias": [(2**31 - 1, 1.0)]}, "logit_bias[0].token"),
    ({"logit_bias": [(-(2**31), 1.0)]}, "logit_bias[0].token"),
    ({"logit_bias": [(5, NAN)]}, "logit_bias[0].bias"),
    ({"logit_bias": [(5, INF)]}, "logit_bias[0].bias"),
    ({"logit_bias": [(5, INF), (6, INF)]}, "logit_bias[0].bias"),
    ({"logit_bias": [(5, 3e38), (5, 3e38)], "temperature": 0.0}, None),
    ({"logit_bias": [(5, -3e38), (5, -3e38)], "temperature": 0.0}, GREEDY),
    ({"logit_bias": [(5, 1.0)] * 256}, None),
    ({"top_k": N_VOCAB + 1, "temperature": 0.0}, GREEDY),
    ({"top_k": 2**31 - 1, "temperature": 0.0}, GREEDY),
    ({"top_k": -5, "temperature": 0.0}, GREEDY),
    ({"top_k": 1}, GREEDY),
    ({"top_p": 0.0}, None),
    ({"top_p": 1.0}, None),
    ({"top_p": NAN}, "top_p"),
    ({"top_p": INF}, "top_p"),
    ({"top_p": 1e-30}, GREEDY),
    ({"min_p": 1.0}, None),
    ({"min_p": 0.9999999}, None),
    ({"min_p": NAN}, "min_p"),
    ({"min_p": -INF}, "min_p"),
    ({"temperature": 1e-6}, GREEDY),
    ({"temperature": 1e-38}, GREEDY),
    ({"temperature": 1e-45}, GREEDY),
    ({"temperature": NAN}, "temperature"),
    ({"temperature": INF}, "temperature"),
    ({"temperature": -1.0}, GREEDY),
    ({"temperature": 3e38}, None),
    ({"repeat_penalty": NAN}, "repeat_penalty"),
    ({"repeat_penalty": -2.0}, "repeat_penalty"),
    ({"repeat_penalty": 0.0, "temperature": 0.0}, GREEDY),
    ({"repeat_penalty": 3e38, "temperature": 0.0}, None),
    ({"repeat_penalty": 1e-45, "temperature": 0.0}, None),
    ({"presence_penalty": NAN}, "presence_penalty"),
    ({"frequency_penalty": -INF}, "frequency_penalty"),
    ({"frequency_penalty": 3e38, "temperature": 0.0}, None),
    ({"penalty_last_n": -2}, "penalty_last_n"),
    ({"penalty_last_n": 2**31 - 1, "repeat_penalty": 1.1}, None),
    ({"seed": 0}, None),
    ({"seed": 2**32 - 1}, None),
    ({"version": 2}, "version"),
    ({"version": 2**32 - 1}, "version"),
    ({"version": 0, "temperature": NAN}, GREEDY),
    ({"flags": 0, "temperature": NAN, "repeat_penalty": -1.0}, GREEDY),
    ({"flags": 2**31, "temperature": 0.0}, GREEDY),
]


def step(session: OpenSession, token: int, sampling: Any) -> tuple[int, str | None, int]:
    """Status, message and token of `skippy_decode_step_sampled`."""
    null, out = session.host.ffi.NULL, session.host.ffi.new("int32_t *", -7)
    status, message = raw(session, "decode_step_sampled", token, sampling, null, 0, null, 0, null,
                          out)
    return status, message, int(out[0])


@pytest.fixture
def session(tiny_model: OpenModel) -> Iterator[OpenSession]:
    made = tiny_model.session()
    made.prefill(PROMPT)
    yield made
    made.free()


# Hostile numbers


@pytest.mark.parametrize(("fields", "wanted"), TABLE, ids=[str(f) for f, _ in TABLE])
def test_hostile_numbers(
    session: OpenSession, runtime: Host, fields: dict[str, Any], wanted: Any
) -> None:
    best = session.decode(9)
    trim(session, 4)
    before = export(session)
    config = runtime.sampling(**fields)
    status, message, token = step(session, 9, config)
    if wanted in (GREEDY, None):
        assert status == Status.OK, message
        assert 0 <= token < N_VOCAB
        assert wanted is None or token == best
        trim(session, 4)
    else:
        assert (status, token) == (INVALID, -7)
        assert wanted in (message or "")
        assert (session.position, export(session)) == (4, before)
    assert step(session, 9, runtime.ffi.NULL)[2] == best


@pytest.mark.parametrize("count", [257, 300, 2**31, 2**32 - 1])
def test_only_the_first_256_biases_count(session: OpenSession, runtime: Host, count: int) -> None:
    config = runtime.sampling(temperature=0.0, logit_bias=[(5, 1e4)] + [(6, 0.0)] * 255)
    config.logit_bias_count = count
    assert step(session, 9, config)[::2] == (Status.OK, 5)


def test_duplicates_add_up(session: OpenSession, runtime: Host) -> None:
    once = runtime.sampling(temperature=0.0, logit_bias=[(5, 2e4), (6, 3e4)])
    twice = runtime.sampling(temperature=0.0, logit_bias=[(5, 2e4), (6, 3e4), (5, 2e4)])
    assert [step(session, 9, config)[2] for config in (once, twice)] == [6, 5]


def test_the_best_ids_can_be_banned_one_after_another(
    session: OpenSession, runtime: Host, tiny_model: OpenModel
) -> None:
    """320 ids and 256 biases: some token is always left."""
    best = session.decode(9)
    trim(session, 4)
    before = export(session)
    banned: list[tuple[int, float]] = []
    for _ in range(256):
        banned.append((best, -INF))
        config = runtime.sampling(temperature=0.0, logit_bias=banned)
        status, message, token = step(session, 9, config)
        assert status == Status.OK, message
        assert token not in {t for t, _ in banned}
        best = token
        trim(session, 4)
    assert export(session) == before
    assert greedy(session, 9, 4) == straight(tiny_model, PROMPT)[1]


def test_a_null_struct_is_greedy_and_a_bad_one_is_refused(session: OpenSession) -> None:
    ffi = session.host.ffi
    for number in (8, 2**47, 2**64 - 8):
        place = ffi.cast("struct skippy_sampling_config *", number)
        assert step(session, 9, place)[0] == INVALID
    assert session.position == 4


def test_random_structs_never_crash(session: OpenSession) -> None:
    ffi, rng = session.host.ffi, random.Random(11)
    n_bytes = ffi.sizeof("struct skippy_sampling_config")
    seen = set()
    for _ in range(300):
        config = ffi.new("struct skippy_sampling_config *")
        ffi.buffer(config)[:] = rng.randbytes(n_bytes)
        config.version = rng.choice([0, 1, config.version])
        config.logit_bias_count = rng.choice([0, config.logit_bias_count])
        status, _, token = step(session, 9, config)
        seen.add(status)
        assert status in (Status.OK, INVALID, Status.RUNTIME_ERROR)
        assert (status == Status.OK) == (token != -7)
        trim(session, 4)
    assert seen >= {Status.OK, INVALID}


def test_the_table_leaves_standard_error_empty(
    built_libraries: Any, tiny_path: Path, tmp_path: Path
) -> None:
    """numpy would print its warnings there."""
    script = tmp_path / "table.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from skippy_abi.client import Host, OpenModel\n"
        "from tests.abi.test_sampling_abi import TABLE, step\n"
        "host = Host([Path(sys.argv[2]), Path(sys.argv[3])])\n"
        "model = OpenModel(host, Path(sys.argv[4]), ctx_size=256)\n"
        "session = model.session()\n"
        "for fields, _ in TABLE:\n"
        "    step(session, 9, host.sampling(**fields))\n"
        "model.free()\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, str(script), root, *map(str, built_libraries[::-1]), str(tiny_path)],
        capture_output=True, text=True, check=False, env=dict(os.environ), timeout=120,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
