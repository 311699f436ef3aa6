"""Owns what a policy decision is made from: the step, the backend, overrides, the package's word.

It must not know how a path is chosen (`policy.py`). The generation block is taken as
`check_generation` accepts it; what a reader must skip is listed in `unsupported`, never mapped to
something near. Texts of a package go into records only when they are plain names, for a record
holds no prompt text and no paths.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from engine.errors import InvalidArgument
from packages.layer_package.errors import GenerationError
from packages.layer_package.generation import (
    EXPERIMENTAL_SWITCHES,
    EXPERIMENTAL_VALUES,
    INDEXSHARE_VALUES,
    KNOWN_PROFILES,
    PATHS,
    PHASES,
    POINTER,
    THRESHOLDS,
    is_threshold,
)
from packages.layer_package.generation_fields import shown, step

Level = Literal["request", "operator", "package", "runtime_default", "correctness_fallback"]
Phase = Literal["decode", "short_prefill", "long_prefill", "verify"]
SHORT_PREFILL_MAX_TOKENS = 2048
MAX_UNSUPPORTED = 16
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def plain_name(value: object) -> str:
    """`value` when it is a short plain name, else a stand-in."""
    is_plain = isinstance(value, str) and _PLAIN_NAME.fullmatch(value)
    return cast(str, value) if is_plain else "(not a plain name)"


@dataclass(frozen=True, slots=True)
class PhaseRequest:
    """One step: new tokens, KV rows visible after it, indexer `top_k` rows when known.

    InvalidArgument unless `n_tokens` and `n_kv` are at least 1 and `top_k` is None or at least 1.
    """

    n_tokens: int
    n_kv: int
    is_verification: bool = False
    top_k: int | None = None

    def __post_init__(self) -> None:
        """Refuse an empty step."""
        if self.n_tokens < 1 or self.n_kv < 1 or (self.top_k is not None and self.top_k < 1):
            raise InvalidArgument(
                f"phase request: {self.n_tokens} tokens, {self.n_kv} KV rows, top_k {self.top_k};"
                " each needs at least 1"
            )

    @property
    def dense_mask_bytes(self) -> int:
        """Bytes of the dense mask that this step would need."""
        return self.n_tokens * self.n_kv * 4

    @property
    def sideband_bytes(self) -> int | None:
        """Bytes of the top-k sideband; None while `top_k` is not known."""
        return None if self.top_k is None else self.n_tokens * self.top_k * 4


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend and its evidence: 0 none, 1 implemented, 2 parity proven, 3 parity and win proven.

    `paths` by path name, `switches` by experimental switch; what is not there has 0.
    """

    name: str
    paths: Mapping[str, int] = field(default_factory=dict)
    switches: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IndexShare:
    """Role of the layer, and whether the shared top-k state it would reuse is there."""

    role: Literal["full", "shared"] | None = None
    state_available: bool = False


@dataclass(frozen=True, slots=True)
class PolicyOverride:
    """What a request or an operator asks for; everything is optional.

    `path` for every phase, `phases` for one phase and before `path`; `experimental` by switch:
    `on`, `off` or `evidence-gated`; `thresholds` by name, tokens, rows or bytes.
    """

    path: str | None = None
    phases: Mapping[str, str] = field(default_factory=dict)
    experimental: Mapping[str, str] = field(default_factory=dict)
    thresholds: Mapping[str, int] = field(default_factory=dict)

    def check(self, level: str) -> None:
        """GenerationError `unsupported_policy_override` or `invalid_threshold`."""
        for value in ([] if self.path is None else [self.path]) + [*self.phases.values()]:
            if value not in PATHS:
                _refuse(level, f"path {shown(value)} is none of {', '.join(PATHS)}")
        for phase in self.phases:
            if phase not in PHASES:
                _refuse(level, f"phase {shown(phase)} is none of {', '.join(PHASES)}")
        for name, value in self.experimental.items():
            if name not in EXPERIMENTAL_SWITCHES or value not in ("on", *EXPERIMENTAL_VALUES):
                _refuse(level, f"experimental switch {shown(name)} as {shown(value)} is unknown")
        for name, threshold in self.thresholds.items():
            if name not in THRESHOLDS or not is_threshold(threshold):
                raise GenerationError(
                    "invalid_threshold", f"{level} override {shown(name)} is {shown(threshold)}"
                )

    def path_for(self, phase: str) -> str | None:
        """The path asked for in that phase, if any."""
        return self.phases.get(phase, self.path)


def _refuse(level: str, message: str) -> None:
    raise GenerationError("unsupported_policy_override", f"{level} override: {message}")


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A value of the package that no reader of this version knows, and where it is."""

    kind: str
    pointer: str
    value: str


@dataclass(frozen=True, slots=True)
class PackagePolicy:
    """The package's word: `profile` and `phases` as written, and what of the phases is `usable`."""

    profile: str | None = None
    phases: Mapping[str, str] = field(default_factory=dict)
    usable: Mapping[str, str] = field(default_factory=dict)
    indexshare: str | None = None
    experimental: Mapping[str, str] = field(default_factory=dict)
    unsupported: tuple[Unsupported, ...] = ()
    thresholds: Mapping[str, int] = field(default_factory=dict)


def read_package_policy(generation: Mapping[str, Any] | None) -> PackagePolicy:
    """The policy and thresholds of a checked generation block.

    An unknown profile makes the whole level unusable, thresholds excepted: they are hints.
    """
    block = generation or {}
    given = block.get("thresholds") or {}
    thresholds = {name: given[name] for name in THRESHOLDS if is_threshold(given.get(name))}
    policy = block.get("policy")
    if not policy:
        return PackagePolicy(thresholds=thresholds)
    at = step(POINTER, "policy")
    unsupported: list[Unsupported] = []

    def skip(kind: str, pointer: str, name: str, value: object) -> None:
        if len(unsupported) < MAX_UNSUPPORTED:
            where = step(pointer, plain_name(name))
            unsupported.append(Unsupported(kind, where, plain_name(value)))

    profile = policy.get("profile")
    known = profile in KNOWN_PROFILES
    if not known:
        skip("unsupported_policy_profile", at, "profile", profile)
    phases = {phase: policy[phase] for phase in PHASES if policy.get(phase) is not None}
    for name, value in phases.items():
        if value not in PATHS:
            skip("unsupported_policy_value", at, name, value)
    indexshare = policy.get("indexshare")
    if indexshare is not None and indexshare not in INDEXSHARE_VALUES:
        skip("unsupported_policy_value", at, "indexshare", indexshare)
        indexshare = "required"
    experimental = policy.get("experimental") or {}
    for name, value in experimental.items():
        if name not in EXPERIMENTAL_SWITCHES or value not in EXPERIMENTAL_VALUES:
            skip("unsupported_policy_value", step(at, "experimental"), name, value)
    return PackagePolicy(
        profile=profile,
        phases=phases,
        usable={p: v for p, v in phases.items() if v in PATHS} if known else {},
        indexshare=indexshare if known else None,
        experimental=experimental if known else {},
        unsupported=tuple(unsupported),
        thresholds=thresholds,
    )


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold in force: value in tokens, rows or bytes, and the level that gave it."""

    name: str
    value: int
    source: Level


def thresholds_in_force(
    package: PackagePolicy, overrides: Mapping[Level, PolicyOverride]
) -> dict[str, Threshold]:
    """The thresholds by name, highest level first; only the short prefill limit has a default."""
    found: dict[str, Threshold] = {}
    levels: list[tuple[Level, Mapping[str, int]]] = [
        *((level, override.thresholds) for level, override in overrides.items()),
        ("package", package.thresholds),
        ("runtime_default", {"short_prefill_max_tokens": SHORT_PREFILL_MAX_TOKENS}),
    ]
    for level, values in levels:
        for name, value in values.items():
            found.setdefault(name, Threshold(name, value, level))
    return found
