"""Owns the table of tensor number formats a GGUF file may name: id, name, block, bytes.

Knows nothing of how a block is decoded (`quants.py`) nor of files. The ids are those of the serving
ABI's `ggml_type`; ids 4, 5, 31-33 and 36-38 were withdrawn upstream and are unknown here.
"""

from typing import NamedTuple


class GgmlType(NamedTuple):
    """One number format: `block_elements` consecutive values take `block_bytes` bytes."""

    name: str
    block_elements: int
    block_bytes: int


F32, F16, BF16 = 0, 1, 30
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 2, 3, 6, 7, 8
Q4_K, Q5_K, Q6_K = 12, 13, 14
I8, I16, I32, I64, F64 = 24, 25, 26, 27, 28

GGML_TYPES: dict[int, GgmlType] = {
    F32: GgmlType("F32", 1, 4),
    F16: GgmlType("F16", 1, 2),
    Q4_0: GgmlType("Q4_0", 32, 18),
    Q4_1: GgmlType("Q4_1", 32, 20),
    Q5_0: GgmlType("Q5_0", 32, 22),
    Q5_1: GgmlType("Q5_1", 32, 24),
    Q8_0: GgmlType("Q8_0", 32, 34),
    9: GgmlType("Q8_1", 32, 36),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    Q4_K: GgmlType("Q4_K", 256, 144),
    Q5_K: GgmlType("Q5_K", 256, 176),
    Q6_K: GgmlType("Q6_K", 256, 210),
    15: GgmlType("Q8_K", 256, 292),
    16: GgmlType("IQ2_XXS", 256, 66),
    17: GgmlType("IQ2_XS", 256, 74),
    18: GgmlType("IQ3_XXS", 256, 98),
    19: GgmlType("IQ1_S", 256, 50),
    20: GgmlType("IQ4_NL", 32, 18),
    21: GgmlType("IQ3_S", 256, 110),
    22: GgmlType("IQ2_S", 256, 82),
    23: GgmlType("IQ4_XS", 256, 136),
    I8: GgmlType("I8", 1, 1),
    I16: GgmlType("I16", 1, 2),
    I32: GgmlType("I32", 1, 4),
    I64: GgmlType("I64", 1, 8),
    F64: GgmlType("F64", 1, 8),
    29: GgmlType("IQ1_M", 256, 56),
    BF16: GgmlType("BF16", 1, 2),
    34: GgmlType("TQ1_0", 256, 54),
    35: GgmlType("TQ2_0", 256, 66),
    39: GgmlType("MXFP4", 32, 17),
    40: GgmlType("NVFP4", 64, 36),
    41: GgmlType("Q1_0", 128, 18),
    42: GgmlType("Q2_0", 64, 18),
}


def type_label(ggml_type: int) -> str:
    """`Q4_1 (type 3)`, or `type 99` for an id that is not in the table."""
    known = GGML_TYPES.get(ggml_type)
    return f"{known.name} (type {ggml_type})" if known else f"type {ggml_type}"
