"""Pins of materialised stages: what prune may take, and what killed processes leave behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from packages.layer_package import pins, stage_cache
from packages.layer_package.materialise import materialise, materialise_pinned
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.pins import Pin, prune
from packages.layer_package.stage_cache import locked, record_path
from tests.layer_package.stage_cases import select, tiny_package

GONE = 2**22 + 1  # above the highest process number of Linux


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "stages"


@pytest.fixture
def package(tmp_path: Path) -> PackageDir:
    return tiny_package(tmp_path / "package")


def names(cache: Path) -> list[str]:
    return [path.name for path in stage_cache.files_of(cache)]


def test_a_pinned_stage_stays(package: PackageDir, cache: Path) -> None:
    with materialise_pinned(package, select(package), root=cache) as pin:
        other = materialise(package, select(package, 0, 1), root=cache)
        n_bytes = other.stat().st_size
        found = prune(cache)
        assert (found.removed, found.busy) == ((other.name,), (pin.path.name,))
        assert (found.freed_bytes, found.kept_bytes) == (n_bytes, pin.path.stat().st_size)
        assert names(cache) == [pin.path.name]
    assert prune(cache).removed == (pin.path.name,)
    assert [p.suffix for p in cache.rglob("*") if p.is_file()] == [".lock", ".lock"]


def test_one_of_two_users_may_go(package: PackageDir, cache: Path) -> None:
    one = materialise_pinned(package, select(package), root=cache)
    two = materialise_pinned(package, select(package), root=cache)
    one.close()
    one.close()
    assert prune(cache).removed == ()
    two.close()
    assert prune(cache).removed == (two.path.name,)


def test_pins_of_gone_processes_count_for_nothing(
    package: PackageDir, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = materialise(package, select(package), root=cache)
    key = path.stem[-24:]
    left = cache / "pins" / f"{key}-{GONE}-0.json"
    left.write_text("{}")
    # The number of the gone process is that of a living one now.
    Pin(cache, key, path)
    monkeypatch.setattr(pins, "started", lambda pid: "another time")
    assert prune(cache).removed == (path.name,)
    assert list((cache / "pins").iterdir()) == []


def test_a_pin_of_another_living_process_counts(package: PackageDir, cache: Path) -> None:
    path = materialise(package, select(package), root=cache)
    program = (
        "import sys, pathlib\n"
        "from packages.layer_package.pins import Pin\n"
        "pin = Pin(pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]))\n"
        "print('pinned', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(cache), path.stem[-24:], str(path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "pinned\n"
        assert prune(cache).busy == (path.name,)
    finally:
        other.kill()
        other.communicate()
    assert prune(cache).removed == (path.name,)


def test_those_used_longest_ago_go_first(package: PackageDir, cache: Path) -> None:
    stages = [select(package, i, i + 1) for i in range(3)]
    paths = [materialise(package, stage, root=cache) for stage in stages]
    for age, path in enumerate(paths):
        when = time.time_ns() - (10 - age) * 10**9
        os.utime(record_path(path), ns=(when, when))
    materialise(package, stages[0], root=cache)
    total = sum(path.stat().st_size for path in paths)
    keep = total - paths[1].stat().st_size
    found = prune(cache, max_bytes=keep)
    assert found.removed == (paths[1].name,)
    assert found.kept_bytes == keep
    assert prune(cache, max_bytes=keep).removed == ()


def test_a_stage_in_the_making_is_left_alone(package: PackageDir, cache: Path) -> None:
    path = materialise(package, select(package), root=cache)
    key = path.stem[-24:]
    half = cache / ".staging" / f"{path.name}.tmp-{GONE}-0"
    half.write_bytes(b"half")
    with locked(cache, key):
        assert prune(cache).busy == (path.name,)
        assert half.exists()
    assert prune(cache).removed == (path.name,)
    assert not half.exists()


def test_what_is_not_ours_is_never_touched(package: PackageDir, cache: Path) -> None:
    path = materialise(package, select(package), root=cache)
    strangers = [cache / "model.gguf", cache / "x-0-1-abc.gguf", cache / ".staging" / "notes",
                 cache / "pins" / "readme", cache / "x.cache.json"]  # fmt: skip
    for stranger in strangers:
        stranger.write_text("keep")
    orphan = record_path(cache / f"m-s-0-1-{'0' * 24}.gguf")
    orphan.write_text("{}")
    assert prune(cache).removed == (path.name,)
    assert all(stranger.read_text() == "keep" for stranger in strangers)
    assert not orphan.exists()
    assert prune(cache / "nowhere").removed == ()


def test_a_killed_maker_leaves_nothing_that_counts(package: PackageDir, cache: Path) -> None:
    program = (
        "import os, sys, pathlib\n"
        "from packages.layer_package import materialise as m\n"
        "from tests.layer_package.stage_cases import opened, select\n"
        "def killed(out, *_): out.write(b'half'); out.flush(); os.kill(os.getpid(), 9)\n"
        "m.stream_gguf = killed\n"
        "package = opened(pathlib.Path(sys.argv[1]))\n"
        "m.materialise(package, select(package), root=pathlib.Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", program, str(package.root), str(cache)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    assert names(cache) == []
    assert len(list((cache / ".staging").iterdir())) == 1
    path = materialise(package, select(package), root=cache)
    prune(cache, max_bytes=1 << 40)
    assert list((cache / ".staging").iterdir()) == []
    assert names(cache) == [path.name]
