"""Owns ordinary files under extraordinary names, and what is not an ordinary file.

All regular readable files open; the rest is ModelError at once, with a printable path and the
system's reason; the standard descriptors of the host stay alone.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.artifacts.gguf import open_gguf
from engine.errors import InvalidArgument, ModelError
from tests.cpu import gguf_cases as cases

ROOT = Path(__file__).parents[2]

NAMES = {
    "cyrillic and kanji": "модель 模型.gguf".encode(),
    "ideographic space": "\u3000dir \u3000/m.gguf".encode(),
    "trailing space": b"dir /m.gguf ",
    "newline": b"two\nlines.gguf",
    "not UTF-8": b"caf\xe9.gguf",
    "255 bytes": b"n" * 250 + b".gguf",
    "like a shard": b"x-00001-of-00013.gguf",
}


def put(folder: Path, name: bytes) -> bytes:
    target = os.path.join(os.fsencode(folder), name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as out:
        out.write(cases.every_type())
    return target


def refusal(path: bytes | Path) -> str:
    start = time.process_time()
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    assert time.process_time() - start < 1
    message = str(caught.value)
    assert message.isprintable()
    return message


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_opens_under_any_name(name: bytes, tmp_path: Path) -> None:
    target = put(tmp_path, name)
    for path in (target, os.fsdecode(target), Path(os.fsdecode(target))):
        with open_gguf(path) as file:
            assert len(file.tensors) == 2
            assert os.fsencode(file.path) == target
            assert file.shown.isprintable()


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_missing_file_is_named_printably(name: bytes, tmp_path: Path) -> None:
    message = refusal(os.path.join(os.fsencode(tmp_path), name))
    assert "No such file" in message


def test_names_are_escaped_not_dropped(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    assert "two\\nlines" in refusal(folder + b"/two\nlines")
    assert "caf\\xe9" in refusal(folder + b"/caf\xe9")
    assert "модель" in refusal(folder + "/модель".encode())


def test_through_a_cache_link(tmp_path: Path) -> None:
    put(tmp_path, b"blobs/abc")
    snapshot = tmp_path / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    link = snapshot / "model.gguf"
    link.symlink_to("../../blobs/abc")
    with open_gguf(link) as file:
        assert len(file.tensors) == 2


def test_broken_links(tmp_path: Path) -> None:
    dangling, a, b = tmp_path / "dangling", tmp_path / "a", tmp_path / "b"
    dangling.symlink_to("nowhere")
    a.symlink_to(b)
    b.symlink_to(a)
    assert "No such file" in refusal(dangling)
    assert "symbolic links" in refusal(a)


def test_what_is_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "FIFO" in refusal(tmp_path / "pipe")
    assert "directory" in refusal(tmp_path)
    assert "character device" in refusal(Path("/dev/null"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert "No such device" in refusal(tmp_path / "socket")


def test_a_file_that_shrinks_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = put(tmp_path, b"m.gguf")
    look = os.fstat

    def look_then_cut(descriptor: int) -> os.stat_result:
        found = look(descriptor)
        os.truncate(target, 10)
        return found

    monkeypatch.setattr(os, "fstat", look_then_cut)
    assert "greater than file size" in refusal(target)


def test_a_name_too_long(tmp_path: Path) -> None:
    assert "too long" in refusal(tmp_path / ("n" * 256))


def test_unreadable_file_and_folder(tmp_path: Path) -> None:
    shut, folder = tmp_path / "shut.gguf", tmp_path / "folder"
    put(tmp_path, b"shut.gguf")
    put(tmp_path, b"folder/m.gguf")
    shut.chmod(0)
    folder.chmod(0)
    code = (
        "import os, sys\n"
        "from engine.artifacts.gguf import open_gguf\n"
        "from engine.errors import ModelError\n"
        "if os.geteuid() == 0:\n"
        "    os.chmod(sys.argv[3], 0o711)\n"
        "    os.setuid(65534)\n"
        "for path in sys.argv[1:3]:\n"
        "    try:\n"
        "        open_gguf(path)\n"
        "    except ModelError as e:\n"
        "        print(e)\n"
    )
    try:
        done = run_python(code, shut, folder / "m.gguf", tmp_path)
    finally:
        folder.chmod(0o700)
    assert done.count(b"Permission denied") == 2, done


def test_a_read_only_folder_is_no_obstacle(tmp_path: Path) -> None:
    target = put(tmp_path, b"folder/m.gguf")
    (tmp_path / "folder").chmod(0o555)
    try:
        open_gguf(target).close()
    finally:
        (tmp_path / "folder").chmod(0o755)


def test_in_an_ascii_locale(tmp_path: Path) -> None:
    targets = [put(tmp_path, name) for name in NAMES.values()]
    code = (
        "import os, sys\n"
        "from engine.artifacts.gguf import open_gguf\n"
        "for path in sys.argv[1:]:\n"
        "    open_gguf(os.fsencode(path)); open_gguf(path)\n"
        "open_gguf(sys.argv[-1][:0] + chr(0x43c))\n"
    )
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    relative = put(tmp_path, "м".encode())
    run_python(code, *map(os.fsdecode, targets), env=env, cwd=os.path.dirname(relative))


def test_the_hosts_descriptors_are_left_alone(tmp_path: Path) -> None:
    """With 0, 1 and 2 closed by the host, none of them comes to hold our file."""
    target = put(tmp_path, b"m.gguf")
    report = tmp_path / "report"
    code = (
        "import os, sys\n"
        "from engine.artifacts.gguf import open_gguf\n"
        "from engine.artifacts.gguf_writer import to_float32_gguf, write_gguf\n"
        "os.closerange(0, 3)\n"
        "seen = []\n"
        "def look():\n"
        "    for fd in range(3):\n"
        "        try:\n"
        "            seen.append(os.readlink(f'/proc/self/fd/{fd}'))\n"
        "        except OSError:\n"
        "            pass\n"
        "    return iter([b'1234'])\n"
        "class Data:\n"
        "    def __iter__(self): return look()\n"
        "from engine.artifacts.gguf_writer import TensorSource\n"
        "with open_gguf(sys.argv[1]) as file:\n"
        "    look()\n"
        "    write_gguf(sys.argv[1] + '.out', [], [TensorSource('x', (1,), 0, 4, Data())])\n"
        "look()\n"
        "with open(sys.argv[2], 'w') as out:\n"
        "    out.write(repr(seen))\n"
    )
    run_python(code, os.fsdecode(target), report)
    assert report.read_text() == "[]"


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    target = put(tmp_path, b"m.gguf")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        open_gguf(target).close()
        refusal(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("path", ["a\0b", b"a\0b", "\ud800", None, 7])
def test_what_is_not_a_path(path: object) -> None:
    with pytest.raises(InvalidArgument, match="not a path"):
        open_gguf(path)  # type: ignore[arg-type]


def run_python(
    code: str, *args: object, env: dict[str, str] | None = None, cwd: str | None = None
) -> bytes:
    """Run code with the project importable; its standard output."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]
        + [str(a) for a in args],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout
