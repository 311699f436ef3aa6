"""The benchmark of ops at the shapes of Qwen3.8-27B: `python -m engine.bench ops`."""
