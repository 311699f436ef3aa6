"""Protects models on the emulator through the C ABI: a short run has the host device's ids."""

import json
import os
import subprocess
import sys
from pathlib import Path

from engine.devices import EMULATOR_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
N_TOKENS = 2


def test_greedy_ids_equal_the_host_devices(smollm2_path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.device_models", "EMULATOR", str(N_TOKENS), tmp_path]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, EMULATOR_VARIABLE: "1"}, capture_output=True,
        text=True, check=False, timeout=280,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert set(found) == {"dense", "hybrid", "smollm2"}, ran.stderr
    for model, (wanted, ids) in found.items():
        assert ids == wanted, model
        assert len(ids[0]) == N_TOKENS + 1
