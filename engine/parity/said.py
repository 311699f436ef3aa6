"""Owns everything that our side says in a comparison: layers, logits, greedy ids, NLL.

The bf16 model comes first, since it draws the texts; its memory is given back before the model that
is judged is opened, whose memory is given back at the end.
"""

from dataclasses import dataclass

import numpy as np

from engine.bench_model.load import plan_of
from engine.parity import ours, texts
from engine.parity.records import F64, Report, Trace
from engine.parity.setting import BF16, Setting
from engine.records import ModelPlan


@dataclass
class Said:
    """What our side said; `nll_bf16` is empty where the bf16 model is the judged one."""

    trace: Trace
    prompts: list[list[int]]
    greedy: list[list[int]]
    texts: list[list[int]]
    nll: list[F64]
    nll_bf16: list[F64]


def said_of(setting: Setting) -> Said:
    """Our side; EngineError when it does not run."""
    options, plan, device = setting.options, setting.plan, setting.device
    drawn: list[list[int]] = []
    nll_drawer: list[F64] = []
    drawer = _drawer(setting)
    if drawer is not None:
        with setting.told("ours: texts, and NLL of who draws them"):
            model = ours.opened(drawer, device, [options.nll_tokens] * options.nll_windows)
            drawn = ours.sampled(model, options.nll_windows, options.nll_tokens)
            nll_drawer = [ours.nll(model, text) for text in drawn]
            model.close()
            # Its memory goes with it: two models of the full size do not fit.
            del model
    prompts = texts.prompts(options.prompts, plan.n_vocab)
    longest = max(map(len, prompts), default=0) + options.tokens
    lengths = [max(longest, options.compare_tokens, options.nll_tokens if drawn else 0)]
    lengths += [longest] * (len(prompts) // 2)
    with setting.told("ours: open"):
        model = ours.opened(plan, device, lengths)
    with setting.told("ours: layers and logits"):
        trace = ours.trace(model, setting.ids, setting.kept)
    with setting.told("ours: greedy ids"):
        greedy = ours.greedy(model, prompts, options.tokens)
    if drawer is plan:
        nll, nll_bf16 = nll_drawer, []
    else:
        with setting.told("ours: NLL"):
            nll, nll_bf16 = [ours.nll(model, text) for text in drawn], nll_drawer
    model.close()
    return Said(trace, prompts, greedy, drawn, nll, nll_bf16)


def _drawer(setting: Setting) -> ModelPlan | None:
    """The plan whose model draws the texts: the same weights in bf16, where there are any."""
    options, plan, not_run = setting.options, setting.plan, setting.report["not_run"]
    if not options.nll_windows:
        not_run.append("NLL: no windows were asked for")
        return None
    if options.model is None:
        return plan if options.recipe == BF16 else plan_of(options.package, BF16, None)
    if options.bf16_model is not None:
        return plan_of(options.package, BF16, options.bf16_model)
    not_run.append("NLL beside bf16: no --bf16-model was named; the texts are the model's own")
    return plan


def nll_report(said: Said) -> Report:
    """Our NLL, and how far it is from that of our bf16 model, where this is another one."""
    own = np.concatenate(said.nll)
    found: Report = {
        "windows": len(said.texts), "tokens": len(said.texts[0]), "ours": float(own.mean()),
        "drawn_by": "our bf16 model" if said.nll_bf16 else "the model itself",
    }
    if said.nll_bf16:
        bf16 = np.concatenate(said.nll_bf16)
        off = own - bf16
        found |= {
            "ours_bf16": float(bf16.mean()), "difference": float(off.mean()),
            "difference_standard_error": float(off.std() / np.sqrt(len(off))),
        }
    return found
