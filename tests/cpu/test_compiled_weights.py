"""Protects reading weights ahead: in order, a few at a time, errors where they belong."""

import threading

import numpy as np
import pytest

from engine.artifacts.mspec import open_mspec
from engine.compiled import ahead
from engine.compiled.ahead import Ahead
from engine.errors import ModelError
from engine.records import Stored, Weight
from tests import compiled_hybrid as mini

N = 24


def _weights(begun, bad=()):
    def load(name):
        begun.append(name)
        if name in bad:
            raise ModelError(f"weight {name} is damaged")
        return Stored(np.full(1, int(name[1:]), np.float32))

    return {
        f"w{i}": Weight((1,), lambda: None, load_stored=lambda name=f"w{i}": load(name))
        for i in range(N)
    }


def test_no_more_than_the_window_is_read_before_it_is_used():
    begun = []
    with Ahead(_weights(begun)) as weights:
        for used in range(N):
            assert weights[f"w{used}"].stored().cells[0] == used
            assert len(begun) <= used + 1 + ahead.WINDOW
    assert sorted(begun) == sorted(_weights([]))


def test_an_error_is_raised_where_its_weight_is_used():
    with Ahead(_weights([], bad=("w3",))) as weights:
        for i in range(3):
            weights[f"w{i}"].stored()
        with pytest.raises(ModelError, match="w3 is damaged"):
            weights["w3"].stored()


def test_threads_end_with_the_load():
    before = threading.active_count()
    with pytest.raises(KeyError), Ahead(_weights([])) as weights:
        raise KeyError(weights["w0"].shape)
    assert threading.active_count() == before


def test_a_weight_may_be_read_twice_and_others_are_as_they_were():
    weights = {"a": Weight((1,), lambda: np.ones(1, np.float32)), **_weights([])}
    with Ahead(weights) as found:
        assert found["a"] is weights["a"]
        assert found["w0"].stored().cells[0] == found["w0"].stored().cells[0] == 0


def test_damage_is_found_while_a_model_loads(tmp_path):
    path = mini.write(tmp_path / "mini.mspec", "groupwise-int")
    with open_mspec(path) as file:
        entry = file.objects["model.layers.2.mlp.down_proj.weight"]
    with path.open("r+b") as raw:
        raw.seek(entry.offset + 100)
        byte = raw.read(1)
        raw.seek(-1, 1)
        raw.write(bytes([byte[0] ^ 16]))
    with pytest.raises(ModelError, match=r"mlp\.down_proj\.weight' is damaged: digest"):
        mini.model_of(mini.plan_of(path))
