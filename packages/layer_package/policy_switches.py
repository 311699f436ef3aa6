"""Owns whether an experimental switch is on: evidence of a win, or an explicit override.

It must not know paths or phases.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from packages.layer_package.generation import EXPERIMENTAL_SWITCHES
from packages.layer_package.policy_inputs import (
    MAX_UNSUPPORTED,
    Backend,
    Level,
    PackagePolicy,
    PolicyOverride,
    plain_name,
)

WIN_PROVEN = 3


@dataclass(frozen=True, slots=True)
class SwitchState:
    """An experimental switch: `on` or `off`, and why."""

    state: str
    reason: str


def switch_states(
    package: PackagePolicy, overrides: Mapping[Level, PolicyOverride], backend: Backend
) -> dict[str, SwitchState]:
    """The state of every known switch, and `off` for unknown ones that the package names."""
    states = {
        plain_name(name): SwitchState("off", "unsupported_policy_value")
        for name in list(package.experimental)[:MAX_UNSUPPORTED]
        if name not in EXPERIMENTAL_SWITCHES
    }
    for name in EXPERIMENTAL_SWITCHES:
        value, explicit = package.experimental.get(name), False
        for override in overrides.values():
            if name in override.experimental:
                value, explicit = override.experimental[name], True
                break
        states[name] = _switch(value, explicit, backend.switches.get(name, 0))
    return states


def _switch(value: str | None, explicit: bool, evidence: int) -> SwitchState:
    if explicit and value in ("on", "off"):
        return SwitchState(value, "explicit_override")
    if value == "evidence-gated":
        if evidence >= WIN_PROVEN:
            return SwitchState("on", "evidence_proven")
        return SwitchState("off", "evidence_missing")
    reasons = {None: "not_requested", "off": "policy_off"}
    return SwitchState("off", reasons.get(value, "unsupported_policy_value"))
