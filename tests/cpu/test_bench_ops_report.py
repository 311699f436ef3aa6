"""Protects what the op benchmark writes: JSON by its schema, lines, a drawing that is well formed.
"""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from engine.bench_ops.ceilings import Reads
from engine.bench_ops.chain import Chain
from engine.bench_ops.measure import Failed
from engine.bench_ops.report import Report, chain_text, line_of, to_json
from engine.bench_ops.svg import draw
from tests.cpu.bench_ops_cases import HOSTILE, judged, spread_of, timed


def whole_report():
    reads = [Reads(16 << 30, 16 << 10, spread_of(3800.0)), Reads(1 << 30, 1 << 16, spread_of(250))]
    found = Chain(spread_of(4100.0), spread_of(4300.0), spread_of(3200.0), spread_of(3800.0),
                  13_850_000_000, 257, {"int4 gate/up T=1": "sm_90a"})
    rows = [judged("a"), judged(HOSTILE, share=1.7), judged("no bar", limit_us=None),
            judged("gemm", kind="flops"), replace(judged("other"), timed=timed(picked=False))]
    return Report(HOSTILE, "sm_90a", False, reads, 4.3e12, 7e14, rows, found,
                  [Failed("x", "sm_80", "why")], ["gone"], ["note"])


def test_a_report_survives_json():
    report = whole_report()
    written = to_json(report)
    again = json.loads(json.dumps(written))
    assert again == written
    row = again["rows"][0]
    assert row["us"] == {"median": 10, "least": 9, "low": 9.5, "high": 11, "replays": 7,
                         "launches": 40}
    assert (row["bar"], row["limit_us"], row["holds"], row["peer"]["us"]["median"]) == (
        "8 us", 8.0, False, 20)
    assert (row["registers"], row["local_bytes"], row["shared_bytes"], row["occupancy"]) == (
        40, 0, 1024, 0.5)
    assert again["rows"][2]["holds"] is None
    assert again["chain"]["holds"] is True
    assert again["chain"]["limit_us"] == 4200
    assert again["failed"] == [{"case": "x", "kernel": "sm_80", "reason": "why"}]
    assert to_json(replace(report, chain=None))["chain"] is None


def test_lines_say_what_holds():
    line = line_of(judged())
    assert line.count("|") == 13
    assert "| 10.00 | 9.50 .. 11.00 | 0 GB/s | 50% | 8 us (8.00 us): MISSED | 20.00 torch |" in line
    assert "| 40 | 1024 | 0 | 50% |" in line
    spilled = replace(judged().timed, takes=replace(judged().timed.takes, local_bytes=8))
    assert "| 8 ! |" in line_of(replace(judged(), timed=spilled, limit_us=None))
    text = chain_text(whole_report().chain)
    assert "257 linears, 13.85 GB of weights: 4.100 ms" in text
    assert "bar 4.2 ms: holds" in text


@pytest.mark.parametrize("change", [
    {}, {"reads": ()}, {"product": None}, {"reads": (), "product": None}, {"rows": ()},
    {"rows": [judged("one")]}, {"rows": [judged("none", share=None)]},
], ids=str)
def test_the_drawing_is_well_formed_whatever_there_is(change):
    report = replace(whole_report(), **change)
    text = draw(report)
    root = ElementTree.fromstring(text.encode())
    assert "nan" not in text
    assert "inf" not in text.replace("info", "")
    assert "prefers-color-scheme: dark" in text
    shown = [e.text for e in root.iter() if e.text]
    assert not any("\x00" in words for words in shown)
    if not change:
        # The label as it was, less what XML cannot hold.
        assert 'a<b>&"c"\' ]]> \ufffd\ufffd\ufffd <script>' in shown
        width, height = float(root.get("width")), float(root.get("height"))
        for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
            assert 0 <= float(rect.get("x", 0)) + float(rect.get("width")) <= width
            assert 0 <= float(rect.get("y", 0)) + float(rect.get("height")) <= height
