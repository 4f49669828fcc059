"""Answers that are equally cheap, and how far to lean to which; and hulls that were met before."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from fairlead.policies.allocation.lp.lower_hulls import Tie, distinct, filling, hulls_of


@pytest.mark.parametrize("size", range(1, 6))
def test_what_fills_some_rows_is_the_solution_of_their_equations(size):
    rng = np.random.default_rng(size)
    columns, free = rng.uniform(-1, 1, (size, 7)), rng.uniform(0, 1, 7)
    full = rng.permutation(7)[:size]
    part = filling(columns.tolist(), free.tolist(), full.tolist())
    assert part == pytest.approx(np.linalg.solve(columns[:, full].T, free[full]))


def test_rows_that_are_filled_in_many_ways_or_in_none_have_no_answer():
    assert filling([[1.0, 2.0], [2.0, 4.0]], [1.0, 1.0], [0, 1]) is None
    assert filling([[1.0, 2.0]], [1.0, 1.0], [0, 1]) is None
    assert filling([], [1.0, 1.0], []) == []


def test_of_answers_that_are_the_same_to_a_class_one_is_a_tie():
    ties = [Tie(0, 1, [0.1, -0.2]), Tie(0, 2, [0.1, -0.2]), Tie(1, 1, [0.1, -0.2]), Tie(1, 3, [0.1, -0.3])]
    assert [(tie.group, tie.answer) for tie in distinct(ties, 3)] == [(0, 1), (1, 1), (1, 3)]
    assert len(distinct(ties, 1)) == 2  # more than can be told apart by so many types


def test_hulls_are_the_same_whether_their_rates_were_met_before_or_not():
    rng = np.random.default_rng(0)
    rates = rng.choice([0.0, 1.0, 2.0, 3.5], (30, 4)) + np.eye(30, 4)
    at_once = hulls_of(rates)
    for row, one in enumerate(rates):
        alone = hulls_of(one[None])
        assert (alone.answers[0] == at_once.answers[row]).all()
        assert (alone.valid[0] == at_once.valid[row]).all()
    turned = hulls_of(rates[::-1])
    assert (turned.grid == at_once.grid[::-1]).all()
    assert (turned.by_point == at_once.by_point[::-1]).all()
    assert (np.isinf(turned.barred) == ~turned.valid).all()


def test_moments_with_more_classes_than_are_kept_do_not_pile_up_either():
    """Eight types: the classes of each moment have more numbers than all that are kept together."""
    rng, sizes = np.random.default_rng(0), list[int]()
    tracemalloc.start()
    try:
        for _ in range(8):
            hulls_of(rng.uniform(0.5, 5.0, (24, 8)))
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes) < 4 * sizes[0]
