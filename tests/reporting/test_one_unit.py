"""Columns of durations are told in one unit, as far as that can be read; so are a mean and its interval."""

from __future__ import annotations

import math

import pytest

from fairlead.experiments.metric_columns import format_differences, format_values, format_with_error

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([5 * HOUR, 30 * HOUR, None], ["5.0 h", "30.0 h", "–"]),
        ([3.8 * DAY, 46.8 * HOUR, 8 * HOUR, 2.6 * MINUTE], ["3.8 d", "1.9 d", "8.0 h", "2.6 min"]),
        ([0.0, 40.0, math.inf], ["0 s", "40.0 s", "–"]),
        ([math.nan], ["–"]),
        ([], []),
    ],
)
def test_a_column_of_durations_is_in_one_unit_unless_decades_lie_between(values, texts):
    assert format_values(values, "duration") == texts


@pytest.mark.parametrize(
    ("value", "width", "shows", "text"),
    [
        (23.4 * HOUR, 5.4 * HOUR, "duration", "23.4 ± 5.4 h"),
        (23.4 * HOUR, 5.4 * DAY, "duration", "23.4 ± 130 h"),
        (0.125, 0.01, "share", "12.5 ± 1.0 %"),
        (1.5, 0.25, "ratio", "1.50 ± 0.25"),
        (90.0, None, "duration", "1.5 min"),
        (None, 3.0, "duration", "–"),
    ],
)
def test_an_interval_is_in_the_unit_of_its_mean(value, width, shows, text):
    assert format_with_error([value], [width], shows) == [text]


def test_a_small_difference_beside_a_large_one_has_two_digits():
    unit, texts = format_differences([40 * HOUR, 36.0, 0.0, 30.0], [2 * HOUR, 9.0, 0.0, HOUR], "duration")
    assert (unit, texts) == ("h", ["+40.0 ± 2.0", "+0.010 ± 0.003", "+0.0 ± 0.0", "+0.0 ± 1.0"])
