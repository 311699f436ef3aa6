"""Guards the main job as MeshLLM does it: a native program, local symbols, its own threads.

The program is `tests/host`. What it can judge itself it asserts, so most tests here only choose
what is broken around it. Long because every way to break the start is one test here.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skippy_abi import client
from tests.abi.c_host import Libraries
from tests.tiny import DIMS

if TYPE_CHECKING:
    # Left to pytest_plugins at run time, so that pytest rewrites its assertions.
    from tests.abi.native_host import NativeHost

pytest_plugins = ["tests.abi.native_host"]
PROMPT = "Name a colour."
AWKWARD_PROMPT = 'Say "no" \\ or\n\tso: é 模 🎈 \u3000'


@pytest.fixture(scope="session")
def libraries(built_libraries: Libraries) -> list[Path]:
    """In load order: the primary one is last."""
    return [built_libraries.stubs, built_libraries.engine]


def tokens_of(stderr: str) -> list[int]:
    line = next(line for line in stderr.splitlines() if line.startswith("tokens: "))
    return [int(word) for word in line[line.index("[") + 1 : line.index("]")].split(", ")]


def test_every_name_is_in_its_library(native_host: NativeHost, libraries: list[Path]) -> None:
    ran = native_host.run(libraries, "resolve")
    found = dict(line.split() for line in ran.stdout.splitlines())
    assert len(found) == 97
    for name, provider in found.items():
        assert provider == libraries[name.startswith("skippy_")].name, name


def test_the_engine_alone_lacks_exactly_the_foreign_names(
    native_host: NativeHost, libraries: list[Path]
) -> None:
    ran = native_host.run(libraries[1:], "resolve")
    missing = [line.split()[0] for line in ran.stdout.splitlines() if line.endswith(" missing")]
    assert len(missing) == 26
    assert not [name for name in missing if name.startswith("skippy_")]
    ran = native_host.run(libraries[1:], "noop-cost", "x")
    assert (ran.returncode, ran.stderr) == (1, "host: symbol not found: llama_log_set\n")


def test_without_the_engine_there_is_no_version(
    native_host: NativeHost, libraries: list[Path]
) -> None:
    ran = native_host.run(libraries[:1], "resolve")
    assert (ran.returncode, ran.stderr) == (1, "host: symbol not found: skippy_abi_version\n")


@pytest.mark.parametrize("pieces", [[], ["--pieces"]], ids=["whole prompt", "pieces"])
@pytest.mark.parametrize("seed", [None, 7], ids=["greedy", "seed 7"])
def test_chat_gives_the_tokens_that_the_client_gets(
    native_host: NativeHost, libraries: list[Path], runtime: client.Host, tiny_path: Path,
    pieces: list[str], seed: int | None,
) -> None:
    options = pieces if seed is None else [*pieces, "--seed", str(seed)]
    ran = native_host.run(libraries, "chat", tiny_path, PROMPT, *options)
    assert ran.returncode == 0, ran.stderr
    assert tokens_of(ran.stderr) == client_tokens(runtime, tiny_path, seed)


def client_tokens(runtime: client.Host, path: Path, seed: int | None) -> list[int]:
    """16 tokens of the same request, by the whole-prompt way, from inside a Python process."""
    model = client.OpenModel(runtime, path)
    sampling = None if seed is None else runtime.sampling(
        seed=seed, top_k=40, temperature=0.8, top_p=0.95, min_p=0.05
    )
    prompt, metadata = model.template(f'[{{"role":"user","content":"{PROMPT}"}}]')
    ids = model.tokenize(prompt)
    session = model.session()
    session.configure_chat(metadata, len(ids), sampling)
    tokens = [session.prefill_sampled(ids, sampling)]
    while len(tokens) < 16 and not model.is_eog(tokens[-1]):
        tokens.append(session.decode(tokens[-1], sampling))
    session.free()
    model.free()
    return tokens


def test_chat_with_an_awkward_prompt(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path
) -> None:
    ran = native_host.run(libraries, "chat", tiny_path, AWKWARD_PROMPT)
    assert ran.returncode == 0, ran.stderr


def test_chat_of_the_real_model(
    native_host: NativeHost, libraries: list[Path], smollm2_path: Path
) -> None:
    whole = native_host.run(libraries, "chat", smollm2_path, PROMPT)
    assert whole.returncode == 0, whole.stderr
    assert "colour" in whole.stdout.lower()
    assert "event: kind 4" in whole.stderr
    assert "device: 0 CPU kind 0" in whole.stderr
    pieces = native_host.run(libraries, "chat", smollm2_path, PROMPT, "--pieces")
    assert pieces.stdout == whole.stdout


def test_threads_answer_as_a_serial_run(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path
) -> None:
    ran = native_host.run(libraries, "threads", tiny_path, "5", "4")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "5 threads, 4 rounds, all as the serial run\n"


def test_every_single_token_has_its_text(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path, smollm2_path: Path
) -> None:
    ran = native_host.run(libraries, "detok-inventory", tiny_path, str(DIMS.n_vocab))
    assert ran.stdout.startswith(f"{DIMS.n_vocab} tokens, "), ran.stderr
    ran = native_host.run(libraries, "detok-inventory", smollm2_path, "49152")
    assert ran.stdout.startswith("49152 tokens, "), ran.stderr


def test_the_smallest_call_can_be_measured(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path
) -> None:
    ran = native_host.run(libraries, "noop-cost", tiny_path)
    assert ran.stdout.endswith(" ns\n"), ran.stderr


def boot_that_raises(folder: Path) -> str:
    """Code paths where everything is there, and `packages.boot` is somebody else's."""
    (folder / "packages").mkdir()
    (folder / "packages" / "__init__.py").write_text("")
    (folder / "packages" / "boot.py").write_text('raise RuntimeError("broken on purpose")')
    root = Path(client.__file__).resolve().parents[1]
    return f"{folder}:{root}:{sysconfig.get_path('purelib')}:{sysconfig.get_path('platlib')}"


BROKEN: dict[str, tuple[str, Callable[[Path], str], str]] = {
    "home nowhere": ("PYTHONHOME", lambda folder: str(folder / "nowhere"), "nowhere"),
    "home empty": ("PYTHONHOME", str, "standard library is missing"),
    "home a file": ("PYTHONHOME", lambda folder: __file__, "test_native_host.py"),
    "path nowhere": ("PYTHONPATH", lambda folder: str(folder / "nowhere"), "_cffi_backend"),
    "path empty": ("PYTHONPATH", str, "_cffi_backend"),
    "path of colons": ("PYTHONPATH", lambda folder: ":::", "_cffi_backend"),
    "boot raises": ("PYTHONPATH", boot_that_raises, "broken on purpose"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_no_function_says_ok_when_python_cannot_start(
    native_host: NativeHost, libraries: list[Path], tmp_path: Path, name: str
) -> None:
    variable, make, cause = BROKEN[name]
    env = {f"MESH_SPECIALIZE_{variable}": make(tmp_path)}
    ran = native_host.run(libraries, "broken", cause, env=env)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 69
    assert ran.stderr == ""


NONSENSE = "/nowhere/\udcff:\x01"
PYTHON_VARIABLES = (
    "HOME", "PATH", "STARTUP", "MALLOC", "HASHSEED", "UTF8", "IOENCODING", "WARNINGS", "INSPECT",
    "DEVMODE", "PLATLIBDIR", "BREAKPOINT", "INTMAXSTRDIGITS", "COERCECLOCALE",
)
ENVIRONMENTS = {
    "C locale": {"LC_ALL": "C"},
    "unknown locale": {"LC_ALL": "xx_YY.UTF-16", "LANG": "tlh", "TZ": "Nowhere/Land"},
    "Python's variables": {f"PYTHON{name}": NONSENSE for name in PYTHON_VARIABLES},
    "folders": {"HOME": NONSENSE, "TMPDIR": NONSENSE, "XDG_CACHE_HOME": NONSENSE, "PATH": ""},
    "empty settings": {
        f"MESH_SPECIALIZE_{name}": "" for name in ("PYTHONHOME", "PYTHONPATH", "LOG")
    },
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_hosts_environment_does_not_matter(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path, tmp_path: Path, name: str
) -> None:
    elsewhere = tmp_path / "e l s e\n模"
    elsewhere.mkdir()
    plain = native_host.run(libraries, "chat", tiny_path, PROMPT)
    ran = native_host.run(
        libraries, "chat", tiny_path, PROMPT, env=ENVIRONMENTS[name], cwd=elsewhere
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == plain.stdout
    assert not list(elsewhere.iterdir())


def test_modules_in_the_working_directory_are_not_ours(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path, tmp_path: Path
) -> None:
    for name in ("json", "numpy", "engine", "packages", "threading", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    ran = native_host.run(libraries, "chat", tiny_path, PROMPT, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_logging_to_standard_error_breaks_nothing(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path
) -> None:
    ran = native_host.run(libraries, "open", tiny_path, env={"MESH_SPECIALIZE_LOG": "debug"})
    assert ran.returncode == 0, ran.stderr


# ---- Ordinary files under extraordinary names


def link_to(target: Path, folder: Path, *names: bytes) -> Path:
    """The model under another name; all but the last are folders made for it."""
    path = os.path.join(os.fsencode(folder), *names)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.link(target, path)
    return Path(os.fsdecode(path))


NAMES: dict[str, Sequence[bytes]] = {
    "Cyrillic and CJK": ["модель 模型.gguf".encode()],
    "ideographic and trailing space": ["a\u3000b ".encode(), b"m.gguf"],
    "newline": [b"two\nlines.gguf"],
    "not UTF-8": [b"m\xff\xfe.gguf"],
    "255 bytes": [b"x" * 250 + b".gguf"],
    "looks like a shard": [b"x-00001-of-00013.gguf"],
    "looks like an option": [b"--model", b"-p"],
}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_opens_under_any_name(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path, tmp_path: Path, name: str
) -> None:
    path = link_to(tiny_path, tmp_path, *NAMES[name])
    for command in ("open", "info"):
        ran = native_host.run(libraries, command, path, env={"LC_ALL": "C"})
        assert ran.returncode == 0, ran.stderr
        assert "(not UTF-8)" not in ran.stderr


def test_a_model_opens_through_a_link_and_from_a_read_only_folder(
    native_host: NativeHost, libraries: list[Path], tiny_path: Path, tmp_path: Path
) -> None:
    blob = tmp_path / "blobs" / "0123abcd"
    blob.parent.mkdir()
    shutil.copyfile(tiny_path, blob)
    blob.parent.chmod(0o555)
    (tmp_path / "model.gguf").symlink_to(Path("blobs", "0123abcd"))
    ran = native_host.run(libraries, "open", "model.gguf", cwd=tmp_path)
    blob.parent.chmod(0o755)
    assert ran.returncode == 0, ran.stderr


def unusable(folder: Path, kind: str) -> Path:
    """Something that is no model, under an awkward name."""
    path = folder / "no\n模型\udcff.gguf"
    makers: dict[str, Callable[[], object]] = {
        "missing": lambda: None,
        "dangling link": lambda: path.symlink_to("nowhere"),
        "circular link": lambda: path.symlink_to(path.name),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "empty": path.touch,
    }
    makers[kind]()
    return path


@pytest.mark.parametrize(
    "kind", ["missing", "dangling link", "circular link", "pipe", "folder", "empty"]
)
def test_what_is_no_model_is_refused_at_once_with_a_printable_path(
    native_host: NativeHost, libraries: list[Path], tmp_path: Path, kind: str
) -> None:
    path = unusable(tmp_path, kind)
    for command, function in (("open", "skippy_model_open"), ("info", "skippy_model_info_open")):
        ran = native_host.run(libraries, command, path, env={"LC_ALL": "C"})
        assert ran.returncode == 1, ran.stderr
        last = ran.stderr.splitlines()[-1]
        assert last.startswith(f"host: {function}"), ran.stderr
        assert ": 6: " in last, "MODEL_ERROR"
        assert "模型" in last
        assert "(not UTF-8)" not in ran.stderr
        assert last.isprintable()
