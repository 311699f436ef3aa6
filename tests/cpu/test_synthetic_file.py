"""Protects files of random weights: the bits that the converter would write of the same numbers,
whole or resumed, for every recipe."""

from pathlib import Path

import pytest

from engine.artifacts.mspec import open_mspec
from engine.artifacts.weight_codecs import encode_rows
from engine.errors import InvalidArgument
from packages import synthetic_file
from packages.recipes import recipe_named
from packages.synthetic import synthetic_plan
from ptx.devices.host import HostDevice

KEY = "qwen3_8_27b:mini"


@pytest.mark.parametrize("recipe", ["bf16", "groupwise-int"])
def test_a_file_has_the_converters_bits(tmp_path: Path, recipe: str) -> None:
    path = tmp_path / "random.mspec"
    device = HostDevice(poison=True)
    weights_id = synthetic_file.write(path, KEY, recipe_named(recipe), device, seed=5)
    plan = synthetic_plan(KEY, 5, recipe)
    with open_mspec(path) as file:
        assert file.identity.weights_id == weights_id
        tensors = file.tensors()
        assert {tensor.name for tensor in tensors} == set(plan.weights)
        for tensor in tensors:
            weight = plan.weights[tensor.name]
            want = encode_rows(tensor.dtype, tensor.shape, [weight.load()], tensor.name)
            found = tensor.raw().tobytes()
            assert found == b"".join(piece.tobytes() for piece in want), tensor.name
    assert weights_id in path.with_name("random.mspec.serves.toml").read_text()


def test_another_seed_is_another_model(tmp_path: Path) -> None:
    recipe, device = recipe_named("bf16"), HostDevice()
    ids = {
        synthetic_file.write(tmp_path / f"{seed}.mspec", KEY, recipe, device, seed)
        for seed in (0, 1)
    }
    assert len(ids) == 2


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, recipe, device = tmp_path / "random.mspec", recipe_named("bf16"), HostDevice()
    made: list[str] = []
    real = synthetic_file.stored_pieces

    def counted(*args):
        made.append(args[1])
        if len(made) == 20:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(synthetic_file, "stored_pieces", counted)
    with pytest.raises(KeyboardInterrupt):
        synthetic_file.write(path, KEY, recipe, device)
    assert not path.exists()
    stopped_id = synthetic_file.write(path, KEY, recipe, device)
    assert len(made) == len(set(made)) + 1
    assert synthetic_file.write(tmp_path / "whole.mspec", KEY, recipe, device) == stopped_id


@pytest.mark.parametrize(("key", "text"), [
    ("smollm2_135m:tiny", "its artifacts are gguf files"), ("nothing", "package 'nothing'"),
    ("qwen3_8_27b:none", "twin 'none'"),
])  # fmt: skip
def test_what_has_no_such_file_is_refused(tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        synthetic_file.write(tmp_path / "x.mspec", key, recipe_named("bf16"), HostDevice())
    assert list(tmp_path.iterdir()) == []
