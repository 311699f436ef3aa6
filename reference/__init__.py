"""Independent oracles in numpy, from upstream checkpoints; imports nothing of ours."""
