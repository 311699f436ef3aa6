"""Owns the tests of what a coordinator gives to whom: every check, its text, and its log.

Long because each check of a request is a case with its own text.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packages.layer_package.checksum_cache import ChecksumCache
from packages.layer_package.model import MANIFEST_NAME
from packages.layer_package.transfer.messages import DISABLED, INVALID_OFFSET, UNAVAILABLE
from packages.layer_package.transfer.mode import (
    FEATURE,
    Owner,
    TransferMode,
    Trust,
    check_features,
    transfer_mode,
)
from tests.layer_package.coordinator_cases import flip, refusal
from tests.layer_package.package_cases import change_manifest
from tests.layer_package.transfer_cases import (
    FEATURES,
    LIMITS,
    OTHER,
    REF,
    REPOSITORY,
    REVISION,
    Coordinator,
    snapshot,
)

pytestmark = pytest.mark.filterwarnings("error")


MINE, SAME, TRUSTED, STRANGER = (Owner(n, True) for n in ("me", "me", "friend", "stranger"))


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path / "cache")


@pytest.mark.parametrize(
    "path",
    [MANIFEST_NAME, "shared/metadata.gguf", "layers/layer-00001.gguf", "layers/layer-00002.gguf",
     "shared/output.gguf"],
)  # fmt: skip
def test_the_files_of_the_stage_are_served(coordinator: Coordinator, path: str) -> None:
    wanted = (snapshot(coordinator.cache) / path).read_bytes()
    answer, data = coordinator.ask(coordinator.request(path))
    assert answer.accepted
    assert answer.error is None
    assert answer.total_size == len(wanted)
    expected = coordinator.sha256 if path == MANIFEST_NAME else coordinator.entry(path)["sha256"]
    assert answer.sha256 == expected
    assert data == wanted
    coordinator.join()
    assert coordinator.reasons == []
    assert coordinator.sent == [len(wanted)]


@pytest.mark.parametrize("offset", [1, 999, 1000, 1001, None])
def test_a_transfer_goes_on_from_its_offset(coordinator: Coordinator, offset: int | None) -> None:
    path = "layers/layer-00001.gguf"
    wanted = (snapshot(coordinator.cache) / path).read_bytes()
    offset = len(wanted) if offset is None else offset
    _, data = coordinator.ask(coordinator.request(path, offset=offset))
    assert data == wanted[offset:]


def test_expected_size_and_digest_may_be_given(coordinator: Coordinator) -> None:
    path = "layers/layer-00001.gguf"
    entry = coordinator.entry(path)
    request = coordinator.request(
        path, expected_size=entry["artifact_bytes"], expected_sha256=entry["sha256"]
    )
    assert coordinator.ask(request)[0].accepted


REFUSALS: dict[str, tuple[dict[str, Any], str, str]] = {
    "another-stage's-layer": ({"relative_path": "layers/layer-00000.gguf"}, UNAVAILABLE,
                              "transfer_not_authorised"),
    "embeddings-of-another-stage": ({"relative_path": "shared/embeddings.gguf"}, UNAVAILABLE,
                                    "transfer_not_authorised"),
    "a-projector": ({"relative_path": "projectors/mmproj-TinyDemo.gguf"}, UNAVAILABLE,
                    "transfer_not_authorised"),
    "a-file-that-no-manifest-names": ({"relative_path": "README.md"}, UNAVAILABLE,
                                      "transfer_not_authorised"),
    "another-stage": ({"stage_id": "first"}, UNAVAILABLE, "transfer_not_authorised"),
    "wrong-run": ({"run_id": "run-2"}, UNAVAILABLE, "transfer_not_authorised"),
    "wrong-topology": ({"topology_id": "other"}, UNAVAILABLE, "transfer_not_authorised"),
    "another-package": ({"package_ref": REF.replace("acme-lab", "other")}, UNAVAILABLE,
                        "transfer_not_authorised"),
    "another-manifest": ({"manifest_sha256": "00" * 32}, UNAVAILABLE, "transfer_not_authorised"),
    "moving-revision": ({"package_ref": "hf://acme-lab/demo-layers@main"}, UNAVAILABLE,
                        "transfer_ref_not_eligible"),
    "no-revision": ({"package_ref": "hf://acme-lab/demo-layers"}, UNAVAILABLE,
                    "transfer_ref_not_eligible"),
    "colon-form": ({"package_ref": REF.replace("@", ":")}, UNAVAILABLE,
                   "transfer_ref_not_eligible"),
    "a-local-package": ({"package_ref": "/etc"}, UNAVAILABLE, "transfer_ref_not_eligible"),
    "a-file": ({"package_ref": "model.gguf"}, UNAVAILABLE, "transfer_ref_not_eligible"),
    "oversized-offset": ({"offset": 1 << 62}, INVALID_OFFSET, "invalid_transfer_offset"),
    "oversized-offset-of-the-manifest": ({"offset": 1 << 62, "relative_path": MANIFEST_NAME},
                                         INVALID_OFFSET, "invalid_transfer_offset"),
    "another-size": ({"expected_size": 5}, UNAVAILABLE, "artifact_size_mismatch"),
    "another-digest": ({"expected_sha256": "00" * 32}, UNAVAILABLE, "artifact_sha256_mismatch"),
    "another-size-of-the-manifest": ({"expected_size": 5, "relative_path": MANIFEST_NAME},
                                     UNAVAILABLE, "artifact_size_mismatch"),
    "another-requester": ({"requester_id": OTHER}, UNAVAILABLE, "transfer_requester_mismatch"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_m95_a_request_that_is_not_granted(tmp_path: Path, name: str) -> None:
    coordinator = Coordinator(tmp_path / "cache", package={"projector": True})
    changes, text, kind = REFUSALS[name]
    request = coordinator.request(changes.get("relative_path", "layers/layer-00001.gguf"))
    assert refusal(coordinator, replace(request, **changes)) == (text, kind)


def test_m95_a_path_with_dots_and_an_offset_past_the_expected_size(
    coordinator: Coordinator,
) -> None:
    good = coordinator.request().encode()
    path = b"layers/layer-00001.gguf"
    dots = good.replace(path, b"../layer/layer-00001.gguf"[: len(path)])
    assert refusal(coordinator, dots) == (UNAVAILABLE, "unsafe_artifact_path")
    coordinator.reasons.clear()
    past = coordinator.request(expected_size=10).encode() + b"\x48\x0b"
    assert refusal(coordinator, past) == (INVALID_OFFSET, "invalid_transfer_offset")


def test_m95_the_right_request_by_another_peer(coordinator: Coordinator) -> None:
    request = coordinator.request(requester_id=OTHER)
    assert refusal(coordinator, request, OTHER) == (UNAVAILABLE, "transfer_not_authorised")


def test_the_first_stage_gets_embeddings_and_projectors_but_no_output(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "cache", package={"projector": True})

    def may(path: str) -> bool:
        request = coordinator.request(path, requester_id=OTHER, stage_id="first")
        return coordinator.ask(request, OTHER)[0].accepted

    assert may("shared/embeddings.gguf")
    assert may("projectors/mmproj-TinyDemo.gguf")
    assert may("layers/layer-00000.gguf")
    assert not may("shared/output.gguf")
    assert not may("layers/layer-00001.gguf")


@pytest.mark.parametrize("hints", [True, False], ids=["hints", "headers"])
def test_the_last_stage_of_a_tied_package_gets_the_embeddings(tmp_path: Path, hints: bool) -> None:
    coordinator = Coordinator(tmp_path / "cache", package={"tied": True, "hints": hints})
    assert coordinator.ask(coordinator.request("shared/embeddings.gguf"))[0].accepted
    untied = Coordinator(tmp_path / "other", package={"tied": False, "hints": hints})
    assert not untied.ask(untied.request("shared/embeddings.gguf"))[0].accepted


def damage(coordinator: Coordinator, path: str, change: Callable[[Path], None]) -> None:
    change(snapshot(coordinator.cache) / path)


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_out(path: Path) -> None:
    outside = path.parents[5] / "outside"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)


def link_in(path: Path) -> None:
    blobs = path.parents[3] / "blobs"
    blobs.mkdir()
    path.rename(blobs / "blob")
    path.symlink_to("../../../blobs/blob")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (flip, "artifact_sha256_mismatch"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "artifact_size_mismatch"),
        (lambda path: path.unlink(), "missing_artifact"),
        (to_fifo, "artifact_not_file"),
        (link_out, "artifact_escapes_root"),
    ],
    ids=["flipped", "short", "missing", "fifo", "link-out"],
)
def test_a_file_that_is_not_the_manifest_s_is_not_served(
    coordinator: Coordinator, change: Callable[[Path], None], kind: str
) -> None:
    damage(coordinator, "layers/layer-00001.gguf", change)
    assert refusal(coordinator, coordinator.request()) == (UNAVAILABLE, kind)


def test_a_link_into_the_repository_s_own_blobs_is_served(coordinator: Coordinator) -> None:
    damage(coordinator, "layers/layer-00001.gguf", link_in)
    assert coordinator.ask(coordinator.request())[0].accepted


def test_a_snapshot_that_is_a_link_is_not_served(coordinator: Coordinator) -> None:
    root = snapshot(coordinator.cache)
    root.rename(coordinator.cache.parent / "elsewhere")
    root.symlink_to(coordinator.cache.parent / "elsewhere")
    assert refusal(coordinator, coordinator.request()) == (UNAVAILABLE, "artifact_escapes_root")


def test_a_file_is_verified_anew_for_each_request(coordinator: Coordinator) -> None:
    assert coordinator.ask(coordinator.request())[0].accepted
    damage(coordinator, "layers/layer-00001.gguf", flip)
    assert refusal(coordinator, coordinator.request())[1] == "artifact_sha256_mismatch"


def test_a_checksum_cache_spares_the_hashing_until_the_file_changes(tmp_path: Path) -> None:
    checksums = ChecksumCache(tmp_path / "checksums")
    coordinator = Coordinator(tmp_path / "cache", options={"checksum_cache": checksums})
    file = snapshot(coordinator.cache) / "layers/layer-00001.gguf"
    os.utime(file, ns=(1, 1))
    assert coordinator.ask(coordinator.request())[0].accepted
    assert len(list((tmp_path / "checksums").iterdir())) == 1
    flip(file)
    os.utime(file, ns=(1, 1))
    assert refusal(coordinator, coordinator.request())[1] == "artifact_sha256_mismatch"


def test_an_oversized_manifest_is_not_served(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "cache", limits=replace(LIMITS, manifest_bytes=100))
    for path in (MANIFEST_NAME, "layers/layer-00001.gguf"):
        coordinator.reasons.clear()
        wanted = (UNAVAILABLE, "manifest_too_large")
        assert refusal(coordinator, coordinator.request(path)) == wanted


def test_another_manifest_in_the_cache_is_not_served(coordinator: Coordinator) -> None:
    change_manifest(snapshot(coordinator.cache), lambda m: m.update(created_at_unix_secs=1))
    for path in (MANIFEST_NAME, "layers/layer-00001.gguf"):
        coordinator.reasons.clear()
        wanted = (UNAVAILABLE, "manifest_sha256_mismatch")
        assert refusal(coordinator, coordinator.request(path)) == wanted


@pytest.mark.parametrize(
    ("trust", "owner", "may"),
    [
        (Trust(), MINE, False),
        (Trust(TransferMode.OPEN), None, True),
        (Trust(TransferMode.TRUSTED, MINE), SAME, True),
        (Trust(TransferMode.TRUSTED, MINE), Owner("me", False), False),
        (Trust(TransferMode.TRUSTED, Owner("me", False)), SAME, False),
        (Trust(TransferMode.TRUSTED), SAME, False),
        (Trust(TransferMode.TRUSTED, MINE), None, False),
        (Trust(TransferMode.TRUSTED, MINE), STRANGER, False),
        (Trust(TransferMode.TRUSTED, MINE, frozenset({"friend"})), TRUSTED, True),
        (Trust(TransferMode.TRUSTED, None, frozenset({"friend"})), TRUSTED, False),
        (Trust(TransferMode.TRUSTED, Owner("", True)), Owner("", True), False),
    ],
)
def test_mode_and_owner(tmp_path: Path, trust: Trust, owner: Owner | None, may: bool) -> None:
    coordinator = Coordinator(
        tmp_path / "cache", trust=trust, options={"owner_of": lambda peer: owner}
    )
    if may:
        assert coordinator.ask(coordinator.request())[0].accepted
    else:
        assert refusal(coordinator, coordinator.request()) == (DISABLED, "transfer_disabled")


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        (None, "off"), ("", "off"), ("0", "off"), ("off", "off"), ("opne", "off"), ("2", "off"),
        *((w, "trusted") for w in ("trusted", "trust", "owner", "owners", "same-owner",
                                   "allowlist", " Trusted ")),
        *((w, "open") for w in ("open", "1", "true", "on", "yes", "any", "public", "OPEN")),
    ],
)  # fmt: skip
def test_words_of_the_variable(word: str | None, mode: str) -> None:
    environment = {} if word is None else {"MESH_LLM_ARTIFACT_TRANSFER": word}
    assert transfer_mode(environment).value == mode


def test_the_feature_is_advertised_only_by_a_node_that_may_serve() -> None:
    assert FEATURE not in Trust().features()
    assert FEATURE not in Trust(TransferMode.TRUSTED).features()
    assert FEATURE not in Trust(TransferMode.TRUSTED, Owner("me")).features()
    assert Trust(TransferMode.TRUSTED, MINE).features() == FEATURES
    assert Trust(TransferMode.OPEN).features() == FEATURES
    check_features(FEATURES)


def test_a_named_revision_is_found_by_its_ref(coordinator: Coordinator) -> None:
    refs = coordinator.cache / REPOSITORY / "refs"
    refs.mkdir()
    (refs / "v1.0").write_text(REVISION)
    ref = REF.replace(REVISION, "v1.0")
    coordinator.topologies.activate(replace(coordinator.topology, package_ref=ref))
    assert coordinator.ask(coordinator.request(package_ref=ref))[0].accepted
    (refs / "v1.0").write_text("../../x")
    coordinator.reasons.clear()
    wanted = (UNAVAILABLE, "corrupt_cache_ref")
    assert refusal(coordinator, coordinator.request(package_ref=ref)) == wanted
