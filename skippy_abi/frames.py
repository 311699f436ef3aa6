"""Owns the frame forms of the calls that run tokens.

A whole model takes no activations and emits none, so these differ from the plain forms by the
descriptor they fill. Activation payloads of layer stages are refused here. Whether a call chooses
tokens follows the `include_output` option, whole model or not, as the host expects.
"""

from typing import Any

from engine.errors import BufferTooSmall, InvalidArgument, Unsupported
from engine.sampling import SamplingConfig
from engine.session import Session
from skippy_abi import buffers, convert
from skippy_abi.boundary import exported
from skippy_abi.cffi_module import ffi, lib
from skippy_abi.execute import SIZE, TOKEN, batch_requests, check_verify_outputs, write_no_draft
from skippy_abi.session import session_of

DESC = ffi.sizeof("struct skippy_activation_desc")
DESC_VERSION = 1
# What a frame call answers as its token on a stage without output.
NO_TOKEN = -1


class Frame:
    """The frame arguments of one call on a whole model, checked before anything runs."""

    def __init__(
        self, session: Session, input_desc: Any, output_desc: Any, out_bytes: Any
    ) -> None:
        self._session, self._desc, self._bytes = session, output_desc, out_bytes
        given = buffers.read_struct(input_desc, "skippy_activation_desc", "input_desc")
        if given is not None and given.payload_bytes:
            raise InvalidArgument(
                f"input_desc: {given.payload_bytes} payload bytes for a whole model, 0 allowed"
            )
        buffers.check_out(output_desc, DESC, "output_desc")
        buffers.check_out(out_bytes, SIZE, "out_output_payload_bytes")

    def finish(self, n_tokens: int) -> None:
        """Describe the empty output frame of a whole model."""
        desc = ffi.new("struct skippy_activation_desc *")
        desc.version = DESC_VERSION
        desc.dtype = lib.SKIPPY_ACTIVATION_DTYPE_UNKNOWN
        desc.layout = lib.SKIPPY_ACTIVATION_LAYOUT_OPAQUE
        desc.producer_stage_index = self._session.model.options.stage_index
        desc.layer_end = self._session.model.plan.n_layers
        desc.token_count = n_tokens
        desc.sequence_count = 1
        buffers.write_struct(self._desc, desc, "output_desc")
        buffers.write_value(self._bytes, "size_t", 0, "out_output_payload_bytes")


def _check_positions(positions: Any, position_count: int, n_tokens: int) -> None:
    """Token input has its own positions: given ones must fit, and are not looked at otherwise."""
    if positions == ffi.NULL and position_count == 0:
        return
    if positions == ffi.NULL or position_count not in (n_tokens, 4 * n_tokens):
        raise InvalidArgument(
            f"positions: {position_count} for {n_tokens} tokens, 1 or 4 for each allowed"
        )


def _frame_step(
    frame: Frame, session: Session, tokens: list[int], config: SamplingConfig | None,
    out_token: Any,
) -> None:
    """Evaluate, choose unless the stage has no output, describe the empty frame."""
    if session.model.options.include_output:
        token = session.prefill_sampled(tokens, config)
    else:
        session.prefill(tokens)
        token = NO_TOKEN
    frame.finish(len(tokens))
    buffers.write_value(out_token, "int32_t", token, "out_predicted_token")


@exported
def skippy_prefill_chunk_frame(
    session: Any, token_ids: Any, token_count: int, input_desc: Any, input_payload: Any,
    output_desc: Any, output_payload: Any, output_payload_capacity: int,
    out_output_payload_bytes: Any, out_error: Any,
) -> None:
    target = session_of(session)
    frame = Frame(target, input_desc, output_desc, out_output_payload_bytes)
    target.prefill(buffers.read_tokens(token_ids, token_count))
    frame.finish(token_count)


@exported
def skippy_prefill_chunk_frame_with_positions(
    session: Any, token_ids: Any, token_count: int, positions: Any, position_count: int,
    input_desc: Any, input_payload: Any, output_desc: Any, output_payload: Any,
    output_payload_capacity: int, out_output_payload_bytes: Any, out_error: Any,
) -> None:
    target = session_of(session)
    _check_positions(positions, position_count, token_count)
    frame = Frame(target, input_desc, output_desc, out_output_payload_bytes)
    target.prefill(buffers.read_tokens(token_ids, token_count))
    frame.finish(token_count)


@exported
def skippy_prefill_chunk_frame_sampled(
    session: Any, token_ids: Any, token_count: int, sampling: Any, input_desc: Any,
    input_payload: Any, output_desc: Any, output_payload: Any, output_payload_capacity: int,
    out_output_payload_bytes: Any, out_predicted_token: Any, out_error: Any,
) -> None:
    target = session_of(session)
    frame = Frame(target, input_desc, output_desc, out_output_payload_bytes)
    buffers.check_out(out_predicted_token, TOKEN, "out_predicted_token")
    tokens = buffers.read_tokens(token_ids, token_count)
    _frame_step(frame, target, tokens, convert.sampling(sampling), out_predicted_token)


@exported
def skippy_prefill_chunk_frame_sampled_with_positions(
    session: Any, token_ids: Any, token_count: int, positions: Any, position_count: int,
    sampling: Any, input_desc: Any, input_payload: Any, output_desc: Any, output_payload: Any,
    output_payload_capacity: int, out_output_payload_bytes: Any, out_predicted_token: Any,
    out_error: Any,
) -> None:
    target = session_of(session)
    _check_positions(positions, position_count, token_count)
    frame = Frame(target, input_desc, output_desc, out_output_payload_bytes)
    buffers.check_out(out_predicted_token, TOKEN, "out_predicted_token")
    tokens = buffers.read_tokens(token_ids, token_count)
    _frame_step(frame, target, tokens, convert.sampling(sampling), out_predicted_token)


@exported
def skippy_decode_step_frame_sampled(
    session: Any, token_id: int, sampling: Any, input_desc: Any, input_payload: Any,
    output_desc: Any, output_payload: Any, output_payload_capacity: int,
    out_output_payload_bytes: Any, out_predicted_token: Any, out_error: Any,
) -> None:
    target = session_of(session)
    frame = Frame(target, input_desc, output_desc, out_output_payload_bytes)
    buffers.check_out(out_predicted_token, TOKEN, "out_predicted_token")
    _frame_step(frame, target, [token_id], convert.sampling(sampling), out_predicted_token)


@exported
def skippy_decode_step_frame_sampled_mtp(
    session: Any, token_id: int, sampling: Any, input_desc: Any, input_payload: Any,
    output_desc: Any, output_payload: Any, output_payload_capacity: int,
    out_output_payload_bytes: Any, out_predicted_token: Any, max_draft_tokens: int,
    out_mtp_draft: Any, out_error: Any,
) -> None:
    write_no_draft(out_mtp_draft)
    target = session_of(session)
    frame = Frame(target, input_desc, output_desc, out_output_payload_bytes)
    buffers.check_out(out_predicted_token, TOKEN, "out_predicted_token")
    _frame_step(frame, target, [token_id], convert.sampling(sampling), out_predicted_token)


@exported
def skippy_decode_step_frame_batch_sampled(
    sessions: Any, token_ids: Any, sampling: Any, input_descs: Any, input_payloads: Any,
    output_descs: Any, output_payloads: Any, output_payload_capacities: Any,
    out_output_payload_bytes: Any, out_predicted_tokens: Any, predicted_token_capacity: int,
    request_count: int, out_error: Any,
) -> None:
    targets, tokens, configs = batch_requests(sessions, token_ids, sampling, request_count)
    if not targets[0].model.options.include_output:
        # The host repeats the steps one by one after UNSUPPORTED.
        raise Unsupported("frame batch: this stage has no output")
    if predicted_token_capacity < request_count:
        raise BufferTooSmall(
            f"out_predicted_tokens: {request_count} needed, capacity {predicted_token_capacity}"
        )
    buffers.require_out(out_predicted_tokens, request_count * TOKEN, "out_predicted_tokens")
    frames = _batch_frames(targets, input_descs, output_descs, out_output_payload_bytes)
    chosen = targets[0].model.decode_batch(targets, tokens, configs)
    for frame in frames:
        frame.finish(1)
    buffers.write_tokens(out_predicted_tokens, chosen, "out_predicted_tokens")


def _batch_frames(
    targets: list[Session], input_descs: Any, output_descs: Any, out_bytes: Any
) -> list[Frame]:
    """One frame for each request; the input is an array of pointers, the outputs are arrays."""
    inputs = [ffi.NULL] * len(targets)
    if input_descs != ffi.NULL:
        inputs = list(buffers.read_array(input_descs, len(targets), "void *", "input_descs"))
    return [
        Frame(target, given, _item(output_descs, i * DESC), _item(out_bytes, i * SIZE))
        for i, (target, given) in enumerate(zip(targets, inputs, strict=True))
    ]


def _item(array: Any, offset_bytes: int) -> Any:
    """The address of an element of an optional output array."""
    return array if array == ffi.NULL else ffi.cast("char *", array) + offset_bytes


@exported
def skippy_verify_tokens_frame_sampled(
    session: Any, token_ids: Any, token_count: int, sampling: Any, input_desc: Any,
    input_payload: Any, output_desc: Any, output_payload: Any, output_payload_capacity: int,
    out_output_payload_bytes: Any, output_tokens: Any, output_token_capacity: int,
    out_token_count: Any, max_draft_tokens: int, out_mtp_draft: Any, out_error: Any,
) -> None:
    write_no_draft(out_mtp_draft)
    target = session_of(session)
    frame = Frame(target, input_desc, output_desc, out_output_payload_bytes)
    tokens = buffers.read_tokens(token_ids, token_count)
    chosen: list[int] = []
    if target.model.options.include_output:
        check_verify_outputs(tokens, output_tokens, output_token_capacity, out_token_count)
        chosen = target.verify_sampled(tokens, convert.sampling(sampling))
    else:
        buffers.check_out(out_token_count, SIZE, "out_token_count")
        target.prefill(tokens)
    frame.finish(len(tokens))
    buffers.write_tokens(output_tokens, chosen, "output_tokens")
    buffers.write_value(out_token_count, "size_t", len(chosen), "out_token_count")


@exported
def skippy_session_copy_output_activation_frame(
    session: Any, token_count: int, output_desc: Any, output_payload: Any,
    output_payload_capacity: int, out_output_payload_bytes: Any, out_error: Any,
) -> None:
    session_of(session)
    raise Unsupported("activation frame: only media evaluation of a layer stage has one")
