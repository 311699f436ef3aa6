"""Owns the plain calls that run tokens: prefill, decode, batch, verify, sample.

Outputs are checked before anything runs: a call that fails because its caller's memory is bad has
not moved a session. The frame forms are in `frames.py`.
"""

from typing import Any

from engine.errors import BufferTooSmall, InvalidArgument, Unsupported
from engine.sampling import SamplingConfig
from engine.session import Session
from skippy_abi import buffers, convert
from skippy_abi.boundary import exported
from skippy_abi.cffi_module import ffi
from skippy_abi.session import session_of

SIZE = ffi.sizeof("size_t")
TOKEN = ffi.sizeof("int32_t")
DRAFT = ffi.sizeof("struct skippy_native_mtp_draft")
DRAFT_VERSION = 1


def _plain(session: Any, out_bytes: Any, out_token: Any = ffi.NULL) -> Session:
    """Session and optional outputs of a plain call; its raw activations are ignored."""
    target = session_of(session)
    buffers.check_out(out_bytes, SIZE, "out_output_activation_bytes")
    buffers.check_out(out_token, TOKEN, "out_predicted_token")
    buffers.write_value(out_bytes, "size_t", 0, "out_output_activation_bytes")
    return target


def write_no_draft(out_draft: Any) -> None:
    """No MTP heads here: every draft is "none available"."""
    buffers.check_out(out_draft, DRAFT, "out_mtp_draft")
    draft = ffi.new("struct skippy_native_mtp_draft *")
    draft.version = DRAFT_VERSION
    buffers.write_struct(out_draft, draft, "out_mtp_draft")


@exported
def skippy_prefill_chunk(
    session: Any, token_ids: Any, token_count: int, input_activations: Any,
    input_activation_bytes: int, output_activations: Any, output_activation_capacity: int,
    out_output_activation_bytes: Any, out_error: Any,
) -> None:
    target = _plain(session, out_output_activation_bytes)
    target.prefill(buffers.read_tokens(token_ids, token_count))


@exported
def skippy_decode_step_sampled(
    session: Any, token_id: int, sampling: Any, input_activation: Any, input_activation_bytes: int,
    output_activation: Any, output_activation_capacity: int, out_output_activation_bytes: Any,
    out_predicted_token: Any, out_error: Any,
) -> None:
    target = _plain(session, out_output_activation_bytes, out_predicted_token)
    token = target.decode(token_id, convert.sampling(sampling))
    buffers.write_value(out_predicted_token, "int32_t", token, "out_predicted_token")


@exported
def skippy_decode_step_sampled_mtp(
    session: Any, token_id: int, sampling: Any, out_predicted_token: Any, max_draft_tokens: int,
    out_mtp_draft: Any, out_error: Any,
) -> None:
    write_no_draft(out_mtp_draft)
    target = _plain(session, ffi.NULL, out_predicted_token)
    token = target.decode(token_id, convert.sampling(sampling))
    buffers.write_value(out_predicted_token, "int32_t", token, "out_predicted_token")


@exported
def skippy_decode_batch_sampled(
    sessions: Any, token_ids: Any, sampling: Any, request_count: int, out_predicted_tokens: Any,
    predicted_token_capacity: int, out_error: Any,
) -> None:
    targets, tokens, configs = batch_requests(sessions, token_ids, sampling, request_count)
    if predicted_token_capacity < request_count:
        raise BufferTooSmall(
            f"out_predicted_tokens: {request_count} needed, capacity {predicted_token_capacity}"
        )
    buffers.require_out(out_predicted_tokens, request_count * TOKEN, "out_predicted_tokens")
    if targets[0].model.plan.takes_hidden:
        raise Unsupported("batch: this stage decodes activation frames only")
    chosen = targets[0].model.decode_batch(targets, tokens, configs)
    buffers.write_tokens(out_predicted_tokens, chosen, "out_predicted_tokens")


def batch_requests(
    sessions: Any, token_ids: Any, sampling: Any, request_count: int
) -> tuple[list[Session], list[int], list[SamplingConfig | None]]:
    """The requests of a batch call; raises InvalidArgument naming the first bad one."""
    if request_count == 0:
        raise InvalidArgument("request_count: 0, at least 1 needed")
    given = buffers.read_array(sessions, request_count, "void *", "sessions")
    targets = [session_of(handle, f"sessions[{i}]") for i, handle in enumerate(given)]
    tokens = buffers.read_tokens(token_ids, request_count)
    configs: list[SamplingConfig | None] = [None] * request_count
    if sampling != ffi.NULL:
        pointers = buffers.read_array(sampling, request_count, "void *", "sampling")
        configs = [convert.sampling(p, f"sampling[{i}]") for i, p in enumerate(pointers)]
    return targets, tokens, configs


@exported
def skippy_verify_tokens(
    session: Any, token_ids: Any, token_count: int, output_tokens: Any, output_token_capacity: int,
    out_token_count: Any, out_error: Any,
) -> None:
    target = session_of(session)
    tokens = buffers.read_tokens(token_ids, token_count)
    check_verify_outputs(tokens, output_tokens, output_token_capacity, out_token_count)
    chosen = target.verify(tokens)
    buffers.write_tokens(output_tokens, chosen, "output_tokens")
    buffers.write_value(out_token_count, "size_t", len(chosen), "out_token_count")


def check_verify_outputs(
    tokens: list[int], output: Any, capacity: int, counter: Any
) -> None:
    buffers.require_out(counter, SIZE, "out_token_count")
    if capacity < len(tokens):
        buffers.write_value(counter, "size_t", len(tokens), "out_token_count")
        raise BufferTooSmall(f"output_tokens: {len(tokens)} needed, capacity {capacity}")
    buffers.require_out(output, len(tokens) * TOKEN, "output_tokens")


@exported
def skippy_session_sample_current(
    session: Any, sampling: Any, out_predicted_token: Any, out_error: Any
) -> None:
    target = session_of(session)
    buffers.require_out(out_predicted_token, TOKEN, "out_predicted_token")
    token = target.sample_current(convert.sampling(sampling))
    buffers.write_value(out_predicted_token, "int32_t", token, "out_predicted_token")
