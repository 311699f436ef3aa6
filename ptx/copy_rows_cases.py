"""Owns what the tests of the row copies share: inputs of either cell, and what must hold for both.

It must not know how a copy is made.
"""

from typing import Any

import numpy as np

from ptx.numerics import DTYPES, Array
from ptx.op import Op

# S, D, W, N: one cell; and widths below, at and just past the 256 cells of a block, and two past.
SHAPES = [(1, 1, 1, 1), (5, 7, 63, 4), (3, 9, 256, 5), (4, 4, 257, 4), (2, 3, 513, 3)]
# Bits that arithmetic would change: NaN of either kind with a payload, -0, subnormals, infinities.
ODD_BITS = {
    "f32": [0x7FC12345, 0x7F812345, 0xFFFFFFFF, 0x80000000, 0x00000001, 0x807FFFFF, 0xFF800000],
    "bf16": [0x7FC1, 0x7F81, 0xFFFF, 0x8000, 0x0001, 0x807F, 0xFF80],
}


def inputs(op: Op, n_source: int, n_target: int, width: int, n_pairs: int) -> dict[str, Any]:
    """Pools and pairs of which every third is padding; the last rows of both pools take part."""
    rng = np.random.default_rng(width)
    from_rows = rng.integers(0, n_source, n_pairs)
    to_rows = rng.permutation(n_target)[:n_pairs]
    from_rows[0] = n_source - 1
    to_rows[np.flatnonzero(to_rows == n_target - 1)] = to_rows[0]
    to_rows[0] = n_target - 1
    # What stands beside a -1 is never looked at.
    from_rows[1::3], to_rows[1::3] = -1, np.resize([-7, 2**31 - 1], len(to_rows[1::3]))
    return {
        "source": cells(op, rng, (n_source, width)),
        "target": cells(op, rng, (n_target, width)),
        "from_rows": from_rows,
        "to_rows": to_rows,
    }


def cells(op: Op, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Random cells of the op's dtype."""
    if op.params[0].dtype == "bf16":
        return rng.integers(0, 2**16, shape, np.uint16)
    return rng.standard_normal(shape, np.float32)


def check_bits_are_kept(bench: Any, op: Op) -> None:
    """Every odd pattern arrives as it was, and the rows between stay as they were."""
    cell = op.params[0].dtype
    odd = np.array(ODD_BITS[cell], f"u{DTYPES[cell].itemsize}").view(DTYPES[cell])
    source, target = np.stack([odd, odd[::-1]]), np.stack([odd[::-1], odd, odd])
    got = bench.run(op, source=source, target=target, from_rows=[1, 0], to_rows=[2, 0])["target"]
    assert got.tobytes() == np.stack([odd, odd, odd[::-1]]).tobytes()


def check_padding_alone_writes_nothing(bench: Any, op: Op) -> None:
    """A launch of padding leaves the target alone; its to_rows name no row at all."""
    args = inputs(op, 3, 4, 65, 3)
    args.update(from_rows=[-1, -1, -1], to_rows=[0, -1, 99])
    assert bench.run(op, **args)["target"].tobytes() == args["target"].tobytes()


def check_order_of_pairs(bench: Any, op: Op) -> None:
    """Pairs in another order, and launch by launch, give the bits of one launch."""
    args = inputs(op, 4, 9, 65, 8)
    want = bench.run(op, **args)["target"].tobytes()
    turned = {name: args[name][::-1] for name in ("from_rows", "to_rows")}
    assert bench.run(op, **{**args, **turned})["target"].tobytes() == want
    target = args["target"]
    for pair in range(8):
        one = {name: args[name][pair : pair + 1] for name in ("from_rows", "to_rows")}
        target = bench.run(op, **{**args, **one, "target": target})["target"]
    assert target.tobytes() == want


def check_inside_one_pool(bench: Any, op: Op) -> None:
    """Source and target may be one pool: rows 1 and 4 to 0 and 2, and row 4 to 3 as well."""
    pool = cells(op, np.random.default_rng(0), (5, 3, 86))
    dtype = op.params[0].dtype
    buffer = bench.device.allocate(pool.shape, dtype, "pool")
    bench.device.upload(buffer, pool)
    pairs = {"from_rows": [1, 4, -1, 4], "to_rows": [0, 2, 1, 3]}
    for name, rows in pairs.items():
        pairs[name] = bench.device.allocate((4,), "i32", name)
        bench.device.upload(pairs[name], np.array(rows))
    bench.device.launch(op, source=buffer, target=buffer, **pairs)
    assert bench.device.download(buffer).tobytes() == pool[[1, 1, 4, 4, 4]].tobytes()
