"""What makes a rendering fail: texts that UTF-8 or JSON forbid, and templates that misbehave."""

import json

import pytest

from engine.chat import ChatRequest, ChatTemplate
from engine.errors import Unsupported
from tests.cpu.chat_cases import PLAIN, USER, XML, caller, made, refusal

# Text that UTF-8 cannot carry: one rule, a refusal that names the place.


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"messages_json": r'[{"role":"user","content":"a\ud83d"}]'}, "messages[0].content"),
        ({"messages_json": r'[{"role":"user","content":"","\udc00":1}]'}, "messages[0]"),
        (
            {"messages_json": json.dumps([caller(r'{"k":["\ud83d"]}')])},
            "messages[0].tool_calls[0].function.arguments.k[0]",
        ),
        ({"tools_json": r'[{"function":{"name":"f\udfff"}}]'}, "tools[0].function.name"),
        ({"chat_template_kwargs": r'{"k":"\ud83d"}'}, "chat_template_kwargs.k"),
        ({"tool_choice_json": r'"\ud83d"'}, "tool_choice"),
        ({"messages_json": r'[{"role":"user","content":"a\u0000b"}]'}, "messages[0].content: NUL"),
    ],
)
def test_unpaired_surrogates_are_refused_by_place(fields: dict[str, str], place: str) -> None:
    template = ChatTemplate(XML, bos_text="", eos_text="", adds_bos=False)
    with pytest.raises(Unsupported) as caught:
        template.render(ChatRequest(**{"messages_json": "[]", **fields}))
    assert place in str(caught.value)
    str(caught.value).encode()
    pair = template.render(ChatRequest(r'[{"role":"user","content":"\ud83e\udd99"}]'))
    assert "🦙" in pair.prompt


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[" * 100_000,
        "NaN",
        '[{"role":"u","content":"","n":-Infinity}]',
        "[1e999]",
        "[" + "9" * 5000 + "]",
        '[{"role":"u","k":' + "[" * 300 + "]" * 300 + "}]",
    ],
    ids=["empty", "open", "very deep", "nan", "infinity", "overflow", "digits", "deep"],
)
def test_messages_that_are_not_usable_json(text: str) -> None:
    template = ChatTemplate(PLAIN, bos_text="", eos_text="", adds_bos=False)
    with pytest.raises(Unsupported, match=r"^messages: "):
        template.render(ChatRequest(text))


# What a template may do.


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "the model file has none"),
        ("{% if %}", "does not compile, line 1"),
        ("\n{{ raise_exception('roles must alternate \ud83d') }}", "roles must alternate ?"),
        ("{{ messages[0].role + none }}", "do not fit (line 1"),
        ("{{ nothing.at.all }}", "not there"),
        ("{{ ''.__class__.mro() }}", "sandbox"),
        ("{% set _ = messages.append(1) %}", "sandbox"),
        ("{% include 'x' %}", "do not fit"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deep"),
        ("{{ 1 // 0 }}", "failed"),
        ("{{ messages | tojson(indent=[]) }}", "do not fit"),
        ("{{ 'ab' * 100000000 }}", "limit is 67108864"),
        ("{{ 2 ** 100000 }}", "limit is 4096"),
        ("{% for i in range(9999999) %}{% endfor %}", "limit is 1000000"),
        (
            "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}",
            "limit is 1000000",
        ),
        ("{% set s = 'x' * 67108864 %}{{ s }}{{ s }}", "characters of the text"),
        ("{{ 'a\0' }}", "NUL at character 1"),
        ("{{ '\\ud83d' }}", "unpaired surrogate"),
    ],
)
def test_template_that_fails(source: str, reason: str) -> None:
    assert reason in refusal(source, [USER])


def test_template_extras() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}"
        "{% generation %}!{% endgeneration %}{% endfor %}{{ strftime_now('%Y') | length }}"
    )
    assert made(source, [USER, USER, USER]) == "hi!hi!4"


def test_random_names_are_gone() -> None:
    refusal("{{ [1, 2] | random }}", [USER])
    refusal("{{ lipsum() }}", [USER])
