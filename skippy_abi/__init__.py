"""The serving ABI: C in front, Python behind.

Owns the table of the ABI, the C front made from it, and the Python functions that answer. Knows
engines and sessions, never tensors. The contract is the table: `symbols_<version>.toml`.
"""
