"""Guards the recorded layouts: a C compiler, asked afresh, must see the same numbers."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from skippy_abi import generate, table, toolchain
from tests.abi import c_host


def test_compiler_sees_every_recorded_number(tmp_path: Path) -> None:
    abi = table.load()
    probe = c_host.compile_program(generate.layout_probe(abi), tmp_path / "probe")
    seen = subprocess.run([probe], capture_output=True, text=True, check=True).stdout
    recorded = []
    for struct in abi.structs:
        recorded.append(f"{struct.name} {struct.total_bytes} {struct.align_bytes}")
        recorded += [f"{struct.name}.{f.name} {f.offset_bytes}" for f in struct.fields]
    assert seen.splitlines() == recorded
    assert len(recorded) > 150


@pytest.mark.parametrize("damage", ["total", "offset"])
def test_a_wrong_recorded_number_stops_the_build(tmp_path: Path, damage: str) -> None:
    abi = table.load()
    place = next(i for i, s in enumerate(abi.structs) if s.name == "skippy_kv_page_desc")
    struct = abi.structs[place]
    if damage == "total":
        wrong = replace(struct, total_bytes=struct.total_bytes + 8)
    else:
        last = replace(struct.fields[-1], offset_bytes=struct.fields[-1].offset_bytes - 8)
        wrong = replace(struct, fields=(*struct.fields[:-1], last))
    structs = (*abi.structs[:place], wrong, *abi.structs[place + 1 :])
    checks = generate.layout_checks(replace(abi, structs=structs))
    text = "\n".join([generate.INCLUDES, generate.types(abi), checks])
    with pytest.raises(toolchain.BuildError, match="skippy_kv_page_desc"):
        toolchain.link(tmp_path / "libwrong.so", text, "{ local: *; };\n")
    assert not (tmp_path / "libwrong.so").exists()
