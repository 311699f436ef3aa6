"""Owns the list of instruction families: importing it fills the table of opcodes."""

from ptx.emulator import (
    ops_async,
    ops_atomic,
    ops_bits,
    ops_compare,
    ops_control,
    ops_convert,
    ops_float,
    ops_hints,
    ops_integer,
    ops_matrix,
    ops_mbarrier,
    ops_memory,
    ops_mma,
    ops_move,
    ops_order,
    ops_warp,
    ops_wgmma,
)

LOADED = (
    ops_async, ops_atomic, ops_bits, ops_compare, ops_control, ops_convert, ops_float, ops_hints,
    ops_integer, ops_matrix, ops_mbarrier, ops_memory, ops_mma, ops_move, ops_order, ops_warp,
    ops_wgmma,
)
