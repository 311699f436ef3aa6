"""Protects the instruction families: assembly, refusals, execution, operands and their judge."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ptx.assemble import assemble_all, find_ptxas
from ptx.devices.cuda import CudaDevice, available
from ptx.devices.emulator import EmulatorDevice
from ptx.emulator import EmulatorError, Machine, Memory, parse
from ptx.feasibility import cases
from ptx.feasibility.assembly import assembled, for_want_of_it, refused
from ptx.feasibility.codes import FORMATS, e2m1, e4m3, packed_nibbles
from ptx.feasibility.families import HERE, REGISTERS, VARIANTS
from ptx.feasibility.runs import against, against_numpy, arch_of, emulators, run

needs_ptxas = pytest.mark.skipif(
    find_ptxas() is None, reason="no ptxas: install nvidia-cuda-nvcc or put ptxas on the path"
)
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.title)
BY_TITLE = {variant.title: variant for variant in VARIANTS}
BUDGET = BY_TITLE["setmaxnreg dec 40, inc 216"]
SCALED = BY_TITLE["mma_block_scaled mxf4nvf4 scale_vec::4X, selectors 0 0"]


def test_every_source_is_in_the_table_and_none_is_an_op():
    assert {path.stem for path in HERE.glob("*.ptx")} == {variant.family for variant in VARIANTS}
    assert len(BY_TITLE) == len(VARIANTS)
    # The inventory takes folders that have one.
    assert not (HERE / "op.py").exists()


# Assembly


@needs_ptxas
@every_variant
def test_it_assembles_where_the_table_says(variant):
    reports = assembled(variant)
    assert reports
    assert not {arch: report for arch, report in reports.items() if not report.clean}


@needs_ptxas
@every_variant
def test_a_target_that_lacks_it_is_refused_for_want_of_it(variant):
    reports = refused(variant)
    assert reports
    assert not {target: r for target, r in reports.items() if not for_want_of_it(r)}


@every_variant
def test_the_emulator_refuses_that_target_too(variant):
    for target in variant.lacking:
        with pytest.raises(EmulatorError, match=r"limits: .* needs sm_"):
            Machine(Memory(), target).launch(parse(variant.text(target)), variant.family, 1, 32)


@needs_ptxas
def test_other_complaints_are_no_refusal():
    good = BY_TITLE["movmatrix m8n8.trans"].text("sm_75")
    taken, broken = assemble_all([(good, "sm_75"), (good.replace("[px]", "[nowhere]"), "sm_75")])
    assert taken.clean
    assert broken.error
    assert not for_want_of_it(taken)
    assert not for_want_of_it(broken)


# Budgets of registers


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_registers_that_are_taken_are_used(arch):
    """The sums do not fit into the registers at entry: only what was taken keeps them."""
    with_change, without, unbound = assemble_all([
        (replace(BUDGET, constants={**REGISTERS, **change}).text(arch), arch)
        for change in ({}, {"changes": False}, {"bound": ".reqntid 256, 1, 1"})
    ])
    assert with_change.registers == without.registers == REGISTERS["entry"] < REGISTERS["n"]
    assert with_change.clean
    assert without.spill_bytes
    # Without a bound of registers ptxas ignores the instruction, and nobody is told.
    assert unbound.registers > REGISTERS["n"]


def test_nobody_waits_for_registers_that_nobody_gives():
    assert 2 * REGISTERS["entry"] >= REGISTERS["produce"] + REGISTERS["consume"]


# Execution


@every_variant
def test_the_emulator_computes_what_numpy_does(variant):
    for case in variant.cases():
        first, *others = (run(device, variant, case) for device in emulators(variant))
        assert all(other.tobytes() == first.tobytes() for other in others)
        outcome = against_numpy(first, case)
        assert outcome.passed, f"{case.name}: {outcome}"


@pytest.fixture(scope="module")
def card():
    found = available()
    if isinstance(found, str):
        pytest.skip(found)
    return CudaDevice()


@pytest.mark.gpu
@every_variant
def test_a_card_computes_what_numpy_and_the_emulator_do(card, variant):
    if variant.target_for(arch_of(card)) is None:
        pytest.skip(f"{card.description} lacks it: {', '.join(variant.targets)}")
    for case in variant.cases():
        got = run(card, variant, case)
        outcomes = {"numpy": against_numpy(got, case)}
        if case.name == "random":
            emulated = run(emulators(variant)[0], variant, case)
            outcomes["emulator"] = against(got, emulated, case)
        print(variant.title, case.name, outcomes)
        assert all(outcome.passed for outcome in outcomes.values()), f"{case.name}: {outcomes}"


def test_selectors_name_the_lanes_that_have_the_scales():
    """Scales of other lanes are 448, so a wrong selector cannot go unseen."""
    case = SCALED.cases()[0]
    text = SCALED.text("sm_120a")
    for right, wrong in (
        ("scale_of_a, {0, 0}", "scale_of_a, {0, 1}"), ("scale_of_b, {0, 0}", "scale_of_b, {0, 3}"),
    ):
        assert right in text
        device = EmulatorDevice("sm_120a")
        other = SimpleNamespace(
            family=SCALED.family, title="other", launch=SCALED.launch, n_launches=1, maps=(),
            target_for=SCALED.target_for, text=lambda _, a=right, b=wrong: text.replace(a, b),
        )
        assert not against_numpy(run(device, other, case), case).passed


# Operands and the judge


def test_exact_operands_are_exact_in_any_order(monkeypatch):
    """Sums in the accumulator's own precision, one term after the other, in random orders."""
    product, seen = cases._product, []

    def spy(name, inputs, a, b, c, bound):
        case = product(name, inputs, a, b, c, bound)
        seen.append((name, a, b, c, case.want))
        return case

    monkeypatch.setattr(cases, "_product", spy)
    for variant in VARIANTS:
        variant.cases()
    found = [rest for name, *rest in seen if name == "exact"]
    assert len(found) == 14
    rng = np.random.default_rng(1)
    for a, b, c, want in found:
        terms = np.concatenate([(a[:, None, :] * b[None, :, :]), c[:, :, None]], axis=2)
        for _ in range(3):
            total = np.zeros_like(c)
            for k in rng.permutation(terms.shape[2]):
                total = total + terms[:, :, k].astype(c.dtype)
            assert np.array_equal(total, want)


def test_codes_mean_what_their_formats_say():
    assert e2m1(np.arange(16)).tolist() == [
        0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6
    ]
    known = {0x00: 0, 0x01: 2**-9, 0x07: 7 * 2**-9, 0x08: 2**-6, 0x38: 1, 0xBC: -1.5, 0x7E: 448}
    assert e4m3(np.array(list(known))).tolist() == list(known.values())
    assert np.isnan(e4m3(np.array([0x7F, 0xFF]))).all()
    assert packed_nibbles(np.array([[1, 2, 15, 8]])).tolist() == [[0x21, 0x8F]]
    values = np.array([0.0, 1, -1.5, 2.0**-6, -96])
    for value_of, code_of in FORMATS.values():
        assert value_of(code_of(values)).tolist() == values.tolist()


def test_the_judge_sees_one_bit_and_one_nan():
    near, far = BY_TITLE["mma bf16 m16n8k16"].cases()
    right = near.want.copy()
    assert against_numpy(right, near).passed
    right.view(np.uint32)[3, 3] ^= 1
    assert not against_numpy(right, near).passed
    nothing = replace(near, want=np.zeros_like(near.want))
    assert against_numpy(nothing.want, nothing).passed
    assert not against_numpy(-nothing.want, nothing).passed
    for shift, passes in ((0.5, True), (1.5, False), (np.nan, False)):
        got = far.want + shift * far.bound * far.magnitude * (np.arange(128).reshape(16, 8) == 77)
        assert against_numpy(got.astype(np.float32), far).passed == passes
