"""One progress count over several parts: it never goes back, nor past its total."""

import pytest

from packages.layer_package.errors import Cancelled
from packages.layer_package.meter import Meter


def test_parts_count_on_from_each_other() -> None:
    seen: list[tuple[int, int]] = []
    meter = Meter(100, lambda *n: seen.append(n), None, "a test")
    first = meter.part()
    first(10, 30)
    first(30, 30)
    second = meter.part()
    second(5, 20)
    meter.add(7)
    meter.add(1000)
    meter.part()(0, 9)
    meter.finish()
    assert [done for done, _ in seen] == [10, 30, 35, 42, 100, 100, 100]
    assert {total for _, total in seen} == {100}


def test_a_caller_may_stop_it() -> None:
    asked = iter([False, True])
    meter = Meter(10, None, lambda: next(asked), "a test")
    meter.add(1)
    with pytest.raises(Cancelled, match="a test"):
        meter.add(1)
