"""Owns the choice for a requested artifact: five steps in order, or every reason why not.

1. The request is a concrete artifact that is present on this host; nothing is ever downloaded.
2. An artifact that is served has exactly these weights. Its digest is the identity: the model's
   name comes from the served table, since a file may call itself anything.
3. The host satisfies a target of the artifact's package: platform, device, GPU, driver, toolkit,
   memory. One GPU must satisfy all; without one, each GPU gives all of its reasons.
4. The highest-ranked match wins; of equals the first in the alphabet.
5. Without a match the request falls through to whatever else the host has.

Pure: facts in, answer out. Reading files and machines is `select.py` and `host_profile.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.errors import ModelError, Unsupported
from packages.host_profile import Gpu, HostProfile, version_of
from packages.package import HOST, Artifact, Identity, Target

OS = "linux"
ARCHES = ("x86_64", "aarch64")

# Every reason with its step.
STEP_OF = {
    "ArtifactNotPresent": 1,
    "ArtifactNotReadable": 1,
    "ModelNotServed": 2,
    "OsMismatch": 3,
    "ArchMismatch": 3,
    "TargetNotDeclared": 3,
    "DeviceNotAvailable": 3,
    "GpuMissing": 3,
    "GpuArchUnsupported": 3,
    "DriverTooOld": 3,
    "ToolkitTooOld": 3,
    "VramTooSmall": 3,
}


@dataclass(frozen=True)
class Requested:
    """A concrete artifact: how it calls itself, every digest it may be known by, its bytes.

    `content_sha256` is there for a file that has a digest of its own besides.
    """

    identity: Identity
    digests: frozenset[str]
    n_bytes: int
    content_sha256: str | None = None

    def __str__(self) -> str:
        content = f" (content sha256:{self.content_sha256})" if self.content_sha256 else ""
        return f"{self.identity}{content}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self.identity), "content_sha256": self.content_sha256}


@dataclass(frozen=True)
class Rejection:
    """One reason, a key of STEP_OF, with the facts of both sides."""

    reason: str
    facts: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Flat, for programs."""
        return {"reason": self.reason, "step": STEP_OF[self.reason], **self.facts}


@dataclass(frozen=True)
class Match:
    """What serves the request, on which device; `gpu` is the index of the GPU that fits."""

    artifact: Artifact
    target: Target
    gpu: int | None = None

    @property
    def name(self) -> str:
        """Orders matches of one rank."""
        return f"{self.artifact.identity.model_id}@{self.target.name}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "package": self.artifact.package.key, **asdict(self.artifact.identity),
            "target": self.target.name, "device": self.target.device, "gpu": self.gpu,
            "rank": self.target.rank,
        }


@dataclass(frozen=True)
class Selection:
    """The answer: a match, or rejections alone. `requested` None: no concrete artifact."""

    requested: Requested | None
    match: Match | None
    rejections: tuple[Rejection, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """For programs: everything that was found out."""
        return {
            "requested": None if self.requested is None else self.requested.as_json(),
            "match": None if self.match is None else self.match.as_json(),
            "rejections": [rejection.as_json() for rejection in self.rejections],
            "falls_through": self.match is None,
        }


class NoArtifact(ModelError):
    """Step 1 failed: there is nothing at the path that could be one of ours."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.selection = Selection(None, None, (Rejection(reason, {"detail": message}),))


class NotSelected(Unsupported):
    """Step 2 or 3 failed; the message names both sides."""

    def __init__(self, selection: Selection) -> None:
        super().__init__(_message(selection))
        self.selection = selection


# What another runtime may have a go at. A damaged file of our own format is not among them.
FALLS_THROUGH = (NoArtifact, NotSelected)


def evaluate(
    requested: Requested, artifacts: Sequence[Artifact], devices: Collection[str],
    host: Callable[[], HostProfile],
) -> Selection:
    """Steps 2 to 5. `devices` are those this process computes on; `host` is asked in step 3."""
    served = [a for a in artifacts if {a.file_sha256, a.content_sha256} & requested.digests]
    if not served:
        facts = {
            "requested": requested.as_json(),
            "serves": [asdict(artifact.identity) for artifact in artifacts],
        }
        return Selection(requested, None, (Rejection("ModelNotServed", facts),))
    profile = host()
    matches: list[Match] = []
    rejections = list(_platform_reasons(profile))
    is_right_platform = not rejections
    for artifact in served:
        for target in artifact.package.targets_of(artifact.twin):
            gpu, reasons = _try_target(target, requested.n_bytes, devices, profile)
            rejections += [_located(reason, artifact, target) for reason in reasons]
            if is_right_platform and not reasons:
                matches.append(Match(artifact, target, gpu))
    if not matches and not rejections:
        rejections = [Rejection("TargetNotDeclared", {"package": served[0].package.key})]
    best = min(matches, key=lambda match: (-match.target.rank, match.name), default=None)
    return Selection(requested, best, tuple(rejections))


def _platform_reasons(profile: HostProfile) -> Iterator[Rejection]:
    if profile.os != OS:
        yield Rejection("OsMismatch", {"expected": OS, "actual": profile.os})
    if profile.arch not in ARCHES:
        yield Rejection("ArchMismatch", {"expected": list(ARCHES), "actual": profile.arch})


def _try_target(
    target: Target, n_bytes: int, devices: Collection[str], profile: HostProfile
) -> tuple[int | None, list[Rejection]]:
    """The first GPU that fits and no reasons, or all reasons; the host device needs no GPU."""
    reasons = []
    if target.device not in devices:
        facts = {"required": target.device, "available": sorted(devices)}
        reasons.append(Rejection("DeviceNotAvailable", facts))
    if target.device == HOST:
        return None, reasons
    if not profile.gpus:
        return None, [*reasons, Rejection("GpuMissing", {"required": target.gpu_arch})]
    tried = [
        list(_gpu_reasons(target, n_bytes, index, gpu, profile.toolkit))
        for index, gpu in enumerate(profile.gpus)
    ]
    fitting = next((index for index, found in enumerate(tried) if not found), None)
    if fitting is None:
        reasons += [reason for found in tried for reason in found]
    return fitting, reasons


def _gpu_reasons(
    target: Target, n_bytes: int, index: int, gpu: Gpu, toolkit: str | None
) -> Iterator[Rejection]:
    needed = n_bytes + target.vram_beside_bytes
    # The letter says which instructions a kernel uses; a machine may state its cards without it.
    is_right_chip = gpu.arch.rstrip("af") == target.gpu_arch.rstrip("af")
    is_new_enough = toolkit is not None and version_of(toolkit) >= version_of(target.min_toolkit)
    is_right_driver = version_of(gpu.driver) >= version_of(target.min_driver)
    checks = (
        ("GpuArchUnsupported", is_right_chip, target.gpu_arch, gpu.arch),
        ("DriverTooOld", is_right_driver, target.min_driver, gpu.driver),
        ("ToolkitTooOld", is_new_enough, target.min_toolkit, toolkit),
        ("VramTooSmall", gpu.vram_bytes >= needed, needed, gpu.vram_bytes),
    )
    for reason, holds, required, found in checks:
        if not holds:
            yield Rejection(reason, {"gpu": index, "required": required, "found": found})


def _located(reason: Rejection, artifact: Artifact, target: Target) -> Rejection:
    model_id = artifact.identity.model_id
    return Rejection(reason.reason, {"model_id": model_id, "target": target.name, **reason.facts})


def _message(selection: Selection) -> str:
    first = selection.rejections[0]
    requested = selection.requested
    if first.reason == "ModelNotServed":
        serves = ", ".join(str(Identity(**served)) for served in first.facts["serves"])
        return f"model not served: requested {requested}; serves [{serves}]"
    return f"model {requested} does not fit this host: " + "; ".join(
        f"{r.reason} {', '.join(f'{key} {value}' for key, value in r.facts.items())}"
        for r in selection.rejections
    )
