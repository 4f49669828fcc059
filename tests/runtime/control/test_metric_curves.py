"""The metrics of jobs over time, from the journal's events: whole where they are few, and bounded where they are many."""

from __future__ import annotations

import math
from itertools import count

import httpx
import numpy as np
import pytest
from serving import served

from fairlead.core import events as ev
from fairlead.runtime.control import job_metrics
from fairlead.runtime.control.job_metrics import MetricCurves


def reported(time: float, name: str, values: dict[int, float]) -> ev.MetricsReported:
    return ev.MetricsReported(time, name, np.array(list(values), dtype=np.int64), np.array(list(values.values())))


def progress(time: float, job: int, steps: float, rate: float) -> ev.ProgressReported:
    return ev.ProgressReported(time, *(np.array([one]) for one in (job, steps, rate, time)))


def ended(time: float, job: int) -> ev.JobsFinished:
    return ev.JobsFinished(time, np.array([job]), np.array([time]))


def observed(*events: ev.Event) -> MetricCurves:
    curves = MetricCurves()
    curves.observe_all(enumerate(events, 1))
    return curves


def test_a_curve_has_seconds_steps_and_values():
    curves = observed(
        reported(1.0, "loss", {3: 9.0, 4: 1.0}),
        progress(10.0, 3, 100.0, 2.0),
        reported(12.0, "loss", {3: 8.0}),
        reported(12.0, "batch_size", {3: 64.0}),
        progress(20.0, 3, 50.0, 1.0),  # back to its checkpoint
        reported(21.0, "loss", {3: 8.5}),
    )
    assert curves.of(3) == {
        "batch_size": [[12.0], [104.0], [64.0]],
        "loss": [[1.0, 12.0, 21.0], [0.0, 104.0, 51.0], [9.0, 8.0, 8.5]],
    }
    assert curves.of(4) == {"loss": [[1.0], [0.0], [1.0]]}
    assert curves.of(5) == {}


def test_a_job_makes_no_steps_while_it_does_not_run():
    curves = observed(
        progress(0.0, 3, 0.0, 10.0),
        ev.JobsInterrupted(100.0, np.array([3]), np.array([900.0])),
        reported(3700.0, "loss", {3: 0.9}),  # it runs again, and its rate is not known yet
    )
    assert curves.of(3)["loss"][1] == [900.0]


def test_a_job_that_was_requeued_has_not_ended(monkeypatch):
    monkeypatch.setattr(job_metrics, "MAX_POINTS", 6)
    numbers, curves = count(1), MetricCurves()
    for event in (
        *(reported(second, "loss", {3: 1.0, 4: 1.0}) for second in (0.0, 1.0)),
        ended(2.0, 3),
        ev.JobRequeued(3.0, 3),
        ended(4.0, 4),
        *(reported(second, "loss", {3: 1.0}) for second in (5.0, 6.0, 7.0)),
    ):
        curves.observe_all([(next(numbers), event)])
    assert curves.of(3)["loss"][0] == [0.0, 1.0, 5.0, 6.0, 7.0]
    assert not curves.of(4)


def test_events_are_observed_once():
    events = list(enumerate([reported(1.0, "loss", {0: 2.0}), reported(2.0, "loss", {0: 1.0})], 1))
    curves = MetricCurves()
    curves.observe_all(events)
    curves.observe_all(events)
    assert curves.of(0)["loss"][0] == [1.0, 2.0]


@pytest.mark.parametrize("seconds", [299, 300, 301, 1000, 54_321])
def test_a_long_curve_keeps_its_ends_and_is_even_between(seconds: int):
    curves = observed(*(reported(float(second), "loss", {0: -second}) for second in range(seconds)))
    times, _, values = curves.of(0)["loss"]
    assert values == [-time for time in times]
    assert (times[0], times[-1]) == (0.0, seconds - 1.0)
    assert min(seconds, job_metrics.CURVE_POINTS / 3) <= len(times) <= job_metrics.CURVE_POINTS
    gaps = np.diff(times)
    assert gaps.min() > 0
    assert gaps[:-1].max() <= 2.5 * max(1.0, np.median(gaps))


def test_all_curves_together_are_bounded_and_ended_jobs_go_first(monkeypatch):
    monkeypatch.setattr(job_metrics, "MAX_POINTS", 3000)
    number = count(1)
    curves = MetricCurves()

    def run(jobs: range, begin: int, seconds: int) -> None:
        for second in range(begin, begin + seconds):
            curves.observe_all([(next(number), reported(float(second), "loss", dict.fromkeys(jobs, second)))])

    run(range(10), 0, 250)
    assert all(len(curves.of(job)["loss"][0]) == 250 for job in range(10))
    curves.observe_all([(next(number), ended(250.0, 7)), (next(number), ended(251.0, 2))])
    run(range(10, 14), 252, 200)
    assert not curves.of(7)
    assert curves.of(0)["loss"][0][-1] == 249.0
    run(range(100, 600), 500, 100)
    total = sum(len(curves.of(job).get("loss", [[]])[0]) for job in range(600))
    assert 1000 < total <= 3000
    assert curves.of(599)["loss"][0][-1] == 599.0


def test_a_user_reads_the_curves_of_own_jobs():
    with served("v100:1") as control:
        for token, name in ((control.user, "mine"), (control.token, "other")):
            answer = httpx.post(
                f"{control.url}/v1/jobs",
                json={"jobs": [{"name": name, "run": "true"}]},
                headers={"Authorization": f"Bearer {token}"},
            )
            assert answer.status_code == 201
        with control.plane.backend.lock:
            now = control.plane.loop.state.time
            control.plane.loop.record(reported(now, "loss", {0: 0.5, 1: 0.7}))
            control.plane.loop.record(reported(now, "odd", {0: math.inf}))
            control.plane.loop.journal.commit()
        user = {"Authorization": f"Bearer {control.user}"}
        found = httpx.get(f"{control.url}/v1/jobs/mine/metrics", headers=user).json()
        at = control.plane.origin + now
        assert found["metrics"] == {
            "loss": {"time": [at], "step": [0.0], "value": [0.5]},
            "odd": {"time": [at], "step": [0.0], "value": [None]},
        }
        assert (found["number"], found["known_since"]) == (0, control.plane.origin)
        assert httpx.get(f"{control.url}/v1/jobs/1/metrics", headers=user).status_code == 404
