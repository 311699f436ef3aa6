"""Owns the refusals of a tokenizer's metadata: each names the key, the value and the limit."""

from typing import Any

import pytest

from engine.errors import ModelError
from engine.pretokenizers import PRE_TOKENIZERS
from engine.tokenizer import Tokenizer
from tests.cpu import tokenizer_cases as cases

BASE = cases.metadata()
N_VOCAB = len(BASE[cases.PREFIX + "tokens"])
TOKENS: list[str] = BASE[cases.PREFIX + "tokens"]
TYPES: list[int] = BASE[cases.PREFIX + "token_type"]
MERGES: list[str] = BASE[cases.PREFIX + "merges"]


def replaced(items: list[Any], index: int, value: Any) -> list[Any]:
    return [*items[:index], value, *items[index + 1 :]]


BAD = [
    ("model", None, ("model is None",)),
    ("model", "llama", ("model is 'llama'", "'gpt2'")),
    ("model", "", ("model is ''",)),
    ("model", 7, ("model is 7",)),
    ("pre", None, ("pre is None",)),
    ("pre", "default", ("pre is 'default'", "smollm", "qwen35")),
    ("pre", "qwen36", ("pre is 'qwen36'",)),
    ("pre", b"\xff", ("pre is", "UTF-8")),
    ("tokens", None, ("tokens is None", "list")),
    ("tokens", [], ("tokens has 0 entries",)),
    ("tokens", "abc", ("tokens is 'abc'",)),
    ("tokens", replaced(TOKENS, 5, 5), ("tokens[5] is 5",)),
    ("tokens", replaced(TOKENS, 5, ""), ("tokens[5] is ''", "not empty")),
    ("tokens", replaced(TOKENS, 5, b"\xc3"), ("tokens[5]", "UTF-8")),
    ("tokens", replaced(TOKENS, 5, "\ud83d"), ("tokens[5]", "UTF-8")),
    ("tokens", replaced(TOKENS, 9, TOKENS[4]), ("tokens[9] is '%'", "tokens[4]")),
    ("token_type", TYPES[1:], (f"{N_VOCAB - 1} entries", f"{N_VOCAB} tokens")),
    ("token_type", [*TYPES, 1], (f"{N_VOCAB + 1} entries", f"{N_VOCAB} tokens")),
    ("token_type", replaced(TYPES, 3, 0), ("token_type[3] is 0", "1 to 6")),
    ("token_type", replaced(TYPES, 3, 7), ("token_type[3] is 7", "1 to 6")),
    ("token_type", replaced(TYPES, 3, "x"), ("token_type[3] is 'x'",)),
    ("token_type", replaced(TYPES, 3, True), ("token_type[3] is True",)),
    ("token_type", replaced(TYPES, 3, 1.0), ("token_type[3] is 1.0",)),
    ("token_type", replaced(TYPES, 3, cases.BYTE), ("tokens[3] is '$'", "<0x00> to <0xFF>")),
    ("token_type", 3, ("token_type is 3", "list")),
    ("merges", None, ("merges is None", "list")),
    ("merges", replaced(MERGES, 2, "ab"), ("merges[2] is 'ab'",)),
    ("merges", replaced(MERGES, 2, " a"), ("merges[2] is ' a'",)),
    ("merges", replaced(MERGES, 2, "a b c"), ("merges[2] is 'a b c'",)),
    ("merges", replaced(MERGES, 2, "a nowhere"), ("merges[2] is 'a nowhere'", "two tokens")),
    ("merges", replaced(MERGES, 2, "z z"), ("merges[2] is 'z z'", "joined")),
    ("merges", replaced(MERGES, 2, ["a", "b"]), ("merges[2] is ['a', 'b']",)),
    ("bos_token_id", N_VOCAB, (f"bos_token_id is {N_VOCAB}", f"0 to {N_VOCAB - 1}")),
    ("eos_token_id", -1, ("eos_token_id is -1", f"0 to {N_VOCAB - 1}")),
    ("eot_token_id", 2**32 - 1, (f"eot_token_id is {2**32 - 1}",)),
    ("eom_token_id", "2", ("eom_token_id is '2'",)),
    ("unknown_token_id", True, ("unknown_token_id is True",)),
    ("padding_token_id", 2.0, ("padding_token_id is 2.0",)),
    ("fim_pad_token_id", 10**20, ("fim_pad_token_id",)),
    ("add_bos_token", 1, ("add_bos_token is 1", "true or false")),
    ("add_eos_token", "yes", ("add_eos_token is 'yes'",)),
    ("add_space_prefix", True, ("add_space_prefix is true",)),
    ("add_space_prefix", 0, ("add_space_prefix is 0",)),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_bad_metadata_is_refused_by_key_and_value(
    name: str, value: Any, words: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError) as caught:
        cases.tokenizer(**{name: value})
    message = str(caught.value)
    assert cases.PREFIX in message
    for word in words:
        assert word in message
    # Strict UTF-8 and short, whatever the file holds.
    assert len(message.encode()) < 400


@pytest.mark.parametrize("end", ["bos", "eos"])
def test_an_end_to_add_must_have_an_id(end: str) -> None:
    with pytest.raises(ModelError, match=f"{end}_token_id is missing"):
        cases.tokenizer(**{f"add_{end}_token": True, f"{end}_token_id": None})
    with pytest.raises(ModelError, match="bos_token_id is missing"):
        cases.tokenizer("llama3", bos_token_id=None)


def test_a_huge_value_makes_a_short_message() -> None:
    for name, value in (("pre", "x" * 10**6), ("model", ["y"] * 10**6)):
        with pytest.raises(ModelError) as caught:
            cases.tokenizer(**{name: value})
        assert len(str(caught.value)) < 400


def test_bytes_are_as_good_as_text_and_types_may_be_absent() -> None:
    keys = cases.metadata(token_type=None)
    as_bytes = {
        key: [text.encode() for text in value] if isinstance(value, list) else value
        for key, value in keys.items()
    }
    as_bytes[cases.PREFIX + "model"] = b"gpt2"
    made = [Tokenizer.from_metadata(source.get) for source in (keys, as_bytes)]
    text = " the नमस्ते <|im_end|> <tool>"
    assert len({tuple(t.encode(text, add_special=False)) for t in made}) == 1
    assert made[0].pieces == made[1].pieces
    # Without types only what ends a generation is special.
    assert made[0].eos_id in made[0].encode(text, add_special=False)
    assert made[0].encode("<tool>", add_special=False) != [TOKENS.index("<tool>")]


def test_a_pair_that_stands_twice_keeps_its_first_rank() -> None:
    keys = cases.metadata()
    keys[cases.PREFIX + "tokens"] += ["xy", "yz"]
    keys[cases.PREFIX + "token_type"] += [cases.NORMAL] * 2
    keys[cases.PREFIX + "merges"] = ["x y", "y z", "x y"]
    tokenizer = Tokenizer.from_metadata(keys.get)
    ids = tokenizer.encode("xyz", add_special=False)
    assert [tokenizer.pieces[i] for i in ids] == [b"xy", b"z"]


@pytest.mark.parametrize("names", [("gpt2", "gpt-2"), ("llama-bpe", "llama3")])
def test_two_names_of_one_rule(names: tuple[str, str]) -> None:
    assert PRE_TOKENIZERS[names[0]] is PRE_TOKENIZERS[names[1]]


@pytest.mark.parametrize("pre", list(PRE_TOKENIZERS))
def test_every_rule_loses_nothing(pre: str) -> None:
    tokenizer = cases.tokenizer(pre)
    for text in cases.mixed_texts(5, 60, list(cases.SPECIALS)):
        ids = tokenizer.encode(text, add_special=False)
        if not PRE_TOKENIZERS[pre].composes:
            assert tokenizer.decode(ids) == text.encode()
        assert max(ids) < tokenizer.n_vocab


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "123a", [b"12", b"3", b"a"]),
        ("smollm", "12a", [b"1", b"2", b"a"]),
        ("llama3", "12a", [b"12", b"a"]),
        ("qwen2", "12a", [b"1", b"2", b"a"]),
        ("gpt-2", "'s'S", [b"'s", b"'", b"S"]),
        ("qwen35", "->", [b"->"]),
        ("qwen2", "):\n", [b"):\n"]),
        ("gpt-2", "):\n", [b"):", b"\n"]),
    ],
)
def test_rules_cut_where_they_should(pre: str, text: str, words: list[bytes]) -> None:
    tokenizer = cases.tokenizer(pre)
    assert [tokenizer.pieces[i] for i in tokenizer.encode(text, add_special=False)] == words


@pytest.mark.parametrize(
    ("pre", "words"), [("llama3", [b"hello"]), ("gpt-2", [b"h", b"e", b"l", b"l", b"o"])]
)
def test_a_word_that_is_a_token_skips_the_merges_only_where_the_rule_says_so(
    pre: str, words: list[bytes]
) -> None:
    keys = cases.metadata(pre, merges=[])
    keys[cases.PREFIX + "tokens"] += ["hello"]
    keys[cases.PREFIX + "token_type"] += [cases.NORMAL]
    tokenizer = Tokenizer.from_metadata(keys.get)
    assert [tokenizer.pieces[i] for i in tokenizer.encode("hello", add_special=False)] == words
