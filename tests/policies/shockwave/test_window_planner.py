"""Plans of a window: schedules that can be carried out, near a bound that holds, with the most urgent first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from windows import best, drawn

from fairlead.core.errors import InputError
from fairlead.policies.shockwave.planning.exact import solve_exact
from fairlead.policies.shockwave.planning.planner import plan_window, relative_gap
from fairlead.policies.shockwave.planning.relaxation import hull_slopes, relax
from fairlead.policies.shockwave.planning.window import EPSILON, Window, critical_fraction, epoch_progress, make_window
from fairlead.policies.shockwave.policy import (
    FairnessDeadlines,
    fairness_deadlines,
    mean_contention,
    projected_jct,
    published_program,
    rho,
)

PENALTIES = st.sampled_from([0.0, 1e-3, 0.1, 1.0, 10.0])


def test_a_regime_that_begins_at_minute_20_of_the_window_counts_twice_from_there() -> None:
    """Appendix G: at epoch 5, the second regime from epoch 15 on, epochs of two minutes and then of one, a window of 30
    minutes."""
    ahead, epoch_s = np.array([[10.0, 35.0]]), np.array([[120.0, 60.0]])
    after = epoch_progress(np.array([5.0]), ahead, epoch_s, np.array([50.0]), rounds=15, round_s=120.0)[0] * 50
    assert after[10] == pytest.approx(15.0)  # 20 minutes
    assert np.diff(after)[:10] == pytest.approx(1.0)
    assert np.diff(after)[10:] == pytest.approx(2.0)
    assert after[15] == pytest.approx(25.0)


def test_utility_that_doubles_half_way_is_thirty_and_not_twenty() -> None:
    """§1's example as the planner sees it: epochs take half as long in the last ten of twenty rounds."""
    after = (
        epoch_progress(np.zeros(1), np.array([[10.0, 20.0]]), np.array([[120.0, 60.0]]), np.array([30.0]), 20, 120.0)[0] * 30
    )
    assert after[20] == pytest.approx(30.0)


def test_a_job_that_has_done_nothing_has_the_utility_epsilon() -> None:
    made = make_window(
        np.array([[0.0, 0.5]]),
        np.array([240.0]),
        np.array([1]),
        np.array([2.0]),
        4,
        round_s=120.0,
        makespan=0.0,
        scale_s=240.0,
    )
    assert made.worth[0, 0] == pytest.approx(2.0 * np.log(EPSILON))
    assert made.value(np.array([1])) == pytest.approx(2.0 * np.log(0.5))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), makespan=PENALTIES, loads=st.booleans())
def test_a_plan_can_be_carried_out_and_idles_nobody(seed: int, makespan: float, loads: bool) -> None:
    rng = np.random.default_rng(seed)
    accelerators = int(rng.integers(2, 20))
    made, urgency = drawn(
        rng, int(rng.integers(1, 40)), accelerators, 12, makespan=makespan, sizes=(1, 2, 3, 4, 8), loads=loads
    )
    found = plan_window(made, urgency, nodes=20 if loads else 0)
    used = made.workers @ found.schedule
    assert (used <= accelerators).all()
    assert (found.rounds <= made.max_rounds).all()
    idle = ~found.schedule & (made.workers[:, None] <= accelerators - used)
    assert not idle[found.rounds < made.max_rounds].any()
    assert found.value == pytest.approx(made.value(found.rounds))
    assert found.gap == pytest.approx((found.bound - found.value) / made.weight.sum())
    assert found.gap >= 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), makespan=PENALTIES, loads=st.booleans())
def test_no_schedule_exceeds_the_bound_by_brute_force(seed: int, makespan: float, loads: bool) -> None:
    rng = np.random.default_rng(seed)
    made, urgency = drawn(rng, 4, int(rng.integers(2, 6)), 3, makespan=makespan, sizes=(1, 2, 3), loads=loads)
    found, optimum = plan_window(made, urgency), best(made)
    assert found.value <= optimum + 1e-9
    assert optimum <= found.bound + 1e-9
    assert optimum <= relax(made, 1e-3).bound + 1e-9


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), makespan=PENALTIES, loads=st.booleans())
def test_patterns_of_gangs_lead_to_the_optimum_of_brute_force(seed: int, makespan: float, loads: bool) -> None:
    rng = np.random.default_rng(seed)
    made, urgency = drawn(rng, 4, int(rng.integers(2, 7)), 3, makespan=makespan, sizes=(1, 2, 3, 5), loads=loads)
    found, optimum = solve_exact(made, urgency, gap=0.0, nodes=1000), best(made)
    assert found is not None
    assert (made.workers @ found.schedule <= made.accelerators).all()
    assert made.value(found.schedule.sum(axis=1)) == pytest.approx(optimum, abs=1e-6)
    assert found.bound == pytest.approx(optimum, abs=1e-6)


def test_gangs_that_do_not_fit_beside_each_other_are_seen() -> None:
    """Half the window for a gang of 8 and all of it for one of 4 is all that 8 accelerators have, and cannot be."""
    left_s, workers = np.array([1200.0, 2400.0]), np.array([8, 4])
    gains = epoch_progress(np.ones(2), left_s[:, None] / 60, np.full((2, 1), 60.0), 1 + left_s / 60, 20, 120.0)
    made = make_window(gains, left_s, workers, np.ones(2), 8, round_s=120.0, makespan=1e-3, scale_s=3600.0)
    assert relax(made, 1e-6).rounds.tolist() == [10, 20]
    found = plan_window(made, np.ones(2))
    assert found.gap <= 1e-3
    assert (found.schedule.sum(axis=0) == 1).all()


@pytest.mark.parametrize("seed", range(3))
def test_on_a_small_cluster_the_mixed_integer_program_closes_the_gap(seed: int) -> None:
    made, urgency = drawn(np.random.default_rng(seed), 12, 8, 20, sizes=(1, 2, 4, 8))
    assert plan_window(made, urgency).gap <= 1e-3


@pytest.mark.parametrize("makespan", [1e-3, 0.3, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_on_a_large_cluster_plans_are_near_their_bounds(seed: int, makespan: float) -> None:
    made, urgency = drawn(np.random.default_rng(seed), 200, 64, 20, makespan=makespan, sizes=(1, 1, 1, 2, 2, 4, 8))
    assert plan_window(made, urgency).gap <= (1e-3 if makespan < 1 else 5e-3)


def test_the_longer_the_search_the_nearer_the_plan_and_no_bound_is_ever_too_low() -> None:
    made, urgency = drawn(np.random.default_rng(4), 200, 64, 20, makespan=10.0, sizes=(1, 1, 1, 2, 2, 4, 8), loads=False)
    best_known = plan_window(made, urgency, tolerance=0.0, nodes=0).value
    cut = [plan_window(made, urgency, tolerance=0.0, nodes=0, levels=levels) for levels in (0, 1, 2, 4, 8, 16)]
    gaps = [found.gap for found in cut]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0.1
    assert gaps[-1] < 0.02
    assert all(found.bound >= best_known for found in cut)


def test_a_relative_gap_is_a_part_of_what_the_plan_is_worth() -> None:
    made, urgency = drawn(np.random.default_rng(4), 200, 64, 20, makespan=10.0, sizes=(1, 1, 1, 2, 2, 4, 8), loads=False)
    found = plan_window(made, urgency, levels=0)
    assert found.value < 0
    assert found.relative_gap == pytest.approx(found.gap * made.weight.sum() / -found.value)
    assert found.relative_gap > 1e-3
    assert relative_gap(0.0, 0.0) == 0.0


def test_the_most_urgent_run_first_and_jobs_run_in_one_piece() -> None:
    jobs, rounds = 40, 20
    left_s, workers = np.full(jobs, 600.0), np.ones(jobs, dtype=np.int64)
    gains = epoch_progress(
        np.zeros(jobs), np.full((jobs, 1), 5.0), np.full((jobs, 1), 120.0), np.full(jobs, 5.0), rounds, 120.0
    )
    made = make_window(gains, left_s, workers, np.ones(jobs), 8, round_s=120.0, makespan=1e-3, scale_s=600.0 * jobs)
    urgency = np.random.default_rng(2).permutation(jobs).astype(float)
    found = plan_window(made, urgency)
    first = found.schedule.argmax(axis=1)
    assert set(np.flatnonzero(found.schedule[:, 0])) == set(np.argsort(-urgency)[:8])
    assert (np.diff(first[np.argsort(-urgency)]) >= 0).all()
    assert found.starts == jobs


def test_who_would_make_the_makespan_runs_though_its_utility_is_small() -> None:
    """One job is far longer than the others; with a large penalty it runs in every round."""
    left_s = np.array([*([1200.0] * 8), 24000.0])
    jobs = len(left_s)
    gains = epoch_progress(np.full(jobs, 50.0), left_s[:, None] / 60, np.full((jobs, 1), 60.0), 50 + left_s / 60, 10, 120.0)
    rounds = {}
    for makespan in (0.0, 10.0):
        made = make_window(
            gains,
            left_s,
            np.ones(jobs, dtype=np.int64),
            np.ones(jobs),
            2,
            round_s=120.0,
            makespan=makespan,
            scale_s=left_s.sum(),
        )
        rounds[makespan] = plan_window(made, np.ones(jobs)).rounds[-1]
    assert rounds[10.0] == 10
    assert rounds[0.0] < 10


def test_hulls_lie_over_utilities_and_touch_them() -> None:
    rng = np.random.default_rng(5)
    worth = np.cumsum(rng.uniform(0.0, 1.0, (12, 50)), axis=0)
    worth[9:, ::2] = -np.inf
    slopes = hull_slopes(worth)
    assert (slopes[1:] <= slopes[:-1] + 1e-12).all()
    hull = worth[0] + np.concatenate((np.zeros((1, 50)), slopes.cumsum(axis=0)))
    real = np.isfinite(worth)
    assert (hull[real] >= worth[real] - 1e-9).all()
    assert hull[8, ::2] == pytest.approx(worth[8, ::2])
    assert hull[11, 1::2] == pytest.approx(worth[11, 1::2])


def test_how_critical_the_longest_job_is() -> None:
    """Of the time from its coming until all is done, the part in which it must run."""
    left_s, past_s, here_s, ones = np.array([4000.0, 1000.0, 1000.0]), np.array([2000.0, 0.0, 0.0]), np.zeros(3), np.ones(3)
    workers = ones.astype(np.int64)
    assert critical_fraction(left_s, past_s, here_s, workers, accelerators=1) == 1.0, "it has run for as long as all is left"
    assert critical_fraction(left_s, 0 * past_s, here_s, workers, accelerators=1) == pytest.approx(4 / 6)
    assert critical_fraction(left_s, past_s, here_s + 3000.0, workers, accelerators=1) == pytest.approx(6 / 9)
    assert critical_fraction(left_s, past_s, here_s, workers, accelerators=8) == 1.0, "nobody is in its way"
    assert critical_fraction(left_s[:0], past_s[:0], here_s[:0], workers[:0], accelerators=8) == 1.0


def test_rho_is_what_equation_9_says() -> None:
    met = mean_contention(np.array([3600.0 * 8, 0.0]), np.array([1200.0, 0.0]), accelerators=8)
    assert met.tolist() == [3.0, 1.0]
    found = rho(np.array([100.0]), np.array([200.0]), np.array([300.0]), np.array([3.0]))
    assert found == pytest.approx([(100 + 200 + 900) / 1200])


@pytest.mark.parametrize(
    ("field", "value"), [("round_s", 0.0), ("scale_s", -1.0), ("epsilon", 0.0), ("makespan", -1.0), ("accelerators", 0)]
)
def test_what_makes_no_window_is_told(field: str, value: float) -> None:
    given = {"round_s": 120.0, "makespan": 1e-3, "scale_s": 100.0, "epsilon": EPSILON, "accelerators": 4}
    given |= {field: value}
    accelerators = int(given.pop("accelerators"))
    one = np.ones(1)
    with pytest.raises(InputError, match=f"shockwave planner: field '{field}'"):
        make_window(np.zeros((1, 2)), one, np.ones(1, dtype=np.int64), one, accelerators, **given)


def test_an_empty_window_is_planned() -> None:
    none = np.zeros(0)
    made = make_window(np.zeros((0, 5)), none, np.zeros(0, dtype=np.int64), none, 4, round_s=120.0, makespan=1.0, scale_s=1.0)
    assert plan_window(made, none).schedule.shape == (0, 4)


def test_rounds_that_a_projected_end_needs() -> None:
    """Alone for 1,200 s at contention 2 a fair end is at 2,400 s: half of the window's rounds at least for who came just
    now."""
    left_s = np.array([1200.0, 1200.0, 120.0])
    gains = np.linspace(0.1, 1.0, 11) * np.ones((3, 1))
    made = make_window(
        gains, left_s, np.ones(3, dtype=np.int64), np.ones(3), 2, round_s=120.0, makespan=1.0, scale_s=1.0, loads=False
    )
    here_s = np.array([0.0, 3000.0, 0.0])
    ends = projected_jct(made, left_s, here_s, np.full(3, 2.0))
    assert ends[0, 0] == 1200 + 2 * 1200
    assert ends[0, 10] == 1200
    assert ends[2, 1] == 240
    found = fairness_deadlines(made, left_s, here_s, left_s, np.full(3, 2.0), rho_max=1.0)
    assert found.min_rounds.tolist() == [5, 10, 1]
    assert found.late.tolist() == [False, True, False]
    assert found.ratio[0] == pytest.approx(1.5)
    with pytest.raises(InputError, match="shockwave planner: field 'rho_max'"):
        fairness_deadlines(made, left_s, here_s, left_s, np.full(3, 2.0), rho_max=0.0)


def two_that_ask(here_s: float) -> tuple[Window, FairnessDeadlines]:
    left_s = np.array([1200.0, 1200.0])
    gains = np.linspace(0.1, 1.0, 11) * np.ones((2, 1))
    made = make_window(
        gains,
        left_s,
        np.ones(2, dtype=np.int64),
        np.array([100.0, 1.0]),
        1,
        round_s=120.0,
        makespan=0.0,
        scale_s=1.0,
        loads=False,
    )
    return made, fairness_deadlines(made, left_s, np.array([0.0, here_s]), left_s, np.full(2, 2.0), rho_max=1.05)


def test_as_published_a_projected_end_is_a_constraint() -> None:
    made, ends = two_that_ask(here_s=0.0)
    assert ends.min_rounds.tolist() == [5, 5]
    assert plan_window(made, np.ones(2)).rounds[1] < 5
    assert plan_window(published_program(made, ends, 1.05, 5.0), np.ones(2)).rounds.tolist() == [5, 5]


def test_as_published_who_breaks_it_weighs_by_its_ratio_where_it_cannot_be_kept() -> None:
    made, ends = two_that_ask(here_s=3000.0)
    assert ends.late.tolist() == [False, True]
    seen = published_program(made, ends, 1.05, 5.0)
    assert (seen.min_rounds == 0).all()
    assert seen.weight / made.weight == pytest.approx(ends.ratio**5)
    before, after = (plan_window(one, np.ones(2)).rounds[1] for one in (made, seen))
    assert after > before
    with pytest.raises(InputError, match="shockwave planner: field 'power'"):
        published_program(made, ends, 1.05, -1.0)


def test_least_rounds_that_do_not_fit_are_told() -> None:
    made, _ = two_that_ask(here_s=0.0)
    with pytest.raises(InputError, match="shockwave planner: field 'min_rounds'"):
        plan_window(made.at_least(np.array([10, 10])), np.ones(2))
