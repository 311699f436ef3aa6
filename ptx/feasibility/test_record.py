"""Protects the record of the instruction families: freshness, marks, runs of several machines."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from ptx.devices.emulator import EmulatorDevice, Loaded
from ptx.feasibility import __main__ as command
from ptx.feasibility import cases, record
from ptx.feasibility.families import VARIANTS

BUDGET = next(variant for variant in VARIANTS if variant.family == "setmaxnreg")
SCALED = next(variant for variant in VARIANTS if variant.family == "mma_block_scaled")


class PaperLoaded(Loaded):
    n_registers = 77


class PaperCard(EmulatorDevice):
    """An emulator that passes for a card, of sm_90."""

    facts = SimpleNamespace(name="Card of Paper", arch="sm_90")

    def _load(self, *arguments):
        return PaperLoaded(*super()._load(*arguments))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A record of its own, as the project's stands."""
    path = tmp_path / "feasibility.md"
    path.write_text(record.TABLE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(record, "TABLE", path)
    return path


def row_of(text, title, nth):
    rows = [line for line in text.splitlines() if line.startswith(f"| `{title}` ")]
    assert len(rows) == 2
    return rows[nth]


def test_the_record_is_fresh_and_nothing_in_it_failed():
    text = record.TABLE.read_text(encoding="utf-8")
    assert text == record.table(), "run `python -m ptx.feasibility --write`"
    assert record.FAILED not in text
    for variant in VARIANTS:
        assert not row_of(text, variant.title, 0).endswith("- | - | - |")
        assert record.NOT_YET not in row_of(text, variant.title, 1).split(" | ")[2]


def test_what_no_card_has_is_marked(place):
    place.unlink()
    text = record.table()
    assert record.NO_CARD in row_of(text, SCALED.title, 1)
    assert record.NO_CARD not in row_of(text, BUDGET.title, 1)
    assert text.count(record.NO_CARD) == 2


def test_runs_of_two_machines_meet(place, monkeypatch):
    """A card's run keeps assembly and emulator; both keep the card's, until a text changes."""
    before = place.read_text(encoding="utf-8")
    place.write_text(record.table(card=PaperCard()), encoding="utf-8")
    text = record.table()
    for variant in VARIANTS:
        assert row_of(text, variant.title, 0) == row_of(before, variant.title, 0)
        mine = row_of(text, variant.title, 1).split(" | ")
        assert mine[2:5] == row_of(before, variant.title, 1).split(" | ")[2:5]
        if variant.target_for("sm_90a"):
            assert mine[5].startswith("Card of Paper (sm_90)")
            assert mine[6:8] == ["77", "equal bits"]
        else:
            assert mine[5] == record.NO_CARD
    assert record.FAILED not in text
    monkeypatch.setattr(record, "VARIANTS", (replace(BUDGET, version="8.1"), *VARIANTS[:-1]))
    changed = record.table()
    assert record.NOT_YET in row_of(changed, BUDGET.title, 1)
    assert row_of(changed, BUDGET.title, 0).endswith(" -" + 8 * " | -" + " |")


def test_the_command_writes_and_tells_a_failure(place, monkeypatch, capsys):
    monkeypatch.setattr(record, "VARIANTS", (BUDGET,))
    monkeypatch.setattr(record, "can_assemble", lambda: False)
    assert command.main([]) == 0
    shown = capsys.readouterr()
    assert "no ptxas: registers stay as they were" in shown.err
    assert shown.out != place.read_text(encoding="utf-8")
    assert command.main(["--write"]) == 0
    assert capsys.readouterr().out == place.read_text(encoding="utf-8")
    (case,) = BUDGET.cases()
    monkeypatch.setattr(cases, "setmaxnreg", lambda constants: [replace(case, want=case.want + 1)])
    assert command.main([]) == 1
    assert f"{record.FAILED}: " in capsys.readouterr().out
    monkeypatch.setattr(command, "available", lambda: "no driver")
    assert command.main(["--device", "cuda"]) == 1
    assert "no card: no driver" in capsys.readouterr().err
