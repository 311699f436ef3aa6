"""A conversion that was killed: no file that opens, and the next run ends in the same bytes."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.artifacts.mspec import open_mspec
from engine.errors import ModelError
from packages.convert import Progress
from tests.cpu import convert_cases as cases

ROOT = Path(__file__).resolve().parents[2]
# Kills its own process at the n-th report of progress, wherever that falls.
CHILD = """
import os, signal, sys
from pathlib import Path
from packages.convert import convert
left = int(sys.argv[3])
def progress(done, total):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
convert(Path(sys.argv[1]), Path(sys.argv[2]), package=sys.argv[4], recipe=sys.argv[5],
        progress=progress)
"""


class Stop(Exception):
    """What the tests raise from progress."""


def stop_after(n_reports: int) -> Progress:
    """A progress function that raises at its n-th call."""
    left = n_reports

    def progress(done: int, total: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Stop

    return progress


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cases.checkpoint(tmp_path_factory.mktemp("checkpoint") / "src")


@pytest.fixture(scope="module")
def whole(src: Path) -> bytes:
    """The bytes of a run that nobody disturbed."""
    cases.run(src, src.parent / "whole.mspec")
    return (src.parent / "whole.mspec").read_bytes()


def assert_unfinished(dst: Path) -> None:
    """Nothing that somebody could take for the file."""
    assert not dst.exists()
    for left in dst.parent.glob(dst.name + "*"):
        with pytest.raises(ModelError):
            open_mspec(left)


def test_killed_at_20_random_points(src: Path, whole: bytes, tmp_path: Path) -> None:
    """Ten runs killed once each, then one run killed ten times."""
    rng = random.Random(20)
    alone = [(tmp_path / f"{i}.mspec", rng.randrange(110)) for i in range(10)]
    again = [(tmp_path / "again.mspec", rng.randrange(10)) for _ in range(10)]
    for dst, n_reports in [*alone, *again]:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, src, dst, str(n_reports), cases.KEY, "bf16"],
            cwd=ROOT, check=False,
        )
        assert done.returncode == -signal.SIGKILL
        assert_unfinished(dst)
    for dst in {dst for dst, _ in [*alone, *again]}:
        report = cases.run(src, dst)
        assert dst.read_bytes() == whole
        assert report.n_resumed_bytes < report.n_bytes
        assert sorted(path.name for path in tmp_path.glob(dst.name + "*")) == [dst.name]


def test_stopped_at_every_report(src: Path, whole: bytes, tmp_path: Path) -> None:
    """Each run stops at its second chunk; the sum of them is the undisturbed run."""
    dst = tmp_path / "x.mspec"
    for _ in range(500):
        try:
            report = cases.run(src, dst, progress=stop_after(2))
        except Stop:
            assert_unfinished(dst)
        else:
            break
    assert dst.read_bytes() == whole
    assert report.n_resumed_bytes > 0


def test_leftovers_of_another_recipe_source_or_model_are_not_used(
    src: Path, whole: bytes, tmp_path: Path
) -> None:
    other = cases.checkpoint(tmp_path / "other", weights=cases.bf16_weights(2))
    dst = tmp_path / "x.mspec"
    for options in ({"recipe": "groupwise-int"}, {"src": other}, {"model_id": "another"}):
        given = {"src": src, **options}
        with pytest.raises(Stop):
            cases.run(given.pop("src"), dst, progress=stop_after(60), **given)
    assert cases.run(src, dst).n_resumed_bytes == 0
    assert dst.read_bytes() == whole


def test_a_source_that_was_written_to_since_starts_afresh(
    src: Path, whole: bytes, tmp_path: Path
) -> None:
    copy = cases.checkpoint(tmp_path / "copy")
    dst = tmp_path / "x.mspec"
    with pytest.raises(Stop):
        cases.run(copy, dst, progress=stop_after(60))
    os.utime(copy / "config.json", ns=(1, 1))
    report = cases.run(copy, dst)
    assert report.n_resumed_bytes == 0
    assert dst.read_bytes() == whole


def test_a_kept_object_that_was_damaged_is_written_again(
    src: Path, whole: bytes, tmp_path: Path
) -> None:
    dst = tmp_path / "x.mspec"
    with pytest.raises(Stop):
        cases.run(src, dst, progress=stop_after(60))
    part = tmp_path / "x.mspec.part"
    raw = bytearray(part.read_bytes())
    raw[len(raw) // 2] ^= 1
    part.write_bytes(raw)
    cases.run(src, dst)
    assert dst.read_bytes() == whole
