"""Owns the calls that move state: export and import, KV pages, resident prefixes.

Every export is a size query first; the size is known without building the bytes. What the bytes
hold, and what makes an import refuse them, is in `engine/state_codec.py`; what each call does to a
session is in `engine/transfer.py`.
"""

from collections.abc import Callable
from typing import Any

from engine import prefixes, transfer
from engine.errors import BufferTooSmall, InvalidArgument, RuntimeFailure
from engine.session import Session
from engine.state_codec import PageDesc
from skippy_abi import buffers
from skippy_abi.boundary import exported
from skippy_abi.cffi_module import ffi, lib
from skippy_abi.session import session_of

SIZE = ffi.sizeof("size_t")
PAGE_DESC = ffi.sizeof("struct skippy_kv_page_desc")


def _check_layers(session: Session, layer_start: int, layer_end: int) -> None:
    own = session.model.plan.layer_range
    if (layer_start, layer_end) != own:
        raise InvalidArgument(
            f"layer range: {layer_start}..{layer_end} given, the session has {own[0]}..{own[1]}"
        )


def _export(
    n_bytes: int, build: Callable[[], bytearray], output: Any, capacity: int, counter: Any
) -> None:
    """The sizing rule of the exports: nothing to write is OK whatever the buffer is."""
    buffers.check_out(counter, SIZE, "out_bytes")
    buffers.write_value(counter, "size_t", n_bytes, "out_bytes")
    if n_bytes == 0:
        return
    if output == ffi.NULL or capacity < n_bytes:
        raise BufferTooSmall(f"output: {n_bytes} bytes needed, capacity {capacity}")
    buffers.require_out(output, n_bytes, "output")
    data = build()
    if len(data) != n_bytes:
        raise RuntimeFailure(f"state: {len(data)} bytes now, {n_bytes} when the call began")
    buffers.write_bytes(output, data, "output")


def _keeps_recurrent(session: Any, layer_start: int, layer_end: int) -> tuple[Session, bool]:
    """The session, and whether "state" means its recurrent part.

    It means what KV pages cannot rebuild; without recurrent layers that is the whole sequence.
    """
    target = session_of(session)
    _check_layers(target, layer_start, layer_end)
    return target, target.state.exists


def _export_full(target: Session, output: Any, capacity: int, counter: Any) -> None:
    _export(
        transfer.full_state_bytes(target), lambda: transfer.export_full_state(target), output,
        capacity, counter,
    )


def _export_recurrent(target: Session, output: Any, capacity: int, counter: Any) -> None:
    _export(
        transfer.recurrent_bytes(target), lambda: transfer.export_recurrent(target), output,
        capacity, counter,
    )


@exported
def skippy_export_state(
    session: Any, layer_start: int, layer_end: int, output: Any, output_capacity: int,
    out_bytes: Any, out_error: Any,
) -> None:
    target, is_recurrent = _keeps_recurrent(session, layer_start, layer_end)
    export = _export_recurrent if is_recurrent else _export_full
    export(target, output, output_capacity, out_bytes)


@exported
def skippy_export_full_state(
    session: Any, layer_start: int, layer_end: int, output: Any, output_capacity: int,
    out_bytes: Any, out_error: Any,
) -> None:
    target, _ = _keeps_recurrent(session, layer_start, layer_end)
    _export_full(target, output, output_capacity, out_bytes)


@exported
def skippy_import_state(
    session: Any, layer_start: int, layer_end: int, source: Any, input_bytes: int, out_error: Any
) -> None:
    target, is_recurrent = _keeps_recurrent(session, layer_start, layer_end)
    data = buffers.read_bytes(source, input_bytes, "input")
    if is_recurrent:
        transfer.import_state(target, data)
    else:
        transfer.import_full_state(target, data)


@exported
def skippy_import_full_state(
    session: Any, layer_start: int, layer_end: int, source: Any, input_bytes: int, out_error: Any
) -> None:
    target, _ = _keeps_recurrent(session, layer_start, layer_end)
    transfer.import_full_state(target, buffers.read_bytes(source, input_bytes, "input"))


@exported
def skippy_export_recurrent_state(
    session: Any, output: Any, output_capacity: int, out_bytes: Any, out_error: Any
) -> None:
    target = session_of(session)
    buffers.require_out(out_bytes, SIZE, "out_bytes")
    _export_recurrent(target, output, output_capacity, out_bytes)


@exported
def skippy_import_recurrent_state(
    session: Any, source: Any, input_bytes: int, out_error: Any
) -> None:
    target = session_of(session)
    transfer.import_recurrent(target, buffers.read_bytes(source, input_bytes, "input"))


@exported
def skippy_export_kv_page(
    session: Any, layer_start: int, layer_end: int, token_start: int, token_count: int,
    out_desc: Any, output: Any, output_capacity: int, out_bytes: Any, out_error: Any,
) -> None:
    target = session_of(session)
    if out_desc == ffi.NULL or out_bytes == ffi.NULL:
        raise RuntimeFailure("KV page: descriptor and byte counter are required")
    buffers.require_out(out_desc, PAGE_DESC, "out_desc")
    page = transfer.describe_page(target, layer_start, layer_end, token_start, token_count)
    buffers.write_struct(out_desc, _page_struct(page), "out_desc")

    def build() -> bytearray:
        return transfer.export_page(target, page)

    _export(page.payload_bytes, build, output, output_capacity, out_bytes)


@exported
def skippy_import_kv_page(
    session: Any, desc: Any, source: Any, input_bytes: int, out_error: Any
) -> None:
    target = session_of(session)
    given = buffers.read_struct(desc, "skippy_kv_page_desc", "desc")
    if given is None:
        raise InvalidArgument("desc: NULL")
    if given.codec not in (0, lib.SKIPPY_KV_PAGE_CODEC_SINGLE_V1) or given.component_count:
        raise InvalidArgument(
            f"desc: codec {given.codec} with {given.component_count} components; "
            "only single pages (codec 1, 0 components) fit this model"
        )
    page = PageDesc(**{name: getattr(given, name) for name in PageDesc.__dataclass_fields__})
    transfer.import_page(target, page, buffers.read_bytes(source, input_bytes, "input"))


def _page_struct(page: PageDesc) -> Any:
    out = ffi.new("struct skippy_kv_page_desc *")
    out.version = 1
    out.codec = lib.SKIPPY_KV_PAGE_CODEC_SINGLE_V1
    for name in PageDesc.__dataclass_fields__:
        setattr(out, name, getattr(page, name))
    return out


@exported
def skippy_session_save_prefix(
    session: Any, cache_seq_id: int, token_count: int, out_error: Any
) -> None:
    prefixes.save(session_of(session), cache_seq_id, token_count)


@exported
def skippy_session_restore_prefix(
    session: Any, cache_seq_id: int, token_ids: Any, token_count: int, out_error: Any
) -> None:
    target = session_of(session)
    prefixes.restore(target, cache_seq_id, buffers.read_tokens(token_ids, token_count))


@exported
def skippy_session_drop_sequence(session: Any, seq_id: int, out_error: Any) -> None:
    prefixes.drop(session_of(session), seq_id)
