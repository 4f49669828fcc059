"""Algorithm 1 in columns against the loop of the paper, entry by entry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.cluster import Floats, Ints
from fairlead.policies.allocation.mechanism.round_mechanism import take_by_priority


def entry_by_entry(
    keys: list[Floats], one: Ints, two: Ints, types: Ints, workers: Ints, capacity: Ints
) -> tuple[list[int], list[int], set[int]]:
    order = sorted(range(len(one)), key=lambda entry: (*(-float(key[entry]) for key in reversed(keys)), entry))
    free, busy, chosen = capacity.tolist(), set[int](), list[int]()
    for entry in order:
        members = {int(one[entry]), int(two[entry])} - {-1}
        if free[types[entry]] >= workers[one[entry]] and not members & busy:
            free[types[entry]] -= int(workers[one[entry]])
            busy |= members
            chosen.append(entry)
    return chosen, free, busy


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    jobs=st.integers(1, 40),
    entries=st.integers(0, 120),
    size=st.integers(0, 6),
    largest=st.sampled_from([1, 2, 8]),
    pairs=st.booleans(),
    distinct=st.integers(1, 50),
)
def test_it_takes_what_the_papers_loop_takes(
    seed: int, jobs: int, entries: int, size: int, largest: int, pairs: bool, distinct: int
) -> None:
    rng = np.random.default_rng(seed)
    capacity, workers = rng.integers(0, size + 1, 3), rng.integers(1, largest + 1, jobs)
    one, types = rng.integers(0, jobs, entries), rng.integers(0, 3, entries)
    two = np.where(pairs & (rng.random(entries) < 0.3), (one + 1) % jobs, -1)
    two[two == one] = -1
    keys = [rng.integers(0, distinct, entries).astype(np.float64) for _ in range(3)]
    taken = take_by_priority(keys, one, two, types, workers, capacity)
    chosen, free, busy = entry_by_entry(keys, one, two, types, workers, capacity)
    assert taken.entries.tolist() == chosen
    assert taken.free == free
    assert set(taken.busy.nonzero()[0].tolist()) == busy


@pytest.mark.parametrize("seed", range(5))
def test_it_does_so_where_many_queue_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, capacity = 900, np.array([36, 36, 36])
    one, types = np.arange(jobs).repeat(3), np.tile(np.arange(3), jobs)
    two, workers = np.full(3 * jobs, -1), rng.choice([1, 2, 4, 8], jobs)
    keys = [rng.random(3 * jobs).round(1) for _ in range(2)] + [rng.random(3 * jobs).round(3)]
    taken = take_by_priority(keys, one, two, types, workers, capacity)
    assert taken.entries.tolist() == entry_by_entry(keys, one, two, types, workers, capacity)[0]
