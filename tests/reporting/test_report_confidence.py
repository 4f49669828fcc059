"""Student's t against published quantiles, and the interval it gives."""

from __future__ import annotations

import math
import statistics

import pytest

from fairlead.experiments.metrics import interval, student_t


@pytest.mark.parametrize(
    ("freedom", "level", "expected"),
    [
        (1, 0.95, 12.7062), (2, 0.95, 4.3027), (3, 0.95, 3.1824), (4, 0.95, 2.7764), (9, 0.95, 2.2622), (29, 0.95, 2.0452),
        (30, 0.99, 2.7500), (120, 0.95, 1.9799), (1000, 0.95, 1.9623), (5, 0.90, 2.0150), (100_000, 0.95, 1.9600),
    ],
)  # fmt: skip
def test_quantiles_of_the_tables(freedom, level, expected):
    assert student_t(freedom, level) == pytest.approx(expected, abs=6e-5)


def test_interval_by_hand():
    mean, half = interval([10.0, 12.0, 14.0])
    assert mean == 12
    assert half == pytest.approx(4.3027 * 2 / math.sqrt(3), rel=1e-4)


def test_a_single_value_has_no_width_and_none_has_no_mean():
    assert interval([3.0])[0] == 3.0
    assert math.isnan(interval([3.0])[1])
    assert all(math.isnan(part) for part in interval([math.nan]))


def test_the_far_formula_meets_the_near_one():
    assert student_t(1001, 0.99) == pytest.approx(student_t(1000, 0.99), rel=1e-5)


def test_equal_values_have_no_width():
    assert interval([5.0] * 4) == (5.0, 0.0)
    assert interval([1.0, 2.0, math.nan])[0] == statistics.fmean([1, 2])


def test_a_level_outside_of_zero_and_one_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        interval([1.0, 2.0], 95)
