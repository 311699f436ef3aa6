"""The command line as a person uses it: refusals before anything is opened, streams, seeds."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "there/is/no/such.gguf"
Ran = subprocess.CompletedProcess[str]


def command(*words: str, serves: str | None = None) -> Ran:
    """Run the command in a fresh process, which serves what the tests do, or another table."""
    more = {} if serves is None else {"MESH_SPECIALIZE_SERVES": serves}
    return subprocess.run(
        [sys.executable, "-m", "packages.cli", *words], cwd=ROOT, capture_output=True, text=True,
        timeout=120, check=False, env={**os.environ, **more},
    )


@pytest.fixture(scope="module")
def generate(tiny_path: Path) -> Callable[..., Ran]:
    """`mesh-specialize generate` on the tiny model; it must succeed."""

    def run(*words: str) -> Ran:
        done = command("generate", "--model", str(tiny_path), "-p", "the", *words)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.mark.parametrize("temperature", ["-1", "-1e-400", "1e-400", "1e400", "nan", "warm", ""])
def test_a_bad_temperature_is_refused_before_the_model_is_looked_for(temperature: str) -> None:
    done = command("generate", "--model", NOWHERE, "-p", "x", f"--temperature={temperature}")
    assert done.returncode == 1
    assert "temperature" in done.stderr
    assert "such.gguf" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("seed", ["", "-1", "+1", "0x10", " 1", "1 ", "18446744073709551616"])
def test_a_bad_seed_is_refused_before_the_model_is_looked_for(seed: str) -> None:
    done = command("generate", "--model", NOWHERE, "-p", "x", f"--seed={seed}")
    assert done.returncode == 1
    assert "seed" in done.stderr
    assert "such.gguf" not in done.stderr


def test_a_missing_model_is_one_line() -> None:
    done = command("generate", "--model", NOWHERE, "-p", "x", "--temperature", "0")
    assert done.returncode == 1
    assert "such.gguf" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_no_budget_touches_nothing() -> None:
    done = command("generate", "--model", NOWHERE, "-p", "x", "--max-tokens", "0", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["tokens"] == []
    assert "seed none" in done.stderr


def test_greedy_reports_an_unused_seed(generate: Callable[..., Ran]) -> None:
    done = generate("--temperature", "-0.0", "--seed", "7", "--max-tokens", "5")
    assert "temperature 0.0, seed 7 (unused at temperature 0)" in done.stderr


def test_a_seed_replays_and_streaming_changes_nothing(generate: Callable[..., Ran]) -> None:
    words = ("--temperature", "0.9", "--seed", "18446744073709551615", "--max-tokens", "24")
    first = json.loads(generate(*words, "--json").stdout)
    again = json.loads(generate(*words, "--json").stdout)
    assert first["tokens"] == again["tokens"]
    streamed = generate(*words, "--stream").stdout
    assert streamed == first["text"] + "\n"
    shorter = json.loads(generate(*words[:-1], "9", "--json").stdout)
    assert shorter["tokens"] == first["tokens"][:9]
    other = json.loads(generate(*words[:3], "5", *words[4:], "--json").stdout)
    assert other["tokens"] != first["tokens"]


def test_a_drawn_seed_is_reported_and_replays(generate: Callable[..., Ran]) -> None:
    done = generate("--temperature", "1.5", "--max-tokens", "12", "--json")
    seed = done.stderr.split("seed ")[1].split(",")[0]
    again = generate("--temperature", "1.5", "--max-tokens", "12", "--json", "--seed", seed)
    assert json.loads(again.stdout)["tokens"] == json.loads(done.stdout)["tokens"]


def test_a_tiny_temperature_is_not_greedy_by_underflow(generate: Callable[..., Ran]) -> None:
    words = ("--max-tokens", "8", "--json")
    greedy = json.loads(generate("--temperature", "0", *words).stdout)
    cold = generate("--temperature", "1e-300", "--seed", "3", *words)
    assert "temperature 1e-300, seed 3, sampler" in cold.stderr
    assert json.loads(cold.stdout)["tokens"] == greedy["tokens"]


def test_random_weights_are_written_and_served(tmp_path: Path) -> None:
    """A file of random weights is opened, chosen and run like any other."""
    path = tmp_path / "random.mspec"
    words = ("-m", "packages.synthetic_file", str(path), "--package", "qwen3_8_27b:mini")
    subprocess.run([sys.executable, *words, "--device", "host"], cwd=ROOT, check=True)
    done = command(
        "generate", "--model", str(path), "-p", "the", "--temperature", "0", "--max-tokens", "4",
        "--json", serves=f"{path}.serves.toml",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["tokens"]) == 4
    assert found["device"].startswith("CPU")


def test_what_is_no_mspec_is_said_in_one_line(smollm2_path: Path) -> None:
    done = command("inspect", str(smollm2_path))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
