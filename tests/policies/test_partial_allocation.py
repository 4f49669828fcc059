"""Partial allocation: the division against enumeration, and what winners pay against its definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fairlead.core.rng import stream
from fairlead.policies.ranking.themis import Bid, partial_allocation

MIN_KEPT = 1 / math.e


def best_of(bids: list[Bid], pool: int) -> tuple[int, float]:
    """How many who are worth nothing with nothing are served at most, and then the largest product, as a logarithm."""
    found = (-1, -math.inf)
    for sizes in itertools.product(*((0, *bid.sizes) for bid in bids)):
        if sum(sizes) <= pool:
            found = max(found, value(bids, sizes))
    return found


def value(bids: list[Bid], sizes: tuple[int, ...]) -> tuple[int, float]:
    served, total = 0, 0.0
    for bid, size in zip(bids, sizes):
        if size:
            served += bid.nothing == 0
            total += math.log(bid.worths[bid.sizes.index(size)])
        elif bid.nothing:
            total += math.log(bid.nothing)
    return served, total


def some_bids(seed: int) -> tuple[list[Bid], int]:
    rng = stream(seed, "testing", "auction")
    bids = []
    for _ in range(int(rng.integers(1, 5))):
        asked, nothing = int(rng.integers(1, 5)), float(rng.choice([0.0, 0.3, 1.0]))
        sizes = tuple(range(1, asked + 1)) if rng.random() < 0.6 else (asked,)
        bids.append(Bid(sizes, tuple(nothing + float(rng.uniform(0.1, 2.0)) * size for size in sizes), nothing))
    return bids, int(rng.integers(1, 9))


@pytest.mark.parametrize("seed", range(40))
def test_the_product_of_worths_is_the_largest_there_is(seed):
    bids, pool = some_bids(seed)
    given, kept = partial_allocation(bids, pool)
    assert given.sum() <= pool
    served, total = value(bids, tuple(given.tolist()))
    most, best = best_of(bids, pool)
    assert served == most
    assert total == pytest.approx(best, abs=1e-5)
    assert ((kept >= MIN_KEPT - 1e-12) & (kept <= 1)).all()


@pytest.mark.parametrize("seed", range(40))
def test_a_winner_pays_what_its_presence_costs_the_others(seed):
    bids, pool = some_bids(seed)
    given, kept = partial_allocation(bids, pool)
    for at in given.nonzero()[0].tolist():
        others = bids[:at] + bids[at + 1 :]
        with_it = value(others, tuple(np.delete(given, at).tolist()))
        without = best_of(others, pool)
        lost = math.exp(with_it[1] - without[1]) if with_it[0] == without[0] else 0.0
        assert kept[at] == pytest.approx(max(MIN_KEPT, lost), abs=1e-4)


def test_where_there_is_enough_nobody_pays():
    given, kept = partial_allocation([Bid((1, 2), (1.0, 2.0), 0.0), Bid((3,), (1.0,), 0.5)], 5)
    assert given.tolist() == [2, 3]
    assert kept.tolist() == [1.0, 1.0]


def test_of_equally_fair_divisions_the_first_bidder_has_the_better_one():
    linear = Bid((1, 2, 3), (1.0, 2.0, 3.0), 0.0)
    assert partial_allocation([linear, linear, linear], 4)[0].tolist() == [2, 1, 1]
