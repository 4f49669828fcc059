"""Elastic jobs scale with their workers as predicted, until they were measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.job import ELASTIC, Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.snapshot import Snapshot
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.estimators.fitted import Fitted
from fairlead.estimators.measured import Measured
from fairlead.policies.elastic.optimus import Optimus
from fairlead.policies.elastic.pollux import Pollux
from fairlead.policies.elastic.sia import Sia
from fairlead.prediction.step_prediction import StepPrediction
from fairlead.testing.builders import cluster
from scenes import state_of, table_of

SPEEDS = {"1": 4.0, "2": 7.0, "4": 10.0, "8": 10.5}
ONE = np.zeros(1, dtype=np.int64)


def prediction(speeds: dict[str, float], **changes: Any) -> str:
    rates = {"steps_per_s": 4.0, "steps_per_s_low": 4.0, "steps_per_s_high": 4.0}
    memory = {"allocated_mb": 1.0, "reserved_mb": 1.0, "memory_mb": 1.0}
    return StepPrediction.from_data({"device": "v100", **memory, **rates, "speeds": speeds, **changes}).job_text("v100")


def elastic(name: str, speeds: dict[str, float] | None, asked: int = 1, **changes: Any) -> Job:
    text = "" if speeds is None else prediction(speeds, **changes)
    return Job(name, steps=1e6, kind=name, workers=asked, mode=ELASTIC, prediction=text)


def view_of(*jobs: Job, machines: str = "v100:8") -> Snapshot:
    return state_of(cluster(machines), jobs).snapshot(0.0).with_changes(estimate=Measured().rates)


def at(view: Snapshot, sizes: list[int], job: int = 0) -> list[float]:
    found = view.rates.other_sizes
    assert found is not None
    return found.at(sizes)[:, view.rates.row[job], 0].tolist()


def test_speeds_at_other_sizes_are_as_predicted_before_a_job_has_run():
    view = view_of(elastic("a", SPEEDS), elastic("b", None))
    assert at(view, [1, 2, 4, 8]) == pytest.approx([4.0, 7.0, 10.0, 10.5])
    assert 7.0 < at(view, [3])[0] < 10.0
    assert at(view, [1, 2, 4], job=1) == [1.0, 0.0, 0.0], "as before without a prediction"


def test_steps_of_a_larger_gang_have_its_batch():
    """With a batch on each of four workers, a step of one worker is a quarter of the job's step."""
    gang = {"workers": 4, "steps_per_s": 2.5, "steps_per_s_low": 2.5, "steps_per_s_high": 2.5}
    view = view_of(elastic("a", SPEEDS, 4, **gang))
    assert view.rates.of_jobs.item() == 2.5
    assert at(view, [1, 2, 4]) == pytest.approx([1.0, 1.75, 2.5])
    alone = view_of(elastic("a", SPEEDS, 4))
    assert alone.rates.of_jobs.item() == pytest.approx(2.5), "predicted for one worker, with the speed of four"


def runs(state: State, places: list[int], rate: float, second: float) -> None:
    held = np.array(places)
    launch = Launches(ONE, ONE, np.array([0, len(held)]), held, ONE)
    stops = ONE if state.columns["held"][0] else ONE[:0]
    apply_event(state, ev.RoundPlanned(RoundPlan(second, suspended=stops, launches=launch)))
    apply_event(state, ev.ProgressReported(second, ONE, np.array([100.0 * second]), np.array([rate]), np.array([second])))
    apply_event(state, ev.ObservationsRecorded(second + 1, Measured().observe(state.snapshot(second + 1)).values))


def test_a_measured_speed_sets_the_level_and_two_replace_the_prediction():
    state = state_of(cluster("v100:8"), [elastic("a", SPEEDS)])
    runs(state, [0], 2.0, 1.0)
    once = state.snapshot(3.0).with_changes(estimate=Measured().rates)
    assert at(once, [1, 2, 4, 8]) == pytest.approx([2.0, 3.5, 5.0, 5.25])
    runs(state, [0, 1], 4.0, 20.0)
    twice = state.snapshot(30.0).with_changes(estimate=Measured().rates)
    assert at(twice, [1, 2, 4, 8]) == pytest.approx([2.0, 4.0, 8.0, 16.0])


def test_a_training_that_needs_several_workers_is_not_given_fewer():
    """With FSDP, fewer workers may not have the memory; the prediction has no speed for them."""
    view = view_of(elastic("a", {"4": 10.0, "8": 18.0}, 4))
    assert at(view, [1, 2, 4, 8])[:2] == [0.0, 0.0]
    for policy in (Optimus(), Sia(), Pollux()):
        assert policy.select(view, None)[0].workers.tolist()[0] >= 4, policy


@pytest.mark.parametrize("policy", [Optimus(), Pollux()])
def test_workers_go_to_the_job_that_is_predicted_to_use_them(policy: Any):
    linear = {"1": 4.0, "2": 8.0, "4": 16.0, "8": 32.0}
    flat = {"1": 4.0, "2": 4.1, "4": 4.2, "8": 4.2}
    for jobs in ((linear, flat), (flat, linear)):
        view = view_of(*(elastic(name, speeds) for name, speeds in zip("ab", jobs)), machines="v100:4,v100:2")
        chosen, _ = policy.select(view, None)
        given = dict(zip(chosen.jobs.tolist(), chosen.workers.tolist()))
        assert (given[0] > given[1]) == (jobs[0] is linear), given


def test_fitted_takes_the_scaling_from_the_prediction_and_the_level_from_its_table():
    table = table_of(("v100",), {("a", 1): [8.0], ("a", 2): [8.0], ("a", 4): [8.0]})
    view = view_of(elastic("a", SPEEDS)).with_changes(estimate=Fitted(table).rates)
    assert at(view, [1, 2, 4, 8]) == pytest.approx([8.0, 14.0, 20.0, 0.0]), "the table has no size 8"
