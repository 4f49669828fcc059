"""Throughputs of jobs that announced another batch size, measured with no table."""

from __future__ import annotations

import numpy as np

from fairlead.core import events as ev
from fairlead.core.job import BATCH_SIZE, Job
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.estimators.measured import Measured
from fairlead.testing.builders import cluster
from scenes import state_of

SMALL, LARGE = "m (batch size 32)", "m (batch size 64)"


def scene() -> State:
    """Two jobs of one kind run at ten steps a second; a third waits."""
    state = state_of(cluster("v100:2,k80:2"), [Job(name, kind=SMALL, steps=1000.0) for name in "abc"], {0: [0], 1: [1]})
    say(state, 1.0, 10.0, 32)
    return state


def say(state: State, second: float, rate: float, size: int) -> None:
    steps = state.snapshot(second).jobs.steps_done[:1]
    apply_event(state, ev.ProgressReported(second, np.array([0]), steps, np.array([rate]), np.array([second])))
    apply_event(state, ev.MetricsReported(second, BATCH_SIZE, np.array([0]), np.array([float(size)])))


def observe(state: State, second: float) -> dict[str, object]:
    facts = dict(Measured().observe(state.snapshot(second)).values)
    if facts:
        apply_event(state, ev.ObservationsRecorded(second, facts))
    return facts


def test_a_job_that_has_grown_is_measured_as_of_the_kind_that_it_is_now() -> None:
    state = scene()
    apply_event(state, ev.ProgressReported(1.0, np.array([1]), np.zeros(1), np.array([10.0]), np.ones(1)))
    assert observe(state, 2.0) == {f"measured 1 × {SMALL} on v100": 10.0}
    say(state, 3.0, 16.0, 64)
    rates = Measured().rates(state.snapshot(3.0))
    assert rates.of_jobs[:, 0].tolist() == [10.0] * 3, "until it is measured the first rate stands"
    assert rates.uncertainty is not None
    assert rates.uncertainty[rates.row, 0].tolist() == [1.0, 0.0, 0.0], "and nobody can tell by it who is slowed down"
    assert observe(state, 4.0) == {f"measured 1 × {LARGE} on v100": 8.0}, "in steps of its own size; nothing new of the others"
    rates = Measured().rates(state.snapshot(4.0))
    assert rates.of_jobs[:, 0].tolist() == [16.0, 10.0, 10.0], "in declared steps"
    assert rates.uncertainty is not None
    assert not rates.uncertainty[rates.row, 0].any()
    assert rates.other_batches is not None
    assert {size: rate.tolist() for size, rate in rates.other_batches.of(SMALL, 1).items()} == {32: [10.0] * 2, 64: [16.0] * 2}
    assert {size: rate.tolist() for size, rate in rates.other_batches.of(LARGE, 1).items()} == {32: [5.0] * 2, 64: [8.0] * 2}
    assert (rates.other_batches.of("m", 1), rates.other_batches.of(SMALL, 2)) == ({}, {})


def test_a_job_that_goes_back_is_of_its_kind_again() -> None:
    state = scene()
    observe(state, 2.0)
    say(state, 3.0, 16.0, 64)
    say(state, 4.0, 12.0, 32)
    assert observe(state, 5.0) == {f"measured 1 × {SMALL} on v100": 6.5}, "the mean of both that are so"
    assert Measured().rates(state.snapshot(5.0)).of_jobs[0].tolist() == [6.5] * 2


def test_a_rate_from_before_an_announcement_is_not_that_of_the_new_size() -> None:
    state = scene()
    apply_event(state, ev.ProgressReported(1.0, np.array([1]), np.zeros(1), np.array([10.0]), np.ones(1)))
    observe(state, 2.0)
    apply_event(state, ev.MetricsReported(3.0, BATCH_SIZE, np.array([0]), np.array([64.0])))
    assert observe(state, 4.0) == {}
    say(state, 5.0, 16.0, 64)
    assert observe(state, 6.0) == {f"measured 1 × {LARGE} on v100": 8.0}
    apply_event(state, ev.MetricsReported(7.0, BATCH_SIZE, np.array([0]), np.array([32.0])))
    assert observe(state, 8.0) == {}
