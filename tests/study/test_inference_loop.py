"""Sessions through the one loop, beside training."""

from __future__ import annotations

import pytest

from fairlead.study.inference import MIXES, Mix
from fairlead.study.inference_loop import Swings, through_loop


@pytest.mark.parametrize("name", ["usual", "tight"])
def test_through_the_loop_99_percent_are_in_time_within_a_tenth_of_the_least(name):
    for one in through_loop(MIXES[name], [100], duration_s=3.0):
        assert one.least >= 20
        assert one.within, one
        assert one.attainment >= 0.99, one
        assert one.starts == 1.0


def test_sessions_whose_rates_change_are_rarely_started_again():
    (one,) = through_loop(
        Mix(accelerators=4.0), [5], duration_s=1200.0, swings=Swings(120.0, 0.8, 1.2), restart_s=5.0, most_requests=1e5
    )
    assert one.attainment >= 0.98, one
    assert one.starts < 3, one
