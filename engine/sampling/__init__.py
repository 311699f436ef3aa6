"""The public face of token choice: configs, samplers, greedy rows and signals.

Contract: the sampling rules of the serving ABI and the two sampler versions in `plain` and `chain`.
Nothing here knows models, grammars or C; a grammar arrives as a mask of allowed ids.
"""

from engine.sampling.config import MAX_LOGIT_BIAS, SamplingConfig
from engine.sampling.draws import Draw, Drawable, DrawRequest
from engine.sampling.literals import parse_seed, parse_temperature
from engine.sampling.row import checked_row, greedy_token, greedy_tokens
from engine.sampling.sampler import Sampler, SamplerState, Selection, SessionSampling
from engine.sampling.signals import SignalWindow, TokenSignal, signal_window, token_signal

__all__ = [
    "MAX_LOGIT_BIAS",
    "Draw",
    "DrawRequest",
    "Drawable",
    "Sampler",
    "SamplerState",
    "SamplingConfig",
    "Selection",
    "SessionSampling",
    "SignalWindow",
    "TokenSignal",
    "checked_row",
    "greedy_token",
    "greedy_tokens",
    "parse_seed",
    "parse_temperature",
    "signal_window",
    "token_signal",
]
