"""Throughputs as running jobs report them, with no table at all."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.estimators.measured import Measured
from fairlead.testing.builders import cluster
from scenes import state_of

MACHINES = cluster("v100:2,k80:2")


def scene(rates: dict[int, float], **places: int) -> State:
    """Four jobs: two of kind m, one of n, one timed; who has a rate runs, each on the accelerator of its number."""
    jobs = [Job("a", kind="m"), Job("b", kind="m"), Job("c", kind="n"), Job("d")]
    state = state_of(MACHINES, jobs, {number: [number] for number in rates})
    numbers = np.array(list(rates), dtype=np.int64)
    ones = np.zeros(len(numbers))
    apply_event(state, ev.ProgressReported(0.0, numbers, ones, np.array(list(rates.values())), ones))
    return state


def observe(state: State, how: Measured | None = None) -> dict[str, float]:
    facts = dict((how or Measured()).observe(state.snapshot(10.0)).values)
    if facts:
        apply_event(state, ev.ObservationsRecorded(10.0, facts))
    return facts


def test_before_anything_ran_only_relative_speeds_are_known():
    rates = Measured({"v100": 4.0}).rates(scene({}).snapshot())
    assert rates.of_jobs.tolist() == [[4.0, 1.0]] * 3 + [[1.0, 1.0]]


def test_what_was_seen_counts_and_the_rest_follows():
    state = scene({0: 8.0})
    assert observe(state) == {"measured 1 × m on v100": 8.0}
    assert Measured({"v100": 4.0}).rates(state.snapshot()).of_jobs.tolist() == [[8.0, 2.0], [8.0, 2.0], [4.0, 1.0], [1.0, 1.0]]


def test_jobs_that_look_alike_and_differ_are_learned_once():
    state = scene({0: 1.0, 1: 0.5})
    assert observe(state) == {"measured 1 × m on v100": 0.75}
    assert observe(state) == {}


def test_small_changes_are_not_worth_an_event_and_large_ones_are():
    state = scene({0: 1.0})
    observe(state)
    before = state.snapshot().observation_count
    for rate, worth in ((1.05, False), (1.2, True)):
        apply_event(state, ev.ProgressReported(10.0, np.array([0]), np.zeros(1), np.array([rate]), np.array([10.0])))
        assert bool(observe(state)) is worth
    assert state.snapshot().observation_count == before + 1


def test_timed_jobs_and_jobs_that_stand_teach_nothing():
    assert observe(scene({2: 0.0, 3: 1.0})) == {}


def test_a_wrong_speed_is_refused():
    with pytest.raises(InputError, match="from 1e-09"):
        Measured({"v100": 0.0})
