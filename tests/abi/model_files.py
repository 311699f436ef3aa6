"""Owns the model-file calls in short, for tests: inventory, plans, slices, parts."""

import os
from pathlib import Path
from typing import Any

from skippy_abi.client import Host, OpenModel, OpenSession
from tests.abi.steps import greedy

PROMPT = [10, 20, 30]


class Files:
    """The model-file calls in short."""

    def __init__(self, host: Host) -> None:
        self.host, self.ffi = host, host.ffi

    def info(self, path: Path | bytes) -> Any:
        out = self.ffi.new("struct skippy_model_info **")
        self.host.call("skippy_model_info_open", self.ffi.new("char[]", os.fsencode(path)), out)
        return out[0]

    def free(self, *infos: Any) -> None:
        for info in infos:
            self.host.call("skippy_model_info_free", info)

    def tensors(self, info: Any) -> list[Any]:
        count = self.ffi.new("size_t *")
        self.host.call("skippy_model_info_tensor_count", info, count)
        found = []
        for index in range(count[0]):
            out = self.ffi.new("struct skippy_tensor_info *")
            self.host.call("skippy_model_info_tensor_at", info, index, out)
            found.append(out)
        return found

    def plan(self, info: Any, *ranges: tuple[int, int, int, bool, bool]) -> Any:
        out = self.ffi.new("struct skippy_slice_plan **")
        self.host.call("skippy_slice_plan_create", info, out)
        for one in ranges:
            self.host.call("skippy_slice_plan_add_layer_range", out[0], *one)
        return out[0]

    def slice(self, info: Any, plan: Any, stage: int, path: Path) -> tuple[int, str | None]:
        return self.host.raw("skippy_write_slice_gguf", info, plan, stage,
                             self.ffi.new("char[]", bytes(path)))

    def paths(self, paths: list[Path]) -> tuple[Any, list[Any]]:
        kept = [self.ffi.new("char[]", bytes(path)) for path in paths]
        return self.ffi.new("char *[]", kept), kept

    def join(self, paths: list[Path], out: Path) -> tuple[int, str | None]:
        array, _kept = self.paths(paths)
        return self.host.raw("skippy_write_gguf_from_parts", array, len(paths),
                             self.ffi.new("char[]", bytes(out)))

    def open_parts(self, paths: list[Path], **config: Any) -> OpenModel:
        array, _kept = self.paths(paths)
        values = {"ctx_size": 64, "lane_count": 1, "include_output": True, "load_mode": 1,
                  **config}
        out = self.ffi.new("struct skippy_model **")
        self.host.call("skippy_model_open_from_parts", array, len(paths),
                       self.ffi.new("struct skippy_runtime_config *", values), out)
        model = OpenModel.__new__(OpenModel)
        model.host, model.handle = self.host, out[0]
        return model


def ids_of(model: OpenModel) -> list[int]:
    session: OpenSession = model.session()
    session.prefill(PROMPT)
    found = greedy(session, 9, 8)
    model.free()
    return found


def whole_ids(files: Files, path: Path) -> list[int]:
    return ids_of(OpenModel(files.host, path, ctx_size=64))
