"""Owns the frame forms of the calls that run tokens.

Frames themselves are in `activation.py`. Whether a call chooses tokens follows the
`include_output` option, whole model or not, as the host expects. Long because every form has its
own argument list.
"""

from typing import Any

from engine.errors import BufferTooSmall, InvalidArgument, Unsupported
from skippy_abi import buffers, convert
from skippy_abi.activation import DESC, SIZE, Frame, Rows
from skippy_abi.boundary import exported
from skippy_abi.cffi_module import ffi
from skippy_abi.execute import TOKEN, batch_requests, check_verify_outputs, write_no_draft
from skippy_abi.session import session_of

# What a frame call answers as its token on a stage without output.
NO_TOKEN = -1


def _check_positions(positions: Any, position_count: int, n_tokens: int) -> None:
    """Token input has its own positions: given ones must fit, and are not looked at otherwise."""
    if positions == ffi.NULL and position_count == 0:
        return
    if positions == ffi.NULL or position_count not in (n_tokens, 4 * n_tokens):
        raise InvalidArgument(
            f"positions: {position_count} for {n_tokens} tokens, 1 or 4 for each allowed"
        )


def _frame_step(
    session: Any, tokens: list[int], sampling: Any, input_desc: Any, input_payload: Any,
    output_desc: Any, output_payload: Any, capacity: int, out_bytes: Any, out_token: Any,
) -> None:
    """Evaluate, choose unless the stage has no output, describe what came of it."""
    target = session_of(session)
    frame = Frame(target, len(tokens), input_desc, input_payload, output_desc, output_payload,
                  capacity, out_bytes)
    buffers.check_out(out_token, TOKEN, "out_predicted_token")
    config = convert.sampling(sampling)
    hidden = None
    token = NO_TOKEN
    if target.model.options.include_output:
        token = target.prefill_sampled(tokens, config, frame.hidden)
    else:
        hidden = target.prefill(tokens, frame.hidden)
    frame.finish(hidden)
    buffers.write_value(out_token, "int32_t", token, "out_predicted_token")


def _frame_prefill(
    session: Any, tokens: list[int], input_desc: Any, input_payload: Any, output_desc: Any,
    output_payload: Any, capacity: int, out_bytes: Any,
) -> None:
    """Evaluate without choosing, describe what came of it."""
    target = session_of(session)
    frame = Frame(target, len(tokens), input_desc, input_payload, output_desc, output_payload,
                  capacity, out_bytes)
    frame.finish(target.prefill(tokens, frame.hidden))


@exported
def skippy_prefill_chunk_frame(
    session: Any, token_ids: Any, token_count: int, input_desc: Any, input_payload: Any,
    output_desc: Any, output_payload: Any, output_payload_capacity: int,
    out_output_payload_bytes: Any, out_error: Any,
) -> None:
    _frame_prefill(
        session, buffers.read_tokens(token_ids, token_count), input_desc, input_payload,
        output_desc, output_payload, output_payload_capacity, out_output_payload_bytes,
    )


@exported
def skippy_prefill_chunk_frame_with_positions(
    session: Any, token_ids: Any, token_count: int, positions: Any, position_count: int,
    input_desc: Any, input_payload: Any, output_desc: Any, output_payload: Any,
    output_payload_capacity: int, out_output_payload_bytes: Any, out_error: Any,
) -> None:
    session_of(session)
    _check_positions(positions, position_count, token_count)
    _frame_prefill(
        session, buffers.read_tokens(token_ids, token_count), input_desc, input_payload,
        output_desc, output_payload, output_payload_capacity, out_output_payload_bytes,
    )


@exported
def skippy_prefill_chunk_frame_sampled(
    session: Any, token_ids: Any, token_count: int, sampling: Any, input_desc: Any,
    input_payload: Any, output_desc: Any, output_payload: Any, output_payload_capacity: int,
    out_output_payload_bytes: Any, out_predicted_token: Any, out_error: Any,
) -> None:
    _frame_step(
        session, buffers.read_tokens(token_ids, token_count), sampling, input_desc, input_payload,
        output_desc, output_payload, output_payload_capacity, out_output_payload_bytes,
        out_predicted_token,
    )


@exported
def skippy_prefill_chunk_frame_sampled_with_positions(
    session: Any, token_ids: Any, token_count: int, positions: Any, position_count: int,
    sampling: Any, input_desc: Any, input_payload: Any, output_desc: Any, output_payload: Any,
    output_payload_capacity: int, out_output_payload_bytes: Any, out_predicted_token: Any,
    out_error: Any,
) -> None:
    session_of(session)
    _check_positions(positions, position_count, token_count)
    _frame_step(
        session, buffers.read_tokens(token_ids, token_count), sampling, input_desc, input_payload,
        output_desc, output_payload, output_payload_capacity, out_output_payload_bytes,
        out_predicted_token,
    )


@exported
def skippy_decode_step_frame_sampled(
    session: Any, token_id: int, sampling: Any, input_desc: Any, input_payload: Any,
    output_desc: Any, output_payload: Any, output_payload_capacity: int,
    out_output_payload_bytes: Any, out_predicted_token: Any, out_error: Any,
) -> None:
    _frame_step(
        session, [token_id], sampling, input_desc, input_payload, output_desc, output_payload,
        output_payload_capacity, out_output_payload_bytes, out_predicted_token,
    )


@exported
def skippy_decode_step_frame_sampled_mtp(
    session: Any, token_id: int, sampling: Any, input_desc: Any, input_payload: Any,
    output_desc: Any, output_payload: Any, output_payload_capacity: int,
    out_output_payload_bytes: Any, out_predicted_token: Any, max_draft_tokens: int,
    out_mtp_draft: Any, out_error: Any,
) -> None:
    write_no_draft(out_mtp_draft)
    _frame_step(
        session, [token_id], sampling, input_desc, input_payload, output_desc, output_payload,
        output_payload_capacity, out_output_payload_bytes, out_predicted_token,
    )


@exported
def skippy_decode_step_frame_batch_sampled(
    sessions: Any, token_ids: Any, sampling: Any, input_descs: Any, input_payloads: Any,
    output_descs: Any, output_payloads: Any, output_payload_capacities: Any,
    out_output_payload_bytes: Any, out_predicted_tokens: Any, predicted_token_capacity: int,
    request_count: int, out_error: Any,
) -> None:
    targets, tokens, configs = batch_requests(sessions, token_ids, sampling, request_count)
    if predicted_token_capacity < request_count:
        raise BufferTooSmall(
            f"out_predicted_tokens: {request_count} needed, capacity {predicted_token_capacity}"
        )
    buffers.require_out(out_predicted_tokens, request_count * TOKEN, "out_predicted_tokens")
    inputs = _pointers(input_descs, request_count, "input_descs")
    payloads = _pointers(input_payloads, request_count, "input_payloads")
    outputs = _pointers(output_payloads, request_count, "output_payloads")
    capacities = [0] * request_count
    if output_payload_capacities != ffi.NULL:
        capacities = list(buffers.read_array(
            output_payload_capacities, request_count, "size_t", "output_payload_capacities"
        ))
    frames = [
        Frame(target, 1, inputs[i], payloads[i], _item(output_descs, i * DESC), outputs[i],
              capacities[i], _item(out_output_payload_bytes, i * SIZE))
        for i, target in enumerate(targets)
    ]
    model = targets[0].model
    hidden = [frame.hidden for frame in frames]
    chosen = [NO_TOKEN] * request_count
    given: list[Rows | None] = [None] * request_count
    if model.options.include_output:
        chosen = model.decode_batch(targets, tokens, configs, hidden)
    else:
        given = model.run_batch(targets, tokens, hidden)
    for frame, rows in zip(frames, given, strict=True):
        frame.finish(rows)
    buffers.write_tokens(out_predicted_tokens, chosen, "out_predicted_tokens")


def _pointers(array: Any, count: int, name: str) -> list[Any]:
    """An optional array of pointers; NULL stands for NULL in every place."""
    if array == ffi.NULL:
        return [ffi.NULL] * count
    return list(buffers.read_array(array, count, "void *", name))


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
    tokens = buffers.read_tokens(token_ids, token_count)
    frame = Frame(target, len(tokens), input_desc, input_payload, output_desc, output_payload,
                  output_payload_capacity, out_output_payload_bytes)
    chosen: list[int] = []
    hidden = None
    if target.model.options.include_output:
        check_verify_outputs(tokens, output_tokens, output_token_capacity, out_token_count)
        chosen = target.verify_sampled(tokens, convert.sampling(sampling), frame.hidden)
    else:
        buffers.check_out(out_token_count, SIZE, "out_token_count")
        hidden = target.verify_hidden(tokens, frame.hidden)
    frame.finish(hidden)
    buffers.write_tokens(output_tokens, chosen, "output_tokens")
    buffers.write_value(out_token_count, "size_t", len(chosen), "out_token_count")


@exported
def skippy_session_copy_output_activation_frame(
    session: Any, token_count: int, output_desc: Any, output_payload: Any,
    output_payload_capacity: int, out_output_payload_bytes: Any, out_error: Any,
) -> None:
    session_of(session)
    raise Unsupported("activation frame: only media evaluation of a layer stage has one")
