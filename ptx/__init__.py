"""T0: ops, kernels and devices; the only tier that knows a GPU vendor."""
