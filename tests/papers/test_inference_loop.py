"""Sessions through the one loop, beside training."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.routes import Route
from fairlead.simulator.costs import Costs
from fairlead_papers.serving_loop import Swings, _in_use, through_loop
from fairlead_papers.serving_mixes import MIXES, Mix


@pytest.mark.parametrize("name", ["usual", "tight"])
def test_through_the_loop_99_percent_are_in_time_within_a_tenth_of_the_least(name):
    for one in through_loop(MIXES[name], [100], duration_s=3.0):
        assert one.least >= 20
        assert one.within, one
        assert one.attainment >= 0.99, one
        assert one.starts == 1.0


def test_sessions_whose_rates_change_are_rarely_started_again():
    swings, costs = Swings(120.0, 0.8, 1.2), Costs(restart_s=5.0)
    (one,) = through_loop(Mix(accelerators=4.0), [5], duration_s=1200.0, swings=swings, costs=costs, most_requests=1e5)
    assert one.attainment >= 0.98, one
    assert one.starts < 3, one


def test_accelerators_are_in_use_until_their_session_leaves():
    one = np.array([0])
    launch = Launches(one, one * 0, np.array([0, 2]), np.array([0, 1]))
    plan = RoundPlan(10.0, admitted=one, launches=launch, routes={0: Route((0, 1), (0.5, 0.5), 8, 9.0)})
    events = (
        ev.JournalOpened(0.0, Cluster.parse("4xv100:4"), {}),
        ev.JobSubmitted(0.0, 0, Job("a")),
        ev.RoundPlanned(plan),
        ev.RoundPlanned(RoundPlan(40.0, suspended=one)),
    )
    seconds, counts = _in_use(events, 100.0)
    assert (seconds.tolist(), counts.tolist()) == ([10.0, 30.0, 60.0], [0, 2, 0])
