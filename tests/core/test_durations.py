"""Durations as people write them."""

from __future__ import annotations

import pytest

from fairlead.core.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("2h", 7200),
        ("1d", 86400),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1d 2h", 93600),
        ("1w", 604800),
        ("3600", 3600),
        (3600, 3600),
        ("0.5", 0.5),
        ("1-02:00:00", 93600),
        ("1-2", 93600),
        ("1-02:30", 95400),
        ("02:00:00", 7200),
        ("30:00", 1800),
        ("2H", 7200),
    ],
)
def test_a_duration_is_a_number_with_units_or_a_clock(text, seconds):
    assert parse_duration(text) == seconds


def test_a_plain_number_may_count_minutes():
    assert (parse_duration("90", plain_s=60), parse_duration("90s", plain_s=60)) == (5400, 90)


@pytest.mark.parametrize("text", ["", "soon", "2x", "h", "1:2:3:4", "nan", "inf", "1-", "2h30", "-5", "-1h", True, None])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["1-24", "1-99:99:99", "2:60", "1:60:00"])
def test_a_clock_has_hours_minutes_and_seconds_in_their_range(text):
    with pytest.raises(ValueError, match="a duration such as"):
        parse_duration(text)
