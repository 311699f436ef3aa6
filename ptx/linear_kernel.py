"""Owns what the linear family's records share: parameters, requirements, the portable kernel.

It must not know which ops exist. A record is made of the weight's format and the epilogue, which
is what becomes of the products; the kernel is one text for all, `linear/portable.ptx`.
"""

from collections.abc import Callable, Mapping

from ptx.op import Dims, Kernel, Launch, Param, buf

WARPS_OF_A_BLOCK = 8  # one for each cell of a token's results
MAX_GRID_Y = 65_535

WEIGHTS = {
    "f32": (buf("w", "f32", "N K"),),
    "bf16": (buf("w", "bf16", "N K"),),
    "int8": (buf("codes", "i8", "N K"), buf("scales", "bf16", "N R")),
    "int4": (buf("codes", "u8", "N J"), buf("scales", "bf16", "N R")),
}
# Each output and the letter of its width, for each epilogue.
OUTPUTS = {
    "none": {"y": "N"},
    "add": {"h": "N"},
    "swiglu": {"y": "F"},
    "split3": {"y0": "A", "y1": "B", "y2": "C"},
    "split4": {"y0": "A", "y1": "B", "y2": "C", "y3": "D"},
}
Requires = Mapping[str, Callable[[Dims], bool]]
_WHOLE_GROUPS: Requires = {"K = 128 R": lambda dims: dims["K"] == 128 * dims["R"]}
_PAIRED_CODES: Requires = {"K = 2 J": lambda dims: dims["K"] == 2 * dims["J"]}
_OF_WEIGHT: Mapping[str, Requires] = {
    "f32": {},
    "bf16": {},
    "int8": _WHOLE_GROUPS,
    "int4": {**_PAIRED_CODES, **_WHOLE_GROUPS},
}
_OF_EPILOGUE: Mapping[str, Requires] = {
    "none": {},
    "add": {},
    "swiglu": {"N = 2 F": lambda dims: dims["N"] == 2 * dims["F"]},
    "split3": {"N = A + B + C": lambda dims: dims["N"] == _cells_of_a_token("split3", dims)},
    "split4": {"N = A + B + C + D": lambda dims: dims["N"] == _cells_of_a_token("split4", dims)},
}


def params(weight: str, epilogue: str) -> tuple[Param, ...]:
    """x, the weight, the outputs, their widths, K."""
    outputs = OUTPUTS[epilogue]
    return (
        buf("x", "f32", "T K"),
        *WEIGHTS[weight],
        *(buf(name, "f32", f"T {width}", out=True) for name, width in outputs.items()),
        *(Param(width, "u32") for width in outputs.values()),
        Param("K", "u32"),
    )


def requires(weight: str, epilogue: str) -> Requires:
    """What the shapes of the weight and of the outputs must have to do with each other."""
    return {**_OF_WEIGHT[weight], **_OF_EPILOGUE[epilogue]}


def portable(entry: str, weight: str, epilogue: str) -> Kernel:
    """The kernel under the name `entry`."""
    return Kernel(
        "portable",
        lambda dims: Launch(
            grid=(dims["T"], -(-_cells_of_a_token(epilogue, dims) // WARPS_OF_A_BLOCK)), block=256
        ),
        fits=lambda dims: _cells_of_a_token(epilogue, dims) <= WARPS_OF_A_BLOCK * MAX_GRID_Y,
        constants=lambda dims: {
            "entry": entry,
            "weight": weight,
            "epilogue": epilogue,
            "outputs": " ".join(OUTPUTS[epilogue]),
            "widths": " ".join(OUTPUTS[epilogue].values()),
        },
    )


def _cells_of_a_token(epilogue: str, dims: Dims) -> int:
    return sum(dims[width] for width in OUTPUTS[epilogue].values())
