"""Owns greedy answers of served models on a named device through the C ABI, for any device's tests.

`python -m tests.device_models DEVICE N_TOKENS FOLDER` prints, as JSON, the ids of every model on
the host processor and on the device. A process of its own: its libraries and devices are fresh.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from abi_stubs import stubs
from engine.artifacts.mspec import open_mspec
from engine.errors import ModelError
from packages.smollm2_135m import fetch
from reference.config import TINY
from reference.synthetic import lively
from skippy_abi.build import build_engine
from skippy_abi.client import Host, OpenModel
from tests import tiny, tiny_hybrid

PROMPTS = [[11, 40, 7], [5], [99, 3, 250, 18, 77, 200, 31, 60, 61, 62, 63, 64, 65, 1, 2, 3, 4]]


def libraries(folder: Path) -> Host:
    """The product's libraries, loaded into this process."""
    return Host([stubs.build(folder), build_engine(folder)])


def served(folder: Path) -> dict[str, Path]:
    """Model files by name, which this process serves from now on; the real one where it is."""
    dense = tiny.write(folder / "dense.gguf", seed=1)
    hybrid = tiny_hybrid.write(folder / "hybrid.mspec", lively(TINY, seed=5))
    table = tiny.serve(folder / "serves.toml", dense)
    with open_mspec(hybrid) as file:
        digest = file.identity.weights_id
    row = f'\n[[artifact]]\npackage = "qwen3_8_27b:tiny"\ncontent_sha256 = "{digest}"\n'
    table.write_text(table.read_text() + row)
    os.environ["MESH_SPECIALIZE_SERVES"] = str(table)
    found = {"dense": dense, "hybrid": hybrid}
    try:
        found["smollm2"] = fetch.locate(download=False)
    except ModelError as error:
        print(error, file=sys.stderr)
    return found


def answers(
    host: Host, path: Path, device: str, n_tokens: int, prompts: Sequence[Sequence[int]] = PROMPTS
) -> list[list[int]]:
    """Greedy ids behind every prompt, one session after another, on one device."""
    model = OpenModel(host, path, device, ctx_size=256, lane_count=2)
    found = []
    for prompt in prompts:
        session = model.session()
        ids = [session.prefill_sampled(prompt)]
        while len(ids) <= n_tokens:
            ids.append(session.decode(ids[-1]))
        session.free()
        found.append(ids)
    model.free()
    return found


def main(device: str, n_tokens: int, folder: Path) -> None:
    """Print the ids of every model on both devices."""
    host, models = libraries(folder), served(folder)
    print(json.dumps({
        model: [answers(host, path, name, n_tokens, PROMPTS[:1]) for name in ("CPU", device)]
        for model, path in models.items()
    }))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
