"""Owns the telemetry record of a policy decision, and writing one for each change of a decision.

It must not know how decisions are made, nor where records go. A decision changes when anything but
the quantities of the step does: its tokens, KV rows and the bytes estimated from them grow with
every token, and a record for each would hide the changes. Repeats are counted.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from packages.layer_package.policy import Decision

MAX_CONTEXTS = 4096
_QUANTITIES = ("n_tokens", "n_kv", "estimated_dense_mask_bytes", "dense_mask_avoided_bytes",
               "estimated_sideband_bytes")  # fmt: skip


def record_of(decision: Decision, *, runtime_version: str, abi_version: str) -> dict[str, Any]:
    """The record as a JSON object: bytes, tokens and rows as integers, unknown as null."""
    request = decision.request
    fell_back = decision.fallback_reason is not None or decision.selected_path == "fallback"
    mask_bytes = request.dense_mask_bytes
    used = decision.threshold_used
    return {
        "profile": decision.profile,
        "phase": decision.phase,
        "selected_path": decision.selected_path,
        "selected_level": decision.selected_level,
        "package_recommendation": decision.package_recommendation,
        "package_overridden_by": decision.package_overridden_by,
        "rejected": [asdict(rejection) for rejection in decision.rejected],
        "fallback_path": decision.selected_path if fell_back else None,
        "fallback_reason": decision.fallback_reason,
        "backend": decision.backend,
        "n_tokens": request.n_tokens,
        "n_kv": request.n_kv,
        "top_k": request.top_k,
        "indexshare_role": decision.indexshare.role,
        # Recomputing replaces what the policy asked for, so the record says that instead.
        "indexshare_policy": "indexshare_recompute"
        if decision.indexshare_recompute
        else decision.indexshare_policy,
        "estimated_dense_mask_bytes": mask_bytes,
        "dense_mask_avoided_bytes": 0 if decision.selected_path == "dense" else mask_bytes,
        "estimated_sideband_bytes": request.sideband_bytes,
        "threshold_used": None if used is None else asdict(used),
        "experimental": {name: asdict(state) for name, state in decision.experimental.items()},
        "unsupported": [asdict(entry) for entry in decision.unsupported],
        "runtime_version": runtime_version,
        "abi_version": abi_version,
    }


class PolicyTelemetry:
    """Records of many inference contexts; safe for several threads.

    The state of the context that was seen longest ago is dropped past 4096 contexts and phases.
    """

    def __init__(
        self, sink: Callable[[dict[str, Any]], None], *, runtime_version: str, abi_version: str
    ) -> None:
        """`sink` takes every new record, outside the lock."""
        self._sink = sink
        self._versions = {"runtime_version": runtime_version, "abi_version": abi_version}
        self._last: OrderedDict[tuple[str, str], tuple[dict[str, Any], int]] = OrderedDict()
        self._lock = threading.Lock()

    def observe(self, context: str, decision: Decision) -> dict[str, Any] | None:
        """The record written, or None when it repeats the last of that context and phase."""
        record = record_of(decision, **self._versions)
        identity = {name: value for name, value in record.items() if name not in _QUANTITIES}
        key = (context, decision.phase)
        with self._lock:
            known = self._last.pop(key, None)
            repeats = known is not None and known[0] == identity
            self._last[key] = (identity, known[1] + 1 if known is not None and repeats else 0)
            if len(self._last) > MAX_CONTEXTS:
                self._last.popitem(last=False)
        if repeats:
            return None
        self._sink(record)
        return record

    def repeats(self, context: str, phase: str) -> int:
        """How often the last record of that context and phase was repeated since it was written."""
        with self._lock:
            known = self._last.get((context, phase))
        return 0 if known is None else known[1]

    def close(self, context: str) -> dict[str, int]:
        """Forget a context; the repeats of its last records by phase."""
        with self._lock:
            keys = [key for key in self._last if key[0] == context]
            return {phase: self._last.pop((name, phase))[1] for name, phase in keys}
