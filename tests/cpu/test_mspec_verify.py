"""Owns the proof that the objects of an .mspec file are verified by policy, and recorded."""

import threading
from pathlib import Path

import pytest

from engine.artifacts.mspec import MspecFile, Verify, open_mspec
from engine.errors import InvalidArgument, ModelError
from tests.cpu import mspec_cases as cases

ITEMS = cases.sound_items()
NAMES = [item.name.decode() for item in ITEMS]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "a.mspec"
    made.write_bytes(cases.mspec(ITEMS))
    return made


def damage(path: Path, name: str) -> None:
    """Flip one bit in the middle of an object."""
    with open_mspec(path) as file:
        entry = file.objects[name]
    raw = bytearray(path.read_bytes())
    raw[entry.offset + entry.length // 2] ^= 4
    path.write_bytes(raw)


def use(file: MspecFile) -> None:
    for _ in range(3):
        file.tensor("f32").to_float32()
        file.text("config")


@pytest.mark.parametrize(("policy", "n"), [("always", 3), ("first_use", 1), ("never", 0)])
def test_policies_are_recorded(policy: str, n: int, path: Path) -> None:
    with open_mspec(path, Verify(policy)) as file:
        use(file)
        thread = threading.current_thread().name
        expected = (n, policy, thread) if n else None
        assert file.verifications.get("f32") == expected
        assert set(file.verifications) == ({"f32", "config"} if n else set())
        file.check("int8")
        assert file.verifications["int8"] == (1, "asked", thread)
        file.check("int8")
        assert file.verifications["int8"].n_checks == 2


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_found_by_policy(name: str, path: Path) -> None:
    damage(path, name)
    words = f"a.mspec': object {name!r} is damaged: digest [0-9a-f]{{64}}, not [0-9a-f]{{64}}"
    for policy in (Verify.ALWAYS, Verify.FIRST_USE):
        with open_mspec(path, policy) as file:
            for _ in range(2):
                with pytest.raises(ModelError, match=words):
                    file.raw(name)
            assert file.verifications == {}
            file.raw(next(n for n in NAMES if n != name))
    with open_mspec(path, Verify.NEVER) as file:
        file.raw(name)
        with pytest.raises(ModelError, match=words):
            file.check(name)


def test_an_unknown_policy_is_not_taken_for_never(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="'sometimes', it is one of always, first_use, never"):
        open_mspec(path, "sometimes")  # type: ignore[arg-type]


def test_first_use_is_once_over_all_threads(tmp_path: Path) -> None:
    """Objects that take a while to hash, so that the threads do meet."""
    names = ["a", "b", "c"]
    path = tmp_path / "large"
    items = [cases.text_item(name.encode(), bytes(8 << 20), cases.BLOB) for name in names]
    path.write_bytes(cases.mspec(items))
    with open_mspec(path) as file:
        ready = threading.Barrier(8)

        def first() -> None:
            ready.wait()
            for name in names:
                file.raw(name)

        threads = [threading.Thread(target=first) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [file.verifications[name].n_checks for name in names] == [1, 1, 1]
