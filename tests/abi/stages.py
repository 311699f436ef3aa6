"""Owns a chain of stages for tests: frames from one to the next through the calls of the ABI."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skippy_abi import client


class Stages:
    """A chain of stages, each with one session.

    Of one model file, unless `opens` opens stage i of layers start to end from files of its own.
    """

    def __init__(
        self, host: client.Host, path: Path, edges: list[int], d_model: int,
        opens: Callable[[int, int, int], client.OpenModel] | None = None,
    ) -> None:
        self.host, self.ffi, self.d_model = host, host.ffi, d_model
        self.edges = edges

        def of_file(index: int, start: int, end: int) -> client.OpenModel:
            return client.OpenModel(
                host, path, ctx_size=128, stage_index=index, layer_start=start, layer_end=end,
                filter_tensors_on_load=True, include_embeddings=start == 0,
                include_output=end == edges[-1],
            )

        self.models = [
            (opens or of_file)(index, start, end)
            for index, (start, end) in enumerate(itertools.pairwise(edges))
        ]
        self.sessions = [model.session() for model in self.models]

    def call(self, name: str, stage: int, head: list[Any], frame: Any, tail: list[Any],
             n_tokens: int) -> Any:
        """One frame call on one stage; the frame that comes out."""
        ffi = self.ffi
        desc, payload = frame or (ffi.NULL, ffi.NULL)
        out_desc = ffi.new("struct skippy_activation_desc *")
        is_last = stage == len(self.models) - 1
        room = 0 if is_last else n_tokens * self.d_model * 4
        out_payload = ffi.new("char[]", max(room, 1))
        n_bytes = ffi.new("size_t *")
        self.host.call(name, self.sessions[stage].handle, *head, desc, payload, out_desc,
                       out_payload if room else ffi.NULL, room, n_bytes, *tail)
        assert n_bytes[0] == out_desc.payload_bytes == room
        assert (out_desc.layer_start, out_desc.layer_end) == tuple(self.edges[stage:stage + 2])
        return out_desc, out_payload

    def prefill(self, tokens: list[int]) -> int:
        """The whole prompt through all stages; the first token."""
        ids = self.ffi.new("int32_t[]", tokens)
        token = self.ffi.new("int32_t *")
        frame = None
        for stage in range(len(self.models)):
            frame = self.call("skippy_prefill_chunk_frame_sampled", stage,
                              [ids, len(tokens), self.ffi.NULL], frame, [token], len(tokens))
        return int(token[0])

    def decode(self, fed: int) -> int:
        """One token through all stages."""
        token = self.ffi.new("int32_t *")
        frame = None
        for stage in range(len(self.models)):
            frame = self.call("skippy_decode_step_frame_sampled", stage, [fed, self.ffi.NULL],
                              frame, [token], 1)
            if stage < len(self.models) - 1:
                assert token[0] == -1
        return int(token[0])

    def verify(self, tokens: list[int]) -> list[int]:
        """A window through all stages; the choices after each token."""
        ffi = self.ffi
        ids, out = ffi.new("int32_t[]", tokens), ffi.new("int32_t[]", len(tokens))
        count = ffi.new("size_t *")
        draft = ffi.new("struct skippy_native_mtp_draft *")
        frame = None
        for stage in range(len(self.models)):
            frame = self.call(
                "skippy_verify_tokens_frame_sampled", stage, [ids, len(tokens), ffi.NULL], frame,
                [out, len(tokens), count, 0, draft], len(tokens),
            )
        return [int(token) for token in out[0 : count[0]]]

    def trim(self, n_tokens: int) -> None:
        for session in self.sessions:
            self.host.call("skippy_trim_session", session.handle, n_tokens)

    def greedy(self, tokens: list[int], n_tokens: int) -> list[int]:
        """The token after a prompt, and `n_tokens` more."""
        chosen = [self.prefill(tokens)]
        for _ in range(n_tokens):
            chosen.append(self.decode(chosen[-1]))
        return chosen

    def free(self) -> None:
        for session in self.sessions:
            session.free()
        for model in self.models:
            model.free()
