"""Owns the proof of what each scope of a validation finds, and in which order.

Long because every scope, switch and kind of package is tried.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.checks import Scope, validate
from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.errors import (
    ArtifactError,
    Cancelled,
    ManifestError,
    PackageError,
    Report,
    SelectionError,
)
from packages.layer_package.package_dir import PackageDir
from packages.layer_package.verification import VERIFY_VARIABLE
from tests.layer_package.check_cases import errors, flip, hub, local, stage, tiny
from tests.layer_package.check_table import CASES, FIRST, LAYER, MIDDLE, SEEING, SOUND, Case
from tests.layer_package.package_cases import (
    change_manifest,
    gguf_bytes,
    made,
    projector_gguf,
    read_json,
    replace_artifact,
    string,
    tiny_model,
    write_manifest,
)


@pytest.fixture(autouse=True)
def no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VERIFY_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with every kind of file. Copied before it is changed."""
    root = tmp_path_factory.mktemp("checks") / "sound"
    tiny(root, **SOUND)
    return root


@pytest.fixture
def root(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "package")


def found(package: PackageDir, scope: Scope, **choices: Any) -> list[str]:
    """Kinds of the errors of a report; a fail-fast call must raise the first of them."""
    report = validate(package, scope, report=Report(), **choices)
    kinds = errors(report)
    if kinds:
        with pytest.raises(PackageError) as caught:
            validate(package, scope, **choices)
        assert caught.value.kind == kinds[0]
    else:
        validate(package, scope, **choices)
    return kinds


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_scopes(root: Path, case: Case) -> None:
    case.change(root)
    choices = dict(case.choices)
    if case.stage is not None:
        choices["stage"] = case.stage
    assert found(local(root), case.scope, **choices) == case.kinds


def test_the_hub_always_verifies(root: Path, tmp_path: Path) -> None:
    package = hub(tmp_path / "cache", root)
    # M53: every file of a snapshot is a link into its repository's blobs
    assert found(package, "package") == []
    flip((package.root / LAYER).resolve())
    assert found(package, "stage", stage=MIDDLE) == ["artifact_sha256_mismatch"]  # M56
    assert found(package, "stage", stage=FIRST) == []
    assert found(package, "metadata") == []
    flip((package.root / "shared/metadata.gguf").resolve())
    assert found(package, "metadata") == ["artifact_sha256_mismatch"]
    for scope in ("metadata", "stage", "package"):
        with pytest.raises(ArtifactError) as caught:
            validate(package, scope, stage=MIDDLE, verify=False, report=Report())  # type: ignore[arg-type]
        assert caught.value.kind == "checksum_required"
    # the manifest alone has nothing to verify
    assert found(package, "manifest", verify=False) == []


def test_a_snapshot_may_not_link_into_another_repository(root: Path, tmp_path: Path) -> None:
    package = hub(tmp_path / "cache", root)
    other = tmp_path / "cache/models--acme-lab--Other/blobs/x"
    other.parent.mkdir(parents=True)
    shutil.copy(root / LAYER, other)
    (package.root / LAYER).unlink()
    (package.root / LAYER).symlink_to(other)
    assert found(package, "stage", stage=MIDDLE) == ["artifact_escapes_root"]  # M54


@pytest.mark.parametrize(("value", "kinds"), [
    ("1", ["artifact_sha256_mismatch"]), ("yes", ["artifact_sha256_mismatch"]),
    ("", []), ("0", []), ("False", []),
])  # fmt: skip
def test_the_operators_switch(
    root: Path, monkeypatch: pytest.MonkeyPatch, value: str, kinds: list[str]
) -> None:
    flip(root / LAYER)
    monkeypatch.setenv(VERIFY_VARIABLE, value)
    for verify in (None, False):
        assert found(local(root), "stage", stage=MIDDLE, verify=verify) == kinds


def test_a_cached_success_is_not_believed_after_a_change(root: Path, tmp_path: Path) -> None:
    cache = ChecksumCache(tmp_path / "integrity")
    old = 10**18
    for path in root.rglob("*.gguf"):
        os.utime(path, ns=(old, old))
    package = local(root)
    counted: list[int] = []
    for _ in range(2):
        validate(package, "stage", stage=MIDDLE, verify=True, checksum_cache=cache,
                 progress=lambda done, in_all: counted.append(in_all - done))  # fmt: skip
    assert counted[-1] == 0
    flip(root / LAYER, keep_times=True)
    with pytest.raises(ArtifactError) as caught:  # M58
        validate(package, "stage", stage=MIDDLE, verify=True, checksum_cache=cache)
    assert caught.value.kind == "artifact_sha256_mismatch"


def test_only_a_stage_uses_the_checksum_cache(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "integrity"
    for scope in ("metadata", "package"):
        validate(local(root), scope, verify=True, checksum_cache=ChecksumCache(folder))  # type: ignore[arg-type]
    assert not folder.exists() or not list(folder.iterdir())
    validate(local(root), "stage", stage=MIDDLE, verify=True, checksum_cache=ChecksumCache(folder))
    assert len(list(folder.iterdir())) == 2


def test_checks_come_in_order(root: Path) -> None:
    """What is cheap and about every file comes before what reads them."""
    flip(root / "shared/metadata.gguf", 0)
    os.truncate(root / LAYER, 10)
    (root / "shared/output.gguf").unlink()
    report = validate(local(root), "package", report=Report(), verify=True)
    assert [(issue.kind, issue.artifact) for issue in report] == [
        ("missing_artifact", "shared/output.gguf"),
        ("artifact_size_mismatch", LAYER),
        ("artifact_sha256_mismatch", "shared/metadata.gguf"),
        ("gguf_bad_magic", "shared/metadata.gguf"),
    ]
    assert str(root) not in str(report.as_json())


def test_the_manifest_is_the_one_that_was_opened(root: Path) -> None:
    package = local(root)
    change_manifest(root, lambda manifest: manifest.update(model_id="acme-lab/Other"))
    assert found(package, "manifest") == ["artifact_changed"]
    assert found(package, "stage", stage=MIDDLE) == ["artifact_changed"]
    (root / "model-package.json").unlink()
    with pytest.raises(ManifestError) as caught:
        validate(package, "manifest")
    assert caught.value.kind == "missing_manifest"


def test_the_manifest_is_checked_again_for_the_runtime(root: Path) -> None:
    package = local(root)
    assert found(package, "manifest", runtime_abi="0.1.39") == []
    assert found(package, "stage", stage=MIDDLE, runtime_abi="1.0.0") == [
        "incompatible_abi_version"
    ]
    assert found(package, "manifest",
                 expected_manifest_sha256=package.manifest.sha256.upper()) == []  # fmt: skip


def test_a_width_that_differs_is_a_warning(root: Path) -> None:
    change_manifest(root, lambda manifest: manifest.update(activation_width=65))
    report = validate(local(root), "metadata", report=Report())
    assert report.valid
    assert "activation_width_mismatch" in report.kinds()


def test_a_projector_from_outside_is_only_read(root: Path, tmp_path: Path) -> None:
    good = projector_gguf(tmp_path / "else/vision.gguf")
    link = tmp_path / "link.gguf"
    link.symlink_to(good)
    for path in (good, link):
        assert found(local(root), "stage", stage=stage(0, 1, projector_path=path)) == []
    text, fifo = tmp_path / "text.gguf", tmp_path / "fifo.gguf"
    text.write_text("not a model")
    os.mkfifo(fifo)
    for path, kind in ((text, "gguf_bad_magic"), (fifo, "artifact_not_file"),
                       (tmp_path / "none.gguf", "missing_artifact")):  # fmt: skip
        request = stage(0, 1, projector_path=path)
        assert found(local(root), "stage", stage=request) == [kind]
        report = validate(local(root), "stage", stage=request, report=Report())
        assert report.issues[-1].artifact == path.name


def test_a_refused_selection_ends_the_report(root: Path) -> None:
    change_manifest(root, lambda manifest: manifest.update(projectors=[]))
    assert found(local(root), "stage", stage=SEEING) == ["projector_required"]
    with pytest.raises(SelectionError):
        validate(local(root), "stage", stage=stage(1, 2, projector_path=root / "x.gguf"))


def test_progress_counts_the_bytes_that_are_hashed(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    package = local(root)
    validate(package, "package", verify=True, progress=lambda *at: seen.append(at))
    in_all = sum(artifact.artifact_bytes for artifact in package.manifest.artifacts)
    assert seen == sorted(seen)
    assert seen[-1] == (in_all, in_all)
    assert {total for _, total in seen} == {in_all}


@pytest.mark.parametrize("asked", range(5))
def test_cancelling(root: Path, asked: int) -> None:
    left = iter([False] * asked)
    with pytest.raises(Cancelled):
        validate(local(root), "package", verify=True, report=Report(),
                 cancelled=lambda: next(left, True))  # fmt: skip


def test_many_layers_need_few_descriptors(tmp_path: Path) -> None:
    """Layers that are one and the same file on disk by hard links would differ in their names, so
    each is written; there are more of them than descriptors."""
    resource = pytest.importorskip("resource")
    n_layers = 80
    model = tiny_model(n_layers=1)
    tensors = [t for t in model.tensors if not t.name.startswith("blk.")]
    tensors += [made(f"blk.{i}.attn_norm.weight", (8,)) for i in range(n_layers)]
    pairs = [p for p in model.pairs if not p.key.endswith("block_count")]
    root = tmp_path / "deep"
    tiny(root, model=model._replace(tensors=tensors, pairs=pairs))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_open = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_open + 30, hard))
    try:
        assert found(local(root), "package", verify=True) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_an_odd_layout_is_read_by_the_manifest_alone(root: Path) -> None:
    """Three-digit names in one folder, and files that no entry names."""
    manifest = read_json(root)
    for entry in manifest["layers"]:
        name = f"layer-{entry['layer_index']:03d}.gguf"
        (root / entry["path"]).rename(root / name)
        entry["path"] = name
    write_manifest(root, manifest)
    (root / "README.md").write_text("about")
    (root / "layers/layer-00009.gguf").write_bytes(gguf_bytes([], []))
    assert found(local(root), "package", verify=True) == []


def test_findings_on_placement_are_bounded(root: Path) -> None:
    strangers = [made(f"blk.7.t{i}.weight", (1,)) for i in range(400)]
    path = "shared/output.gguf"
    pairs = [string("general.architecture", "llama")]
    replace_artifact(root, path, gguf_bytes(pairs, strangers), strangers)
    kinds = errors(validate(local(root), "package", report=Report()))
    assert kinds.count("misplaced_owned_tensor") < 400
    assert "too_many_issues" in kinds
