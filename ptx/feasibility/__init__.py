"""A minimal kernel for each family of special instructions, and the record of where it was run.

Not an op: these kernels serve nobody. `families.py` lists them, `python -m ptx.feasibility` runs
them; the record is KNOWLEDGE/evidence/feasibility.md.
"""
