"""Protects how weights cross to a device that copies late: every row, whatever becomes of the array
that it came from, and no page-locked half written before the device has read it."""

import numpy as np
import pytest

from engine.compiled import uploads
from engine.compiled.uploads import Uploads
from ptx.device import DeviceError
from tests.compiled_hybrid import KernelHost
from tests.deferred_host import DeferredHost

SHAPES = {"one row": (1, 5), "rows of a piece": (4, 8), "more": (23, 3, 2), "no rows": (0, 4),
          "cells": (37,), "a row that is longer than a half": (3, 70)}


@pytest.mark.parametrize("device_of", [DeferredHost, KernelHost])
def test_all_rows_arrive(monkeypatch, device_of):
    monkeypatch.setattr(uploads, "HALF_BYTES", 64)
    device, source, arrived = device_of(), np.random.default_rng(1), {}
    with Uploads(device) as crossing:
        for name, shape in SHAPES.items():
            for dtype, cells in (("u8", np.uint8), ("bf16", np.uint16), ("f32", np.float32)):
                given = source.integers(0, 200, shape).astype(cells)
                buffer = device.allocate(shape, dtype, name)
                want = given.copy()
                crossing.put(buffer, given)
                given[...] = 0
                arrived[name, dtype] = (buffer, want)
    for name, (buffer, want) in arrived.items():
        assert np.array_equal(device.download(buffer), want), name


def test_an_array_of_another_shape_is_refused():
    device = DeferredHost()
    buffer = device.allocate((2, 3), "f32", "x")
    with Uploads(device) as crossing, pytest.raises(DeviceError):
        crossing.put(buffer, np.ones((3, 2), np.float32))


def test_a_load_that_fails_waits_for_what_is_under_way():
    device = DeferredHost()
    buffer = device.allocate((2, 3), "f32", "x")

    def load():
        with Uploads(device) as crossing:
            crossing.put(buffer, np.ones((2, 3), np.float32))
            raise KeyError("planted")

    with pytest.raises(KeyError):
        load()
    assert not device.waiting
