"""AlloX: the matching against all schedules there are, who comes first in line, and what it does with gangs and a queue."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.core.rng import stream
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.allox import AlloX, cheapest_places, match_jobs, queue_heads
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing import Harness, PolicyContract
from scenes import state_of, table_of, view_of

TYPES = ("fast", "slow")


def total_completion(times, line, free):
    """The sum of completion times from now on, if the jobs of a type go shortest first on its accelerators."""
    total = 0.0
    for kind in range(len(free)):
        longest_first = np.sort(times[line == kind, kind])[::-1]
        total += float(longest_first @ (np.arange(len(longest_first)) // max(1, int(free[kind])) + 1))
    return total


def by_trying_all(times: np.ndarray, free: tuple[int, ...]) -> float:
    """The least sum of completion times over every job on every accelerator, in every order."""
    machines = [kind for kind, count in enumerate(free) for _ in range(count)]
    least = np.inf
    for where in itertools.product(range(len(machines)), repeat=len(times)):
        total = 0.0
        for machine, kind in enumerate(machines):
            mine = [job for job, at in enumerate(where) if at == machine]
            orders = itertools.permutations(mine)
            total += min(sum(np.cumsum([times[job, kind] for job in order])) for order in orders)
            if total >= least:
                break
        least = min(least, total)
    return float(least)


def test_two_gangs_of_almost_the_same_length_are_matched_in_finite_time():
    """Their workers differ by less than the solver's tolerance; the search for columns once went on for ever."""
    times = np.full((16, 3), np.inf)
    times[:8, 0], times[8:, 0] = 30000.00174600852, 30000.000126826373
    assert match_jobs(times, np.array([8, 0, 2]), np.full(16, -1)).tolist() == [0] * 16


@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_has_a_smaller_average_completion_time(seed):
    rng = stream(seed, "allox")
    free = [(1, 1), (2, 1), (1, 2), (1, 1, 1)][seed % 4]
    count = int(rng.integers(2, 6))
    times = rng.uniform(1.0, 10.0, (count, len(free))).round(int(rng.integers(0, 3)))
    times[rng.random(times.shape) < 0.15] = np.inf
    times[~np.isfinite(times).any(axis=1), 0] = 5.0
    line = match_jobs(times, np.array(free))
    assert total_completion(times, line, np.array(free)) == pytest.approx(by_trying_all(times, free), rel=1e-6)


@pytest.mark.parametrize("free", [(1, 1, 1), (3, 0, 1), (9, 5, 2), (0, 0, 2), (30, 20, 40)])
def test_long_lines_are_matched_as_by_the_assignment_of_all_jobs_to_all_places(free):
    optimize = pytest.importorskip("scipy.optimize")
    rng = stream(sum(free), "allox", "lines")
    times = 10 ** rng.uniform(0.0, 2.5, (45, 1)) * rng.uniform(1.0, 8.0, (45, 3))
    times[rng.random(times.shape) < 0.1] = np.inf
    times[:, np.argmax(free)] = np.minimum(times[:, np.argmax(free)], 500.0)
    places = [(kind, k) for kind, count in enumerate(free) for _ in range(count) for k in range(1, 46)]
    costs = np.stack([times[:, kind] * k for kind, k in places], axis=1)
    job, place = optimize.linear_sum_assignment(costs)
    line = match_jobs(times, np.array(free))
    assert total_completion(times, line, np.array(free)) == pytest.approx(costs[job, place].sum(), rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_place_is_found_on_the_hull_of_the_prices(seed):
    rng = stream(seed, "allox", "hull")
    price, time = rng.normal(0.0, 5.0, int(rng.integers(1, 30))).round(1), rng.uniform(0.0, 4.0, 50)
    cost = price[None, :] + time[:, None] * np.arange(1, len(price) + 1)
    found = cheapest_places(price, time)
    assert cost[np.arange(50), found - 1] == pytest.approx(cost.min(axis=1))


@pytest.mark.parametrize("seed", range(8))
def test_a_choice_between_equals_keeps_the_optimum_and_who_runs(seed):
    rng = stream(seed, "allox", "ties")
    free = np.array([2, 2])
    times = np.repeat(rng.choice([2.0, 4.0], (7, 1)), 2, axis=1)  # all types alike, many jobs alike
    here = np.array([0, 1, -1, -1, 0, 1, -1])
    line, plain = match_jobs(times, free, here), match_jobs(times, free)
    assert total_completion(times, line, free) == pytest.approx(total_completion(times, plain, free), rel=1e-6)
    starts = queue_heads(times, line, free, here)
    assert np.bincount(line[starts], minlength=2).tolist() == np.minimum(np.bincount(line, minlength=2), free).tolist()


def test_all_alike_nobody_moves():
    times, free, here = np.full((6, 2), 3.0), np.array([2, 1]), np.array([-1, 0, -1, 1, -1, 0])
    line = match_jobs(times, free, here)
    starts = queue_heads(times, line, free, here)
    assert starts.nonzero()[0].tolist() == [1, 3, 5]
    assert line[starts].tolist() == [0, 1, 0]


def test_in_a_line_the_shortest_goes_first():
    times = np.array([[5.0], [1.0], [3.0]])
    line = match_jobs(times, np.array([1]))
    assert queue_heads(times, line, np.array([1]), np.full(3, -1)).tolist() == [False, True, False]


def shares(policy: AlloX, jobs: list[Job], where: str, running=None, memo=None):
    machine = Cluster.parse(where)
    table = table_of(TYPES, {("m", 1): (4.0, 1.0), ("n", 1): (1.1, 1.0), ("m", 2): (7.0, 2.0)}).for_types(machine.type_names)
    x, own = policy.allocate(view_of(state_of(machine, jobs, running or {}), 0.0, table), memo)
    assert (x.share == 1.0).all()
    return dict(zip(x.first.tolist(), x.types.tolist())), own


def test_who_gains_most_gets_the_fast_type():
    jobs = [Job("n", 0.0, 100.0, "n"), Job("m", 0.0, 100.0, "m")]
    assert shares(AlloX(), jobs, "1xfast:1,1xslow:1")[0] == {0: 1, 1: 0}


def test_a_job_waits_for_the_fast_type_where_that_ends_it_sooner():
    jobs = [Job("a", 0.0, 100.0, "m"), Job("b", 1.0, 100.0, "m")]  # 25 s and then 25 s, or 25 s and 100 s
    assert shares(AlloX(alpha=1.0), jobs, "1xfast:1,1xslow:1")[0] == {0: 0}


def test_who_was_given_an_accelerator_keeps_it_and_with_preemption_the_shorter_goes_first():
    jobs = [Job("long", 0.0, 1000.0, "n"), Job("short", 10.0, 4.0, "m")]
    assert shares(AlloX(), jobs, "1xfast:1", {0: [0]})[0] == {0: 0}
    assert shares(AlloX(), jobs, "1xfast:1", memo={"jobs": np.array([0]), "types": np.array([0])})[0] == {0: 0}
    assert shares(AlloX(preempt=True, alpha=1.0), jobs, "1xfast:1", {0: [0]})[0] == {1: 0}


def test_the_longest_waiting_are_matched_first():
    jobs = [Job(f"j{i}", float(i), 1000.0 - 90.0 * i, "n") for i in range(10)]
    assert list(shares(AlloX(alpha=1.0), jobs, "1xfast:1")[0]) == [9]
    assert list(shares(AlloX(alpha=0.3), jobs, "1xfast:1")[0]) == [2], "the shortest of the first three"
    assert list(shares(AlloX(alpha=0.01), jobs, "1xfast:1")[0]) == [0]


def test_each_worker_of_a_gang_is_matched_as_a_job():
    """By submission, as many as there are accelerators; all of them, the shortest first."""
    jobs = [Job("g", 0.0, 9.0, "m", 2), Job("h", 1.0, 9.0, "m", 2), Job("s", 2.0, 1.0, "n"), Job("t", 2.0, 1.0, "n")]
    assert shares(AlloX(), jobs, "2xfast:2,2xslow:2")[0] == {0: 0, 1: 1}
    assert shares(AlloX(alpha=1.0), jobs, "2xfast:2")[0] == {2: 0, 3: 0}
    assert shares(AlloX(alpha=1.0), jobs, "3xfast:3,2xslow:2")[0].keys() >= {0, 2, 3}


def test_what_falls_free_is_kept_for_the_gang_that_came_first():
    """Two fast accelerators, one of them taken for a while: single workers that came later do not take the other."""
    jobs = [Job("has", 0.0, 40.0, "n"), Job("gang", 1.0, 9.0, "m", 2), Job("s", 2.0, 9.0, "n"), Job("t", 3.0, 9.0, "n")]
    held = {"jobs": np.array([0]), "types": np.array([0])}
    assert shares(AlloX(), jobs, "2xfast:2", memo=held)[0] == {0: 0}
    assert shares(AlloX(), [jobs[0], *jobs[2:], Job("gang", 4.0, 9.0, "m", 2)], "2xfast:2", memo=held)[0] == {0: 0, 1: 0}


def test_a_gang_goes_where_it_is_done_first():
    """7 steps a second once somebody has left, or 2 at once."""
    gang, held = Job("gang", 1.0, 140.0, "m", 2), {"jobs": np.array([0]), "types": np.array([0])}
    for left, on in ((44.0, {0: 0}), (110.0, {0: 0, 1: 1})):  # 40 s + 20 s, or 100 s + 20 s, against 70 s
        assert shares(AlloX(), [Job("has", 0.0, left, "n"), gang], "2xfast:2,2xslow:2", memo=held)[0] == on


def test_under_a_load_of_single_workers_gangs_do_not_wait_for_its_end():
    table = table_of(TYPES, {("m", 1): (4.0, 1.0), ("m", 4): (12.0, 3.0)})
    jobs = [Job(f"j{i}", 60.0 * i, 1000.0, "m") for i in range(60)] + [Job("gang", 600.0, 1200.0, "m", 4)]
    made = Harness(SchedulerConfig(round_s=60.0), table=table).cluster(Cluster.parse("4xfast:4"))
    made.policy(Allocated(AlloX(), RoundMechanism())).submit(*jobs).run()
    assert made.ended_s("gang") < 0.5 * max(made.ended_s(job.name) for job in jobs)


def test_a_gang_may_be_matched_as_one_worker_and_share_its_time():
    """As in Shockwave's simulator: it has 1/workers of the time from then on, and leaves all accelerators to the matching."""
    machine = Cluster.parse("2xfast:2")
    table = table_of(["fast"], {("m", 1): [1.0], ("m", 2): [1.0]})
    jobs = [Job("gang", 0.0, 10.0, "m", 2), Job("s", 1.0, 20.0, "m"), Job("t", 2.0, 30.0, "m"), Job("u", 3.0, 5.0, "m")]
    policy, memo = AlloX(gangs="share"), None
    given = []
    for _ in range(3):
        x, memo = policy.allocate(view_of(state_of(machine, jobs), 0.0, table), memo)
        given.append(dict(zip(x.first.tolist(), x.share.tolist())))
    assert given[0] == {0: 0.5, 1: 1.0}, "the first two by submission"
    assert given[1] == {0: 0.5, 1: 1.0}, "one accelerator is left, and the gang is first again"
    assert given[2] == given[1]
    assert AlloX().allocate(view_of(state_of(machine, jobs), 0.0, table), None)[0].share.tolist() == [1.0]


def test_lines_are_no_deeper_than_said():
    jobs = [Job(f"j{i}", float(i), 1000.0 - 10.0 * i, "n") for i in range(50)]
    two = "1xfast:1,1xslow:1"
    assert set(shares(AlloX(alpha=1.0, max_depth=10), jobs, two)[0]) == {18, 19}, "the shortest of the first 20"
    assert set(shares(AlloX(alpha=1.0), jobs, two)[0]) == {48, 49}
    assert set(shares(AlloX(alpha=1.0, max_depth=10), jobs, "1xfast:1")[0]) == {49}, "one line, nothing to match"
    with pytest.raises(InputError, match="max_depth"):
        AlloX(max_depth=0)


def test_lost_accelerators_are_not_given():
    jobs = [Job(f"j{i}", 0.0, 10.0, "m") for i in range(3)]
    memo = {"jobs": np.array([0, 1, 2]), "types": np.array([0, 0, 0])}
    assert shares(AlloX(), jobs, "2xfast:2", memo=memo)[0] == {0: 0, 1: 0}


@pytest.mark.parametrize("seed", range(4))
def test_a_run_without_arrivals_is_no_worse_than_the_best_schedule(seed):
    rng = stream(seed, "allox", "run")
    table = table_of(TYPES, {(f"k{i}", 1): rng.uniform(0.5, 4.0, 2) for i in range(5)})
    jobs = [Job(f"j{i}", 0.0, float(rng.integers(50, 500)), f"k{i}") for i in range(5)]
    policy = Allocated(AlloX(alpha=1.0, preempt=True), RoundMechanism(work_conserving=False))
    made = Harness(SchedulerConfig(round_s=0.0), table=table).cluster(Cluster.parse("1xfast:1,2xslow:2")).policy(policy)
    made.submit(*jobs).run()
    times = np.array([job.steps / table.alone[table.row(job.kind, 1)] for job in jobs])
    assert sum(made.ended_s(job.name) for job in jobs) <= by_trying_all(times, (1, 2)) * (1 + 1e-6)


def test_a_wrong_alpha_is_told():
    with pytest.raises(InputError, match="alpha"):
        AlloX(alpha=0.0)


class TestAlloX(PolicyContract):
    make = staticmethod(lambda: Allocated(AlloX(), RoundMechanism()))


class TestAlloXPreempting(PolicyContract):
    make = staticmethod(lambda: Allocated(AlloX(alpha=1.0, preempt=True), RoundMechanism()))
