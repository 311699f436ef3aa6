"""Owns the model-file calls: tensor inventory, slice plans, and the two GGUF writers.

They take no model and may run on any thread at any time. Formats and rules are the engine's
(`engine/artifacts/`); strings handed out live as long as their model info.
"""

from typing import Any

from engine.artifacts.gguf import GgufFile, open_gguf
from engine.artifacts.slices import SlicePlan, tensor_role, write_from_parts, write_slice
from engine.errors import InvalidArgument
from skippy_abi import buffers, handles
from skippy_abi.boundary import exported
from skippy_abi.cffi_module import ffi

POINTER = ffi.sizeof("void *")
SIZE = ffi.sizeof("size_t")
TENSOR_INFO = ffi.sizeof("struct skippy_tensor_info")
MAX_PARTS = 100_000


class ModelInfo:
    """An open file's tensors and the C strings of their names."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.names = [ffi.new("char[]", tensor.name.encode()) for tensor in file.tensors]


def read_paths(paths: Any, count: int) -> list[bytes]:
    """A list of paths; InvalidArgument for NULL, none, or a NULL element."""
    if paths == ffi.NULL or count == 0:
        raise InvalidArgument(f"paths: {count} given, at least 1 needed")
    if count > MAX_PARTS:
        raise InvalidArgument(f"paths: {count} given, at most {MAX_PARTS} allowed")
    pointers = buffers.read_array(paths, count, "void *", "paths")
    return [buffers.read_c_string(p, f"paths[{i}]") for i, p in enumerate(pointers)]


@exported
def skippy_model_info_open(path: Any, out_info: Any, out_error: Any) -> None:
    buffers.require_out(out_info, POINTER, "out_info")
    info = ModelInfo(open_gguf(buffers.read_c_string(path, "path")))
    buffers.write_value(out_info, "void *", handles.give(info, "skippy_model_info"), "out_info")


@exported
def skippy_model_info_free(info: Any, out_error: Any) -> None:
    # The mapping goes with the last reader: another thread may be inside a call on this info.
    handles.remove(info, ModelInfo, "info")


@exported
def skippy_model_info_tensor_count(info: Any, out_count: Any, out_error: Any) -> None:
    source = handles.take(info, ModelInfo, "info")
    buffers.require_out(out_count, SIZE, "out_count")
    buffers.write_value(out_count, "size_t", len(source.file.tensors), "out_count")


@exported
def skippy_model_info_tensor_at(info: Any, index: int, out_tensor: Any, out_error: Any) -> None:
    source = handles.take(info, ModelInfo, "info")
    buffers.require_out(out_tensor, TENSOR_INFO, "out_tensor")
    if index >= len(source.file.tensors):
        raise InvalidArgument(f"index: tensor {index} of {len(source.file.tensors)}")
    tensor = source.file.tensors[index]
    role, layer = tensor_role(tensor.name)
    out = ffi.new("struct skippy_tensor_info *")
    out.name = source.names[index]
    out.layer_index = layer
    out.role = int(role)
    out.ggml_type = tensor.ggml_type
    out.byte_size = tensor.n_bytes
    out.element_count = tensor.n_elements
    buffers.write_struct(out_tensor, out, "out_tensor")


@exported
def skippy_slice_plan_create(info: Any, out_plan: Any, out_error: Any) -> None:
    handles.take(info, ModelInfo, "info")
    buffers.require_out(out_plan, POINTER, "out_plan")
    plan = handles.give(SlicePlan(), "skippy_slice_plan")
    buffers.write_value(out_plan, "void *", plan, "out_plan")


@exported
def skippy_slice_plan_free(plan: Any, out_error: Any) -> None:
    handles.remove(plan, SlicePlan, "plan")


@exported
def skippy_slice_plan_add_layer_range(
    plan: Any, stage_index: int, layer_start: int, layer_end: int, include_embeddings: bool,
    include_output: bool, out_error: Any,
) -> None:
    handles.take(plan, SlicePlan, "plan").add_layer_range(
        stage_index, layer_start, layer_end, bool(include_embeddings), bool(include_output)
    )


@exported
def skippy_write_slice_gguf(
    info: Any, plan: Any, stage_index: int, output_path: Any, out_error: Any
) -> None:
    source = handles.take(info, ModelInfo, "info")
    chosen = handles.take(plan, SlicePlan, "plan")
    target = buffers.read_c_string(output_path, "output_path")
    write_slice(source.file, chosen, stage_index, target)


@exported
def skippy_write_gguf_from_parts(
    input_paths: Any, input_count: int, output_path: Any, out_error: Any
) -> None:
    paths = read_paths(input_paths, input_count)
    write_from_parts(paths, buffers.read_c_string(output_path, "output_path"))
