"""Guards the whole seam with random calls in a child process: no crash, no lie, no leak."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.abi.c_host import Libraries

ROOT = Path(__file__).resolve().parents[2]
N_CALLS = 60_000
GROWTH_BYTES = 64 << 20
# Always refused: there are no media frames and no draft models.
NEVER_OK = ["skippy_model_attach_mtp_draft_model", "skippy_session_copy_output_activation_frame"]
SLOW_TO_HIT = {"skippy_import_kv_page", "skippy_write_gguf_from_parts", "skippy_write_slice_gguf"}


@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_never_crash_lie_or_leak(
    built_libraries: Libraries, tiny_path: Path, tmp_path: Path, seed: int
) -> None:
    command = [
        sys.executable, "-m", "tests.abi.fuzz", str(built_libraries.engine),
        str(built_libraries.stubs), str(tiny_path), str(tmp_path), str(seed), str(N_CALLS),
    ]
    # The child finds us by path: its own working folder is where it may write.
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    last = (tmp_path / "last.txt").read_bytes().split(b"\n")[0]
    assert done.returncode == 0, (last, done.stderr[-3000:])
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["calls"] == N_CALLS
    assert found["handles"] == 0
    assert found["grown_bytes"] < GROWTH_BYTES, found
    # A fuzzer that is refused everywhere tests one line of each call.
    assert set(found["never_ok"]) - SLOW_TO_HIT == set(NEVER_OK)
    assert found["ok"] > N_CALLS // 5
    # Status 1 is a defect of ours, and 0 to 7 is all there is.
    assert set(found["statuses"]) <= set("0234567")
    assert "Traceback" not in done.stderr
