"""Owns the session life cycle of the ABI, chat sampling configuration, signals and trim.

The rules of each call are the ABI's section on session management; the state is the engine's.
"""

import json
import threading
import weakref
from dataclasses import replace
from typing import Any

from engine import prefixes, rollback
from engine.errors import RuntimeFailure
from engine.grammar import GrammarText
from engine.model import Model
from engine.sampling import SamplingConfig, parse_seed, parse_temperature
from engine.session import Session
from skippy_abi import buffers, convert, handles
from skippy_abi.boundary import exported, exported_value
from skippy_abi.cffi_module import ffi

POINTER = ffi.sizeof("void *")
# Metadata keys that are read here; one of another type means no chat sampling.
KINDS = {"grammar": str, "grammar_lazy": bool, "grammar_triggers": list}

# Which session evaluates media on this thread right now; begin and end happen on one thread.
_external = threading.local()


def session_of(handle: Any, name: str = "session") -> Session:
    """The live session behind a handle."""
    return handles.take(handle, Session, name)


@exported
def skippy_session_create(model: Any, out_session: Any, out_error: Any) -> None:
    buffers.require_out(out_session, POINTER, "out_session")
    buffers.write_value(out_session, "void *", ffi.NULL, "out_session")
    session = handles.take(model, Model, "model").create_session()
    buffers.write_value(
        out_session, "void *", handles.give(session, "skippy_session"), "out_session"
    )


@exported
def skippy_session_create_from_resident_prefix(
    model: Any, cache_seq_id: int, token_ids: Any, token_count: int, out_session: Any,
    out_error: Any,
) -> None:
    buffers.require_out(out_session, POINTER, "out_session")
    buffers.write_value(out_session, "void *", ffi.NULL, "out_session")
    served = handles.take(model, Model, "model")
    session = served.create_session()
    try:
        prefixes.restore(
            session, cache_seq_id, buffers.read_tokens(token_ids, token_count)
        )
    except BaseException:
        session.free()
        raise
    buffers.write_value(
        out_session, "void *", handles.give(session, "skippy_session"), "out_session"
    )


@exported
def skippy_session_free(session: Any, out_error: Any) -> None:
    handles.remove(session, Session, "session").free()


@exported
def skippy_session_reset(session: Any, out_error: Any) -> None:
    session_of(session).reset()


@exported_value(default=-1)
def skippy_session_position(session: Any) -> int:
    return session_of(session).position


@exported_value(default=0)
def skippy_session_batch_size(session: Any) -> int:
    return session_of(session).model.options.n_batch


@exported_value(default=ffi.NULL)
def skippy_session_llama_context(session: Any) -> Any:
    # Only media evaluation uses it, and no model here takes media.
    return ffi.NULL


@exported
def skippy_session_set_position(session: Any, n_past: int, out_error: Any) -> None:
    session_of(session).set_position(n_past)


@exported
def skippy_session_begin_external_decode(session: Any, out_error: Any) -> None:
    wanted = session_of(session)
    active = _active()
    if active is not None and active is not wanted and not active.closed:
        raise RuntimeFailure("external decode: another session is active on this thread")
    # Weak: a thread that never ends its bracket must not keep a freed model's memory.
    _external.session = weakref.ref(wanted)


def _active() -> Session | None:
    kept = getattr(_external, "session", None)
    return None if kept is None else kept()


@exported
def skippy_session_end_external_decode(session: Any, out_error: Any) -> None:
    if _active() is session_of(session):
        _external.session = None


@exported
def skippy_session_configure_chat_sampling(
    session: Any, sampling: Any, metadata_json: Any, prompt_token_count: int, out_error: Any
) -> None:
    target = session_of(session)
    config = convert.sampling(sampling)
    given = metadata_json != ffi.NULL
    metadata = _metadata(buffers.read_c_string(metadata_json, "metadata_json") if given else b"")
    if metadata is None:
        target.forget_chat()
        return
    # Whatever fails below, the former chain is gone.
    target.forget_chat()
    config, seed = _own_sampler(config, metadata)
    grammar = GrammarText.of(metadata)
    target.configure_chat(config, prompt_token_count, seed=seed, grammar=grammar)


def _metadata(raw: bytes) -> dict[str, Any] | None:
    """The metadata object, or None for what means "no chat sampling" (absent, not JSON)."""
    try:
        parsed = json.loads(raw.decode() or "null")
        # An escape can spell half a character, which no text for a grammar may hold.
        json.dumps(parsed, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    kinds_fit = all(isinstance(parsed.get(key, kind()), kind) for key, kind in KINDS.items())
    return parsed if kinds_fit else None


def _own_sampler(
    config: SamplingConfig | None, metadata: dict[str, Any]
) -> tuple[SamplingConfig | None, int | None]:
    """Our own metadata may carry what the struct cannot: `{"sampler": {"seed": "<0..2^64-1>",
    "temperature": <double>}}`, for callers that replay a request exactly."""
    exact = metadata.get("sampler")
    if config is None or not isinstance(exact, dict):
        return config, None
    temperature = parse_temperature(str(exact.get("temperature", config.temperature)))
    seed = exact.get("seed")
    return replace(config, temperature=temperature), None if seed is None else parse_seed(str(seed))


@exported
def skippy_trim_session(session: Any, token_count: int, out_error: Any) -> None:
    rollback.trim(session_of(session), token_count)


@exported
def skippy_retire_verify_checkpoint(
    session: Any, token_start: int, token_count: int, out_error: Any
) -> None:
    rollback.retire(session_of(session), token_start, token_count)


@exported
def skippy_session_last_token_signal(session: Any, out_signal: Any, out_error: Any) -> None:
    target = session_of(session)
    buffers.require_out(out_signal, ffi.sizeof("struct skippy_token_signal"), "out_signal")
    signal = target.last_signal()
    out = ffi.new("struct skippy_token_signal *")
    out.entropy = signal.entropy
    out.top_logprob = signal.top_logprob
    out.second_logprob = signal.second_logprob
    out.margin = signal.margin
    out.top_token = signal.top_token
    out.second_token = signal.second_token
    buffers.write_struct(out_signal, out, "out_signal")


@exported
def skippy_session_signal_window(
    session: Any, window_tokens: int, out_window: Any, out_error: Any
) -> None:
    target = session_of(session)
    n_bytes = ffi.sizeof("struct skippy_generation_signal_window")
    buffers.require_out(out_window, n_bytes, "out_window")
    window = target.window(window_tokens)
    out = ffi.new("struct skippy_generation_signal_window *")
    out.token_count = window.token_count
    out.mean_entropy = window.mean_entropy
    out.max_entropy = window.max_entropy
    out.mean_margin = window.mean_margin
    out.min_margin = window.min_margin
    out.high_entropy_count = window.high_entropy_count
    out.repetition_count = window.repetition_count
    buffers.write_struct(out_window, out, "out_window")

