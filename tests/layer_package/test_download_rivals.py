"""Owns that several downloaders of one repository at once, one of them killed, do no harm."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from packages.layer_package.checks import validate
from packages.layer_package.errors import CacheError, Cancelled
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.resolve import resolve_package
from tests.layer_package.hub_cases import COMMIT, FOLDER, REF, FakeHub, leftovers
from tests.layer_package.package_cases import write_tiny_package

METADATA, LAYER = "shared/metadata.gguf", "layers/layer-00000.gguf"
N_FILES = 7
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return FakeHub(write_tiny_package(tmp_path / "p"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def resolve(cache: Path, hub: FakeHub, lock_seconds: float = 60.0) -> PackageDir:
    return resolve_package(
        REF, scope="package", cache=cache, fetch=hub, lock_seconds=lock_seconds
    )


def check_whole(cache: Path) -> None:
    package = resolve_package(REF, scope="package", cache=cache)
    assert validate(package, "package").valid
    assert leftovers(cache) == []


FETCHER = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from packages.layer_package.resolve import resolve_package
    from tests.layer_package.hub_cases import REF, FakeHub

    package, cache, log, how = sys.argv[1:]
    hub = FakeHub(Path(package))

    def fetch(request):
        with open(log, "a") as out:
            out.write(f"{os.getpid()} {request.path}\\n")
        if how == "hang" and request.path.endswith("layer-00000.gguf"):
            request.target.write_bytes(b"half of it")
            print("hanging", flush=True)
            time.sleep(600)
        time.sleep(0.02)
        return hub(request)

    print("started", flush=True)
    sys.stdin.readline()
    resolve_package(REF, scope="package", cache=Path(cache), fetch=fetch, offline=False)
    """
)


def start(hub: FakeHub, cache: Path, how: str) -> "subprocess.Popen[str]":
    """A process that downloads into the cache once it is told to go."""
    arguments = [str(hub.folder), str(cache), str(cache.with_name("log")), how]
    process = subprocess.Popen(
        [sys.executable, "-c", FETCHER, *arguments], cwd=ROOT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_two_processes_download_each_file_once(hub: FakeHub, cache: Path) -> None:
    rivals = [start(hub, cache, "run"), start(hub, cache, "run")]
    for process in rivals:
        go(process)
    for process in rivals:
        process.communicate(timeout=30)
        assert process.returncode == 0
    fetched = [line.split()[1] for line in (cache.with_name("log")).read_text().splitlines()]
    assert len(fetched) == N_FILES
    assert len(set(fetched)) == N_FILES
    check_whole(cache)


def test_a_killed_downloader_leaves_nothing_half_installed(hub: FakeHub, cache: Path) -> None:
    process = start(hub, cache, "hang")
    go(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "hanging\n"
    with pytest.raises(CacheError) as caught:
        resolve(cache, hub, lock_seconds=0.1)
    assert caught.value.kind == "cache_lock_timeout"
    assert hub.paths == []
    with pytest.raises(Cancelled):
        resolve_package(
            REF, scope="package", cache=cache, fetch=hub, cancelled=lambda: True
        )
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert {name.split("/")[1] for name in leftovers(cache)} == {".incoming"}
    assert not os.path.lexists(cache / FOLDER / "snapshots" / COMMIT / LAYER)
    resolve(cache, hub)
    assert METADATA not in hub.paths, "what the killed one finished is kept"
    check_whole(cache)


def test_two_threads_download_each_file_once(hub: FakeHub, cache: Path) -> None:
    threads = [threading.Thread(target=resolve, args=(cache, hub)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(hub.paths) == len(set(hub.paths)) == N_FILES
    check_whole(cache)
