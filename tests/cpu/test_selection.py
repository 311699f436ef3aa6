"""Guards the choice of a runtime: the five steps in order, every reason, rank, and the command.

Long because the table of hosts and what each of them gets is in here.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import ModelError, Status
from packages.cli import main
from packages.host_profile import Gpu, HostProfile, read_host
from packages.package import Artifact, Identity, Package, Target
from packages.qwen3_8_27b import PACKAGE as QWEN
from packages.select import known_packages, open_plan, select
from packages.selection import STEP_OF, NoArtifact, NotSelected, Requested, Selection, evaluate
from packages.smollm2_135m import PACKAGE as SMOLLM2
from tests import tiny
from tests.cpu.mspec_cases import mspec, sound_items

GIB = 1 << 30
WEIGHTS, OTHER = "a" * 64, "b" * 64
H200 = Gpu("sm_90", "570.124.06", 141 * GIB)
RTX5090 = Gpu("sm_120", "575.57", 32 * GIB)
A100 = Gpu("sm_80", "570.124.06", 80 * GIB)
LINUX = HostProfile("linux", "x86_64")
BOTH = ("host", "cuda")


def host(*gpus: Gpu, toolkit: str | None = "12.8") -> HostProfile:
    return HostProfile("linux", "x86_64", gpus, toolkit if gpus else None)


def requested(digest: str = WEIGHTS, n_bytes: int = 14 * GIB) -> Requested:
    return Requested(Identity("as the file says", f"sha256:{digest}"), frozenset({digest}), n_bytes)


def chosen(
    profile: HostProfile, artifacts: Sequence[Artifact] = (QWEN.artifact("", None, WEIGHTS),),
    devices: Sequence[str] = BOTH, request: Requested | None = None,
) -> Selection:
    return evaluate(request or requested(), artifacts, devices, lambda: profile)


def reasons(selection: Selection) -> list[tuple[str, str]]:
    return [(r.reason, r.facts.get("target", "")) for r in selection.rejections]


SM90, SM120 = "cuda-sm_90a", "cuda-sm_120a"
NO_GPU = [("GpuMissing", SM90), ("GpuMissing", SM120)]
TABLE: dict[str, tuple[HostProfile, str | None, list[tuple[str, str]]]] = {
    "H200": (host(H200), SM90, [("GpuArchUnsupported", SM120)]),
    "H200 stated with its letter": (
        host(replace(H200, arch="sm_90a")), SM90, [("GpuArchUnsupported", SM120)]),
    "RTX 5090": (host(RTX5090), SM120, [("GpuArchUnsupported", SM90)]),
    "second card": (host(A100, H200), SM90, [("GpuArchUnsupported", SM120)] * 2),
    "both cards": (host(H200, RTX5090), SM120, []),
    "no GPU": (host(), None, NO_GPU),
    "A100": (host(A100), None, [("GpuArchUnsupported", SM90), ("GpuArchUnsupported", SM120)]),
    "sm_900 is not sm_90": (
        host(replace(H200, arch="sm_900")), None,
        [("GpuArchUnsupported", SM90), ("GpuArchUnsupported", SM120)]),
    "oldest driver": (
        host(replace(H200, driver="525"), toolkit="12.0"), SM90,
        [("GpuArchUnsupported", SM120), ("DriverTooOld", SM120), ("ToolkitTooOld", SM120)]),
    "driver too old": (
        host(replace(RTX5090, driver="569.99.99")), None,
        [("GpuArchUnsupported", SM90), ("DriverTooOld", SM120)]),
    "toolkit too old": (
        host(RTX5090, toolkit="12.7"), None,
        [("GpuArchUnsupported", SM90), ("ToolkitTooOld", SM120)]),
    "toolkit 12.10 is newer": (
        host(RTX5090, toolkit="12.10"), SM120, [("GpuArchUnsupported", SM90)]),
    "toolkit unknown": (
        host(RTX5090, toolkit=None), None,
        [("GpuArchUnsupported", SM90), ("ToolkitTooOld", SM90), ("ToolkitTooOld", SM120)]),
    "just enough memory": (
        host(replace(H200, vram_bytes=16 * GIB)), SM90, [("GpuArchUnsupported", SM120)]),
    "one byte short": (
        host(replace(H200, vram_bytes=16 * GIB - 1)), None,
        [("VramTooSmall", SM90), ("GpuArchUnsupported", SM120), ("VramTooSmall", SM120)]),
    "no one card is enough": (
        host(replace(H200, vram_bytes=GIB), A100), None,
        [("VramTooSmall", SM90), ("GpuArchUnsupported", SM90), ("GpuArchUnsupported", SM120),
         ("VramTooSmall", SM120), ("GpuArchUnsupported", SM120)]),
    "macOS": (replace(LINUX, os="macos"), None, [("OsMismatch", ""), *NO_GPU]),
    "riscv64": (replace(LINUX, arch="riscv64"), None, [("ArchMismatch", ""), *NO_GPU]),
    "everything wrong": (
        HostProfile("windows", "x86"), None, [("OsMismatch", ""), ("ArchMismatch", ""), *NO_GPU]),
    "right card, wrong system": (
        replace(host(H200), os="windows"), None,
        [("OsMismatch", ""), ("GpuArchUnsupported", SM120)]),
}


@pytest.mark.parametrize("case", TABLE)
def test_host_table(case: str) -> None:
    profile, target, expected = TABLE[case]
    selection = chosen(profile)
    assert (selection.match and selection.match.target.name) == target
    assert reasons(selection) == expected
    assert selection.as_json()["falls_through"] is (target is None)
    assert json.loads(json.dumps(selection.as_json()))["rejections"] == [
        {**rejection.facts, "reason": rejection.reason, "step": STEP_OF[rejection.reason]}
        for rejection in selection.rejections
    ]


def test_the_gpu_that_fits_is_named() -> None:
    selection = chosen(host(A100, RTX5090, H200))
    assert selection.match is not None
    # Of equal ranks sm_120a is the first in the alphabet.
    assert (selection.match.target.name, selection.match.gpu) == (SM120, 1)


def test_weights_that_are_not_served_are_refused_with_both_sides() -> None:
    def no_host() -> HostProfile:
        raise AssertionError("the host is not asked before step 3")

    artifacts = [QWEN.artifact("", None, WEIGHTS), SMOLLM2.artifact("", OTHER, "c" * 64)]
    selection = evaluate(requested("d" * 64), artifacts, BOTH, no_host)
    [row] = selection.as_json()["rejections"]
    assert row == {
        "reason": "ModelNotServed", "step": 2,
        "requested": {"model_id": "as the file says", "weights_id": "sha256:" + "d" * 64,
                      "content_sha256": None},
        "serves": [
            {"model_id": "Qwen/Qwen3.8-27B", "weights_id": f"sha256:{WEIGHTS}"},
            {"model_id": "HuggingFaceTB/SmolLM2-135M-Instruct", "weights_id": f"sha256:{OTHER}"},
        ],
    }
    message = str(NotSelected(selection))
    for words in ("model not served", "as the file says", "d" * 64, WEIGHTS, OTHER):
        assert words in message


def test_nothing_is_served_by_an_empty_table_or_by_no_digest() -> None:
    for artifacts in ([], [SMOLLM2.artifact("", None, WEIGHTS)]):
        request = Requested(Identity("x", "not computed"), frozenset(), 1)
        selection = chosen(LINUX, artifacts, request=request)
        assert reasons(selection) == [("ModelNotServed", "")]


@pytest.mark.parametrize("digest", [OTHER, WEIGHTS], ids=["file", "content"])
def test_either_digest_serves(digest: str) -> None:
    selection = chosen(
        LINUX, [SMOLLM2.artifact("", OTHER, WEIGHTS)], request=requested(digest)
    )
    assert selection.match is not None
    assert selection.match.as_json() == {
        "package": "smollm2_135m", "model_id": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "weights_id": f"sha256:{OTHER}", "target": "host", "device": "host", "gpu": None, "rank": 0,
    }


@pytest.mark.parametrize("twin", ["tiny", "padded", "cut"])
def test_twins_run_on_the_host_and_the_model_does_not(twin: str) -> None:
    selection = chosen(LINUX, [QWEN.artifact(twin, None, WEIGHTS)], ["host"])
    assert selection.match is not None
    assert selection.match.target.device == "host"
    whole = chosen(host(H200), devices=["host"])
    assert ("DeviceNotAvailable", SM90) in reasons(whole)
    assert whole.match is None
    assert "does not fit this host: DeviceNotAvailable" in str(NotSelected(whole))


def test_a_better_device_wins_by_rank() -> None:
    selection = chosen(host(H200), [QWEN.artifact("tiny", None, WEIGHTS)])
    assert selection.match is not None
    assert selection.match.target.name == SM90


def package(key: str, *targets: Target) -> Package:
    return replace(SMOLLM2, key=key, model_id=key, targets=targets)


@pytest.mark.parametrize(
    ("ranks", "winner"),
    [((0, 1), "b"), ((1, 0), "a"), ((5, 5), "a"), ((-1, 0), "b"), ((-2, -2), "a")],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_rank_then_alphabet(ranks: tuple[int, int], winner: str, is_turned: bool) -> None:
    artifacts = [
        package(key, Target("host", rank=rank)).artifact("", None, WEIGHTS)
        for key, rank in zip("ab", ranks, strict=True)
    ]
    selection = chosen(LINUX, artifacts[::-1] if is_turned else artifacts)
    assert selection.match is not None
    assert selection.match.artifact.package.key == winner


def test_a_package_without_a_target_for_the_twin_says_so() -> None:
    artifact = package("a", Target("host", twins=("tiny",))).artifact("", None, WEIGHTS)
    assert reasons(chosen(LINUX, [artifact])) == [("TargetNotDeclared", "")]


def test_only_twins_and_the_small_model_may_run_on_the_host() -> None:
    for known in known_packages():
        assert known.targets, known.key
        rows = known.targets_of("")
        assert [r for r in rows if r.device == "host"] == (
            list(rows) if known.key == "smollm2_135m" else []
        )


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a served model and some that are not."""
    served = tiny.write(tmp_path / "served.gguf", seed=1)
    monkeypatch.setenv("MESH_SPECIALIZE_SERVES", str(tiny.serve(tmp_path / "s.toml", served)))
    tiny.write(tmp_path / "other.gguf", seed=2)
    (tmp_path / "text.gguf").write_text("text")
    sound = mspec(sound_items())
    (tmp_path / "foreign.mspec").write_bytes(sound)
    (tmp_path / "damaged.mspec").write_bytes(sound[:-1])
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reason", "status"),
    [
        ("other.gguf", "ModelNotServed", Status.UNSUPPORTED),
        ("foreign.mspec", "ModelNotServed", Status.UNSUPPORTED),
        ("text.gguf", "ArtifactNotReadable", Status.MODEL_ERROR),
        ("none.gguf", "ArtifactNotPresent", Status.MODEL_ERROR),
        (".", "ArtifactNotReadable", Status.MODEL_ERROR),
    ],
)
def test_the_command_and_the_open_agree(
    files: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str, status: Status
) -> None:
    assert main(["select", "--model", str(files / name)]) == 3
    shown = json.loads(capsys.readouterr().out)
    assert [row["reason"] for row in shown["rejections"]] == [reason]
    assert (shown["match"], shown["falls_through"]) == (None, True)
    with pytest.raises((NoArtifact, NotSelected)) as caught:
        open_plan([str(files / name).encode()])
    assert caught.value.status == status


def test_the_command_shows_a_match(
    files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = str(files / "served.gguf")
    assert main(["select", "--model", model]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["match"]["model_id"].endswith(":tiny")
    assert shown["host"] == read_host().as_json()
    facts = tmp_path / "host.json"
    facts.write_text(json.dumps({**host(H200).as_json(), "os": "windows"}))
    assert main(["select", "--model", model, "--host-json", str(facts)]) == 3
    shown = json.loads(capsys.readouterr().out)
    assert [row["reason"] for row in shown["rejections"]] == ["OsMismatch"]
    assert shown["host"]["gpus"] == host(H200).as_json()["gpus"]
    facts.write_text("{}")
    assert main(["select", "--model", model, "--host-json", str(facts)]) == 1
    assert "is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen3.8-27B", "HuggingFaceTB/SmolLM2-135M-Instruct", "llama3:8b", "qwen3_8_27b"],
)
def test_a_name_without_weights_is_invalid(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["select", "--model", name]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "a model name without a concrete weight identity" in told.err


def test_a_damaged_file_of_our_own_format_does_not_fall_through(files: Path) -> None:
    path = str(files / "damaged.mspec")
    for attempt in (lambda: select(path), lambda: open_plan([path.encode()])):
        with pytest.raises(ModelError) as caught:
            attempt()
        assert not isinstance(caught.value, NoArtifact)


def test_a_large_foreign_model_is_not_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(tiny.DIMS, n_context=128)
    path = tiny.write(tmp_path / "x.gguf")
    monkeypatch.setattr("packages.select.tensor_digests", lambda file: pytest.fail("hashed"))
    monkeypatch.setitem(SMOLLM2.dims, "tiny", small)  # type: ignore[call-overload]
    selection = select(str(path))
    assert selection.requested is not None
    assert selection.requested.identity == Identity("tiny twin (llama)", "not computed")
