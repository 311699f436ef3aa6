"""Owns the structure of `generation`: policy, thresholds, and which members are not portable.

It must not know how a policy is resolved (`policy.py`) nor the rules of strategies
(`speculation.py`), to which it hands that member. Unknown policy values are reported as warnings,
for a reader skips them; they are errors of a writer, who may emit only what he can vouch for.
Other unknown members are ignored. `null` for an optional member means absent.
"""

import re

from packages.layer_package.errors import Report
from packages.layer_package.generation_fields import (
    U64_MAX,
    Fields,
    is_integer,
    object_at,
    shown,
)
from packages.layer_package.speculation import check_speculation

POINTER = "/generation"
KNOWN_PROFILES = ("glm-dsa-v1",)
PHASES = ("decode", "short_prefill", "long_prefill", "verify")
PATHS = ("auto", "dense", "direct-sparse", "compact-flash", "sparse-chunked", "fallback")
INDEXSHARE_VALUES = ("required", "auto")
EXPERIMENTAL_SWITCHES = ("selected_row_flash", "moe_weighted_down", "moe_merged_shared_gate_up")
EXPERIMENTAL_VALUES = ("evidence-gated", "off")
# Units: tokens, KV rows, bytes.
THRESHOLDS = ("short_prefill_max_tokens", "compact_flash_min_kv", "dense_mask_max_bytes")
_MEMBERS = ("policy", "thresholds", "speculative_decoding")
# First words of a member's name that tie it to one backend or one model family.
_BACKENDS = frozenset((
    "cann", "cpu", "cuda", "directml", "ggml", "hip", "hipblas", "kompute", "llama", "llamacpp",
    "metal", "mlx", "mps", "musa", "npu", "nvidia", "opencl", "openvino", "ptx", "rocm", "rpc",
    "skippy", "sycl", "tpu", "vulkan", "webgpu", "xpu", "zdnn",
))
_FAMILIES = frozenset(("deepseek", "gemma", "glm", "gptoss", "kimi", "mistral", "phi", "qwen"))
_FIRST_WORD = re.compile(r"[a-z]+")
_NAMES_LISTED = 16


def check_generation(
    value: object,
    layer_count: int,
    report: Report,
    *,
    strict: bool = False,
    writer: bool = False,
) -> None:
    """Check the value of the manifest's member `generation`; every fault goes to `report`.

    GenerationError from a fail-fast report. `strict` makes an absent `max_proposal_tokens` an
    error; `writer` makes nonportable members and unsupported policy values errors.
    """
    if value is None:
        return
    members = object_at(value, POINTER, report)
    if members is None:
        return
    fields = Fields(members, POINTER, report)
    _check_portable(fields, writer)
    policy = fields.child("policy")
    if policy is not None:
        _check_policy(policy, writer)
    thresholds = fields.child("thresholds")
    if thresholds is not None:
        _check_thresholds(thresholds)
    speculative = fields.child("speculative_decoding")
    if speculative is not None:
        check_speculation(speculative, layer_count, strict=strict)


def is_nonportable(name: str) -> bool:
    """Whether a member of `generation` names a backend or a model family."""
    word = _FIRST_WORD.match(name.lower())
    return name not in _MEMBERS and word is not None and word.group() in _BACKENDS | _FAMILIES


def _check_portable(fields: Fields, writer: bool) -> None:
    for name in fields.members:
        if is_nonportable(name):
            message = f"{shown(name)} names a backend or model family; use policy.profile"
            _say(fields, "nonportable_generation_field", message, name, error=writer)


def _check_policy(policy: Fields, writer: bool) -> None:
    profile = policy.text("profile")
    if not policy.has("profile") or (profile is not None and not profile.strip()):
        policy.fail("missing_policy_profile", "a policy needs a non-blank profile", "profile")
    elif profile is not None and profile not in KNOWN_PROFILES:
        message = f"profile {shown(profile)} is none of {', '.join(KNOWN_PROFILES)}"
        _say(policy, "unsupported_policy_profile", message, "profile", error=writer)
    for phase in PHASES:
        _check_value(policy, phase, PATHS, "skipped", writer)
    _check_value(policy, "indexshare", INDEXSHARE_VALUES, "treated as required", writer)
    experimental = policy.child("experimental")
    if experimental is None:
        return
    for name in experimental.members:
        if name in EXPERIMENTAL_SWITCHES:
            _check_value(experimental, name, EXPERIMENTAL_VALUES, "treated as off", writer)
        else:
            message = f"experimental switch {shown(name)} is unknown, treated as off"
            _say(experimental, "unsupported_policy_value", message, name, error=writer)


def _check_value(
    fields: Fields, name: str, allowed: tuple[str, ...], effect: str, writer: bool
) -> None:
    value = fields.text(name)
    if value is not None and value not in allowed:
        message = f"{name} is {shown(value)}, needs one of {', '.join(allowed)}; {effect}"
        _say(fields, "unsupported_policy_value", message, name, error=writer)


def _check_thresholds(thresholds: Fields) -> None:
    for name in THRESHOLDS:
        value = thresholds.members.get(name)
        if value is not None and not is_threshold(value):
            message = f"{name} is {shown(value)}, needs an integer from 0 to 2^64-1"
            thresholds.fail("invalid_threshold", message, name)
    others = [name for name in thresholds.members if name not in THRESHOLDS]
    if others:
        listed = ", ".join(shown(name) for name in others[:_NAMES_LISTED])
        more = f" and {len(others) - _NAMES_LISTED} more" if len(others) > _NAMES_LISTED else ""
        thresholds.report.note(
            "ignored_threshold", f"unknown, ignored: {listed}{more}", pointer=thresholds.pointer
        )


def is_threshold(value: object) -> bool:
    """Whether `value` can be a threshold: a JSON integer from 0 to 2^64-1."""
    return is_integer(value) and isinstance(value, int) and 0 <= value <= U64_MAX


def _say(fields: Fields, kind: str, message: str, name: str, *, error: bool) -> None:
    if error:
        fields.fail(kind, message, name)
    else:
        fields.warn(kind, message, name)
