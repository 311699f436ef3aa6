"""Owns the translation between C structs and the engine's records; no rule of its own besides.

Sources: the struct tables of the ABI version; the meaning of each field is in the engine's records.
"""

from functools import lru_cache
from typing import Any

from engine.errors import InvalidArgument
from engine.options import RuntimeOptions
from engine.sampling import SamplingConfig
from skippy_abi import buffers
from skippy_abi.cffi_module import ffi, lib


def sampling(pointer: Any, name: str = "sampling") -> SamplingConfig | None:
    """The sampling config behind a pointer, or None for NULL."""
    if pointer == ffi.NULL:
        return None
    n_bytes = ffi.sizeof("struct skippy_sampling_config")
    return _sampling_of(bytes(buffers.read_bytes(pointer, n_bytes, name)))


@lru_cache(maxsize=64)
def _sampling_of(raw: bytes) -> SamplingConfig:
    """Cached by content: a host passes the same 2 KiB with every token."""
    struct = ffi.from_buffer("struct skippy_sampling_config *", raw)
    n_biases = min(struct.logit_bias_count, lib.SKIPPY_MAX_LOGIT_BIAS)
    return SamplingConfig(
        version=struct.version,
        flags=struct.flags,
        seed=struct.seed,
        top_k=struct.top_k,
        penalty_last_n=struct.penalty_last_n,
        temperature=struct.temperature,
        top_p=struct.top_p,
        presence_penalty=struct.presence_penalty,
        frequency_penalty=struct.frequency_penalty,
        repeat_penalty=struct.repeat_penalty,
        min_p=struct.min_p,
        logit_bias=tuple(
            (struct.logit_bias[i].token, struct.logit_bias[i].bias) for i in range(n_biases)
        ),
    )


def runtime_options(pointer: Any) -> RuntimeOptions:
    """The engine's options from `skippy_runtime_config`, or its defaults for NULL."""
    config = buffers.read_struct(pointer, "skippy_runtime_config", "config")
    if config is None:
        return RuntimeOptions()
    try:
        flags = {
            "filter_tensors": config.filter_tensors_on_load,
            "include_embeddings": config.include_embeddings,
            "include_output": config.include_output,
        }
    except ValueError:
        raise InvalidArgument("config: a bool field holds neither 0 nor 1") from None
    device = config.selected_backend_device
    return RuntimeOptions.of(
        n_context=config.ctx_size,
        n_lanes=config.lane_count,
        n_batch=config.n_batch,
        stage_index=config.stage_index,
        layer_start=config.layer_start,
        layer_end=config.layer_end,
        cache_types=(config.cache_type_k, config.cache_type_v),
        device=None if device == ffi.NULL else buffers.read_text(device, "selected_backend_device"),
        mtp_source=int(ffi.cast("int32_t", config.mtp_source)),
        **flags,
    )
