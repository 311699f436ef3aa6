"""Owns the order of op calls of the Qwen3.8 hybrid on a device with kernels.

What `schedule.py` computes, from merged matrices: `compiled_few.py` for up to 16 rows of a pass,
`compiled_many.py` for more.
"""

from collections.abc import Callable

import numpy as np

from engine.compiled.records import CompiledSchedule, CompiledStep, Form
from packages.qwen3_8_27b.compiled_few import few_rows
from packages.qwen3_8_27b.compiled_layout import FEW_ROWS, MANY_ROWS, Layout, matrices, suits
from packages.qwen3_8_27b.compiled_many import many_rows
from packages.qwen3_8_27b.dims import HybridDims
from packages.qwen3_8_27b.linears import NORMED
from ptx.embedding.op import OP as EMBEDDING
from ptx.embedding_bf16.op import OP as EMBEDDING_BF16
from ptx.mask_logits.op import OP as MASK_LOGITS
from ptx.token_signal_wide.op import OP as TOKEN_SIGNAL_WIDE


def compiled(dims: HybridDims, form_of: Callable[[str], Form]) -> CompiledSchedule | None:
    """The schedule for weights in the forms that `form_of` gives by name; None where the widths do
    not suit kernels, or the parts of a matrix are not in one form that ops read."""
    found = matrices(dims, form_of) if suits(dims) else None
    if found is None:
        return None
    layout = Layout(dims, found)
    pairs = np.arange(dims.d_rotary // 2, dtype=np.float64)
    return CompiledSchedule(
        matrices=found,
        embed=(CompiledStep(EMBEDDING_BF16, {"ids": "ids", "w": "embed", "y": "h"}),),
        few=tuple(few_rows(layout, layer) for layer in range(dims.n_layers)),
        many=tuple(many_rows(layout, layer) for layer in range(dims.n_layers)),
        head=(
            # The rows that want logits are picked as if they were embedding rows.
            CompiledStep(EMBEDDING, {"ids": "rows", "w": "h", "y": "h_out"}),
            CompiledStep(NORMED[layout.form("head")]["one"], {
                "x": "h_out", "gain": "model.norm.weight", "w": "head", "y": "logits",
                **layout.norm(),
            }),
            *_masked(dims),
            CompiledStep(TOKEN_SIGNAL_WIDE, {
                "logits": "logits", "ids": "best", "values": "signal", "work": "best_work",
            }),
        ),
        buffers=layout.buffers(),
        fixed={"tickets": ("u32", (FEW_ROWS * dims.n_key_heads,))},
        in_turns=layout.wides(),
        constants={"inv_freq": dims.rope_theta ** (-2.0 * pairs / dims.d_rotary)},
        few_rows=FEW_ROWS,
        many_rows=MANY_ROWS,
    )


def _masked(dims: HybridDims) -> tuple[CompiledStep, ...]:
    """Rows of the head that stand for no token win nothing."""
    if dims.n_vocab_real == dims.n_vocab:
        return ()
    return (CompiledStep(MASK_LOGITS, {"logits": "logits", "n": dims.n_vocab_real}),)
