"""Protects T0's records: whole op folders, a fresh table, shape checks, `pick`."""

import inspect
from dataclasses import replace

import pytest

from ptx import inventory
from ptx.inventory import InventoryError, check_folder, check_op, ops, table, targets
from ptx.numerics import TOLERANCES
from ptx.op import Kernel, Launch, Op, OpError, Param, buf, pick

OPS = ops()
LABELS = ("shapes", "domain", "effects", "rounding")
TOY = Op(
    "toy",
    (buf("x", "f32", "T K"), buf("y", "f32", "T N", out=True), Param("K", "u32"),
     Param("scale", "f32")),
    "exact",
    requires={"N below K": lambda dims: dims["N"] < dims["K"]},
)


def _launch(dims):
    return Launch(grid=dims["T"], block=32)


# The inventory


def test_every_folder_with_a_contract_is_an_op():
    assert set(OPS) == {path.parent.name for path in inventory.PTX.glob("*/op.py")}
    assert {"linear", "rmsnorm", "attention"} <= set(OPS)


def test_the_table_is_fresh(capsys):
    assert inventory.TABLE.read_text(encoding="utf-8") == table(), "run `python -m ptx.inventory`"
    assert inventory.main(["--check"]) == 0


def test_a_stale_table_is_told_and_written_anew(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(inventory, "TABLE", tmp_path / "asm-inventory.md")
    assert inventory.main(["--check"]) == 1
    assert "asm-inventory.md is stale: run `python -m ptx.inventory`" in capsys.readouterr().err
    assert inventory.main([]) == 0
    assert inventory.main(["--check"]) == 0
    assert inventory.main(["--list"]) == 2


def test_measured_cells_stay_while_the_text_of_a_kernel_stands(tmp_path, monkeypatch):
    path = tmp_path / "asm-inventory.md"
    monkeypatch.setattr(inventory, "TABLE", path)
    rows = [line for line in table().splitlines() if line.startswith("| `rmsnorm/portable`")]
    assert rows[0].endswith(" | - | - | - | - | - | - | - | - |"), "nothing is known without a file"
    digest = rows[0].split("`")[3]
    measured = f"| `rmsnorm/portable` | `{digest}` | 13.0.88 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |"
    path.write_text(table().replace(rows[0], measured))
    assert measured in table()
    assert inventory.main(["--check"]) == 0
    monkeypatch.setattr(inventory, "text_of", lambda op, kernel, dims: "another text")
    assert inventory.main(["--check"]) == 1
    assert "13.0.88" not in table()


def test_without_ptxas_the_table_is_written_with_dashes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(inventory, "TABLE", tmp_path / "asm-inventory.md")
    monkeypatch.setattr(inventory, "find_ptxas", lambda: None)
    assert inventory.main([]) == 0
    assert "no ptxas: changed kernels stay unmeasured" in capsys.readouterr().err
    assert inventory.TABLE.read_text(encoding="utf-8") == table()


@pytest.mark.parametrize("name", OPS)
def test_each_contract_has_its_five_parts_and_names_the_parameters(name):
    text = (inventory.PTX / name / "op.py").read_text(encoding="utf-8").split('"""')[1]
    assert text.startswith(f"{name}: ")
    assert len(text.splitlines()) < 25
    assert all(f"\n{label} " in text for label in LABELS)
    assert all(param.name in text for param in OPS[name].params)
    assert OPS[name].tolerance in TOLERANCES


@pytest.mark.parametrize("name", OPS)
def test_the_reference_takes_the_parameters_of_the_op(name):
    reference = inspect.signature(
        getattr(inventory.import_module(f"ptx.{name}.ref"), name)
    ).parameters
    axes = {axis for param in OPS[name].params for axis in param.shape or ()}
    given = {param.name for param in OPS[name].params if param.name not in axes}
    assert set(reference) == given
    optional = {n for n, p in reference.items() if p.default is not inspect.Parameter.empty}
    assert optional <= {param.name for param in OPS[name].params if param.out}


@pytest.mark.parametrize("name", OPS)
def test_every_kernel_is_run_by_its_ops_tests(name):
    text = (inventory.PTX / name / f"test_{name}.py").read_text(encoding="utf-8")
    assert not OPS[name].kernels or "kernels(OP" in text


def test_a_folder_that_misses_a_part_does_not_load(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    for part in ("__init__.py", "op.py", "test_toy.py"):
        (folder / part).touch()
    with pytest.raises(InventoryError, match=r"toy: no ref\.py"):
        check_folder(folder)


def test_kernels_and_files_must_name_each_other(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    check_op(TOY, folder, targets())
    kernels = (Kernel("sm_90a", _launch), Kernel("portable", _launch))
    with pytest.raises(InventoryError, match=r"toy: kernels \['portable', 'sm_90a'\], PTX files"):
        check_op(replace(TOY, kernels=kernels), folder, targets())
    (folder / "portable.ptx").touch()
    (folder / "sm_90a.ptx").touch()
    with pytest.raises(InventoryError, match=r"toy: kernels .* and no examples to assemble them"):
        check_op(replace(TOY, kernels=kernels), folder, targets())
    check_op(replace(TOY, kernels=kernels, examples=({"T": 1},)), folder, targets())
    with pytest.raises(InventoryError, match="toy: the last kernel is sm_90a, expected portable"):
        check_op(replace(TOY, kernels=kernels[::-1]), folder, targets())
    with pytest.raises(InventoryError, match="toy: kernel target sm_1, known: portable, "):
        check_op(replace(TOY, kernels=(Kernel("sm_1", _launch),)), folder, targets())
    with pytest.raises(InventoryError, match="other: its op is named toy"):
        check_op(TOY, tmp_path / "other", targets())


def test_targets_run_known_kernels_their_own_first_and_portable_last():
    known = targets()
    for name, target in known.items():
        assert target.runs[0] == name
        assert target.runs[-1] == "portable"
        assert set(target.runs) <= set(known)


# Op records


def test_pick_takes_the_first_kernel_that_fits():
    wide = Kernel("sm_90a", _launch, fits=lambda dims: dims["K"] % 64 == 0)
    op = replace(TOY, kernels=(wide, Kernel("portable", _launch)))
    known = targets()
    assert pick(op, known["sm_90a"], {"T": 1, "K": 128}).target == "sm_90a"
    assert pick(op, known["sm_90a"], {"T": 1, "K": 65}).target == "portable"
    assert pick(op, known["sm_120a"], {"T": 1, "K": 128}).target == "portable"
    with pytest.raises(
        OpError, match="toy: no kernel fits target sm_80 at T=3 K=65; kernels: sm_90a"
    ):
        pick(replace(op, kernels=(wide,)), known["sm_80"], {"T": 3, "K": 65})
    with pytest.raises(OpError, match="kernels: none"):
        pick(TOY, known["sm_80"], {"T": 3})


def test_a_kernel_that_leads_goes_before_those_listed_ahead_of_it():
    long = Kernel("sm_80", _launch, form="long", fits=lambda dims: dims["K"] < 9,
                  leads=lambda dims: dims["T"] > 1)
    op = replace(TOY, kernels=(Kernel("sm_80", _launch), long, Kernel("portable", _launch)))
    card = targets()["sm_80"]
    found = [pick(op, card, {"T": n_tokens, "K": n_k}).stem
             for n_tokens, n_k in ((1, 8), (2, 8), (2, 9))]
    assert found == ["sm_80", "sm_80_long", "sm_80"]
    stems = [kernel.stem for kernel in op.best_first({"T": 2})]
    assert stems == ["sm_80_long", "sm_80", "portable"]


def test_bind_names_the_axes_and_folds_trailing_ones():
    assert TOY.bind({"x": (5, 2, 3), "y": (5, 4)}) == {"T": 5, "K": 6, "N": 4}


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((5, 6), (4, 3), r"toy: y is \[4, 3\], expected \[5, N\]"),
        ((5,), (5, 3), r"toy: x is \[5\], expected \[T, K\]"),
        ((0, 6), (0, 3), r"toy: x is \[0, 6\], expected \[T, K\] with every axis at least 1"),
        ((5, 3), (5, 3), "toy: needs N below K, found T=5 K=3 N=3"),
    ],
)
def test_bind_refuses(x, y, message):
    with pytest.raises(OpError, match=message):
        TOY.bind({"x": x, "y": y})
