"""Owns what every test may ask for: the real model's path."""

from pathlib import Path

import pytest

from packages.smollm2_135m import fetch


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M-Instruct GGUF file, fetched once into the user's cache."""
    return fetch.locate()
