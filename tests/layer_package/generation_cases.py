"""Owns sound generation blocks and one-change variants of them."""

import copy
from typing import Any

from packages.layer_package.errors import Report
from packages.layer_package.generation import check_generation

N_LAYERS = 48


class Gone:
    """Stands for a member that is not there; its text is the same in every process of a run."""

    def __repr__(self) -> str:
        return "gone"


GONE = Gone()


def whole_menu() -> dict[str, Any]:
    """Every strategy that a package may offer, for 48 layers whose last one predicts."""
    window = {"default": "fixed", "initial_window": 1, "min_window": 1, "max_window": 1}
    return {
        "speculative_decoding": {
            "default": "mtp",
            "proposers": {
                "mtp": {"type": "native-mtp", "prediction_depth": 1, "layer_indices": [47]},
                "cache": {
                    "type": "ngram-cache",
                    "ngram_min": 2,
                    "ngram_max": 4,
                    "max_proposal_tokens": 8,
                    "history_scope": "request",
                },
                "suffix": {
                    "type": "ngram-suffix",
                    "ngram_min": 4,
                    "ngram_max": 24,
                    "max_proposal_tokens": 32,
                    "history_scope": "request",
                },
            },
            "strategies": {
                "mtp": {"type": "native-mtp", "proposer": "mtp", "window_policy": window},
                "ngram-cache": {"type": "ngram-cache", "proposer": "cache"},
                "ngram-suffix": {"type": "ngram-suffix", "proposer": "suffix"},
                "mtp-cache": {
                    "type": "composite",
                    "primary": "mtp",
                    "extender": "cache",
                    "extension_policy": {"max_tokens": 8},
                },
                "mtp-suffix": {
                    "type": "composite",
                    "primary": "mtp",
                    "extender": "suffix",
                    "extension_policy": {
                        "initial_tokens": 4,
                        "max_tokens": 32,
                        "tail_backoff_proposals": 4,
                    },
                },
            },
        }
    }


def glm_policy() -> dict[str, Any]:
    """A policy of the known profile with every phase, switch and threshold."""
    return {
        "policy": {
            "profile": "glm-dsa-v1",
            "decode": "compact-flash",
            "short_prefill": "dense",
            "long_prefill": "sparse-chunked",
            "verify": "auto",
            "indexshare": "required",
            "experimental": {
                "selected_row_flash": "evidence-gated",
                "moe_weighted_down": "evidence-gated",
                "moe_merged_shared_gate_up": "off",
            },
        },
        "thresholds": {
            "short_prefill_max_tokens": 2048,
            "compact_flash_min_kv": 1,
            "dense_mask_max_bytes": 268435456,
        },
    }


def whole_block() -> dict[str, Any]:
    """Policy, thresholds and strategies together."""
    return {**glm_policy(), **whole_menu()}


def changed(block: Any, *changes: tuple[str, Any]) -> Any:
    """A copy with the members at RFC 6901 pointers set, or removed by GONE."""
    fresh = copy.deepcopy(block)
    for pointer, value in changes:
        *parents, last = pointer.split("/")[1:]
        at = fresh
        for name in parents:
            at = at[name]
        if value is GONE:
            del at[last]
        else:
            at[last] = copy.deepcopy(value)
    return fresh


def report_of(block: Any, n_layers: int = N_LAYERS, **how: bool) -> Report:
    """The findings of a generation block."""
    report = Report()
    check_generation(block, n_layers, report, **how)
    return report
