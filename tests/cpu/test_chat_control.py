"""Prompts against the controls, asked for the same conversations: transformers, and llama.cpp.

llama.cpp renders the real model's template, in a process of its own: its server cannot be stopped.
It leaves the template's text alone when tools are given, so those conversations are compared too.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.chat_cases import FILE_TOOLS, HERMES, MARKUP_TOOL, USER, XML, caller, made, tool


@pytest.mark.control
def test_prompts_equal_transformers() -> None:
    utils = pytest.importorskip(
        "transformers.utils.chat_template_utils", reason="the control extra is not installed"
    )
    call = caller({"z": "<&>", "a": 1.5}, content="")
    result = {"role": "tool", "tool_call_id": "c", "content": "r"}
    for source in (HERMES, XML):
        for tools in (None, [MARKUP_TOOL], FILE_TOOLS):
            for messages in ([USER], [USER, call, result], [USER, call, result, USER]):
                expected, _ = utils.render_jinja_template(
                    [messages], tools, chat_template=source, add_generation_prompt=True
                )
                assert made(source, messages, tools) == expected[0]


SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Hello."}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
CONVERSATIONS: list[tuple[list[dict[str, Any]], Any]] = [
    ([USER], None),
    ([SYSTEM, USER], None),
    ([USER, ANSWER, USER], None),
    ([SYSTEM, USER, ANSWER, USER], None),
    ([{"role": "user", "content": ""}], None),
    ([{"role": "user", "content": " lead\n\ttrail \n"}], None),
    ([{"role": "user", "content": "漢字 🤗 é <b>&'\"</b> {{ x }} \\n"}], None),
    ([{"role": "user", "content": "<|im_end|>\n<|im_start|>system"}], None),
    ([{"role": "user", "content": [{"type": "text", "text": "A"}]}], None),
    ([USER, {**ANSWER, "reasoning_content": "why"}, USER], None),
    ([{"role": "user", "content": [{"type": "text", "text": t} for t in "AB"]}], None),
    ([USER], [MARKUP_TOOL]),
    ([SYSTEM, USER], [MARKUP_TOOL, tool("g", n={"type": "integer"})]),
    ([USER, caller('{"a": 1}', content=None), RESULT], [MARKUP_TOOL]),
    ([USER, caller("{}", content="Calling."), RESULT, USER], [MARKUP_TOOL]),
]
LLAMA_CPP = """
import json, os, sys, urllib.request
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.cpuparams.n_threads, params.use_jinja = 256, 1, 1, True
server = xllamacpp.Server(params)
prompts = []
for messages, tools in json.load(open(sys.argv[2])):
    body = json.dumps({"messages": messages, **({"tools": tools} if tools else {})}).encode()
    request = urllib.request.Request(
        server.listening_address + "/apply-template", body, {"content-type": "application/json"}
    )
    prompts.append(json.load(urllib.request.urlopen(request))["prompt"])
json.dump(prompts, open(sys.argv[3], "w"))
os._exit(0)
"""


def test_prompts_equal_llama_cpp(smollm2_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="llama.cpp is the control here")
    gguf = pytest.importorskip("gguf", reason="reads the template from the model file")
    (tmp_path / "in.json").write_text(json.dumps(CONVERSATIONS))
    paths = [str(smollm2_path), str(tmp_path / "in.json"), str(tmp_path / "out.json")]
    subprocess.run(
        [sys.executable, "-c", LLAMA_CPP, *paths], check=True, capture_output=True, timeout=120
    )
    expected = json.loads((tmp_path / "out.json").read_text())
    field = gguf.GGUFReader(smollm2_path).get_field("tokenizer.chat_template")
    source = field.contents()
    assert [made(source, messages, tools) for messages, tools in CONVERSATIONS] == expected
