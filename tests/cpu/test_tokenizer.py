"""Owns the tokenizer's own rules: ids to bytes, special tokens, ends, and the limits of a text."""

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.artifacts.gguf import open_gguf
from engine.errors import InvalidArgument
from engine.tokenizer import END_TEXTS, MAX_TEXT_CHARACTERS, Tokenizer
from tests.cpu import tokenizer_cases as cases

ROOT = Path(__file__).parents[2]
FIELD_TEXT = "x 🦙 ñ 漢字 e\u0301"
BAD_IDS = (-1, -(2**31), 2**31 - 1, 2**63)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    with open_gguf(smollm2_path) as file:
        return Tokenizer.from_metadata(file.get)


def id_of(tokenizer: Tokenizer, piece: str) -> int:
    return tokenizer.pieces.index(piece.encode())


def test_the_real_vocabulary(smollm2: Tokenizer) -> None:
    assert smollm2.n_vocab == len(smollm2.pieces) == 49152
    assert (smollm2.bos_id, smollm2.eos_id) == (1, 2)
    assert (smollm2.bos_text, smollm2.eos_text) == ("<|im_start|>", "<|im_end|>")
    assert not smollm2.adds_bos
    # <reponame> is a border between files: the reference runtime ends there, too.
    assert smollm2.eog_ids == {0, 2, 4}
    assert [smollm2.pieces[i] for i in (0, 4)] == [b"<|endoftext|>", b"<reponame>"]


def test_every_split_of_the_ids_gives_the_same_bytes(smollm2: Tokenizer) -> None:
    ids = smollm2.encode(FIELD_TEXT, add_special=False)
    whole = smollm2.decode(ids)
    assert whole == FIELD_TEXT.encode()
    assert smollm2.decode([]) == b""
    assert b"".join(smollm2.decode([token_id]) for token_id in ids) == whole
    for at in range(len(ids) + 1):
        assert smollm2.decode(ids[:at]) + smollm2.decode(ids[at:]) == whole
    assert all("\ufffd".encode() not in smollm2.decode([token_id]) for token_id in ids)


def test_pieces_of_every_kind() -> None:
    kinds = {
        cases.written("é \n"): (cases.NORMAL, "é \n".encode()),
        "two words": (cases.NORMAL, b"two words"),
        "漢": (cases.NORMAL, "漢".encode()),
        "<é>": (cases.CONTROL, "<é>".encode()),
        "<user>": (cases.USER_DEFINED, b"<user>"),
        "<?>": (cases.UNKNOWN, b"<?>"),
        "<0xFF>": (cases.BYTE, b"\xff"),
        "<0x00>": (cases.BYTE, b"\0"),
        "[unused]": (cases.UNUSED, b""),
    }
    tokenizer = cases.tokenizer(
        tokens=[*kinds, "a"],
        token_type=[*(kind for kind, _ in kinds.values()), cases.NORMAL],
        merges=[],
        bos_token_id=None,
        eos_token_id=None,
    )
    assert tokenizer.pieces == [*(piece for _, piece in kinds.values()), b"a"]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (None, None)
    assert (tokenizer.bos_text, tokenizer.eos_text) == ("", "")
    assert tokenizer.eog_ids == frozenset()


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("bad", ["n_vocab", *BAD_IDS])
def test_a_bad_id_is_named_with_its_place(bad: int | str, place: int) -> None:
    tokenizer = cases.tokenizer()
    bad_id = tokenizer.n_vocab if isinstance(bad, str) else bad
    ids = [5, 6, 7]
    ids[place] = bad_id
    with pytest.raises(InvalidArgument) as caught:
        tokenizer.decode(ids)
    for word in (f"id {bad_id} ", f"index {place} ", f"0 to {tokenizer.n_vocab - 1}"):
        assert word in str(caught.value)
    assert not tokenizer.is_eog(bad_id)


def test_specials_are_found_everywhere_and_keep_their_neighbours_spaces() -> None:
    tokenizer = cases.tokenizer()
    start, end = tokenizer.bos_id, tokenizer.eos_id
    assert tokenizer.encode("<|im_start|><|im_end|>", add_special=False) == [start, end]
    ids = tokenizer.encode(" a \n<|im_end|>  b<unk>", add_special=False)
    at = ids.index(end or 0)
    assert tokenizer.decode(ids[:at]) == b" a \n"
    assert tokenizer.decode(ids[at + 1 :]) == b"  b<unk>"
    assert ids[-1] == id_of(tokenizer, "<unk>")
    # An unused token's text is only letters.
    assert len(tokenizer.encode("[PAD7]", add_special=False)) > 1


def test_the_longest_special_is_cut_out_first() -> None:
    tokenizer = cases.tokenizer()
    whole = tokenizer.encode("<tool><tool>x</tool>", add_special=False)
    assert whole == [id_of(tokenizer, "<tool>"), id_of(tokenizer, "<tool>x</tool>")]
    # The longer one wins although the shorter one begins further left.
    keys = cases.metadata(bos_token_id=None, eos_token_id=None)
    keys[cases.PREFIX + "tokens"] += ["[ab", "bcd]"]
    keys[cases.PREFIX + "token_type"] += [cases.CONTROL] * 2
    tokenizer = Tokenizer.from_metadata(keys.get)
    ids = tokenizer.encode("[abcd][ab", add_special=False)
    assert [tokenizer.pieces[i] for i in ids] == [b"[", b"a", b"bcd]", b"[ab"]


@pytest.mark.parametrize(
    ("pre", "keys", "front", "back"),
    [
        ("gpt-2", {}, 0, 0),
        ("gpt-2", {"add_bos_token": True}, 1, 0),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, 1, 1),
        ("llama-bpe", {}, 1, 0),
        ("llama-bpe", {"add_bos_token": False, "add_eos_token": True}, 0, 1),
    ],
)
def test_ends_are_added_as_the_vocabulary_says(
    pre: str, keys: dict[str, bool], front: int, back: int
) -> None:
    tokenizer = cases.tokenizer(pre, **keys)
    added = [tokenizer.bos_id] * front, [tokenizer.eos_id] * back
    for text in ("", "a the", "<|im_start|>a"):
        plain = tokenizer.encode(text, add_special=False)
        assert tokenizer.encode(text, add_special=True) == [*added[0], *plain, *added[1]]
    assert tokenizer.encode("", add_special=False) == []
    assert tokenizer.adds_bos == bool(front)


@pytest.mark.parametrize("text", [text for text in END_TEXTS if text not in cases.SPECIALS])
@pytest.mark.parametrize("kind", [cases.NORMAL, cases.UNUSED, cases.CONTROL, cases.USER_DEFINED])
def test_a_text_that_ends_a_generation_is_special(text: str, kind: int) -> None:
    keys = cases.metadata()
    keys[cases.PREFIX + "tokens"].append(text)
    keys[cases.PREFIX + "token_type"].append(kind)
    tokenizer = Tokenizer.from_metadata(keys.get)
    last = tokenizer.n_vocab - 1
    assert tokenizer.eog_ids == {tokenizer.eos_id, last}
    assert tokenizer.encode(f"a{text}a", add_special=False)[1:-1] == [last]
    assert tokenizer.pieces[last] == text.encode()


def test_named_ends_and_borders_between_files() -> None:
    keys = cases.metadata(eot_token_id=5, eom_token_id=6)
    keys[cases.PREFIX + "tokens"] += ["<|repo_name|>", "<REPO>", "<|file_sep|>"]
    keys[cases.PREFIX + "token_type"] += [cases.NORMAL] * 3
    repository, other, border = range(len(keys[cases.PREFIX + "tokens"]))[-3:]
    tokenizer = Tokenizer.from_metadata(keys.get)
    assert tokenizer.eog_ids == {tokenizer.eos_id, 5, 6, repository, border}
    keys[cases.PREFIX + "fim_rep_token_id"] = other
    tokenizer = Tokenizer.from_metadata(keys.get)
    assert tokenizer.eog_ids == {tokenizer.eos_id, 5, 6, other, border}
    assert all(tokenizer.is_eog(token_id) for token_id in tokenizer.eog_ids)


def test_a_byte_without_a_token_is_dropped_and_does_not_join_its_neighbours() -> None:
    # "!!" is a token here; 0x1D stands between the two in one word.
    whole, lacking = cases.tokenizer(), cases.tokenizer(without=cases.ALPHABET[0x1D])
    assert len(whole.encode("!!", add_special=False)) == 1
    assert whole.decode(whole.encode("!\x1d!", add_special=False)) == b"!\x1d!"
    ids = lacking.encode("!\x1d!", add_special=False)
    assert [lacking.pieces[i] for i in ids] == [b"!", b"!"]


@pytest.mark.parametrize("text", ["\ud83d", "ab\udc00c", "\ud83d\ud83d"])
def test_an_unpaired_surrogate_is_refused_by_place(text: str) -> None:
    tokenizer = cases.tokenizer()
    place = next(i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff")
    with pytest.raises(InvalidArgument) as caught:
        tokenizer.encode(text, add_special=False)
    message = str(caught.value)
    assert f"U+{ord(text[place]):04X}" in message
    assert f"character {place};" in message
    assert message.isascii()
    assert tokenizer.decode(tokenizer.encode("\U0001f600", add_special=False)) == "😀".encode()


def test_a_text_past_the_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidArgument) as caught:
        cases.tokenizer().encode(" " * (MAX_TEXT_CHARACTERS + 1), add_special=False)
    assert str(MAX_TEXT_CHARACTERS) in str(caught.value)
    assert str(MAX_TEXT_CHARACTERS + 1) in str(caught.value)


def test_nul_and_empty_lines_are_ordinary() -> None:
    tokenizer = cases.tokenizer()
    for text in ("\0", "a\0b", "\n" * 500, "\r\n" * 3, "<|im_end|>\0"):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text.encode()


def test_threads_share_one_tokenizer(smollm2: Tokenizer) -> None:
    texts = list(cases.mixed_texts(7, 40, ["<|im_start|>", "<|im_end|>"]))
    right = [smollm2.encode(text, add_special=True) for text in texts]
    wrong: list[str] = []

    def work(order: list[int]) -> None:
        for index in order:
            ids = smollm2.encode(texts[index], add_special=True)
            if ids != right[index] or smollm2.decode(ids) != smollm2.decode(right[index]):
                wrong.append(texts[index])

    forward = list(range(len(texts)))
    threads = [
        threading.Thread(target=work, args=(order * 3,))
        for order in (forward, forward[::-1], forward[::2], forward[1::2])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_encoding_prints_nothing_even_when_the_process_forks() -> None:
    code = (
        "import os; from tests.cpu.tokenizer_cases import tokenizer; t = tokenizer('qwen35');"
        "ids = t.encode('hello the ' * 20000, add_special=True); pid = os.fork();"
        "same = t.encode('hello the ' * 20000, add_special=True) == ids;"
        "os._exit(not same) if pid == 0 else None;"
        "raise SystemExit(os.waitpid(pid, 0)[1] or not same)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_longer_list_has_the_text_of_the_shorter_one_in_front(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("".join(cases.mixed_texts(3, 5, ["<|im_end|>"])), add_special=False)
    texts = [smollm2.decode(ids[:n]) for n in range(len(ids) + 1)]
    for shorter, longer in itertools.pairwise(texts):
        assert longer.startswith(shorter)
        assert len(longer) > len(shorter)
