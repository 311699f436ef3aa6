"""Owns the promises of a text stream: whole characters, nothing lost, nothing taken back."""

import random
from pathlib import Path

import pytest

from engine.artifacts.gguf import open_gguf
from engine.errors import InvalidArgument, RuntimeFailure
from engine.text_stream import TextStream
from engine.tokenizer import Tokenizer
from tests.cpu import tokenizer_cases as cases


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    with open_gguf(smollm2_path) as file:
        return Tokenizer.from_metadata(file.get)


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return cases.tokenizer("qwen35")


def bytes_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One id for each byte."""
    return [tokenizer.pieces.index(bytes([byte])) for byte in data]


def streamed(tokenizer: Tokenizer, ids: list[int], rng: random.Random) -> str:
    """All text of a stream that is asked and drained at random."""
    stream = TextStream(tokenizer)
    text = ""
    for token_id in ids:
        stream.feed(token_id)
        if rng.random() < 0.6:
            waiting = stream.pending
            assert stream.pending == waiting
            drained = stream.drain()
            assert len(drained.encode()) == waiting
            assert (stream.drain(), stream.pending) == ("", 0)
            text += drained
            assert tokenizer.decode(ids).decode("utf-8", "replace").startswith(text)
    text += stream.finish()
    assert (stream.finish(), stream.drain(), stream.pending) == ("", "", 0)
    return text


@pytest.mark.parametrize("seed", range(40))
def test_random_ids_give_the_text_of_the_whole(
    seed: int, tiny: Tokenizer, smollm2: Tokenizer
) -> None:
    rng = random.Random(seed)
    for tokenizer in (tiny, smollm2):
        # Half of the ids are single bytes, so that broken characters of every length occur.
        single = [i for i, piece in enumerate(tokenizer.pieces) if len(piece) == 1]
        lead = [i for i in single if tokenizer.pieces[i] >= b"\x80"]
        ids = [
            rng.choice(rng.choice((single, lead, lead, range(tokenizer.n_vocab))))
            for _ in range(rng.randrange(1, 120))
        ]
        whole = tokenizer.decode(ids).decode("utf-8", "replace")
        assert streamed(tokenizer, ids, rng) == whole


def test_mixed_texts_come_out_as_they_went_in(smollm2: Tokenizer) -> None:
    rng = random.Random(1)
    for text in cases.mixed_texts(9, 100, ["<|im_end|>", "\ufffd", "\ufffd\ufffd"]):
        ids = smollm2.encode(text, add_special=False)
        assert streamed(smollm2, ids, rng) == smollm2.decode(ids).decode()


def test_a_character_appears_once_when_its_last_byte_arrives(tiny: Tokenizer) -> None:
    stream = TextStream(tiny)
    drained = []
    for token_id in bytes_ids(tiny, "a🦙ñ".encode()):
        stream.feed(token_id)
        drained.append(stream.drain())
    assert drained == ["a", "", "", "", "🦙", "", "ñ"]


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"a\xf0\x9f\xa6", "\ufffd"),
        (b"a\xe6\xbc", "\ufffd"),
        (b"a\xc3", "\ufffd"),
        (b"a", ""),
        (b"", ""),
    ],
)
def test_finish_flushes_an_unfinished_character_once(
    data: bytes, end: str, tiny: Tokenizer
) -> None:
    stream = TextStream(tiny)
    for token_id in bytes_ids(tiny, data):
        stream.feed(token_id)
    assert stream.drain() == "a"[: len(data)]
    assert stream.finish() == end
    assert stream.finish() == ""


def test_finish_hands_out_what_was_not_drained(tiny: Tokenizer) -> None:
    stream = TextStream(tiny)
    for token_id in bytes_ids(tiny, b"abc\xc3"):
        stream.feed(token_id)
    assert stream.pending == 3
    assert stream.finish() == "abc\ufffd"


def test_a_replacement_character_waits_for_the_next_token(tiny: Tokenizer) -> None:
    stream = TextStream(tiny)
    keys = cases.metadata()
    keys[cases.PREFIX + "tokens"].append(cases.written("\ufffd"))
    keys[cases.PREFIX + "token_type"].append(cases.NORMAL)
    tokenizer = Tokenizer.from_metadata(keys.get)
    literal, letter = tokenizer.n_vocab - 1, tokenizer.pieces.index(b"a")
    stream = TextStream(tokenizer)
    stream.feed(literal)
    assert (stream.pending, stream.drain()) == (0, "")
    stream.feed(literal)
    assert stream.drain() == "\ufffd"
    stream.feed(letter)
    assert stream.drain() == "\ufffda"
    stream.feed(literal)
    assert stream.finish() == "\ufffd"


def test_specials_are_text_like_any_other(tiny: Tokenizer) -> None:
    stream = TextStream(tiny)
    for token_id in tiny.encode("a<|im_end|>b", add_special=False):
        stream.feed(token_id)
    assert stream.finish() == "a<|im_end|>b"


def test_feeding_after_finish_is_refused_until_reset(tiny: Tokenizer) -> None:
    stream = TextStream(tiny)
    (letter,) = bytes_ids(tiny, b"a")
    stream.feed(letter)
    stream.feed(bytes_ids(tiny, b"\xc3")[0])
    assert stream.finish() == "a\ufffd"
    with pytest.raises(RuntimeFailure, match=f"finished.*{letter}"):
        stream.feed(letter)
    assert stream.finish() == ""
    stream.reset()
    stream.feed(letter)
    assert stream.finish() == "a"


def test_reset_forgets_everything_that_waited(tiny: Tokenizer) -> None:
    stream = TextStream(tiny)
    for token_id in bytes_ids(tiny, b"a\xff\xf0\x9f"):
        stream.feed(token_id)
    stream.reset()
    assert stream.pending == 0
    assert stream.finish() == ""


@pytest.mark.parametrize("bad", [-1, 2**31 - 1, -(2**31)])
def test_a_bad_id_changes_nothing(bad: int, tiny: Tokenizer) -> None:
    stream = TextStream(tiny)
    first, second = bytes_ids(tiny, "ñ".encode())
    stream.feed(first)
    with pytest.raises(InvalidArgument, match=f"id {bad} "):
        stream.feed(bad)
    stream.feed(second)
    assert stream.finish() == "ñ"
