"""What time is worth to members that count by their weights, for all classes at once: against each class and member alone."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.policies.allocation.lp.colocation_columns import ColumnSides
from fairlead.policies.allocation.lp.job_classes import column_hash_fractions, hash_fractions
from fairlead.policies.allocation.lp.rank_weights import RankWeights, SpeedLayouts, ranges


def ranks_of(rng, classes=7):
    """Classes of up to 20 members with up to 9 ways, two of them often at the same speed; one class has none of either."""
    count = rng.integers(1, 21, classes)
    ways = rng.integers(1, 10, classes)
    count[2] = ways[2] = 0
    owner = np.arange(classes).repeat(ways)
    speed = rng.choice(np.linspace(0.05, 1.0, 12), len(owner))
    order = np.lexsort((-speed, owner))
    every = np.arange(len(owner))
    sides = ColumnSides(owner, every, speed[order], np.ones(len(owner)), owner.searchsorted(np.arange(classes + 1)))
    weights = np.concatenate([np.sort(rng.uniform(0.1, 1.0, many))[::-1] for many in count])
    return RankWeights(weights, count, sides, np.zeros(0)), weights, sides


def time_for(rng, ranks, sides):
    """Time on each way, no more for a class than it has members."""
    time = rng.uniform(0.0, 2.0, len(sides.owner)) * (rng.random(len(sides.owner)) < 0.7)
    total = np.bincount(sides.owner, time, minlength=len(ranks.count))
    return time * np.minimum(1.0, ranks.count / np.maximum(total, 1e-9))[sides.owner]


@pytest.mark.parametrize("seed", range(20))
def test_a_supply_is_worth_what_it_gives_to_the_heaviest_first(seed):
    rng = np.random.default_rng(seed)
    ranks, weights, sides = ranks_of(rng)
    time = time_for(rng, ranks, sides)
    laid = ranks.laid(time)
    speed = ranks.member_speeds(laid)
    by_class = np.bincount(ranks.by_block, ranks.worth(laid), minlength=len(ranks.count))
    begin = ranks.count.cumsum() - ranks.count
    for group, (first, many) in enumerate(zip(begin, ranks.count)):
        mine = sides.owner == group
        ends = np.concatenate(([0.0], time[mine].cumsum()))
        work = np.concatenate(([0.0], (time[mine] * sides.speed[mine]).cumsum()))
        expected = np.diff(np.interp(np.arange(many + 1), ends, work))  # a unit of time each
        assert speed[first : first + many] == pytest.approx(expected, abs=1e-9)
        assert by_class[group] == pytest.approx(weights[first : first + many] @ expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_a_bound_holds_for_every_supply_and_touches_its_own(seed):
    rng = np.random.default_rng(seed)
    ranks, _, sides = ranks_of(rng)
    touched = time_for(rng, ranks, sides)
    rows, side, mine, higher, without = ranks.bounds(ranks.laid(touched))
    block = ranks.first[sides.owner] + ranks.block
    for time in (touched, *(time_for(rng, ranks, sides) for _ in range(10))):
        own = np.bincount(block, time, minlength=len(higher))
        above = own.cumsum() - own - (own.cumsum() - own)[ranks.first[ranks.by_block]]
        bound = without + np.bincount(rows, mine * time[side], minlength=len(higher)) + higher * above
        worth = ranks.worth(ranks.laid(time))
        assert (bound >= worth - 1e-9).all()
        if time is touched:
            assert bound == pytest.approx(worth, abs=1e-9)


def test_layouts_of_another_moment_may_have_speeds_that_nobody_has_now():
    count, owner = np.array([3]), np.zeros(2, dtype=np.int64)
    sides = ColumnSides(owner, np.arange(2), np.array([1.0, 0.5]), np.ones(2), np.array([0, 2]))
    foreign = SpeedLayouts(np.zeros(1, dtype=np.int64), np.array([2]), np.array([1.2, 0.7]), np.array([1.0, 2.0]))
    ranks = RankWeights(np.array([3.0, 2.0, 1.0]), count, sides, foreign.speed)
    assert ranks.worth(foreign) == pytest.approx([3.0 * 1.0 + 2.0 * 0.7])  # nobody is faster than 1
    _, _, mine, _, without = ranks.bounds(foreign)
    assert mine == pytest.approx([0.3 * 2.0 + 0.7 * 1.0, 0.5 * 1.0])
    assert without == pytest.approx([0.3 * (3.0 - 2.0) + 0.7 * (5.0 - 2.0)])


def test_some_of_the_layouts_keep_their_pieces():
    laid = SpeedLayouts(np.array([4, 5, 6]), np.array([2, 0, 1]), np.array([0.9, 0.8, 0.7]), np.array([1.0, 2.0, 3.0]))
    some = laid.only(np.array([2, 0]))
    assert some.group.tolist() == [6, 4]
    assert some.speed.tolist() == [0.7, 0.9, 0.8]
    assert ranges(np.array([5, 0]), np.array([2, 3])).tolist() == [5, 6, 0, 1, 2]


def test_lots_of_ways_are_those_of_their_tuples():
    keys = [(1, 7, 1, 1.0, 0), (2, 7, 1, 1.5, 0), (3, 5, 2, 1.0, 4)]
    ways = ([0, 1, 2, 0], [-1, 2, 0, 1], [0, 1, 2, 2], [1.0, 1 / 3, 0.25, 0.123])
    named = [*keys, ()]
    one, two, types, speed = map(np.array, ways)
    drawn = column_hash_fractions(keys, one, two, types, speed)
    assert drawn.tolist() == hash_fractions((named[a], named[b], kind, fast) for a, b, kind, fast in zip(*ways)).tolist()
