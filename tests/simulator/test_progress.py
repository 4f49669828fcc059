"""How fast jobs really run: by kind, type, workers, spread or not, at another batch size, and in company."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.device_map import ragged
from fairlead.core.errors import InvalidPlan
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Launches, RoundPlan
from fairlead.simulator.backend import SimulatedBackend
from fairlead.testing import Harness, check_events, job
from fairlead.workloads.table_files import fill_workers
from scenes import selection_of, table_of

EVENTS = SchedulerConfig(round_s=0.0)
TYPES = ("fast", "slow")
RATES = {("m", 1): (4.0, 1.0), ("m", 2): (7.0, 1.5), ("n", 1): (2.0, 1.0), ("m (batch size 64)", 1): (8.0, 2.0)}


def table(**others):
    return table_of(TYPES, RATES, **others)


def ended(cluster: str, *jobs: Job, scheduler: SchedulerConfig = EVENTS, rates=None) -> dict[str, float]:
    made = Harness(scheduler, table=rates or table()).cluster(Cluster.parse(cluster)).submit(*jobs).run()
    return {given.name: made.ended_s(given.name) for given in jobs}


def test_a_kind_has_its_own_rate_on_each_type():
    assert ended("1xfast:1", Job("a", 0.0, 100.0, "m")) == {"a": 25.0}
    assert ended("1xslow:1", Job("a", 0.0, 100.0, "m")) == {"a": 100.0}
    assert ended("1xfast:1", Job("a", 0.0, 100.0, "n")) == {"a": 50.0}


def test_a_gang_runs_at_the_rate_of_its_size():
    assert ended("2xfast:2", Job("a", 0.0, 70.0, "m", 2)) == {"a": 10.0}


def test_a_job_without_a_kind_lasts_as_long_as_it_says_wherever_it_runs():
    assert ended("2xslow:2", Job("a", 0.0, 70.0, workers=2)) == {"a": 70.0}


def test_a_gang_on_more_nodes_than_it_needs_runs_at_its_spread_rate():
    slowed = table().alone.copy()
    slowed[2] = (3.5, 1.0)
    rates = table(spread=slowed)
    pair = Job("a", 0.0, 70.0, "m", 2)
    spread = SchedulerConfig(placement=Part("spread"), round_s=0.0)
    assert ended("4xfast:2", pair, rates=rates) == {"a": 10.0}
    assert ended("4xfast:2", pair, rates=rates, scheduler=spread) == {"a": 20.0}
    assert ended("2xfast:1", pair, rates=rates) == {"a": 10.0}, "two nodes of one are as few as there can be"


def test_a_job_moves_on_at_another_rate_when_it_changes_its_type():
    jobs = Job("first", 0.0, 100.0, "m"), Job("second", 0.0, 100.0, "m")
    assert ended("1xfast:1,1xslow:1", *jobs) == {"first": 25.0, "second": pytest.approx(25.0 + 75.0 / 4.0)}


def test_a_plan_can_give_a_job_another_batch_size():
    backend = SimulatedBackend(Cluster.parse("1xfast:1"), table().for_types(("fast",)), [Job("a", 0.0, 100.0, "m")])
    backend.wait(0.0, 0.0)
    one = np.array([0])
    told = [*backend.submit(RoundPlan(0.0, launches=Launches(one, one, np.array([0, 1]), one, np.array([64]))))]
    told += backend.wait(1000.0, 0.0)
    assert [event.rates.tolist() for event in told if isinstance(event, ev.ProgressReported)] == [[8.0]]
    assert [event.at.tolist() for event in told if isinstance(event, ev.JobsFinished)] == [[12.5]]


def test_a_gang_can_run_smaller_than_it_asked_for():
    @dataclass(frozen=True)
    class Half:
        def select(self, view, memo):
            return selection_of(view.jobs.number, [0] * len(view.jobs), [1] * len(view.jobs)), memo

    made = Harness(EVENTS, table=table()).cluster(Cluster.parse("2xfast:2")).policy(Half())
    made.submit(Job("a", 0.0, 40.0, "m", 2)).run()
    assert made.ended_s("a") == 10.0


def test_a_plan_that_puts_a_job_where_it_has_no_throughput_is_an_error():
    rates = table_of(TYPES, {("m", 1): (0.0, 1.0)})
    backend = SimulatedBackend(Cluster.parse("1xfast:1,1xslow:1"), rates, [Job("a", 0.0, 100.0, "m")])
    backend.wait(0.0, 0.0)
    one = np.array([0])
    with pytest.raises(InvalidPlan, match="job 'a' was placed on fast, where it has no throughput"):
        backend.submit(RoundPlan(0.0, launches=Launches(one, one, np.array([0, 1]), one)))


# Co-location.


@dataclass(frozen=True)
class Together:
    """Everybody there is on the same accelerators of the first type."""

    def select(self, view, memo):
        jobs = view.jobs
        return selection_of(jobs.number, [0] * len(jobs), jobs.workers, combination=np.zeros(len(jobs), np.int64)), memo


def shared_table():
    """With m, m runs at half its speed and n at a quarter; with n, m runs at three quarters, n at half."""
    paired = np.zeros((len(RATES) + 1, len(RATES) + 1, 2))
    rates = table()
    row = rates.row_of
    paired[row["m", 1], row["n", 1]] = 0.75 * rates.alone[row["m", 1]]
    for size in (1, 2):
        paired[row["m", size], row["m", size]] = 0.5 * rates.alone[row["m", size]]
    paired[row["n", 1], row["m", 1]] = 0.25 * rates.alone[row["n", 1]]
    paired[row["n", 1], row["n", 1]] = 0.5 * rates.alone[row["n", 1]]
    return table(paired=paired)


def together(*jobs: Job, round_s: float = 0.0, where: str = "1xfast:1") -> Harness:
    made = Harness(SchedulerConfig(round_s=round_s), table=shared_table(), residents=len(jobs))
    return made.cluster(Cluster.parse(where)).policy(Together()).submit(*jobs)


def test_two_on_one_accelerator_slow_each_other_and_speed_up_when_the_partner_ends():
    made = together(Job("m", 0.0, 300.0, "m"), Job("n", 0.0, 100.0, "n")).run()
    # m: 3 a second until 100 s, where it ends; n: 0.5 a second until then (50 steps), then 2 a second for the other 50.
    assert made.ended_s("m") == 100.0
    assert made.ended_s("n") == 125.0


def test_an_unmeasured_pair_is_an_error_that_names_both():
    rates = shared_table()
    rates.paired[rates.row_of["n", 1], rates.row_of["m", 1]] = 0.0
    made = Harness(SchedulerConfig(round_s=0.0), table=rates, residents=2).cluster(Cluster.parse("1xfast:1")).policy(Together())
    text = "on fast with 'a', and the throughput table has no rate of 'n' with 'm' there; it needs every two that may"
    with pytest.raises(InvalidPlan, match=f"{text} be co-located, as `fairlead profile table --together` writes them"):
        made.submit(Job("a", 0.0, 300.0, "m"), Job("b", 0.0, 100.0, "n")).run()


def test_an_unmeasured_pair_of_gangs_is_reported_with_their_size():
    rates = fill_workers(shared_table(), [("m", 2), ("n", 2)])
    made = Harness(SchedulerConfig(round_s=0.0), table=rates, residents=2).cluster(Cluster.parse("2xfast:2")).policy(Together())
    with pytest.raises(InvalidPlan, match=r"has no rate of '[mn]' with '[mn]' there with 2 workers; it needs every two"):
        made.submit(Job("a", 0.0, 300.0, "m", 2), Job("b", 0.0, 100.0, "n", 2)).run()


def test_the_partner_speeds_up_in_the_middle_of_a_round():
    made = together(Job("m", 0.0, 300.0, "m"), Job("n", 0.0, 100.0, "n"), round_s=1000.0).run()
    assert (made.ended_s("m"), made.ended_s("n")) == (100.0, 125.0)


def test_who_comes_later_slows_who_is_there_from_then_on():
    made = together(Job("m", 0.0, 300.0, "m"), Job("n", 40.0, 1000.0, "n")).run()
    # m: 160 steps alone in 40 s, then 140 at 3 a second; n meanwhile at 0.5, afterwards alone at 2.
    assert made.ended_s("m") == pytest.approx(40.0 + 140.0 / 3.0)
    assert made.ended_s("n") == pytest.approx(40.0 + 140.0 / 3.0 + (1000.0 - 0.5 * 140.0 / 3.0) / 2.0)


def test_several_that_share_end_one_after_the_other_at_the_right_seconds():
    made = together(Job("a", 0.0, 100.0, "m"), Job("b", 0.0, 200.0, "m"), round_s=10_000.0).run()
    # Both at 2 a second until a ends at 50; then b alone at 4.
    assert (made.ended_s("a"), made.ended_s("b")) == (50.0, 75.0)


def test_progress_is_told_when_the_speed_changes():
    made = together(Job("m", 0.0, 300.0, "m"), Job("n", 0.0, 100.0, "n"), round_s=1000.0).run()
    told = [
        (e.time, e.jobs.tolist(), e.steps.tolist(), e.rates.tolist())
        for e in made.journal
        if isinstance(e, ev.ProgressReported)
    ]
    assert told[-1] == (100.0, [1], [50.0], [2.0])


def test_a_partner_that_is_suspended_or_cancelled_lets_the_other_go_on_at_full_speed():
    cluster, rates = Cluster.parse("1xfast:1"), shared_table().for_types(("fast",))
    for how in ("suspended", "cancelled"):
        others = [ev.JobCancelled(20.0, 1)] if how == "cancelled" else []
        backend = SimulatedBackend(cluster, rates, [Job("m", 0.0, 300.0, "m"), Job("n", 0.0, 100.0, "n")], others=others)
        backend.wait(0.0, 0.0)
        offsets, places = ragged([np.array([0]), np.array([0])])
        backend.submit(RoundPlan(0.0, launches=Launches(np.array([0, 1]), np.array([0, 0]), offsets, places)))
        backend.wait(20.0, 0.0)
        if how == "suspended":
            backend.submit(RoundPlan(20.0, suspended=np.array([1])))
        told = backend.wait(1000.0, 0.0)
        finished = [event for event in told if isinstance(event, ev.JobsFinished)]
        assert finished[0].jobs.tolist() == [0], how
        assert finished[0].at.tolist() == [20.0 + 240.0 / 4.0], how


def test_shared_runs_pass_the_invariants_with_two_residents():
    made = together(Job("m", 0.0, 300.0, "m"), Job("n", 40.0, 1000.0, "n")).run()
    assert check_events(made.journal.events, residents=2).digest() == made.state.digest()
    assert made.phase("n") is Phase.FINISHED


def test_an_accelerator_with_two_jobs_breaks_the_invariant_where_one_is_allowed():
    made = Harness(EVENTS, table=shared_table()).cluster(Cluster.parse("1xfast:1")).policy(Together())
    with pytest.raises(AssertionError, match="a GPU holds 2 jobs, at most 1"):
        made.submit(Job("a", 0.0, 10.0, "m"), Job("b", 0.0, 10.0, "m")).run()


def test_a_combination_of_gangs_shares_all_of_its_accelerators():
    made = together(Job("a", 0.0, 70.0, "m", 2), Job("b", 0.0, 70.0, "m", 2), where="2xfast:2")
    made.round()
    assert made.places("a") == made.places("b") == [0, 1]
    made.run()
    assert (made.ended_s("a"), made.ended_s("b")) == (20.0, 20.0)


def test_jobs_that_do_not_share_are_not_slowed_by_each_other():
    assert ended("2xfast:2", Job("a", 0.0, 100.0, "m"), Job("b", 0.0, 100.0, "m"), rates=shared_table()) == {
        "a": 25.0,
        "b": 25.0,
    }


def test_arrivals_and_ends_of_one_wait_are_told_in_order_of_time():
    jobs = [Job(f"j{i}", 10.0 * i, 35.0) for i in range(10)]
    made = Harness(SchedulerConfig(round_s=1000.0)).cluster("v100:4").submit(*jobs).run()
    times = [event.time for event in made.journal.events]
    assert times == sorted(times)


def test_a_job_can_be_added_while_the_run_goes_on():
    made = Harness(EVENTS).cluster("v100:1").submit(job("a").lasting(100.0))
    made.round()
    made.submit(job("b").lasting(5.0).at(50), job("c").lasting(7.0).at(20))
    made.run()
    assert (made.ended_s("a"), made.ended_s("c"), made.ended_s("b")) == (100.0, 107.0, 112.0)


def test_a_job_added_too_late_comes_now():
    made = Harness(SchedulerConfig(round_s=100.0)).cluster("v100:1").submit(job("a").lasting(50.0))
    for _ in range(3):
        made.round()
    made.submit(job("late").lasting(5.0).at(10))
    made.run()
    submitted = made.state.all_jobs().submitted_s[made.number("late")]
    assert submitted >= 200.0
    assert made.ended_s("late") >= submitted + 5.0
