"""Owns the proof that seed and temperature texts mean what they say or are refused."""

import math

import pytest

from engine.errors import InvalidArgument
from engine.sampling import parse_seed, parse_temperature


@pytest.mark.parametrize("text", ["0", "-0", "0.0", "-0.0", "0e5", "+0", ".0", "0e-999", "00."])
def test_every_zero_is_greedy(text):
    assert parse_temperature(text) == 0.0
    assert math.copysign(1.0, parse_temperature(text)) == 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), ("0.7", 0.7), ("1e-300", 1e-300), ("5e-324", 5e-324), ("+2.5E1", 25.0)],
)
def test_a_positive_temperature_keeps_its_value(text, value):
    assert parse_temperature(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "-1e-400",
        "1e-400",
        "1e400",
        "",
        " 1",
        "1 ",
        "1\n",
        "nan",
        "inf",
        "0x1p3",
        "1_0",
        "1,5",
        ".",
        "e5",
        "1e",
        "--1",
        "١",
    ],
)
def test_a_temperature_that_means_something_else_is_refused(text):
    with pytest.raises(InvalidArgument, match="temperature"):
        parse_temperature(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("7", 7), ("007", 7), ("18446744073709551615", 2**64 - 1), ("0" * 9000 + "1", 1)],
    ids=lambda value: str(value)[:20],
)
def test_a_seed_is_decimal_digits(text, value):
    assert parse_seed(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", "0x10", " 1", "1 ", "1\n", "1.0", "1_0", "18446744073709551616", "١", "²"],
)
def test_any_other_seed_text_is_refused(text):
    with pytest.raises(InvalidArgument, match="seed"):
        parse_seed(text)


@pytest.mark.parametrize("parse", [parse_seed, parse_temperature])
def test_a_very_long_literal_is_refused_in_a_short_message(parse):
    with pytest.raises(InvalidArgument) as caught:
        parse("9" * 100_000)
    assert len(str(caught.value)) < 200
