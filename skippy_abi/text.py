"""Owns the text calls of the ABI: tokenise, detokenise, end-of-generation, and both chat functions.

None of them takes the model's lock: they may run while a decode does. Everything behind a size
query is computed twice, so chat results come from the template's and parser's small caches.
"""

from functools import lru_cache
from typing import Any

from engine.chat.messages import ChatRequest
from engine.chat.metadata import is_own_metadata
from engine.chat.parse import parse_response_bytes
from engine.errors import BufferTooSmall, InvalidArgument, Unsupported
from engine.model import Model
from skippy_abi import buffers, fallback, handles
from skippy_abi.boundary import exported
from skippy_abi.cffi_module import ffi

SIZE = ffi.sizeof("size_t")
# The host detokenises the whole answer after each token, twice; the chat parser likewise.
CACHED_RESPONSES = 64


def _model(handle: Any) -> Model:
    return handles.take(handle, Model, "model")


@exported
def skippy_tokenize(
    model: Any, text: Any, add_special: bool, output_tokens: Any, output_token_capacity: int,
    out_token_count: Any, out_error: Any,
) -> None:
    served = _model(model)
    buffers.check_capacity(output_token_capacity, "output_tokens")
    tokens = served.plan.tokenizer.encode(
        buffers.read_text(text, "text"), add_special=bool(add_special)
    )
    buffers.fits(
        out_token_count, len(tokens), output_tokens, output_token_capacity, "output_tokens"
    )
    buffers.write_tokens(output_tokens, tokens, "output_tokens")


@exported
def skippy_detokenize(
    model: Any, tokens: Any, token_count: int, output_text: Any, output_text_capacity: int,
    out_text_bytes: Any, out_error: Any,
) -> None:
    served = _model(model)
    if tokens == ffi.NULL:
        raise InvalidArgument("tokens: NULL")
    buffers.check_capacity(output_text_capacity, "output_text")
    text = served.plan.tokenizer.decode(buffers.read_tokens(tokens, token_count, "tokens"))
    buffers.fits(out_text_bytes, len(text), output_text, output_text_capacity, "output_text")
    buffers.write_bytes(output_text, text, "output_text")


@exported
def skippy_token_is_eog(model: Any, token_id: int, out_is_eog: Any, out_error: Any) -> None:
    is_eog = _model(model).plan.tokenizer.is_eog(token_id)
    buffers.write_required(out_is_eog, b"\1" if is_eog else b"\0", "out_is_eog")


@exported
def skippy_apply_chat_template_json(
    model: Any, messages_json: Any, tools_json: Any, tool_choice_json: Any, add_assistant: bool,
    override_enable_thinking: bool, enable_thinking: bool, parallel_tool_calls: bool,
    reasoning_format: Any, chat_template_kwargs: Any, output_text: Any, output_text_capacity: int,
    out_text_bytes: Any, output_metadata_json: Any, output_metadata_json_capacity: int,
    out_metadata_json_bytes: Any, out_error: Any,
) -> None:
    served = _model(model)
    buffers.require_out(out_text_bytes, SIZE, "out_text_bytes")
    buffers.require_out(out_metadata_json_bytes, SIZE, "out_metadata_json_bytes")
    buffers.check_capacity(output_text_capacity, "output_text")
    buffers.check_capacity(output_metadata_json_capacity, "output_metadata_json")
    template = served.plan.chat_template
    if template is None:
        raise Unsupported(f"chat template: {served.plan.model_id} has none")
    rendered = template.render(ChatRequest(
        messages_json=buffers.read_text(messages_json, "messages_json"),
        tools_json=buffers.read_optional_text(tools_json, "tools_json"),
        tool_choice_json=buffers.read_optional_text(tool_choice_json, "tool_choice_json"),
        add_assistant=bool(add_assistant),
        override_enable_thinking=bool(override_enable_thinking),
        enable_thinking=bool(enable_thinking),
        parallel_tool_calls=bool(parallel_tool_calls),
        reasoning_format=buffers.read_optional_text(reasoning_format, "reasoning_format"),
        chat_template_kwargs=buffers.read_optional_text(
            chat_template_kwargs, "chat_template_kwargs"
        ),
    ))
    prompt = rendered.prompt.encode()
    metadata = rendered.metadata_json.encode()
    # Both sizes are reported before either buffer is judged.
    buffers.write_value(out_text_bytes, "size_t", len(prompt), "out_text_bytes")
    buffers.write_value(
        out_metadata_json_bytes, "size_t", len(metadata), "out_metadata_json_bytes"
    )
    _need_buffer(output_text, output_text_capacity, len(prompt), "output_text")
    _need_buffer(
        output_metadata_json, output_metadata_json_capacity, len(metadata), "output_metadata_json"
    )
    buffers.write_bytes(output_text, prompt, "output_text")
    buffers.write_bytes(output_metadata_json, metadata, "output_metadata_json")


@exported
def skippy_parse_chat_response_json(
    generated_text: Any, metadata_json: Any, is_partial: bool, output_message_json: Any,
    output_message_json_capacity: int, out_message_json_bytes: Any, out_error: Any,
) -> None:
    buffers.require_out(out_message_json_bytes, SIZE, "out_message_json_bytes")
    buffers.check_capacity(output_message_json_capacity, "output_message_json")
    text = buffers.read_c_string(generated_text, "generated_text")
    metadata = buffers.read_text(metadata_json, "metadata_json")
    # The call has no handle: what a fallback's model rendered is known by its metadata.
    if fallback.has_models() and not is_own_metadata(metadata):
        fallback.ask()
        return
    message = _parsed(text, metadata, bool(is_partial))
    buffers.write_value(out_message_json_bytes, "size_t", len(message), "out_message_json_bytes")
    _need_buffer(
        output_message_json, output_message_json_capacity, len(message), "output_message_json"
    )
    buffers.write_bytes(output_message_json, message, "output_message_json")


@lru_cache(maxsize=CACHED_RESPONSES)
def _parsed(raw: bytes, metadata_json: str, is_partial: bool) -> bytes:
    return parse_response_bytes(raw, metadata_json, is_partial=is_partial).encode()


def _need_buffer(pointer: Any, capacity: int, needed: int, name: str) -> None:
    """For the chat calls a NULL buffer is too small even for an empty result."""
    if pointer == ffi.NULL or needed > capacity:
        raise BufferTooSmall(f"{name}: {needed} bytes needed, capacity {capacity}")
