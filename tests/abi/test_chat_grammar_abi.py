"""Constrained tool calls through the ABI: random weights can only spell what is allowed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import Status
from skippy_abi import client
from tests import tiny

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Call with <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{\"name\": "
    "\"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n"
    "</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = json.dumps([{"type": "function", "function": {
    "name": "light", "parameters": {
        "type": "object", "properties": {"on": {"type": "boolean"}, "room": {"enum": ["a", "b"]}},
        "required": ["on", "room"], "additionalProperties": False,
    },
}}])
MESSAGES = json.dumps([{"role": "user", "content": "the light"}])


@pytest.fixture(scope="module")
def tool_model(
    runtime: client.Host, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[client.OpenModel]:
    """A tiny model whose template knows tools."""
    path = tiny.write(tmp_path_factory.mktemp("tools") / "tools.gguf", seed=3, template=TEMPLATE)
    table = Path(os.environ["MESH_SPECIALIZE_SERVES"])
    rows = table.read_text()
    table.write_text(rows + "\n" + tiny.serve(table.with_name("tools.toml"), path).read_text())
    model = client.OpenModel(runtime, path, ctx_size=1024)
    yield model
    model.free()


def answer(model: client.OpenModel, choice: str, seed: int, n_tokens: int = 200) -> tuple[str, str]:
    """Generated text and metadata of one request."""
    prompt, metadata = model.template(
        MESSAGES, tools_json=TOOLS, tool_choice_json=json.dumps(choice), parallel_tool_calls=False
    )
    tokens = model.tokenize(prompt)
    session = model.session()
    session.configure_chat(
        metadata, len(tokens), model.host.sampling(temperature=1.0, seed=seed)
    )
    chosen = []
    token = session.prefill_sampled(tokens)
    while not model.is_eog(token) and len(chosen) < n_tokens:
        chosen.append(token)
        token = session.decode(token)
    session.free()
    return model.detokenize(chosen).decode("utf-8", "replace"), metadata


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_required_call_is_a_call(tool_model: client.OpenModel, seed: int) -> None:
    text, metadata = answer(tool_model, "required", seed)
    assert json.loads(metadata)["grammar_lazy"] is False
    message = json.loads(tool_model.parse(text.encode(), metadata, is_partial=False))
    calls = message.get("tool_calls", [])
    # White space inside the object is free, so a random model may still be at it at the limit.
    if "</tool_call>" in text:
        assert [call["function"]["name"] for call in calls] == ["light"]
        assert set(json.loads(calls[0]["function"]["arguments"])) == {"on", "room"}
    assert text.lstrip().startswith(("<tool_call>", "<think>", "<"))


def test_some_required_call_is_finished(tool_model: client.OpenModel) -> None:
    texts = [answer(tool_model, "required", seed)[0] for seed in range(1, 9)]
    assert any("</tool_call>" in text for text in texts)


def test_a_lazy_grammar_leaves_prose_alone(tool_model: client.OpenModel) -> None:
    text, metadata = answer(tool_model, "auto", seed=5, n_tokens=40)
    assert json.loads(metadata)["grammar_lazy"] is True
    assert "<tool_call>" not in text
    assert len(set(text)) > 5


def test_a_grammar_that_does_not_compile_fails_the_configuration(
    tool_model: client.OpenModel
) -> None:
    session = tool_model.session()
    bad = json.dumps({"grammar": "start: @@", "grammar_lazy": False})
    status, message = tool_model.host.raw(
        "skippy_session_configure_chat_sampling", session.handle, tool_model.host.ffi.NULL,
        tool_model.host.text(bad), 0,
    )
    assert status == Status.RUNTIME_ERROR
    assert "does not compile" in (message or "")
    assert session.prefill_sampled([5, 6, 7]) >= 0
    session.free()
