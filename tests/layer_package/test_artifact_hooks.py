"""Owns the proof of the commands run on a package's files: order, environment, results."""

import json
import sys
from pathlib import Path

import pytest

from packages.layer_package.errors import Cancelled, PackageError
from packages.layer_package.writer import write_package
from tests.layer_package.writer_cases import finished, local_options, tiny_source, tree, write

ROOT = Path(__file__).resolve().parents[2]


def script(tmp_path: Path, name: str, text: str) -> list[str]:
    path = tmp_path / name
    path.write_text(text)
    return [sys.executable, str(path)]


LOGGED = """
import os, sys
with open(sys.argv[1], "a") as log:
    path = os.environ["SKIPPY_PACKAGE_ARTIFACT_PATH"]
    print(os.environ["SKIPPY_PACKAGE_ARTIFACT_RELATIVE_PATH"], os.path.getsize(path), file=log)
    assert os.path.isabs(path)
print("not into the manifest")
if len(sys.argv) > 2:
    os.remove(path)
"""


@pytest.mark.parametrize("removes", [False, True], ids=["keeps", "removes"])
def test_a_command_runs_after_every_file(
    removes: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    words = [*script(tmp_path, "hook.py", LOGGED), str(log), *(["x"] if removes else [])]
    result = write(tiny_source(tmp_path, n_layers=1), out, after_artifact=words)
    expected = [f"{a.path} {a.artifact_bytes}" for a in result.artifacts]
    assert log.read_text().splitlines() == expected
    left = {name for name in tree(out) if name.endswith(".gguf")}
    assert left == (set() if removes else {a.path for a in result.artifacts})
    assert capfd.readouterr().out == ""


def test_text_of_a_command_is_split_and_no_shell_sees_it(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    command = f"{sys.executable} -c 'import sys; open(sys.argv[1], \"a\").write(sys.argv[2])'"
    write(tiny_source(tmp_path, n_layers=1), tmp_path / "out",
          after_artifact=f"{command} {marker} '$HOME;'")  # fmt: skip
    assert marker.read_text() == "$HOME;" * 4


@pytest.mark.parametrize("option", ["after_artifact", "transform_artifact"])
@pytest.mark.parametrize(
    "words", [["/bin/false"], ["no-such-command"], ["/bin/sh", "-c", "kill -9 $$"]],
    ids=["code 1", "no such command", "killed"],
)  # fmt: skip
def test_a_command_that_fails_stops_the_run(option: str, words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(PackageError) as caught:
        write(tiny_source(tmp_path), out, **{option: words})
    assert caught.value.kind == "artifact_hook_failed"
    assert caught.value.issue.artifact == "shared/metadata.gguf"
    assert finished(out) == ({"shared/metadata.gguf"} if option == "after_artifact" else set())
    assert "writing" not in str(tree(out))


def test_a_command_is_stopped_when_the_run_is_cancelled(tmp_path: Path) -> None:
    started = tmp_path / "started"
    words = ["/bin/sh", "-c", f"touch {started}; exec sleep 60"]
    with pytest.raises(Cancelled):
        write_package(tiny_source(tmp_path), tmp_path / "out", local_options(after_artifact=words),
                      cancelled=started.exists)  # fmt: skip


# Writes the fragment again with zeros in all tensors, under a new inode.
ZEROED = """
import os
from engine.artifacts.gguf import open_gguf
from engine.artifacts.gguf_writer import TensorSource, write_gguf
path = os.environ["SKIPPY_PACKAGE_ARTIFACT_PATH"]
with open_gguf(path) as f:
    sources = [TensorSource(t.name, t.dims, t.ggml_type, t.n_bytes, (bytes(t.n_bytes),))
               for t in f.tensors]
    write_gguf(path + ".new", list(f.metadata.items()), sources, f.alignment)
os.replace(path + ".new", path)
"""


def test_a_transform_changes_what_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    source, out = tiny_source(tmp_path, n_layers=1), tmp_path / "out"
    plain = write(source, tmp_path / "plain")
    result = write(source, out, transform_artifact=script(tmp_path, "zero.py", ZEROED))
    for before, after in zip(plain.artifacts, result.artifacts, strict=True):
        assert before.path == after.path
        assert (before.sha256 == after.sha256) == (before.tensor_count == 0)
    assert not any("writing" in name for name in tree(out))
    document = json.loads(result.manifest)
    assert document["layers"][0]["sha256"] == result.artifacts[3].sha256


RENAMED = """
import os
path = os.environ["SKIPPY_PACKAGE_ARTIFACT_PATH"]
data = open(path, "rb").read()
open(path, "wb").write(data.replace(b"output_norm.weight", b"output_nurm.weight"))
"""


def test_a_transform_may_not_rename_tensors(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(PackageError) as caught:
        write(tiny_source(tmp_path), out, transform_artifact=script(tmp_path, "r.py", RENAMED))
    assert caught.value.kind == "artifact_plan_mismatch"
    assert caught.value.issue.artifact == "shared/output.gguf"
    assert finished(out) == {"shared/metadata.gguf", "shared/embeddings.gguf"}


def test_a_transform_must_leave_a_sound_file(tmp_path: Path) -> None:
    words = ["/bin/sh", "-c", 'echo x > "$SKIPPY_PACKAGE_ARTIFACT_PATH"']
    with pytest.raises(PackageError) as caught:
        write(tiny_source(tmp_path), tmp_path / "out", transform_artifact=words)
    assert caught.value.kind == "gguf_bad_magic"
    assert finished(tmp_path / "out") == set()
