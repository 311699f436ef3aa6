"""Owns what the tests of the op benchmark share: cards of paper, small cases, made-up figures."""

from argparse import Namespace

from engine.bench_ops.case import Bar, Case
from engine.bench_ops.judge import Judged
from engine.bench_ops.measure import Takes, Timed
from engine.bench_ops.peers import Peer
from engine.bench_ops.timing import Effort, Spread
from ptx.devices.cuda import CudaDevice
from tests.cpu.fake_cuda import FakeCuda

EFFORT = Effort(5, 4.0, 1.0)
HOSTILE = 'a<b>&"c"\' ]]> \x00\x1b\ud800 <script>'


def card():
    """A device on a stand-in with room for small cases."""
    return CudaDevice(bindings=FakeCuda(1 << 28))


def options(*names, quick=False, peers=False):
    return Namespace(ops=list(names), quick=quick, peers=peers)


def norm_case(label="norm", op="rmsnorm", bar=None, **changes):
    given = {
        "family": "small", "dims": {"T": 2, "D": 64}, "kind": "bytes",
        "bytes_each": {"T D": 8, "D": 4}, "flops_each": {"T D": 4}, **changes,
    }
    return Case(label, op=op, bar=bar, **given)


def spread_of(us):
    return Spread(us, us * 0.9, us * 0.95, us * 1.1, 7, 40)


def timed(case=None, us=10.0, kernel="sm_80", picked=True):
    case = case or norm_case()
    return Timed(case, kernel, case.dims, spread_of(us), Takes(40, 0, 1024, 0.5), picked, 3)


def judged(label="norm", us=10.0, share=0.5, limit_us=8.0, kind="bytes"):
    case = norm_case(label, bar=Bar("us", 8.0), kind=kind)
    return Judged(timed(case, us), share, limit_us, Peer("torch", spread_of(20.0)))
