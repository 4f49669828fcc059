"""Forecasts of regimes: the rules' own words, and how wrong they are on jobs that adapt (Shockwave §5, Figure 5)."""

from __future__ import annotations

import numpy as np
import pytest
from trajectories import TRACES, drawn, errors, of_trace

from fairlead.core.errors import InputError
from fairlead.core.rng import stream
from fairlead.policies.shockwave.planning.regime_forecast import (
    RULES,
    even_prior,
    greedy_forecast,
    next_batch_sizes,
    remaining_epochs,
    restatement,
    run_time,
    standard_posterior,
    with_noise,
)


def test_a_mode_says_what_may_come_and_no_more() -> None:
    assert next_batch_sizes("static", 32, 256) == ()
    assert next_batch_sizes("accordion", 32, 256) == (256,)
    assert next_batch_sizes("accordion", 256, 256) == ()
    assert next_batch_sizes("gns", 32, 256) == (64, 128, 256)
    assert next_batch_sizes("gns", 32, 200) == (64, 128, 200)
    with pytest.raises(InputError, match="forecast: field 'mode' is 'pollux'"):
        next_batch_sizes("pollux", 32, 256)


def test_the_restatement_rule_knows_the_past_and_divides_the_rest_evenly() -> None:
    epochs, prior = np.array([100.0]), even_prior(np.array([4]), 4)
    new = restatement(epochs, np.zeros((1, 4)), np.array([0]), prior)
    assert new.tolist() == [[25.0, 25.0, 25.0, 25.0]]
    second = restatement(epochs, np.array([[10.0, 5.0, 0.0, 0.0]]), np.array([1]), prior)
    assert second.tolist() == [[10.0, 30.0, 30.0, 30.0]]
    outlived = restatement(epochs, np.array([[10.0, 60.0, 0.0, 0.0]]), np.array([1]), prior)
    assert outlived.tolist() == [[10.0, 60.0, 15.0, 15.0]]


def test_declared_shares_are_the_prior_and_are_restated_by_what_happened() -> None:
    epochs, prior = np.array([100.0]), np.array([[0.2, 0.3, 0.5]])
    new = restatement(epochs, np.zeros((1, 3)), np.array([0]), prior)
    assert new == pytest.approx(np.array([[20.0, 30.0, 50.0]]))
    longer = restatement(epochs, np.array([[36.0, 1.0, 0.0]]), np.array([1]), prior)
    assert longer == pytest.approx(np.array([[36.0, 24.0, 40.0]])), "what is left, as three to five"
    outlived = restatement(epochs, np.array([[36.0, 34.0, 0.0]]), np.array([1]), prior)
    assert outlived == pytest.approx(np.array([[36.0, 34.0, 30.0]]))
    assert standard_posterior(epochs, np.zeros((1, 3)), np.array([0]), prior) == pytest.approx(new)
    assert greedy_forecast(epochs, np.zeros((1, 3)), np.array([0]), prior).tolist() == [[100.0, 0.0, 0.0]]


def test_the_standard_update_is_slower_and_greedy_sees_no_change() -> None:
    epochs, trained, current, prior = np.array([100.0]), np.array([[20.0, 0.0]]), np.array([1]), np.ones((1, 2))
    assert standard_posterior(epochs, trained, current, prior) == pytest.approx(np.array([[70 / 1.2, 50 / 1.2]]))
    assert greedy_forecast(epochs, np.array([[20.0, 0.0]]), np.array([0]), prior).tolist() == [[100.0, 0.0]]


@pytest.mark.parametrize("rule", RULES)
def test_what_is_ahead_adds_up_to_what_is_left(rule: str) -> None:
    rng = np.random.default_rng(1)
    jobs, width = 200, 5
    count = rng.integers(1, width + 1, jobs)
    current = rng.integers(0, count)
    prior = even_prior(count, width) * rng.uniform(0.1, 1.0, (jobs, width))
    trained = np.where(np.arange(width) <= current[:, None], rng.integers(0, 30, (jobs, width)), 0).astype(float)
    epochs = rng.integers(1, 100, jobs).astype(float)
    expected = RULES[rule](epochs, trained, current, prior)
    coming = remaining_epochs(expected, epochs, trained, current)
    assert (coming >= 0).all()
    assert (coming[np.arange(width) < current[:, None]] == 0).all()
    assert coming.sum(axis=1) == pytest.approx(np.maximum(epochs - trained.sum(axis=1), 0))
    late = trained.sum(axis=1) > epochs
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
    once, again = (with_noise(seconds, 0.4, stream(3, "noise")) for _ in range(2))
    assert (once == again).all()
    assert 60 <= once.min() < 65
    assert 135 < once.max() <= 140
    assert (with_noise(seconds, 0.0, stream(3, "noise")) == seconds).all()
    with pytest.raises(InputError, match=r"forecast: field 'noise' is 1\.5"):
        with_noise(seconds, 1.5, stream(3, "noise"))
