"""Protects which device serves a model: the one its target is for where the caller names none, no
other than the named one otherwise, and no device is made to find that out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import devices
from engine.artifacts.mspec import open_mspec
from engine.devices import DeviceEntry
from packages import select
from packages.host_profile import Gpu, HostProfile
from packages.package import Target
from packages.qwen3_8_27b import PACKAGE
from packages.selection import NotSelected
from ptx.devices.host import HostDevice
from tests import compiled_hybrid as mini

CARD = Target("cuda", 100, None, "sm_90a", "525", "12.0", 1 << 20)
HOST = Target("host")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mini.write(tmp_path_factory.mktemp("mini") / "mini.mspec", "bf16", mini.SHALLOW)


def not_made() -> Any:
    raise AssertionError("a device was made")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, path: Path) -> Callable[..., None]:
    """Say which cards there are, and which targets the package has."""

    def set_up(cards: tuple[str, ...], *targets: Target) -> None:
        entries = [DeviceEntry("CPU", "", "host", HostDevice)]
        for ordinal, arch in enumerate(cards):
            entries.append(DeviceEntry(f"CUDA{ordinal}", "", "cuda", not_made, arch))
        monkeypatch.setattr(devices, "inventory", lambda: tuple(entries))
        monkeypatch.setattr(select, "inventory", lambda: tuple(entries))
        gpus = tuple(Gpu(arch, "570.1", 1 << 40) for arch in cards)
        profile = HostProfile("linux", "x86_64", gpus, "12.8" if gpus else None)
        monkeypatch.setattr(select, "read_host", lambda: profile)
        package = replace(PACKAGE, targets=targets, dims={**PACKAGE.dims, "": mini.SHALLOW})
        with open_mspec(path) as file:
            weights_id = file.identity.weights_id
        artifact = package.artifact("", None, weights_id)
        monkeypatch.setattr(select, "served_artifacts", lambda: [artifact])

    return set_up


def opened(path: Path, device: str | None = None) -> str | None:
    return select.open_plan([str(path).encode()], device).device


@pytest.mark.parametrize(("cards", "want"), [
    (("sm_90",), "CUDA0"), (("sm_80", "sm_90"), "CUDA1"), (("sm_90", "sm_90"), "CUDA0"),
])  # fmt: skip
def test_a_card_that_fits_is_found(
    machine: Callable[..., None], path: Path, cards: tuple[str, ...], want: str
) -> None:
    machine(cards, CARD)
    assert opened(path) == want
    assert opened(path, want) == want


def test_without_a_card_the_host_serves_what_it_may(
    machine: Callable[..., None], path: Path
) -> None:
    machine((), HOST, CARD)
    assert opened(path) == "CPU"
    machine(("sm_90",), HOST, CARD)
    assert opened(path) == "CUDA0"
    assert opened(path, "CPU") == "CPU"


@pytest.mark.parametrize(("cards", "device", "reason"), [
    (("sm_90",), "CPU", "DeviceNotAvailable"),
    (("sm_80", "sm_90"), "CUDA0", "GpuArchUnsupported"),
    (("sm_80",), None, "GpuArchUnsupported"),
    ((), None, "GpuMissing"),
])  # fmt: skip
def test_another_device_is_refused(
    machine: Callable[..., None], path: Path, cards: tuple[str, ...], device: str | None,
    reason: str,
) -> None:
    machine(cards, CARD)
    with pytest.raises(NotSelected) as caught:
        opened(path, device)
    assert reason in {rejection.reason for rejection in caught.value.selection.rejections}
