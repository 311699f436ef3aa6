"""Guards the KV pool against a model that keeps a value for every cell and never shares a page."""

import random

import numpy as np
import pytest

from engine.errors import RuntimeFailure
from engine.kv_cache import PAGE_TOKENS, SPARE_PAGES, KvPool, KvSequence, pages_for


class Rows:
    """One value for each cell of the pool, as the device would hold them."""

    def __init__(self, n_cells: int) -> None:
        self.values = np.zeros(pages_for(n_cells) * PAGE_TOKENS, np.int64)
        self.n_copies = 0
        self.pool = KvPool(n_cells, self.copy_page)

    def copy_page(self, source: int, target: int) -> None:
        self.n_copies += 1
        pages = self.values.reshape(-1, PAGE_TOKENS)
        pages[target] = pages[source]

    def feed(self, sequence: KvSequence, values: list[int], start: int | None = None) -> None:
        start = sequence.length if start is None else start
        self.pool.reserve([(sequence, start, len(values))])
        self.values[sequence.cells()[start : start + len(values)]] = values
        sequence.length = start + len(values)

    def held(self, sequence: KvSequence) -> list[int]:
        return self.values[sequence.cells()[: sequence.length]].tolist()


def test_cells_are_used_to_the_last_one_and_none_beyond() -> None:
    for n_cells in (1, 15, 16, 17, 100):
        rows = Rows(n_cells)
        a, b = rows.pool.sequence(), rows.pool.sequence(0.5)
        for value in range(n_cells):
            rows.feed(a if value % 2 else b, [value])
        with pytest.raises(RuntimeFailure, match=f"{n_cells} cells used, 1 more wanted"):
            rows.feed(a, [1])
        rows.pool.drop(b)
        assert rows.pool.used_cells() == a.length


def test_a_refused_reservation_changes_nothing() -> None:
    rows = Rows(40)
    a, b = rows.pool.sequence(), rows.pool.sequence()
    rows.feed(a, list(range(20)))
    rows.feed(b, list(range(10)))
    before = (list(a.pages), list(b.pages), rows.held(a), rows.held(b), rows.pool.used_cells())
    for wanted in ([(a, 20, 5), (b, 10, 6)], [(a, 15, 16), (b, 10, 0)], [(a, 0, 31)]):
        with pytest.raises(RuntimeFailure, match="40 in total"):
            rows.pool.reserve(wanted)
        after = (list(a.pages), list(b.pages), rows.held(a), rows.held(b), rows.pool.used_cells())
        assert after == before


def test_cells_behind_the_start_are_given_up_for_new_ones() -> None:
    rows = Rows(20)
    a = rows.pool.sequence()
    rows.feed(a, list(range(20)))
    rows.feed(a, [90] * 15, start=5)
    assert rows.held(a) == [0, 1, 2, 3, 4, *[90] * 15]


def test_a_shared_page_is_copied_by_whoever_writes_first() -> None:
    rows = Rows(64)
    a, b = rows.pool.sequence(), rows.pool.sequence()
    rows.feed(a, list(range(20)))
    rows.pool.share(a, 18, b)
    assert rows.pool.used_cells() == 20
    assert a.pages == b.pages
    rows.feed(b, [100])
    assert rows.n_copies == 1
    assert a.pages[0] == b.pages[0]
    assert a.pages[1] != b.pages[1]
    rows.feed(a, [200])
    assert rows.n_copies == 1
    assert rows.held(a) == [*range(20), 200]
    assert rows.held(b) == [*range(18), 100]
    assert rows.pool.used_cells() == 22


def test_a_whole_shared_page_is_never_copied() -> None:
    rows = Rows(64)
    a, b = rows.pool.sequence(), rows.pool.sequence()
    rows.feed(a, list(range(32)))
    rows.pool.share(a, 32, b)
    rows.feed(a, [1])
    rows.feed(b, [2])
    assert rows.n_copies == 0
    assert rows.pool.used_cells() == 34


def test_sharing_with_oneself_the_second_time_gives_up_the_first() -> None:
    rows = Rows(32)
    a, b = rows.pool.sequence(), rows.pool.sequence()
    for n in (20, 10, 0, 16):
        rows.pool.truncate(a, 0)
        rows.feed(a, list(range(n)))
        rows.pool.share(a, n, b)
        assert (rows.held(b), rows.pool.used_cells()) == (list(range(n)), n)


def test_pages_follow_each_other_where_they_can() -> None:
    rows = Rows(320)
    a, b = rows.pool.sequence(0.0), rows.pool.sequence(0.5)
    for _ in range(6):
        rows.feed(a, [1] * 16)
        rows.feed(b, [2] * 16)
    for sequence in (a, b):
        first = sequence.pages[0]
        assert sequence.pages == list(range(first, first + 6))


def test_more_sequences_than_spare_pages_are_told_so() -> None:
    rows = Rows(1000)
    for _ in range(SPARE_PAGES + 63):
        rows.feed(rows.pool.sequence(), [1])
    with pytest.raises(RuntimeFailure, match=r"all 319 pages .* are held by 320 sequences"):
        rows.feed(rows.pool.sequence(), [1])


def test_the_table_follows_pages_that_changed_hands() -> None:
    rows = Rows(200)
    a, b = rows.pool.sequence(), rows.pool.sequence()
    rows.feed(a, list(range(32)))
    a.cells()
    rows.pool.truncate(a, 16)
    rows.feed(b, [7] * 40)
    rows.feed(a, [8] * 16)
    assert rows.held(a) == [*range(16), *[8] * 16]
    assert rows.held(b) == [7] * 40


def replace(rows: Rows, sequence: KvSequence, kept: int, values: list[int]) -> None:
    rows.pool.replace(sequence, kept, kept + len(values))
    rows.values[sequence.cells()[kept : kept + len(values)]] = values


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_operations_keeps_every_value_and_count(seed: int) -> None:
    """Cells are named by when they were written, so shared ones have one name in all holders."""
    rng = random.Random(seed)
    n_cells = rng.choice([40, 64, 150])
    rows = Rows(n_cells)
    held: dict[int, list[int]] = {}
    sequences = {key: rows.pool.sequence(key / 5) for key in range(5)}
    held = {key: [] for key in sequences}
    written = 0

    def used(after: dict[int, list[int]]) -> int:
        return len({value for values in after.values() for value in values})

    for _ in range(120):
        key, other = rng.sample(range(5), 2)
        action = rng.choice(["feed", "feed", "truncate", "share", "replace", "back"])
        n = rng.choice([1, 2, 15, 16, 17])
        fresh = list(range(written + 1, written + n + 1))
        written += n
        if action == "truncate":
            kept = rng.randint(0, len(held[key]))
            rows.pool.truncate(sequences[key], kept)
            held[key] = held[key][:kept]
        elif action == "share":
            kept = rng.randint(0, len(held[key]))
            rows.pool.share(sequences[key], kept, sequences[other])
            held[other] = held[key][:kept]
        else:
            kept = len(held[key]) if action == "feed" else rng.randint(0, len(held[key]))
            after = {**held, key: held[key][:kept] + fresh}
            try:
                if action == "replace":
                    replace(rows, sequences[key], kept, fresh)
                else:
                    rows.feed(sequences[key], fresh, start=kept)
            except RuntimeFailure:
                assert used(after) > n_cells
            else:
                assert used(after) <= n_cells
                held = after
        assert rows.pool.used_cells() == used(held)
        for name, sequence in sequences.items():
            assert rows.held(sequence) == held[name], (seed, action)
    for key in sequences:
        rows.pool.drop(sequences[key])
    assert rows.pool.used_cells() == 0
