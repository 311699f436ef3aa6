"""`mesh-specialize package`: each command's answer, its JSON, its exit code, failures in words.

Long because there are many commands.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.artifacts.content_digest import content_digest
from engine.artifacts.gguf import open_gguf
from packages import cli
from packages.layer_package import ed25519
from tests.layer_package.package_cases import (
    MODEL_ID,
    REPO,
    REVISION,
    change_manifest,
    source_gguf,
    write_tiny_package,
)

Run = Callable[..., tuple[int, str, str]]
IDENTITY = ["--model-id", MODEL_ID, "--source-repo", REPO, "--source-revision", REVISION,
            "--source-file", "tiny.gguf"]  # fmt: skip


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, standard output and standard error of a command of the group."""

    def command(*words: str | Path) -> tuple[int, str, str]:
        code = cli.main(["package", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_tiny_package(tmp_path / "package")


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("SKIPPY_MATERIALIZED_DIR", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)


def document(answer: tuple[int, str, str]) -> tuple[int, Any]:
    return answer[0], json.loads(answer[1])


def test_write_then_validate_against_the_source(run: Run, tmp_path: Path) -> None:
    source = source_gguf(tmp_path / "tiny.gguf", rope_table=True)
    out, report = tmp_path / "out", tmp_path / "report.json"
    code, text, error = run("write", source, "--out-dir", out, *IDENTITY, "--report", report)
    assert code == 0
    assert text == (out / "model-package.json").read_text()
    assert json.loads(report.read_bytes())["manifest_sha256"]
    assert "] " in error
    code, found = document(run("validate", out, "--source", source, "--json"))
    assert (code, found["valid"], found["scope"]) == (0, True, "source")
    # The same again is refused, and nothing of it is touched.
    code, found = document(run("write", source, "--out-dir", out, *IDENTITY, "--json"))
    assert (code, found["error"]["kind"]) == (2, "output_exists")
    assert run("write", source, "--out-dir", out, "--force", *IDENTITY)[0] == 0
    code, text, _ = run("write", source, "--out-dir", tmp_path / "dry", "--dry-run", *IDENTITY)
    assert (code, (tmp_path / "dry").exists()) == (0, False)
    assert "layers/layer-00002.gguf" in text
    (out / "layers/layer-00000.gguf").write_bytes(b"x")
    code, found = document(run("validate", out, "--source", source, "--json"))
    assert (code, found["valid"]) == (1, False)
    # A source that is none says nothing of the package.
    source.write_bytes(b"text")
    code, found = document(run("validate", out, "--source", source, "--json"))
    assert (code, found["error"]["kind"]) == (2, "gguf_bad_magic")
    code, found = document(run("validate", out, "--source", tmp_path / "none.gguf", "--json"))
    assert (code, found["error"]["kind"]) == (2, "missing_artifact")


def test_a_source_without_identity_names_the_flag(run: Run, tmp_path: Path) -> None:
    source = source_gguf(tmp_path / "tiny.gguf")
    code, out, error = run("write", source, "--out-dir", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "missing_source_identity" in error
    assert "--model-id" in error


@pytest.mark.parametrize("scope", ["manifest", "metadata", "stage", "package"])
def test_validate_by_scope(run: Run, package: Path, scope: str) -> None:
    code, found = document(run("validate", package, "--scope", scope, "--json"))
    assert (code, found["valid"], found["scope"], found["issues"]) == (0, True, scope, [])
    (package / "layers/layer-00001.gguf").unlink()
    code, found = document(run("validate", package, "--scope", scope, "--json"))
    is_seen = scope in ("stage", "package")
    assert (code, found["valid"]) == ((1, False) if is_seen else (0, True))
    if is_seen:
        assert found["issues"][0]["kind"] == "missing_artifact"
        assert found["issues"][0]["artifact"] == "layers/layer-00001.gguf"
    assert run("validate", package, "--scope", "stage", "--layers", "0:1")[0] == 0


def test_validate_says_all_of_a_manifest_that_is_none(run: Run, package: Path) -> None:
    change_manifest(package, lambda m: (m.update(activation_width=0), m.update(model_id=" ")))
    code, out, error = run("validate", package)
    assert code == 1
    assert "NOT valid" in out
    assert "invalid_activation_width" in error
    assert "empty_model_id" in error
    code, found = document(run("validate", package, "--json"))
    kinds = [issue["kind"] for issue in found["issues"]]
    assert kinds == ["empty_model_id", "invalid_activation_width"]
    (package / "model-package.json").write_text("{")
    code, found = document(run("validate", package, "--json"))
    assert (code, found["issues"][0]["kind"]) == (1, "invalid_manifest_json")


def test_a_flipped_byte_shows_when_digests_are_asked_for(run: Run, package: Path) -> None:
    path = package / "layers/layer-00001.gguf"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert run("validate", package)[0] == 0
    code, found = document(run("validate", package, "--verify-sha256", "--json"))
    assert (code, found["issues"][0]["kind"]) == (1, "artifact_sha256_mismatch")


def test_the_report_is_kept_and_tells_its_manifest(run: Run, package: Path) -> None:
    assert run("validate", package, "--store", "--verify-sha256")[0] == 0
    kept = json.loads((package / "validation-report.json").read_bytes())
    _, facts = document(run("inspect", package, "--json"))
    assert kept["manifest_sha256"] == facts["manifest_sha256"]
    assert (kept["format_version"], kept["valid"], kept["scope"]) == (1, True, "package")
    assert kept["verified_sha256"] is True
    assert facts["validation_report"]["is_of_this_manifest"] is True
    # It is no part of the package: the package is as valid as before.
    assert run("validate", package)[0] == 0
    change_manifest(package, lambda m: m.update(created_at_unix_secs=1))
    _, facts = document(run("inspect", package, "--json"))
    assert facts["validation_report"]["is_of_this_manifest"] is False
    (package / "layers/layer-00001.gguf").unlink()
    assert run("validate", package, "--store")[0] == 1
    assert json.loads((package / "validation-report.json").read_bytes())["valid"] is False
    (package / "model-package.json").write_text("{}")
    assert run("validate", package, "--store")[0] == 1
    kept = json.loads((package / "validation-report.json").read_bytes())
    assert kept["manifest_sha256"] == hashlib.sha256(b"{}").hexdigest()
    assert kept["valid"] is False
    code, found = document(run("validate", f"hf://{REPO}@{REVISION}", "--store", "--json"))
    assert (code, found["error"]["kind"]) == (2, "report_not_storable")
    left = sorted(path.name for path in package.iterdir())
    assert left == ["layers", "model-package.json", "shared", "validation-report.json"]


def test_preflight_lists_the_stages_and_whether_it_runs_here(run: Run, package: Path) -> None:
    code, found = document(run("preflight", package, "--stages", "2", "--json"))
    assert (code, found["valid"]) == (0, True)
    assert [(s["layer_start"], s["layer_end"]) for s in found["stages"]] == [(0, 2), (2, 3)]
    assert found["execution"]["falls_through"] is True
    assert found["execution"]["rejections"][0]["reason"] == "ModelNotServed"
    code, out, _ = run("preflight", package, "--stages", "3")
    assert (code, out.count("stage ")) == (0, 3)
    assert "runs here: no" in out
    assert run("preflight", package, "--stages", "4")[0] in (1, 2)


def test_inspect(run: Run, package: Path) -> None:
    code, out, _ = run("inspect", package)
    assert code == 0
    assert "acme-lab/TinyDemo-GGUF:Q8_0: 3 layers, width 64" in out
    assert "signature none" in out
    code, facts = document(run("inspect", package, "--json"))
    assert (code, len(facts["artifacts"]), facts["signature"]) == (0, 6, None)


def test_resolve_and_materialize(run: Run, package: Path, tmp_path: Path) -> None:
    code, out, _ = run("resolve", package, "--stages", "3", "--stage", "1")
    assert code == 0
    assert out.split() == [str(package / "shared/metadata.gguf"),
                           str(package / "layers/layer-00001.gguf")]  # fmt: skip
    _, found = document(run("resolve", package, "--layers", "0:2", "--json"))
    (stage,) = found["stages"]
    assert (stage["include_embeddings"], stage["include_output"]) == (True, False)
    code, found = document(run("materialize", package, "--json"))
    (stage,) = found["stages"]
    path = Path(stage["path"])
    assert (code, path.parent) == (0, tmp_path / "cache" / "skippy-stages")
    with open_gguf(path) as file, open_gguf(source_gguf(tmp_path / "source.gguf")) as source:
        assert content_digest(file) == content_digest(source)
    code, out, _ = run("materialize", package, "--layers", "1:2", "--dir", tmp_path / "here",
                       "--name", "mine")  # fmt: skip
    assert (code, Path(out.strip()).parent.name) == (0, "here")
    assert "-mine-1-2-" in out
    code, out, _ = run("materialize", package, "--stages", "3", "--dir", tmp_path / "here",
                       "--name", "mine")  # fmt: skip
    names = [Path(line).name for line in out.split()]
    assert [name.split("-mine-")[1][:3] for name in names] == ["0-1", "1-2", "2-3"]
    code, found = document(run("prune", "--dir", tmp_path / "here", "--json"))
    assert (code, sorted(found["removed"])) == (0, sorted(names))


@pytest.mark.parametrize(("words", "kind"), [
    (["--layers", "2:2"], "empty_layer_range"), (["--layers", "0:4"], "layer_range_out_of_bounds"),
    (["--layers", "0:1", "--stages", "2"], "two_stage_choices"),
    (["--stage", "0"], "incomplete_stage_choice"),
    (["--stages", "2", "--stage", "2"], "stage_out_of_range"),
    (["--stages", "4", "--stage", "0"], "stage_count_exceeds_layer_count"),
])  # fmt: skip
def test_stages_that_are_none_are_wrong_usage(
    run: Run, package: Path, words: list[str], kind: str
) -> None:
    for command in ("resolve", "materialize"):
        code, found = document(run(command, package, *words, "--json"))
        assert (code, found["error"]["kind"], found["valid"]) == (2, kind, False)


def test_references_that_lead_nowhere(run: Run, tmp_path: Path) -> None:
    for ref, kind in (("hf://a", "invalid_package_ref"), (tmp_path, "not_a_package_ref"),
                      (f"hf://acme/none@{REVISION}", "not_cached")):  # fmt: skip
        for command in ("inspect", "validate", "resolve", "materialize"):
            code, found = document(run(command, ref, "--json"))
            assert (code, found["error"]["kind"]) == (2, kind), (command, ref)
    with pytest.raises(SystemExit) as caught:
        run("resolve", tmp_path, "--layers", "one")
    assert caught.value.code == 2


def test_the_contract_of_a_profile(run: Run, tmp_path: Path) -> None:
    code, found = document(run("validate-glm-dsa-contract", source_gguf(tmp_path / "x"), "--json"))
    assert (code, found["valid"], found["profile"]) == (1, False, "glm-dsa-v1")
    code, out, _ = run("validate-glm-dsa-contract", tmp_path / "x")
    assert (code, out.splitlines()[0]) == (1, "glm-dsa-v1 does NOT hold")


def test_sign_and_verify(run: Run, package: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra `signing`")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519 as theirs

    key = theirs.Ed25519PrivateKey.from_private_bytes(bytes(32))
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                            serialization.NoEncryption())  # fmt: skip
    (tmp_path / "key.pem").write_bytes(pem)
    public = base64.b64encode(ed25519.public_key_of(bytes(32))).decode()
    (tmp_path / "alice.pub").write_text(public + "\n")
    (tmp_path / "bob.pub").write_text(base64.b64encode(bytes(31) + b"\1").decode())
    trust = ["--trust", tmp_path / "bob.pub", "--trust", tmp_path / "alice.pub"]
    code, found = document(run("verify-signature", package, *trust, "--json"))
    assert (code, found["error"]["kind"]) == (1, "missing_signature")
    code, out, _ = run("sign", package, "--key", tmp_path / "key.pem")
    assert (code, out.strip()) == (0, f"signed by {public}")
    code, found = document(run("verify-signature", package, *trust, "--json"))
    assert (code, found["valid"], found["public_key"]) == (0, True, public)
    code, found = document(run("verify-signature", package, *trust[:2], "--json"))
    assert (code, found["error"]["kind"]) == (1, "untrusted_signature_key")
    _, facts = document(run("inspect", package, "--json"))
    assert facts["signature"]["public_key"] == public
    code, found = document(run("sign", package, "--key", tmp_path / "alice.pub", "--json"))
    assert (code, found["error"]["kind"]) == (1, "invalid_signing_key")
    assert run("sign", package, "--key", tmp_path / "none")[0] == 2
