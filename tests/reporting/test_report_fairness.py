"""Finish-time fairness against a computation that looks at every pair of jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import outcomes, record

from fairlead.core.job import Phase
from fairlead.experiments.metrics import contention_factor, finish_time_fairness

times = st.integers(0, 50).map(float)


@st.composite
def stays(draw):
    count = draw(st.integers(1, 12))
    came = [draw(times) for _ in range(count)]
    left = [start + draw(times) for start in came]
    workers = [draw(st.integers(1, 8)) for _ in range(count)]
    return sorted(came), [max(a, b) for a, b in zip(sorted(came), left)], workers


def averaged_by_pairs(came, left, amount, size):
    """N of each job by adding up, for each, how long every other was there at the same time."""
    factors = []
    for a, b in zip(came, left):
        if b <= a:
            continue
        together = sum(w * max(0.0, min(b, d) - max(a, c)) for c, d, w in zip(came, left, amount))
        factors.append(max(1.0, together / (b - a) / size))
    return factors


@given(stays())
def test_average_contention_is_jobs_present_per_accelerator(stay):
    came, left, workers = stay
    run = record(outcomes(came, came, left, workers=workers), "3xv100:2")
    lived = np.array(left) > np.array(came)
    expected = averaged_by_pairs(came, left, [1] * len(came), 3)
    assert contention_factor(run, "average")[lived] == pytest.approx(expected)


@given(stays())
def test_demand_contention_counts_accelerators_asked_for(stay):
    came, left, workers = stay
    run = record(outcomes(came, came, left, workers=workers), "3xv100:2")
    lived = np.array(left) > np.array(came)
    assert contention_factor(run, "demand")[lived] == pytest.approx(averaged_by_pairs(came, left, workers, 3))


def test_static_contention_is_one_figure_for_the_trace():
    run = record(outcomes([0] * 6, [0] * 6, [10] * 6, exclusive=[5] * 6))
    assert contention_factor(run, "static").tolist() == [3.0] * 6
    assert finish_time_fairness(run, "static").tolist() == [pytest.approx(10 / 15)] * 6


def test_contention_is_never_below_one():
    run = record(outcomes([0, 100], [0, 100], [10, 110]), "50xv100:8")
    assert contention_factor(run, "average").tolist() == [1.0, 1.0]
    assert contention_factor(run, "static").tolist() == [1.0, 1.0]


def test_two_jobs_taking_turns_on_one_accelerator_are_treated_fairly():
    # Alone each needs 10 s; together for 20 s with N = 2, a fair share ends at 20 s.
    run = record(outcomes([0, 0], [0, 0], [20, 20], run=[10, 10], exclusive=[10, 10]), "1xv100:1")
    assert finish_time_fairness(run).tolist() == [1.0, 1.0]


def test_a_refused_job_contends_with_nobody_and_an_unfinished_one_does():
    phases = [Phase.FINISHED, Phase.REFUSED, Phase.WAITING]
    run = record(outcomes([0, 0, 0], [0, np.nan, np.nan], [20, 0, np.nan], exclusive=[20] * 3, phase=phases), "1xv100:1")
    assert contention_factor(run, "average")[0] == 2.0
    assert contention_factor(run, "static")[0] == 2.0
    rho = finish_time_fairness(run)
    assert rho[0] == pytest.approx(0.5)
    assert np.isnan(rho[1:]).all()


def test_no_jobs_at_all():
    assert len(finish_time_fairness(record(outcomes([], [], [])))) == 0
