"""What Pollux holds the sizes of a job against: its fair share, and what a restart leaves of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairlead.core.events import MetricsReported
from fairlead.core.job import ELASTIC
from fairlead.core.observations import observation_name
from fairlead.models.goodput import LARGEST, LEAST_LOCAL, MOST_LOCAL, SMALLEST, SQR, VAR, Goodputs, StepModel, steps_observation
from fairlead.policies.elastic.base import least_cost
from fairlead.policies.elastic.pollux import Pollux, _JobTable
from fairlead.testing import Harness, job
from toy_applications import times

TOLD = [
    (nodes, workers, local, step - sync, step)
    for nodes, workers, local in ((1, 1, 32), (1, 4, 32), (2, 8, 32), (4, 16, 64))
    for step, sync in (times(nodes, workers, local),)
]


def crowd(largest: tuple[float, ...]) -> _JobTable:
    """Jobs that wait, alike but for the largest batch that each can train with."""
    count = len(largest)
    limits = np.array([[32.0, most, 8.0, 128.0] for most in largest])
    models = Goodputs(
        np.array(count * [StepModel.of(TOLD).to_data()]), np.array(count * [[1.0, 50.0]]), limits, np.full(count, 8)
    )
    zeros, no, yes = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
    return _JobTable(
        type=zeros,
        asked=zeros + 1,
        elastic=yes,
        fixed=no,
        held=zeros,
        across=no,
        places=count * [[]],
        age=np.full(count, 100.0),
        restarts=zeros,
        modelled=yes,
        model_of=np.arange(count),
        models=models,
    )


def options(of: _JobTable) -> tuple[list[dict[int, float]], np.ndarray]:
    """Speedups by size on 16 accelerators, four to a node; and the whole of it."""
    count = len(of.asked)
    sizes, speedup = Pollux(restart_s=30.0)._options(np.arange(count), of, 16, 4, count)
    return [dict(zip(mine[1:].tolist(), fast[1:].tolist())) for mine, fast in zip(sizes, speedup)], speedup


def test_who_cannot_use_its_fair_share_is_measured_by_what_it_can():
    (wide, narrow), _ = options(crowd((512.0, 32.0)))
    assert wide[8] == pytest.approx(1.0), "of two jobs on sixteen"
    assert narrow[4] == pytest.approx(1.0), "a batch of 32 has a part for four"
    assert narrow[8] == 0.0


def test_a_restart_costs_whoever_could_stay_and_nobody_else():
    of = crowd((512.0, 512.0))
    restless = replace(of, age=np.array([100.0, 100.0]), restarts=np.array([4, 4]))
    (stays, leaves), _ = options(replace(restless, held=np.array([2, 0])))
    assert stays[4] == 0.0, "it has spent more on restarts than it is old"
    assert leaves == pytest.approx(options(of)[0][1])
    (once, _), speedup = options(replace(of, held=np.array([2, 2]), restarts=np.array([1, 1])))
    assert once[2] == pytest.approx(speedup[0, 0] * (100 - 30) / (100 + 30))


def test_the_lower_the_power_the_better_off_is_the_worst_off():
    """Three accelerators for one that gains more with each, and one that gains most with the first."""
    sizes = np.array([[0, 1, 2, 3, 0]] * 2)
    speedup = np.array([[0.0, 0.4, 0.9, 1.6, 0.0], [0.0, 0.5, 0.8, 0.9, 0.0]])

    def workers(power: float) -> list[int]:
        return sizes[[0, 1], least_cost(sizes, Pollux(power)._cost(speedup), 3)].tolist()

    assert workers(1.0) == [3, 0]
    assert workers(0.0) == workers(-1.0) == [2, 1]
    assert Pollux() == Pollux(power=-1.0, restart_s=30.0)


def test_noise_that_was_estimated_below_zero_counts_as_none_and_limits_of_zero_as_nothing_told():
    harness = Harness().cluster("v100:4").submit(job("a"), job("b"))
    harness.round()
    told = {SQR: (-0.5, 1), VAR: (2, 1), SMALLEST: (32, 32), LARGEST: (512, 512), LEAST_LOCAL: (8, 0), MOST_LOCAL: (64, 64)}
    for name, values in told.items():
        harness.loop.record(MetricsReported(0.0, name, np.arange(2), np.array(values, dtype=np.float64)))
    jobs = harness.state.snapshot(0.0).jobs
    known, models = Goodputs.of(jobs, {observation_name("steps", number): steps_observation(TOLD) for number in (0, 1)})
    assert known.tolist() == [True, False]
    assert models.noise.tolist() == [[0.0, 2.0]]
    assert np.isfinite(models.best([1, 2, 4], [False, False, False])).all()


@pytest.mark.parametrize("mode", ["static", ELASTIC])
def test_with_more_jobs_than_accelerators_nobody_is_stopped_and_who_came_first_is_next(mode):
    harness = Harness().cluster("v100:2").policy("pollux")
    harness.submit(*(job(f"job-{n}").at(10.0 * n).lasting(1000 + 10 * n).with_(mode=mode) for n in range(8)))
    everybody = harness.run().state.all_jobs()
    assert everybody.starts.tolist() == 8 * [1]
    assert everybody.first_started_s.tolist() == sorted(everybody.first_started_s.tolist())
