"""Owns the options one model is opened with, and what each odd value means.

The rules are the serving ABI's for its runtime config; a value that has no meaning is refused with
its limit instead of being bent.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.devices import find
from engine.errors import InvalidArgument, Unsupported
from engine.records import Stage

DEFAULT_CONTEXT = 512
# The host reserves sequence ids below twice the lane count and stops at 1023.
MAX_LANES = 256


@dataclass(frozen=True)
class RuntimeOptions:
    """How a model is opened. Defaults are those of an absent config: 512 cells, one lane."""

    n_context: int = DEFAULT_CONTEXT
    n_lanes: int = 1
    n_batch: int = DEFAULT_CONTEXT
    stage_index: int = 0
    include_output: bool = False
    mtp_source: int = 0
    device: str | None = None
    stage: Stage | None = None

    @classmethod
    def of(
        cls, *, n_context: int, n_lanes: int, n_batch: int, stage_index: int,
        layer_start: int, layer_end: int, cache_types: tuple[int, int], device: str | None,
        mtp_source: int, filter_tensors: bool, include_embeddings: bool, include_output: bool,
    ) -> RuntimeOptions:
        """Options from raw numbers, checked in the order that callers rely on.

        `cache_types` is a hint: the host device keeps float32 cells, which hold whatever F16 or
        Q8_0 cells hold. Raises InvalidArgument and Unsupported.
        """
        if filter_tensors and not 0 <= layer_start < layer_end:
            raise InvalidArgument(f"config: layer range {layer_start}..{layer_end} is empty")
        if not filter_tensors and layer_start != 0:
            raise Unsupported(f"config: layer_start {layer_start} without filter_tensors_on_load")
        find(device)
        n_context = n_context if n_context > 0 else DEFAULT_CONTEXT
        n_lanes = n_lanes if n_lanes > 0 else 1
        if n_lanes > MAX_LANES:
            raise InvalidArgument(f"config: lane_count {n_lanes} above {MAX_LANES}")
        return cls(
            n_context=n_context,
            n_lanes=n_lanes,
            n_batch=min(n_batch, n_context) if n_batch > 0 else n_context,
            stage_index=stage_index,
            include_output=include_output,
            mtp_source=mtp_source,
            device=device,
            stage=Stage(layer_start, layer_end, include_embeddings, include_output)
            if filter_tensors else None,
        )

    def stage_of(self, n_layers: int) -> Stage | None:
        """The stage a filtered load asks for; None for a whole model, however it was asked for."""
        if self.stage in (None, Stage(0, n_layers, True, True)):
            return None
        return self.stage
