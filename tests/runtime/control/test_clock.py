"""Seconds of a cluster, by clocks that people may set."""

from __future__ import annotations

import pytest

from fairlead.runtime.control.clock import WallClock, origin_of


def test_a_clock_that_is_set_back_does_not_go_back():
    calendar, steady = [1000.0], [5.0]
    clock = WallClock(900.0, 0.0, lambda: calendar[0], lambda: steady[0])
    assert clock.now() == 100.0
    calendar[0], steady[0] = 0.0, 6.0
    assert clock.now() == 101.0
    assert WallClock(900.0, 101.0, lambda: 0.0, lambda: 0.0).now() == 101.0


def test_a_calendar_that_is_set_while_nobody_runs_takes_second_0_along(tmp_path):
    calendar = [1000.0]
    first = origin_of(tmp_path / "origin", lambda: calendar[0])
    assert first == pytest.approx(1000.0, abs=1.0)
    calendar[0] = 90_000.0
    assert origin_of(tmp_path / "origin", lambda: calendar[0]) == pytest.approx(90_000.0, abs=1.0)
    (tmp_path / "origin").write_text("500.0 another-boot 7.0")  # the machine was started anew: only the calendar is left
    assert origin_of(tmp_path / "origin", lambda: calendar[0]) == 500.0
