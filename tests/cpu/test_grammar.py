"""Constrained choice on the tiny vocabulary: lazy start, masks, end tokens, failing grammars."""

import json

import numpy as np
import pytest

from engine.chat.grammar import tool_grammar
from engine.chat.messages import Tool
from engine.errors import RuntimeFailure
from engine.grammar import Grammar, GrammarText
from engine.tokenizer import Tokenizer
from tests import tiny

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"],
          "additionalProperties": False}
TOOLS = [Tool("weather", SCHEMA)]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    pairs = {key: value.text(key) for key, value in tiny.metadata()}
    return Tokenizer.from_metadata(pairs.get)


def lazy(**changed: object) -> GrammarText:
    metadata = {"grammar": tool_grammar("hermes", TOOLS, False), "grammar_lazy": True,
                "grammar_triggers": [{"type": 1, "value": "<tool_call>"}], **changed}
    made = GrammarText.of(metadata)
    assert made is not None
    return made


def test_nothing_is_constrained_before_the_trigger(tokenizer: Tokenizer) -> None:
    grammar = Grammar(lazy(), tokenizer, n_prompt_tokens=2)
    prompt = tokenizer.encode("<tool_call>", add_special=False)[:2]
    text = tokenizer.encode("hello <tool", add_special=False)
    assert grammar.mask(prompt + text) is None


def test_a_call_can_be_spelled_and_nothing_else(tokenizer: Tokenizer) -> None:
    grammar = Grammar(lazy(), tokenizer, n_prompt_tokens=0)
    history = tokenizer.encode("I look. ", add_special=False)
    for token in tokenizer.encode(CALL, add_special=False):
        allowed = grammar.mask(history)
        if b"<tool_call>" in tokenizer.decode(history):
            assert allowed is not None
            assert allowed[token], tokenizer.decode(history)
            assert not allowed[tokenizer.encode("~", add_special=False)[0]]
            assert not allowed[tokenizer.eos_id]
        history.append(token)
    allowed = grammar.mask(history)
    assert allowed is None or allowed[tokenizer.eos_id]


def test_history_fed_at_once_equals_history_fed_by_token(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("x " + CALL[:40], add_special=False)
    at_once = Grammar(lazy(), tokenizer, 0)
    stepwise = Grammar(lazy(), tokenizer, 0)
    for n in range(len(tokens)):
        stepwise.mask(tokens[:n])
    first, second = at_once.mask(tokens), stepwise.mask(tokens)
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first, second)


def test_a_grammar_that_was_left_is_dropped(tokenizer: Tokenizer) -> None:
    grammar = Grammar(lazy(), tokenizer, 0)
    assert grammar.mask(tokenizer.encode("<tool_call>~~~", add_special=False)) is None
    assert grammar.mask(tokenizer.encode("<tool_call>~~~ on", add_special=False)) is None


def test_a_required_grammar_starts_at_the_first_token(tokenizer: Tokenizer) -> None:
    text = tool_grammar("hermes", TOOLS, False, is_required=True)
    made = GrammarText.of({"grammar": text, "grammar_lazy": False, "grammar_triggers": []})
    assert made is not None
    allowed = Grammar(made, tokenizer, n_prompt_tokens=3).mask([1, 2, 3])
    assert allowed is not None
    assert allowed[tokenizer.encode("<", add_special=False)[0]]
    assert not allowed[tokenizer.encode("h", add_special=False)[0]]


@pytest.mark.parametrize("metadata", [
    {}, {"grammar": ""}, {"grammar": "start: A", "grammar_lazy": True, "grammar_triggers": []},
], ids=json.dumps)
def test_no_grammar(metadata: dict[str, object]) -> None:
    assert GrammarText.of(metadata) is None


def test_what_cannot_be_used_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RuntimeFailure, match="does not compile"):
        Grammar(lazy(grammar="start: @@"), tokenizer, 0)
    with pytest.raises(RuntimeFailure, match="trigger"):
        lazy(grammar_triggers=[{"type": 2, "value": "x"}])
