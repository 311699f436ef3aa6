"""Long runs of mixed requests on one open model: `python -m engine.bench endurance`."""
