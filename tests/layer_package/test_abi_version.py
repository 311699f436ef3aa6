"""Owns the proof of which ABI versions are versions, and which packages a runtime takes."""

import pytest

from engine.errors import InvalidArgument
from packages.layer_package.abi_version import AbiVersion, check_abi
from packages.layer_package.errors import CompatibilityError, Report

BAD = [
    "1", "1.", ".1", "1.x", "1.2.3.4", "+1.2", "-1.2", "1.-2", "01.2", "1.02", "1.2.03", " 1.2",
    "1.2 ", "1.2\n", "v1.2", "1,2", "1..2", "1.2.", "0x1.2", "1_0.2", "१.२", "1१.2", "１.2",
    "1.4294967296", "1.99999999999999999999", "1.2-rc1", "1.2+x", "1e0.2", "\0", "1.2\0",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_m45_what_is_no_version(text: str) -> None:
    with pytest.raises(CompatibilityError) as caught:
        AbiVersion.parse(text)
    assert caught.value.kind == "invalid_abi_version"
    assert caught.value.issue.pointer == "/skippy_abi_version"
    assert caught.value.issue.message.isprintable()


@pytest.mark.parametrize("text", ["", " ", "\t\n"])
def test_m44_blank(text: str) -> None:
    with pytest.raises(CompatibilityError) as caught:
        AbiVersion.parse(text)
    assert caught.value.kind == "missing_skippy_abi_version"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0.0", (0, 0, 0)), ("1.2", (1, 2, 0)), ("1.2.3", (1, 2, 3)), ("10.20.30", (10, 20, 30)),
        ("4294967295.4294967295.4294967295", (2**32 - 1,) * 3),
    ],
)  # fmt: skip
def test_versions(text: str, parts: tuple[int, int, int]) -> None:
    assert AbiVersion.parse(text) == AbiVersion(*parts)
    assert AbiVersion.parse(str(AbiVersion(*parts))) == AbiVersion(*parts)


COMPATIBLE: list[tuple[str, str, str | None]] = [
    ("0.1.39", "0.1.39", None),
    ("0.1.0", "0.1.39", None),
    ("0.1", "0.1.39", None),
    ("0.0.99", "0.1.39", None),  # an older minor: its patches have no order with ours
    ("0.1.40", "0.1.39", "abi_patch_newer"),
    ("0.1.1", "0.1", "abi_patch_newer"),
    ("0.2.0", "0.1.39", "incompatible_abi_version"),
    ("1.1.39", "0.1.39", "incompatible_abi_version"),
    ("0.9.0", "1.2.0", "incompatible_abi_version"),
    ("1.2.9", "1.2.0", None),
    ("1.0.0", "1.2.0", None),
    ("1.3.0", "1.2.0", "incompatible_abi_version"),
]


@pytest.mark.parametrize(("package", "runtime", "kind"), COMPATIBLE)
def test_m46_which_packages_a_runtime_takes(package: str, runtime: str, kind: str | None) -> None:
    report = Report()
    check_abi(package, runtime, report)
    assert report.kinds() == ([] if kind is None else [kind])
    assert report.valid == (kind != "incompatible_abi_version")
    if not report.valid:
        (issue,) = report
        assert str(AbiVersion.parse(package)) in issue.message
        with pytest.raises(CompatibilityError):
            check_abi(package, runtime, Report(fail_fast=True))


def test_without_a_runtime_only_the_form_counts() -> None:
    report = Report()
    check_abi("99.99.99", None, report)
    assert not report.issues
    check_abi("99", None, report)
    assert report.kinds() == ["invalid_abi_version"]


def test_a_runtime_without_a_version_is_the_callers_fault() -> None:
    with pytest.raises(InvalidArgument, match="runtime's own"):
        check_abi("0.1.0", "main", Report())
