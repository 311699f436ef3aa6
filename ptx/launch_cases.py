"""Owns how tests launch an op behind itself, where it may begin before the launch ahead ends.

It must not know any op.
"""

from typing import Any

import numpy as np

from ptx.numerics import DTYPES, Array
from ptx.op import Op


def launch_twice(bench: Any, op: Op, **args: Any) -> dict[str, Array]:
    """Launch `op` twice in a row on the same buffers, all of them given; returns what it wrote.

    A programmatic second launch that does not wait touches what the first one may still write,
    which the emulator refuses.
    """
    device, buffers = bench.device, {}
    scalars = {name: value for name, value in args.items() if np.ndim(value) == 0}
    for param in op.params:
        if param.shape is not None:
            cells = np.asarray(args[param.name]).astype(DTYPES[param.dtype])
            buffers[param.name] = device.allocate(cells.shape, param.dtype, param.name)
            device.upload(buffers[param.name], cells)
    for _ in range(2):
        device.launch(op, **buffers, **scalars)
    return {param.name: device.download(buffers[param.name]) for param in op.params if param.out}
