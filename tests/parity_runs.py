"""Owns small parity runs on the mini twin, for tests with and without torch, and planted faults."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.parity import command, ours, values
from engine.parity.records import Report
from engine.parity.setting import Setting, parser, prepare
from engine.parity.values import Piece
from engine.records import ModelPlan, Stored
from ptx.device import Device
from ptx.numerics import round_to_bf16
from ptx.op import Op

SMALL = (
    "--package", "qwen3_8_27b:mini", "--device", "host", "--compare-tokens", "40",
    "--prompts", "4", "--tokens", "8", "--nll-windows", "1", "--nll-tokens", "40",
)
PIECES = values.pieces


def setting(*more: str) -> Setting:
    """A small comparison, with further options."""
    return prepare(parser().parse_args([*SMALL, *more]))


def compared(*more: str) -> Report:
    """The report of such a comparison."""
    made = setting(*more)
    return command.judged(made, command.said_of(made))


def failed(report: Report) -> list[str]:
    """Every part that is outside its bounds, by name."""
    places = [row["place"] for row in report["layers"] if not row["passed"]]
    parts = [name for name in ("logits", "greedy", "nll") if name in report]
    return places + [name for name in parts if not report[name]["passed"]]


class Spoiled:
    """What a peer is given, with one weight a little larger."""

    def __init__(self, spoiled: str, factor: float) -> None:
        self._spoiled, self._factor = spoiled, factor

    def __call__(self, device: Device, plan: ModelPlan, name: str) -> Iterator[Piece]:
        for piece in PIECES(device, plan, name):
            if name == self._spoiled:
                cells = np.float32(self._factor) * values.decoded(piece)
                if piece.form == "f32":
                    piece = piece._replace(stored=Stored(cells))
                else:
                    stored = Stored(round_to_bf16(cells))
                    piece = piece._replace(form="bf16", stored=stored)
            yield piece


class LateHost(ours.ReferenceHost):
    """A device that rotates single tokens as if they came one position later."""

    def launch(self, op: Op, **args: Any) -> None:
        if op.name == "qgate_norm_rope_append_pages" and len(args["positions"]) == 1:
            args["positions"] = args["positions"] + 1
        super().launch(op, **args)
