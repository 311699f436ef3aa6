"""Owns the bounds of a strategy's `window_policy` and `extension_policy`.

It must not know proposers. All numbers are tokens but `tail_backoff_proposals` (tokens taken off
the extension after an unhelpful tail) and `pipeline_depth` (windows in flight).
"""

from packages.layer_package.generation_fields import U32_MAX, Fields, shown

MAX_PIPELINE_DEPTH = 64
WINDOW_KINDS = ("fixed", "adaptive")
_WINDOWS = ("initial_window", "min_window", "max_window")


def check_extension(strategy: Fields, *, composite: bool) -> None:
    """Check `extension_policy`; unless `composite` it is ignored with a warning."""
    policy = strategy.child("extension_policy")
    if not composite:
        if policy is not None:
            message = "only a composite strategy has an extension"
            strategy.warn("extension_policy_ignored", message, "extension_policy")
        return
    if not strategy.has("extension_policy"):
        strategy.fail(
            "missing_composite_extension_policy",
            "a composite strategy needs an extension_policy",
            "extension_policy",
        )
    if policy is None:
        return
    kind = "invalid_extension_policy_tokens"
    if not policy.has("max_tokens"):
        policy.fail(kind, "needs max_tokens", "max_tokens")
    most = policy.bounded("max_tokens", 1, U32_MAX, kind, "tokens")
    policy.bounded("initial_tokens", 1, U32_MAX if most is None else most, kind, "tokens")
    policy.bounded("tail_backoff_proposals", 0, U32_MAX, kind, "tokens")


def check_window(strategy: Fields, *, native: bool) -> None:
    """Check `window_policy` when there is one; `native` warns of a window other than fixed 1."""
    window = strategy.child("window_policy")
    if window is None:
        return
    default = window.text("default")
    if not window.has("default") or (default is not None and not default.strip()):
        window.fail("empty_window_policy_default", "needs fixed or adaptive", "default")
    elif default is not None and default not in WINDOW_KINDS:
        message = f"default is {shown(default)}, needs {' or '.join(WINDOW_KINDS)}"
        window.fail("invalid_window_policy_default", message, "default")
    for name in _WINDOWS:
        if not window.has(name):
            window.fail("missing_field", f"needs {name}", name)
    values = [
        window.bounded(name, 1, U32_MAX, "invalid_window_policy_zero", "tokens")
        for name in _WINDOWS
    ]
    window.bounded("pipeline_depth", 1, MAX_PIPELINE_DEPTH, "invalid_pipeline_depth", "windows")
    initial, low, high = values
    if initial is None or low is None or high is None:
        return
    if low > high:
        message = f"min_window {low} exceeds max_window {high} tokens"
        window.fail("invalid_window_policy_bounds", message, "min_window")
    elif not low <= initial <= high:
        message = f"initial_window {initial} tokens, needs {low} to {high}"
        window.fail("invalid_window_policy_initial", message, "initial_window")
    elif native and default in WINDOW_KINDS and (default, high) != ("fixed", 1):
        message = f"{shown(default)} window {initial}/{low}/{high}: depth 1 proposes one token"
        window.warn("native_mtp_window_wider_than_one", message)
