"""Recipes: every role has a format and a reason, and the hash moves when bytes would."""

import dataclasses

import pytest

from engine.errors import InvalidArgument
from packages.qwen3_8_27b import PACKAGE
from packages.qwen3_8_27b.bind import shapes
from packages.qwen3_8_27b.inventory import Role, inventory
from packages.recipes import RECIPES, Choice, Recipe, recipe_named


@pytest.mark.parametrize("name", RECIPES)
def test_every_role_has_a_format_and_a_reason(name: str) -> None:
    recipe = recipe_named(name)
    assert set(recipe.choices) == set(Role)
    assert all(len(choice.reason) > 20 for choice in recipe.choices.values())


def test_the_model_itself_needs_no_fallback() -> None:
    dims = PACKAGE.dims[""]
    stored = shapes(dims)
    bits = {"f32": 32.0, "bf16": 16.0, "int8": 8.125, "int4": 4.125}
    n_bytes = dict.fromkeys(RECIPES, 0.0)
    for name, expected in inventory(dims).items():
        elements = 1
        for length in stored[name]:
            elements *= length
        for key, recipe in RECIPES.items():
            chosen = recipe.format_of(expected.role, stored[name])
            assert not chosen.why_fallback
            n_bytes[key] += elements * bits[chosen.dtype] / 8
    assert 53.7e9 < n_bytes["bf16"] < 53.9e9
    assert 16.3e9 < n_bytes["groupwise-int"] < 16.5e9


def test_a_shape_that_does_not_fit_takes_the_fallback_and_says_why() -> None:
    recipe = RECIPES["groupwise-int"]
    assert recipe.format_of("mlp", (8, 128)).dtype == "int4"
    for shape in ((8, 96), (12, 128)):
        chosen = recipe.format_of("mlp", shape)
        assert chosen.dtype == "bf16"
        assert str(list(shape)) in chosen.why_fallback
    with pytest.raises(InvalidArgument):
        RECIPES["bf16"].format_of("mlp", (1 << 40, 1 << 40))


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match="bf16, groupwise-int"):
        recipe_named("int4")
    with pytest.raises(InvalidArgument, match=r"'router'.*embedding"):
        RECIPES["bf16"].format_of("router", (8, 128))


def test_the_hash_covers_what_decides_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = RECIPES["groupwise-int"]
    seen = {recipe.sha256("a"), recipe.sha256("b"), RECIPES["bf16"].sha256("a")}
    for role, choice in recipe.choices.items():
        changed = dataclasses.replace(choice, dtype="f16")
        seen.add(Recipe(recipe.name, {**recipe.choices, role: changed}).sha256("a"))
    other = {**recipe.choices, "mlp": dataclasses.replace(recipe.choices["mlp"], fallback=None)}
    seen.add(Recipe(recipe.name, other).sha256("a"))
    seen.add(Recipe("another", recipe.choices).sha256("a"))
    monkeypatch.setattr("packages.recipes.CONVERTER_VERSION", 2)
    seen.add(recipe.sha256("a"))
    assert len(seen) == 3 + len(recipe.choices) + 3


def test_reasons_and_order_do_not_move_the_hash() -> None:
    recipe = RECIPES["bf16"]
    said = {
        role: Choice(choice.dtype, "because", choice.fallback)
        for role, choice in reversed(recipe.choices.items())
    }
    assert Recipe("bf16", said).sha256("a") == recipe.sha256("a")
