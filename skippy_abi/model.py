"""Owns opening and closing models. Which file is which model is decided by the opener it is given.

`packages.boot` hands the opener over at start-up, so that this tier opens models without knowing
any. The order of the checks is the ABI's: reporter, pointers, layer range, device, file. With a
fallback runtime the file comes before the options: those of its models are not ours to judge. A
caller who names no device gets the one that the opener found for the model.
"""

from collections.abc import Callable, Sequence
from typing import Any

from engine.devices import find
from engine.errors import EngineError, InvalidArgument, Unsupported
from engine.model import Model
from engine.records import ModelPlan
from skippy_abi import buffers, convert, fallback, handles
from skippy_abi.boundary import exported, exported_value
from skippy_abi.cffi_module import ffi, lib
from skippy_abi.events import Reporter
from skippy_abi.files import read_paths

POINTER = ffi.sizeof("void *")

Opener = Callable[[list[bytes], str | None], ModelPlan]
_openers: list[Opener] = []
_not_ours: list[type[EngineError]] = []


def use_opener(opener: Opener, not_ours: Sequence[type[EngineError]] = ()) -> None:
    """Take over the function that turns the paths of an artifact, and the device that the caller
    names, into a plan, or refuses.

    Its refusals of the kinds `not_ours` say that another runtime may have the model.
    """
    _openers[:] = [opener]
    _not_ours[:] = not_ours


@exported
def skippy_model_open(path: Any, config: Any, out_model: Any, out_error: Any) -> None:
    _open(lambda: [buffers.read_c_string(path, "path")], config, ffi.NULL, out_model)


@exported
def skippy_model_open_with_events(
    path: Any, config: Any, reporter: Any, out_model: Any, out_error: Any
) -> None:
    _open(lambda: [buffers.read_c_string(path, "path")], config, reporter, out_model)


@exported
def skippy_model_open_from_parts(
    paths: Any, path_count: int, config: Any, out_model: Any, out_error: Any
) -> None:
    _open(lambda: read_paths(paths, path_count), config, ffi.NULL, out_model)


@exported
def skippy_model_open_from_parts_with_events(
    paths: Any, path_count: int, config: Any, reporter: Any, out_model: Any, out_error: Any
) -> None:
    _open(lambda: read_paths(paths, path_count), config, reporter, out_model)


def _open(
    read: Callable[[], list[bytes]], config: Any, reporter_pointer: Any, out_model: Any
) -> None:
    with Reporter(reporter_pointer, _stage_index(config)) as reporter:
        paths = _readable(read)
        has_fallback = fallback.path() is not None
        reporter.started(paths[0] if paths else None, is_held=has_fallback)
        paths = paths or read()
        buffers.require_out(out_model, POINTER, "out_model")
        buffers.write_value(out_model, "void *", ffi.NULL, "out_model")
        plan = None
        if has_fallback:
            plan = _plan_or_forward(paths, config)
            if plan is None:
                reporter.hand_over()
                return
        options = convert.runtime_options(config)
        if options.device is not None:
            find(options.device)
        plan = plan or _openers[0](paths, options.device)
        device = find(options.device or plan.device)
        model = Model(plan, options, device.device, reporter.progress)
        reporter.progress(1.0)
        handle = handles.give(model, "skippy_model")
        buffers.write_value(out_model, "void *", handle, "out_model")
        reporter.finished(handles.number_of(handle), device.name)


def _plan_or_forward(paths: list[bytes], config: Any) -> ModelPlan | None:
    """The plan, or None when the fallback answers the call."""
    try:
        return _openers[0](paths, _named_device(config))
    except tuple(_not_ours) as refusal:
        if not fallback.take_over(refusal):
            raise
        return None


def _named_device(config: Any) -> str | None:
    """The device that a config names; None also where it cannot be read or names none of ours,
    which is told once the model is known to be ours."""
    try:
        name = convert.runtime_options(config).device
        return name and find(name).name
    except EngineError:
        return None


def _readable(read: Callable[[], list[bytes]]) -> list[bytes]:
    """The paths, or none when they cannot be read: STARTED comes even then."""
    try:
        return read()
    except InvalidArgument:
        return []


def _stage_index(config: Any) -> int:
    if config == ffi.NULL or not lib.ms_readable(config, ffi.sizeof("int32_t")):
        return 0
    return int(buffers.read_array(config, 1, "int32_t", "config")[0])


@exported
def skippy_model_free(model: Any, out_error: Any) -> None:
    handles.forget(handles.remove(model, Model, "model").close())


@exported_value(default=ffi.NULL)
def skippy_model_llama_model(model: Any) -> Any:
    # Only the media calls take it, and they are stubs.
    return ffi.NULL


@exported
def skippy_model_attach_mtp_draft_model(
    target_model: Any, path: Any, config: Any, out_error: Any
) -> None:
    handles.take(target_model, Model, "target_model")
    buffers.read_c_string(path, "path")
    options = convert.runtime_options(config)
    if options.mtp_source != lib.SKIPPY_MTP_SOURCE_EXTERNAL:
        raise InvalidArgument(
            f"config: mtp_source {options.mtp_source}, "
            f"an attached draft needs {lib.SKIPPY_MTP_SOURCE_EXTERNAL}"
        )
    raise Unsupported("draft model: no model served here takes one")

