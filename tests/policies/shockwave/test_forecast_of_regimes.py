"""Forecasts of regimes: the rules' own words, and how wrong they are on jobs that adapt (Shockwave §5, Figure 5)."""

from __future__ import annotations

import numpy as np
import pytest
from trajectories import TRACES, drawn, errors, of_trace

from fairlead.core.errors import InputError
from fairlead.core.rng import stream
from fairlead.policies.shockwave.planning.regime_forecast import (
    RULES,
    ahead,
    evenly,
    greedy,
    noised,
    restated,
    run_time,
    standard,
    to_come,
)


def test_a_mode_says_what_may_come_and_no_more() -> None:
    assert to_come("static", 32, 256) == ()
    assert to_come("accordion", 32, 256) == (256,)
    assert to_come("accordion", 256, 256) == ()
    assert to_come("gns", 32, 256) == (64, 128, 256)
    assert to_come("gns", 32, 200) == (64, 128, 200)
    with pytest.raises(InputError, match="forecast: field 'mode' is 'pollux'"):
        to_come("pollux", 32, 256)


def test_the_restatement_rule_knows_the_past_and_divides_the_rest_evenly() -> None:
    epochs, prior = np.array([100.0]), evenly(np.array([4]), 4)
    new = restated(epochs, np.zeros((1, 4)), np.array([0]), prior)
    assert new.tolist() == [[25.0, 25.0, 25.0, 25.0]]
    second = restated(epochs, np.array([[10.0, 5.0, 0.0, 0.0]]), np.array([1]), prior)
    assert second.tolist() == [[10.0, 30.0, 30.0, 30.0]]
    outlived = restated(epochs, np.array([[10.0, 60.0, 0.0, 0.0]]), np.array([1]), prior)
    assert outlived.tolist() == [[10.0, 60.0, 15.0, 15.0]]


def test_declared_shares_are_the_prior_and_are_restated_by_what_happened() -> None:
    epochs, prior = np.array([100.0]), np.array([[0.2, 0.3, 0.5]])
    new = restated(epochs, np.zeros((1, 3)), np.array([0]), prior)
    assert new == pytest.approx(np.array([[20.0, 30.0, 50.0]]))
    longer = restated(epochs, np.array([[36.0, 1.0, 0.0]]), np.array([1]), prior)
    assert longer == pytest.approx(np.array([[36.0, 24.0, 40.0]])), "what is left, as three to five"
    outlived = restated(epochs, np.array([[36.0, 34.0, 0.0]]), np.array([1]), prior)
    assert outlived == pytest.approx(np.array([[36.0, 34.0, 30.0]]))
    assert standard(epochs, np.zeros((1, 3)), np.array([0]), prior) == pytest.approx(new)
    assert greedy(epochs, np.zeros((1, 3)), np.array([0]), prior).tolist() == [[100.0, 0.0, 0.0]]


def test_the_standard_update_is_slower_and_greedy_sees_no_change() -> None:
    epochs, lived, ongoing, prior = np.array([100.0]), np.array([[20.0, 0.0]]), np.array([1]), np.ones((1, 2))
    assert standard(epochs, lived, ongoing, prior) == pytest.approx(np.array([[70 / 1.2, 50 / 1.2]]))
    assert greedy(epochs, np.array([[20.0, 0.0]]), np.array([0]), prior).tolist() == [[100.0, 0.0]]


@pytest.mark.parametrize("rule", RULES)
def test_what_is_ahead_adds_up_to_what_is_left(rule: str) -> None:
    rng = np.random.default_rng(1)
    jobs, width = 200, 5
    count = rng.integers(1, width + 1, jobs)
    ongoing = rng.integers(0, count)
    prior = evenly(count, width) * rng.uniform(0.1, 1.0, (jobs, width))
    lived = np.where(np.arange(width) <= ongoing[:, None], rng.integers(0, 30, (jobs, width)), 0).astype(float)
    epochs = rng.integers(1, 100, jobs).astype(float)
    expected = RULES[rule](epochs, lived, ongoing, prior)
    coming = ahead(expected, epochs, lived, ongoing)
    assert (coming >= 0).all()
    assert (coming[np.arange(width) < ongoing[:, None]] == 0).all()
    assert coming.sum(axis=1) == pytest.approx(np.maximum(epochs - lived.sum(axis=1), 0))
    late = lived.sum(axis=1) > epochs
    assert late.any()
    assert (run_time(coming, np.ones_like(coming))[late] == 0).all()


def test_on_200_jobs_that_adapt_the_forecast_is_good() -> None:
    """Issue 7, point 4."""
    jobs = drawn(200, seed=0)
    found = {name: errors(rule, jobs) for name, rule in RULES.items()}
    assert found["restatement"].shares <= 0.10
    assert found["restatement"].run_time_of_several <= 0.5 * found["greedy"].run_time_of_several
    assert found["restatement"].shares < found["standard"].shares
    assert found["restatement"].run_time_of_several < found["standard"].run_time_of_several


@pytest.mark.skipif(not TRACES.exists(), reason="no ../shared/data/shockwave")
def test_on_jobs_of_a_public_trace_that_adapt_the_forecast_is_good() -> None:
    """200 jobs that do adapt. Jobs whose mode would let them, and who never do, are not among them: no rule can know."""
    jobs = [job for job in of_trace("trace460") if len(job.regimes) > 1][:200]
    assert len(jobs) == 200
    found = {name: errors(rule, jobs) for name, rule in RULES.items()}
    assert found["restatement"].shares <= 0.10
    assert found["restatement"].run_time <= 0.5 * found["greedy"].run_time
    assert found["restatement"].shares < found["standard"].shares
    assert found["restatement"].run_time < found["standard"].run_time


def test_noise_is_as_large_as_asked_for_and_keyed() -> None:
    seconds = np.full(1000, 100.0)
    once, again = (noised(seconds, 0.4, stream(3, "noise")) for _ in range(2))
    assert (once == again).all()
    assert 60 <= once.min() < 65
    assert 135 < once.max() <= 140
    assert (noised(seconds, 0.0, stream(3, "noise")) == seconds).all()
    with pytest.raises(InputError, match=r"forecast: field 'noise' is 1\.5"):
        noised(seconds, 1.5, stream(3, "noise"))
