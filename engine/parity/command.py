"""Owns the order of a comparison: our side, the peer's on the same numbers, the report.

    python -m engine.parity --package qwen3_8_27b --recipe groupwise-int --markdown FILE

Our side runs first and gives its memory back, then the peer's is built: the two need not fit
together. What could not be run is said in the report. Exit code 0: within every bound, 1: not,
2: something that was asked for could not be run, and what was is within its bounds.
"""

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import EngineError
from engine.parity import judge
from engine.parity.oracle import Oracle
from engine.parity.records import NOISE, Peer, PeerFailure, Report, Way
from engine.parity.report import markdown
from engine.parity.said import Said, nll_report, said_of
from engine.parity.seen import seen_of
from engine.parity.setting import Setting, parser, prepare
from engine.parity.theirs import Transformers
from ptx.op import PtxError

PASSED, FAILED, NOT_JUDGED = 0, 1, 2
WAYS: tuple[Way, ...] = ("plain", *NOISE)
ALONE: tuple[Way, ...] = ("plain", "wide")


def compare(options: argparse.Namespace) -> Report:
    """The whole comparison; EngineError when our own side does not run."""
    setting = prepare(options)
    said = said_of(setting)
    # What our side held must be gone before the peer's is built, cycles or not.
    gc.collect()
    return judged(setting, said)


def judged(setting: Setting, said: Said) -> Report:
    """The report on what our side said."""
    report = setting.report
    report["activations"] = seen_of(said.trace)
    if said.nll:
        report["nll"] = nll_report(said)
    peer = _peer(setting)
    if peer is not None:
        try:
            _judge(peer, setting, said)
        except PeerFailure as failure:
            report["not_run"].append(str(failure))
    parts = [report[name] for name in ("logits", "greedy", "nll") if name in report]
    verdicts = [p["passed"] for p in [*report.get("layers", []), *parts] if "passed" in p]
    report["passed"] = all(verdicts)
    whole = "greedy" in report and (not said.nll or "passed" in report["nll"])
    report["code"] = FAILED if not all(verdicts) else PASSED if whole else NOT_JUDGED
    return report


def _peer(setting: Setting) -> Peer | None:
    kinds: dict[str, Any] = {"transformers": Transformers, "oracle": Oracle}
    wanted = setting.options.peer
    for name in kinds if wanted == "auto" else [wanted]:
        with setting.told(f"{name}: build"):
            try:
                peer: Peer = kinds[name](setting.device, setting.plan, setting.config_json())
                setting.report["peer"] = peer.name
                return peer
            except PeerFailure as failure:
                setting.report["not_run"].append(str(failure))
    return None


def _judge(peer: Peer, setting: Setting, said: Said) -> None:
    report, hidden = setting.report, said.trace.hidden
    with setting.told("peer: layers and logits"):
        traces = {way: peer.trace(setting.ids, setting.kept, way) for way in WAYS}
        fed = [key for key in hidden if key - 1 in hidden]
        alone = {way: peer.alone(setting.ids, hidden, fed, way) for way in ALONE}
        report["layers"], report["logits"] = judge.judge_traces(said.trace, traces, alone)
    noise = report["logits"]["noise_of_a_logit"]
    found = []
    with setting.told("peer: our ids"):
        for index, (prompt, chosen) in enumerate(zip(said.prompts, said.greedy, strict=True)):
            forced, first = [*prompt, *chosen[:-1]], len(prompt) - 1
            plain, wide = (peer.rows(forced, first, way) for way in ALONE)
            found.append(judge.judge_ids(plain, wide, chosen, noise, index))
    report["greedy"] = judge.judge_all_ids(found)
    if said.nll:
        with setting.told("peer: NLL"):
            plain_nll, wide_nll = (
                np.concatenate([peer.nll(text, way) for text in said.texts]) for way in ALONE
            )
            report["nll"] |= judge.judge_nll(np.concatenate(said.nll), plain_nll, wide_nll)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the report as Markdown, write it where asked."""
    options = parser().parse_args(arguments)
    try:
        report = compare(options)
    except (EngineError, PtxError) as error:
        print(f"parity: {error}", file=sys.stderr)
        return NOT_JUDGED
    text = markdown(report)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    code: int = report["code"]
    return code
