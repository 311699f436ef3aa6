"""Owns the n-gram cache calls: they take no model, and never touch `out_error`.

The cache itself, its thresholds and its rule for ties are in `engine/ngram.py`.
"""

from typing import Any

from engine.errors import BufferTooSmall
from engine.ngram import NgramCache
from skippy_abi import buffers, handles
from skippy_abi.boundary import exported_value, exported_without_error
from skippy_abi.cffi_module import ffi

POINTER = ffi.sizeof("void *")
SIZE = ffi.sizeof("size_t")
TOKEN = ffi.sizeof("int32_t")


def _cache(handle: Any) -> NgramCache:
    return handles.take(handle, NgramCache, "cache")


@exported_without_error
def skippy_ngram_cache_create(
    ngram_min: int, ngram_max: int, out_cache: Any, out_error: Any
) -> None:
    buffers.require_out(out_cache, POINTER, "out_cache")
    cache = NgramCache(ngram_min, ngram_max)
    buffers.write_value(
        out_cache, "void *", handles.give(cache, "skippy_ngram_cache"), "out_cache"
    )


@exported_value(default=None)
def skippy_ngram_cache_free(cache: Any) -> None:
    handles.remove(cache, NgramCache, "cache")


@exported_without_error
def skippy_ngram_cache_reset(cache: Any, token_ids: Any, token_count: int, out_error: Any) -> None:
    _cache(cache).reset(buffers.read_tokens(token_ids, token_count))


@exported_without_error
def skippy_ngram_cache_append(cache: Any, token_ids: Any, token_count: int, out_error: Any) -> None:
    _cache(cache).append(buffers.read_tokens(token_ids, token_count))


@exported_without_error
def skippy_ngram_cache_draft(
    cache: Any, continuation_prefix: Any, continuation_prefix_count: int, max_draft_tokens: int,
    output_tokens: Any, output_token_capacity: int, out_token_count: Any, out_error: Any,
) -> None:
    target = _cache(cache)
    buffers.require_out(out_token_count, SIZE, "out_token_count")
    prefix = buffers.read_tokens(continuation_prefix, continuation_prefix_count)
    drafted = target.draft(prefix, max_draft_tokens)
    buffers.write_value(out_token_count, "size_t", len(drafted), "out_token_count")
    if len(drafted) > output_token_capacity:
        raise BufferTooSmall(
            f"output_tokens: {len(drafted)} needed, capacity {output_token_capacity}"
        )
    if drafted:
        buffers.require_out(output_tokens, len(drafted) * TOKEN, "output_tokens")
        buffers.write_tokens(output_tokens, drafted, "output_tokens")
