"""The benchmark of a whole model: `python -m engine.bench model`."""
