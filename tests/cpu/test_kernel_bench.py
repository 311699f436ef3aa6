"""Protects `ptx.bench`: what it feeds every op lies in the op's domain, and its bytes are right."""

import pytest

from ptx.bench import IN_PART, SCALARS, VALUES, buffers_for, bytes_of, main
from ptx.devices import cuda
from ptx.devices.emulator import EmulatorDevice
from ptx.inventory import ops

OPS = ops()
# Small dims for axes of real use, such that every op's requirements hold.
SMALL = {
    "T": 2, "S": 2, "D": 8, "H": 4, "G": 2, "E": 8, "2E": 16, "C": 32, "P": 2, "V": 64, "W": 2,
    "W-1": 1, "S+1": 3, "N": 8, "K": 128, "J": 64, "R": 1, "F": 4, "Nv": 2, "Dv": 4, "Dk": 6,
    "B": 16, "I": 4, "Q": 2, "A": 3, "2": 2, "4": 4,
}
OWN = {
    "attention": {"W": 16}, "qgate_norm_rope_append_kv": {"J": 2}, "rope_append_kv": {"J": 4},
    "adjust_logits": {"B": 3}, "delta_rule": {"P": 4}, "delta_rule_chunked": {"P": 4},
    "causal_conv_silu": {"P": 4}, "repack_tiles": {"J": 8, "P": 2},
    "unpack_tiles": {"J": 8, "P": 2},
    "copy_rows": {"N": 2}, "copy_rows_bf16": {"N": 2}, "encode_bf16": {"K": 5},
}
SPLITS = {"split3": {"A": 3, "B": 3, "C": 2}, "split4": {"A": 3, "B": 2, "C": 2, "D": 1}}


def small(op):
    dims = {axis: SMALL[axis] for p in op.params for axis in p.shape or ()}
    dims.update(OWN.get(op.name, {}))
    for ending, widths in SPLITS.items():
        if op.name.endswith(ending):
            dims.update(widths)
    return dims


@pytest.mark.parametrize("name", OPS)
def test_every_op_runs_on_what_it_is_given(name):
    op, device = OPS[name], EmulatorDevice()
    dims = small(op)
    args = buffers_for(device, op, dims)
    device.launch(op, **args)
    buffers = [value for value in args.values() if hasattr(value, "nbytes")]
    assert bytes_of(op, dims) == sum(buffer.nbytes for buffer in buffers)


def test_tables_name_what_there_is():
    names = {p.name for op in OPS.values() for p in op.params}
    assert set(VALUES) <= names
    assert set(SCALARS) <= names
    assert set(OPS) >= IN_PART


def test_without_a_card_it_says_so(capsys):
    if not isinstance(cuda.available(), str):
        pytest.skip("there is a card")
    assert main([]) == 1
    assert "no card" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), [
    (["nothing"], "no op 'nothing'; known: add_rmsnorm, "),
    (["argmax", "--dims", "T=1"], "argmax: --dims needs T, V, found T=1"),
    (["argmax", "--dims", "T=one"], "invalid axis_lengths value: 'T=one'"),
])
def test_what_cannot_be_measured_is_named(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
