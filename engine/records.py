"""Owns the records that T3 hands down to open a model: shapes, steps, weights and text parts.

Values only: nothing here runs, and nothing here knows which model it describes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy.typing as npt

from engine.chat.template import ChatTemplate
from engine.compiled.records import CompiledSchedule
from engine.tokenizer import Tokenizer
from ptx.op import Op


@dataclass(frozen=True)
class KvShape:
    """What a token leaves in the KV cache: K and V rows of `n_heads` x `d_head` in each layer."""

    layers: tuple[int, ...]
    n_heads: int
    d_head: int


@dataclass(frozen=True)
class Step:
    """One op call of a schedule: `args` maps the op's parameters to buffer names or constants."""

    op: Op
    args: Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Schedule:
    """A package's ordered op calls.

    `embed` and `layers` run over all T rows of a chunk and leave the residual stream in "h";
    `head` runs over the rows that want logits, from "h_out" to "logits". `buffers` gives each
    scratch buffer's columns: one row for each token, float32. `activations` names the buffers that
    a BF16 engine stores as BF16.
    """

    embed: tuple[Step, ...]
    layers: tuple[tuple[Step, ...], ...]
    head: tuple[Step, ...]
    buffers: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, npt.NDArray]  # type: ignore[type-arg]
    activations: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Stage:
    """Layers [layer_start, layer_end) of a model, and whether they come with its two ends."""

    layer_start: int
    layer_end: int
    has_embeddings: bool
    has_output: bool


StoredDtype = Literal["f32", "bf16", "int4_group128", "int8_group"]


class Stored(NamedTuple):
    """A weight's numbers as its artifact has them: of f32 the cells, of bf16 their bits, of the
    integer formats codes, and scales as bf16 bits [N, K / 128]."""

    cells: npt.NDArray  # type: ignore[type-arg]
    scales: npt.NDArray | None = None  # type: ignore[type-arg]


class Fill(NamedTuple):
    """Numbers of a counter: cell i is what `fill_uniform` makes of the seed and i."""

    seed: int
    low: float
    high: float


@dataclass(frozen=True)
class Weight:
    """One named weight: its shape, how to read it as float32, and as it is stored in `dtype` (None:
    what `load` gives). One with a `fill` can be made on the device instead, with the same bits.

    Not `is_present` when the model was opened from a stage's parts and none of them holds it.
    """

    shape: tuple[int, ...]
    load: Callable[[], npt.NDArray]  # type: ignore[type-arg]
    is_present: bool = True
    dtype: StoredDtype = "f32"
    load_stored: Callable[[], Stored] | None = None
    fill: Fill | None = None

    def stored(self) -> Stored:
        """The numbers in `dtype`."""
        return Stored(self.load()) if self.load_stored is None else self.load_stored()


@dataclass(frozen=True)
class ModelPlan:
    """Everything that opening one exact model needs, as T3 resolved it.

    `model_id` and `weights_id` are the identity that state exports carry; `display_path` is the
    artifact's printable name. `n_vocab` counts the ids that exist; logits of padding rows behind
    them are cut off. `states` names the recurrent state arrays and gives the shape of one
    sequence's share, float32. `rounds_activations` puts every stored activation on the BF16 grid,
    which is what a BF16 engine computes; without it the host device keeps float32. `stage` is set
    on a plan that was cut to a range of layers. `compiled` is the schedule for a device that runs
    kernels, where the model has one. `device` names the one that serves it for a caller who names
    none; None is the first.
    """

    model_id: str
    weights_id: str
    n_layers: int
    n_vocab: int
    n_context: int
    d_model: int
    kv: KvShape
    states: Mapping[str, tuple[int, ...]]
    schedule: Schedule
    weights: Mapping[str, Weight]
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    display_path: str
    rounds_activations: bool = False
    stage: Stage | None = None
    compiled: CompiledSchedule | None = None
    device: str | None = None

    @property
    def layer_range(self) -> tuple[int, int]:
        """The layers that run here: all of them unless the plan was cut to a stage."""
        if self.stage is None:
            return 0, self.n_layers
        return self.stage.layer_start, self.stage.layer_end

    @property
    def takes_hidden(self) -> bool:
        """Whether a pass starts from hidden rows instead of token ids."""
        return self.layer_range[0] > 0

    @property
    def gives_hidden(self) -> bool:
        """Whether a pass ends in hidden rows instead of logits."""
        return self.stage is not None and not self.stage.has_output
