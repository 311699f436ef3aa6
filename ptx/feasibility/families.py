"""Owns the table of instruction families: kernel, variants, where each assembles and where not.

It must not know devices. A variant is one `<family>.ptx` with constants; its operands and what
numpy makes of them are the function of the family's name in `cases.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ptx.assemble import ARCHS, archs_of
from ptx.devices.tensor_maps import Tiled
from ptx.feasibility import cases
from ptx.feasibility.cases import Case
from ptx.op import Constant, Launch, Target
from ptx.template import render

HERE = Path(__file__).parent
# Architectures of the cards that the project can use. Nothing else is executed but emulated.
CARDS = ("sm_90a",)
# The first .version that has a .target; a family may need a later one.
VERSIONS = {
    "sm_70": "6.0", "sm_75": "6.3", "sm_80": "7.0", "sm_89": "7.8", "sm_90": "7.8", "sm_90a": "8.0",
    "sm_100a": "8.6", "sm_120": "8.7", "sm_120a": "8.7",
}
NVFP4 = "kind::mxf4nvf4.block_scale.scale_vec::4X"
ONE_WARP = Launch(1, 32)
MEGA = ("sm_90a", "sm_100a", "sm_120a")


@dataclass(frozen=True)
class Variant:
    """One form of an instruction. `targets` are the .targets that its text may declare, `version`
    the first .version that has it, and `lacking` are targets on which it must be refused. `maps`
    are the tensor maps behind the parameters, each with the number of the one it is of."""

    family: str
    name: str
    constants: Mapping[str, Constant] = field(default_factory=dict)
    targets: tuple[str, ...] = ("sm_80",)
    version: str = "7.0"
    lacking: tuple[str, ...] = ("sm_75",)
    launch: Launch = ONE_WARP
    n_launches: int = 1
    maps: tuple[tuple[int, Tiled], ...] = ()

    @property
    def title(self) -> str:
        """`mma bf16 m16n8k16`."""
        return f"{self.family} {self.name}"

    def text(self, target: str) -> str:
        """The PTX text that declares `target`."""
        version = max(self.version, VERSIONS[target], key=_numbers)
        given = {"target": target, "version": version, **self.constants}
        return render(HERE / f"{self.family}.ptx", given)

    def target_for(self, arch: str) -> str | None:
        """The target whose text a chip of `arch` (`sm_90a`) takes, or None if it lacks it."""
        return next((t for t in self.targets if arch in _runs_on(t)), None)

    def archs(self) -> tuple[str, ...]:
        """The assembly gate's architectures that have it."""
        return tuple(arch for arch in ARCHS if self.target_for(arch))

    def cases(self) -> list[Case]:
        """Operands and results."""
        found: list[Case] = getattr(cases, self.family)(self.constants)
        return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _runs_on(target: str) -> tuple[str, ...]:
    return archs_of(Target(target, target, VERSIONS[target], ()))


def _mma(
    name: str, kind: str, depth: int, n_bits: int, accumulator: str = "f32", modifier: str = "",
    targets: tuple[str, ...] = ("sm_80",), version: str = "7.0",
    lacking: tuple[str, ...] = ("sm_75",),
) -> Variant:
    row_bytes = depth * n_bits // 8
    constants: dict[str, Constant] = {
        "shape": f"m16n8k{depth}", "types": f"{accumulator}.{kind}.{kind}.{accumulator}",
        "modifier": modifier, "row_bytes": row_bytes, "n_a": row_bytes // 8, "n_b": row_bytes // 16,
        "n_c": 2 if accumulator == "f16" else 4, "format": kind, "accumulator": accumulator,
        "depth": depth,
    }
    return Variant("mma", name, constants, targets, version, lacking)


def _matrices(family: str, n: int, trans: bool, version: str, has: str, lacks: str) -> Variant:
    word = ".trans" if trans else ""
    constants: dict[str, Constant] = {"n": n, "count": f"x{n}", "trans": word}
    return Variant(family, f"x{n}{word}", constants, (has,), version, (lacks,))


def _cp_async(cache: str, n_bytes: int, given: int) -> Variant:
    name = f"{cache} {n_bytes}" + ("" if given == n_bytes else f", {given} given")
    constants: dict[str, Constant] = {"cache": cache, "n_bytes": n_bytes, "given": given}
    return Variant("cp_async", name, constants, launch=Launch(1, 64))


def _wgmma(name: str, kind: str, in_registers: bool = False, steps: int = 1) -> Variant:
    """64 x 64 of D. More than one step: rows of 128 bytes in a swizzle of that many."""
    n_bits = {"bf16": 16}.get(kind, 8)
    accumulator = "s32" if kind == "s8" else "f32"
    signs = {"bf16": ", 1, 1, 0" if in_registers else ", 1, 1, 0, 0", "e4m3": ", 1, 1", "s8": ""}
    row_bytes = 32 * steps
    # Offsets in units of 16 bytes: along K from bit 16, along M and N from bit 32; bit 62 is the
    # swizzle of 128 bytes, which has no use for the first.
    layout = 1 << 16 | 64 << 32 | 1 << 62 if steps > 1 else 8 << 16 | 16 << 32
    constants: dict[str, Constant] = {
        "form": f"m64n64k{256 // n_bits}.{accumulator}.{kind}.{kind}", "rest": signs[kind],
        "row_bytes": row_bytes, "runs": row_bytes // 16, "rounds": row_bytes // 32,
        "swizzled": steps > 1, "in_registers": in_registers, "steps": steps, "layout": layout,
        "sums": ", ".join(f"sum{i}" for i in range(32)), "format": kind,
        "accumulator": accumulator, "depth": row_bytes * 8 // n_bits,
    }
    return Variant("wgmma", name, constants, ("sm_90a",), "8.0", ("sm_90", "sm_100a", "sm_120a"),
                   Launch(1, 128))


def _tensor_copy(swizzle: int, box_columns: int, hinted: bool = False) -> Variant:
    """Boxes of 16 rows: inside, over each edge, over a corner, and outside altogether."""
    rows, columns, box_rows = 29, 136, 16
    places = "3:8 20:40 -5:16 7:120 4:-8 25:128 40:0"
    constants: dict[str, Constant] = {
        "rows": rows, "columns": columns, "box_rows": box_rows, "box_columns": box_columns,
        "box_bytes": 2 * box_rows * box_columns, "swizzle": swizzle, "places": places,
        "boxes": len(places.split()), "hint_word": ".L2::cache_hint" if hinted else "",
        "hint": ", policy" if hinted else "",
    }
    name = f"2d, {swizzle}-byte swizzle" if swizzle else "2d" + ", L2 hint" * hinted
    tiled = Tiled("bf16", (rows, columns), (box_rows, box_columns), swizzle)
    # Of sm_90 text ptxas makes a stack frame for sm_120a.
    return Variant("tensor_copy", name, constants, ("sm_90a",), "8.0", ("sm_89",), Launch(1, 128),
                   maps=((0, tiled),))


# Two warpgroups enter with 128 registers a thread; 40 + 216 is as much again. The sums alone are
# more than 128.
REGISTERS: dict[str, Constant] = {
    "entry": 128, "produce": 40, "consume": 216, "n": 160, "n_rounds": 3, "changes": True,
    "bound": ".reqntid 256, 1, 1\n.maxnreg 128",
}
GRIDS: dict[str, Constant] = {"n_blocks": 264, "n_launches": 8}

VARIANTS: tuple[Variant, ...] = (
    *(
        Variant(
            "mma_block_scaled", f"mxf4nvf4 scale_vec::4X, selectors {a} {b}",
            {"kind": NVFP4, "thread_a": a, "thread_b": b},
            ("sm_120a",), "8.7", ("sm_90a", "sm_100a", "sm_120"),
        )
        for a, b in ((0, 0), (1, 2))
    ),
    _mma("bf16 m16n8k16", "bf16", 16, 16),
    _mma("bf16 m16n8k8", "bf16", 8, 16),
    _mma("f16 m16n8k16", "f16", 16, 16),
    _mma("f16 m16n8k8", "f16", 8, 16, targets=("sm_75",), version="6.5", lacking=("sm_70",)),
    _mma("f16 m16n8k16 into f16", "f16", 16, 16, "f16"),
    _mma("s8 m16n8k32", "s8", 32, 8, "s32"),
    _mma("s8 m16n8k32.satfinite", "s8", 32, 8, "s32", ".satfinite"),
    _mma("s8 m16n8k16", "s8", 16, 8, "s32"),
    _mma("tf32 m16n8k8", "tf32", 8, 32),
    _mma("e4m3 m16n8k32", "e4m3", 32, 8, targets=("sm_89",), version="8.4", lacking=("sm_80",)),
    _wgmma("bf16 m64n64k16", "bf16"),
    _wgmma("bf16 m64n64k16, A in registers", "bf16", in_registers=True),
    _wgmma("bf16 m64n64k16, K = 64, 128-byte swizzle", "bf16", steps=4),
    _wgmma("s8 m64n64k32", "s8"),
    _wgmma("e4m3 m64n64k32", "e4m3"),
    *(_matrices("ldmatrix", n, t, "6.5", "sm_75", "sm_70") for n in (2, 4) for t in (False, True)),
    *(_matrices("stmatrix", n, t, "7.8", "sm_90", "sm_89") for n in (2, 4) for t in (False, True)),
    Variant("movmatrix", "m8n8.trans", {}, ("sm_75",), "7.8", ("sm_70",)),
    *(_cp_async(cache, n, n) for cache, n in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16))),
    _cp_async("ca", 8, 3),
    _cp_async("cg", 16, 0),
    Variant("tile_product", "cp.async, ldmatrix, mma bf16"),
    Variant("redux", "add.s32", {"word": "add.s32"}),
    Variant("redux", "max.s32", {"word": "max.s32"}),
    Variant("redux", "min.u32", {"word": "min.u32"}),
    Variant("redux", "xor.b32", {"word": "xor.b32"}),
    Variant("bulk_copy", "cp.async.bulk with mbarrier", {}, ("sm_90",), "8.0", ("sm_89",),
            Launch(1, 128)),
    *(_tensor_copy(swizzle, swizzle // 2) for swizzle in (128, 64, 32)),
    _tensor_copy(0, 24, hinted=True),
    Variant("griddepcontrol", "wait", GRIDS, ("sm_90",), "7.8", ("sm_89",),
            Launch(264, 128, programmatic=True), n_launches=8),
    Variant("setmaxnreg", "dec 40, inc 216", REGISTERS, MEGA, "8.0", ("sm_80", "sm_90", "sm_120"),
            Launch(1, 256)),
)
