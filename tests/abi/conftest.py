"""Owns what the ABI tests load: the product's libraries, one with a tiny boot, tiny models."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skippy_abi import client
from skippy_abi.build import build_engine
from tests import tiny
from tests.abi import c_host, hybrid
from tests.abi.c_host import Host, Libraries, Ran
from tests.abi.steps import greedy

ROOT = Path(__file__).resolve().parents[2]

TINY_BOOT = """
import numpy
from skippy_abi.cffi_module import ffi, lib
from skippy_abi.registry import finish, register

@register("skippy_token_is_eog")
def is_eog(model, token_id, out_is_eog, out_error):
    return 0

@register("skippy_session_position")
def position(session):
    return 77

@register("skippy_session_reset")
def fails_silently(session, out_error):
    return 4

@register("skippy_trim_session")
def outside_the_enum(session, token_count, out_error):
    return 99

@register("skippy_model_open")
def raises(path, config, out_model, out_error):
    raise RuntimeError("on purpose")

assert len(finish()) == 64
"""

# Every byte here must survive C source, the linker and Python's own start.
AWKWARD = "a b'\"%s\\n$ü?"


@pytest.fixture(scope="session", autouse=True)
def hosts_heed_an_interrupt() -> None:
    """A shell's background job ignores SIGINT, and so would every host started from it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def built_libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """Both libraries as the product's own command builds them."""
    out = tmp_path_factory.mktemp("libraries")
    command = [sys.executable, str(ROOT / "build_ffi.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    engine, stubs = (Path(line) for line in done.stdout.splitlines())
    return Libraries(engine, stubs)


@pytest.fixture(scope="session")
def build_with_boot(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """Builds an engine library around the text of a boot module, in folders with awkward names."""
    def build(text: str) -> Path:
        folder = tmp_path_factory.mktemp("boot") / AWKWARD
        folder.mkdir()
        (folder / "tiny_boot.py").write_text(text, encoding="utf-8")
        return build_engine(folder / "out", boot="tiny_boot", extra_paths=[folder])

    return build


@pytest.fixture(scope="session")
def tiny_library(build_with_boot: Callable[[str], Path]) -> Path:
    """An engine library whose Python answers five calls and imports numpy."""
    return build_with_boot(TINY_BOOT)


@pytest.fixture(scope="session")
def host_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program that opens libraries as the host does."""
    return c_host.compile_program(c_host.SOURCE, tmp_path_factory.mktemp("host") / "host")


@pytest.fixture(scope="session")
def host(host_program: Path) -> Host:
    """Runs the C program: `host(library, mode, argument, env=..., stdin=...)`."""

    def run(
        library: Path, *words: str, env: dict[str, str] | None = None, stdin: str = ""
    ) -> Ran:
        command = [str(host_program), str(library), *words]
        return subprocess.run(
            command, env=env or {}, input=stdin, capture_output=True, text=True, timeout=60,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def runtime(built_libraries: Libraries) -> client.Host:
    """The product's libraries, loaded into this process as a host loads them."""
    return client.Host([built_libraries.stubs, built_libraries.engine])


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny served model; another one of the same shape is `tiny_other.gguf` beside it."""
    folder = tmp_path_factory.mktemp("tiny")
    path = tiny.write(folder / "tiny.gguf", seed=1)
    other = tiny.write(folder / "tiny_other.gguf", seed=2)
    os.environ["MESH_SPECIALIZE_SERVES"] = str(tiny.serve(folder / "serves.toml", path, other))
    return path


@pytest.fixture
def tiny_model(runtime: client.Host, tiny_path: Path) -> Iterator[client.OpenModel]:
    """The tiny model with 4 lanes and 256 cells."""
    model = client.OpenModel(runtime, tiny_path, lane_count=4, ctx_size=256, n_batch=64)
    yield model
    model.free()


@pytest.fixture(scope="session")
def hybrids(tmp_path_factory: pytest.TempPathFactory, tiny_path: Path) -> Path:
    """A folder with golden.mspec, other.mspec of the same shape, padded.mspec; all served."""
    folder = tmp_path_factory.mktemp("hybrids")
    hybrid.write_all(folder)
    return folder


@pytest.fixture
def hybrid_model(runtime: client.Host, hybrids: Path) -> Iterator[client.OpenModel]:
    """The golden hybrid with 3 lanes."""
    model = hybrid.opened(runtime, hybrids, n_lanes=3)
    yield model
    model.free()


@pytest.fixture(scope="module")
def hybrid_judge(runtime: client.Host, hybrids: Path) -> Iterator[hybrid.Judge]:
    """Straight runs of the golden hybrid, in a model of its own."""
    model = hybrid.opened(runtime, hybrids)
    yield hybrid.Judge(model)
    model.free()


@pytest.fixture
def filled(hybrid_model: client.OpenModel) -> client.OpenSession:
    """A session of the hybrid with 30 tokens."""
    session = hybrid_model.session()
    session.prefill(hybrid.text(30))
    return session


@pytest.fixture
def target(hybrid_model: client.OpenModel, filled: client.OpenSession) -> client.OpenSession:
    """Another session, with some tokens of its own."""
    session = hybrid_model.session()
    session.prefill(hybrid.text(7, seed=2))
    return session


@pytest.fixture
def untouched(target: client.OpenSession, hybrid_judge: hybrid.Judge) -> Iterator[None]:
    """Whatever was refused, the target goes on as if nothing had come."""
    yield
    held = target.position, hybrid.export(target), greedy(target, 9, 4)
    assert held == (7, *hybrid_judge(hybrid.text(7, seed=2)))
