"""Guards the text and chat calls through the ABI: bytes in pieces, odd JSON, answers that grow.

Long because each of the chat calls' field cases is here once.
The rules of templates and parsing have their own tests below the ABI; here each is met once.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import Status
from skippy_abi.client import AbiError, Host, OpenModel
from tests.abi.steps import refused

TEXT = "x 🦙 ñ 漢字 é e\u0301 the then"


@pytest.fixture(scope="module")
def smol(runtime: Host, smollm2_path: Path) -> Iterator[OpenModel]:
    """The real model, for its vocabulary and template."""
    model = OpenModel(runtime, smollm2_path, ctx_size=64)
    yield model
    model.free()


def user(content: Any) -> str:
    return json.dumps([{"role": "user", "content": content}])


def template(model: OpenModel, messages: bytes | str, **given: bytes | str) -> tuple[
    int, str | None, bytes
]:
    """Status, message and prompt of one template call with room for anything."""
    ffi = model.host.ffi

    def text(value: bytes | str | None) -> Any:
        if value is None:
            return ffi.NULL
        return ffi.new("char[]", value if isinstance(value, bytes) else value.encode())

    room, sizes = ffi.new("char[]", 1 << 16), ffi.new("size_t[2]")
    other = ffi.new("char[]", 1 << 16)
    status, message = model.host.raw(
        "skippy_apply_chat_template_json", model.handle, text(messages),
        text(given.get("tools")), text(given.get("choice")), True, False, True, True,
        text(given.get("reasoning")), text(given.get("kwargs")), room, 1 << 16, sizes, other,
        1 << 16, sizes + 1,
    )
    return status, message, bytes(ffi.buffer(room, sizes[0])) if status == Status.OK else b""


# R01: bytes in pieces


@pytest.mark.parametrize("which", ["tiny", "smol"])
def test_pieces_join_to_the_whole_byte_for_byte(
    tiny_model: OpenModel, smol: OpenModel, which: str
) -> None:
    model = tiny_model if which == "tiny" else smol
    tokens = model.tokenize(TEXT)
    whole = model.detokenize(tokens)
    assert whole == TEXT.encode()
    singles = [model.detokenize([token]) for token in tokens]
    assert b"".join(singles) == whole
    assert not any("\ufffd".encode() in piece for piece in singles)
    for cut in range(len(tokens) + 1):
        head, tail = tokens[:cut], tokens[cut:]
        assert model.detokenize(head) + model.detokenize(tail) == whole
        assert whole.startswith(model.detokenize(head))


def test_every_id_alone_and_all_at_once(tiny_model: OpenModel) -> None:
    pieces = [tiny_model.detokenize([token]) for token in range(320)]
    assert b"".join(pieces) == tiny_model.detokenize(range(320))
    assert pieces[256] == b"<|endoftext|>"


def test_random_token_lists_grow_as_prefixes(smol: OpenModel) -> None:
    rng = random.Random(4)
    tokens = [rng.randrange(49152) for _ in range(60)]
    before = b""
    for n in range(1, 61):
        now = smol.detokenize(tokens[:n])
        assert now.startswith(before)
        before = now


@pytest.mark.parametrize("raw", [b"\xff", b"a\xc3", b"\xed\xa0\xbd", b"\xf8\x88\x80\x80\x80"])
def test_text_that_is_not_utf8_is_refused(tiny_model: OpenModel, raw: bytes) -> None:
    ffi = tiny_model.host.ffi
    counter = ffi.new("size_t *")
    outcome = tiny_model.host.raw("skippy_tokenize", tiny_model.handle, ffi.new("char[]", raw),
                                  True, ffi.NULL, 0, counter)
    refused(outcome, Status.INVALID_ARGUMENT, "not valid UTF-8")


def test_specials_are_parsed_and_end_the_text(smol: OpenModel) -> None:
    tokens = smol.tokenize("<|im_start|>user\nhi<|im_end|>")
    assert (tokens[0], tokens[-1]) == (1, 2)
    assert [smol.is_eog(t) for t in (tokens[0], tokens[-1], 0)] == [False, True, True]


# R04: surrogates


@pytest.mark.parametrize(("messages", "given"), [
    (r'[{"role":"user","content":"\ud83d"}]', {}),
    (r'[{"role":"user","content":"a\udc99b"}]', {}),
    (user("hi"), {"tools": r'[{"type":"function","function":{"name":"\ud83d"}}]'}),
    (r'[{"role":"assistant","content":null,"tool_calls":[{"type":"function","function":'
     r'{"name":"f","arguments":"{\"a\":\"\\ud83d\"}"}}]}]', {}),
    (user("hi"), {"kwargs": r'{"x":"\ud83d"}'}),
])
def test_half_a_surrogate_is_refused_in_words(
    smol: OpenModel, messages: str, given: dict[str, Any]
) -> None:
    status, message, prompt = template(smol, messages, **given)
    if status == Status.OK:
        prompt.decode("utf-8")
    else:
        assert status == Status.UNSUPPORTED
        for word in ("Traceback", "UnicodeEncodeError", "/"):
            assert word not in (message or "")
    assert template(smol, user("hi"))[0] == Status.OK


def test_a_whole_surrogate_pair_is_its_character(smol: OpenModel) -> None:
    _, _, prompt = template(smol, r'[{"role":"user","content":"\ud83e\udd99"}]')
    assert "🦙" in prompt.decode()


def test_a_half_character_in_a_reply_is_held_back(smol: OpenModel) -> None:
    _, metadata = smol.template(user("hi"))
    raw = "ab🦙".encode()
    for n in range(1, len(raw) + 1):
        answer = json.loads(smol.parse(raw[:n], metadata, is_partial=True))
        assert "\ufffd" not in (answer["content"] or "")


# R07, R09, R10, R12, R15: once each


@pytest.mark.parametrize(("arguments", "fine"), [
    ('{"city":"Paris","n":3}', True), ("{}", True), ("", True), ('{"a":{"b":[1]}}', True),
    ('{"a":', False), ("[1]", False), ("null", False), ('"x"', False),
])
def test_tool_history_with_arguments_as_text(
    smol: OpenModel, arguments: str, fine: bool
) -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "id": "c1", "function": {"name": "f", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"}, {"role": "user", "content": "so?"},
    ]
    status, message, _ = template(smol, json.dumps(messages))
    assert status in ({Status.OK} if fine else {Status.OK, Status.UNSUPPORTED}), message


@pytest.mark.parametrize("content", [
    "null", None, '""', "[]", '[{"type":"text","text":"A"},{"type":"text","text":"B"}]',
])
def test_content_of_every_shape_shows_no_python(smol: OpenModel, content: str | None) -> None:
    part = "" if content is None else f',"content":{content}'
    call = '"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]'
    messages = f'[{{"role":"user","content":"hi"}},{{"role":"assistant"{part},{call}}}]'
    status, message, prompt = template(smol, messages)
    assert status == Status.OK, message
    for word in (b"None", b"null", b"{'"):
        assert word not in prompt
    if content and "text" in content:
        assert b"A" in prompt
        assert b"B" in prompt


@pytest.mark.parametrize("content", ["5", "true", '[{"type":"image_url","image_url":{}}]', "{}"])
def test_content_that_is_no_text_is_unsupported(smol: OpenModel, content: str) -> None:
    status, message, _ = template(smol, f'[{{"role":"user","content":{content}}}]')
    assert status == Status.UNSUPPORTED
    assert message


def test_tool_schemas_keep_their_text(smol: OpenModel) -> None:
    tools = json.dumps([{"type": "function", "function": {
        "name": "f", "description": "<b>Tom & Jerry's</b> 漢字 🤗 a/b",
        "parameters": {"type": "object", "properties": {"z": {"type": "number", "default": 1.0},
                                                        "a": {"type": "null"}}}}}])
    status, message, prompt = template(smol, user("hi"), tools=tools)
    assert status == Status.OK, message
    for escape in (b"\\u003c", b"\\u0027", b"\\u6f22"):
        assert escape not in prompt


def test_partial_answers_only_grow(smol: OpenModel) -> None:
    _, metadata = smol.template(user("hi"))
    raw = "run ovs-vsctl get Interface <interface> name, a<b: é 🦙 done".encode()
    content = ""
    for n in range(len(raw) + 1):
        try:
            now = json.loads(smol.parse(raw[:n], metadata, is_partial=True))["content"] or ""
        except AbiError:
            continue
        assert now.startswith(content)
        content = now
    final = json.loads(smol.parse(raw, metadata, is_partial=False))
    assert final["role"] == "assistant"
    assert final["content"] == raw.decode()


@pytest.mark.parametrize("reasoning", [None, "auto", "none", "deepseek"])
@pytest.mark.parametrize("thinking", [None, True, False])
def test_a_plain_reply_is_content_whatever_the_switches(
    smol: OpenModel, reasoning: str | None, thinking: bool | None
) -> None:
    _, metadata = smol.template(user("hi"), thinking=thinking, reasoning_format=reasoning)
    assert '"grammar":""' in metadata
    for partial in (True, False):
        answer = json.loads(smol.parse(b"Four.", metadata, is_partial=partial))
        assert answer["content"] == "Four."
        assert not answer.get("reasoning_content")


def test_an_unknown_reasoning_format_is_unsupported(smol: OpenModel) -> None:
    with pytest.raises(AbiError) as error:
        smol.template(user("hi"), reasoning_format="secret")
    assert error.value.status == Status.UNSUPPORTED


BAD_JSON = [b"", b"{", b"nul", b"\xff", b"{}", b"5", b'[{"role":5}]', b"[5]", b"[" * 100_000,
            b'[{"role":"user","content":' + b"9" * 10_000 + b"}]", b'[{"content":"x"}]']


@pytest.mark.parametrize("raw", BAD_JSON, ids=[repr(b[:20]) for b in BAD_JSON])
def test_bad_messages_are_refused(smol: OpenModel, raw: bytes) -> None:
    status, message, _ = template(smol, raw)
    assert status in (Status.UNSUPPORTED, Status.INVALID_ARGUMENT)
    assert "Traceback" not in (message or "")


@pytest.mark.parametrize("field", ["tools", "choice", "kwargs"])
@pytest.mark.parametrize("raw", [b"{", b"\xff", b"5", b"[" * 100_000, b'"\\ud83d"'])
def test_bad_options_are_refused(smol: OpenModel, field: str, raw: bytes) -> None:
    status, message, _ = template(smol, user("hi"), **{field: raw})
    assert status in (Status.UNSUPPORTED, Status.INVALID_ARGUMENT)
    assert "Traceback" not in (message or "")


def test_two_renderings_are_equal(smol: OpenModel) -> None:
    assert smol.template(user("hi")) == smol.template(user("hi"))
    open_ended, _ = smol.template(user("hi"), add_assistant=False)
    assert smol.template(user("hi"))[0].startswith(open_ended)


@pytest.mark.parametrize("metadata", [b"", b"{", b"[]", b"5", b"\xff", b'{"response":5}',
                                      b"[" * 100_000])
def test_parsing_with_bad_metadata_is_refused(runtime: Host, metadata: bytes) -> None:
    ffi = runtime.ffi
    counter, room = ffi.new("size_t *"), ffi.new("char[]", 4096)
    status, message = runtime.raw(
        "skippy_parse_chat_response_json", ffi.new("char[]", b"hi"), ffi.new("char[]", metadata),
        False, room, 4096, counter,
    )
    assert status in (Status.UNSUPPORTED, Status.INVALID_ARGUMENT)
    assert "Traceback" not in (message or "")
