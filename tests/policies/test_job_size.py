"""Policies by size: shortest job, shortest remaining time, largest gang."""

from __future__ import annotations

import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.policies.ranking.job_size import ShortestJobFirst, ShortestRemainingTimeFirst
from fairlead.testing import Harness, job
from scenes import state_of, table_of, view_of


def test_the_shortest_job_starts_first(harness):
    harness.cluster("v100:1").policy("sjf")
    harness.submit(job("long").lasting(900.0), job("short").lasting(100.0), job("middle").lasting(500.0)).run()
    assert sorted(("long", "middle", "short"), key=harness.ended_s) == ["short", "middle", "long"]


def test_a_shorter_newcomer_waits_for_who_runs(harness):
    harness.cluster("v100:1").policy("sjf").submit(job("long").lasting(900.0), job("short").lasting(10.0).at(50)).run()
    assert harness.ended_s("long") == 900.0


def test_with_preemption_a_shorter_newcomer_goes_first(harness):
    harness.cluster("v100:1").policy("sjf", preempt=True)
    harness.submit(job("long").lasting(900.0), job("short").lasting(10.0).at(50)).run()
    assert harness.ended_s("short") == 310.0


def test_shortest_is_measured_by_all_of_a_job_and_remaining_by_what_is_left():
    jobs = [Job("started", steps=1000.0), Job("fresh", steps=500.0)]
    view = view_of(state_of(Cluster.parse("1xv100:1"), jobs, {0: [0]}), 600.0)
    assert ShortestJobFirst(preempt=True).select(view, None)[0].jobs.tolist() == [1]
    assert ShortestRemainingTimeFirst().select(view, None)[0].jobs.tolist() == [0]


def test_size_is_run_time_and_not_steps():
    table = table_of(("v100",), {("quick", 1): (10.0,), ("slow", 1): (1.0,)})
    jobs = [Job("many steps", 0.0, 1000.0, "quick"), Job("few steps", 0.0, 200.0, "slow")]
    for policy in (ShortestJobFirst(), ShortestRemainingTimeFirst()):
        selection, _ = policy.select(view_of(state_of(Cluster.parse("1xv100:1"), jobs), 0.0, table), None)
        assert selection.jobs.tolist() == [0]


def test_srtf_suspends_who_has_more_left_than_a_newcomer_and_not_who_has_less():
    made = Harness(SchedulerConfig(Part("srtf"), round_s=0.0)).cluster("v100:1")
    made.submit(job("a").lasting(100.0), job("b").lasting(50.0).at(40), job("c").lasting(70.0).at(41)).run()
    # At 40, a has 60 left and b 50: b goes first. At 41, b has 49 left, c 70 and a 60.
    assert (made.ended_s("b"), made.ended_s("a"), made.ended_s("c")) == (90.0, 150.0, 220.0)


def test_srtf_can_weigh_remaining_time_by_the_size_of_the_gang():
    jobs = [Job("pair", steps=60.0, workers=2), Job("single", steps=100.0)]
    view = view_of(state_of(Cluster.parse("2xv100:2"), jobs))
    assert ShortestRemainingTimeFirst().select(view, None)[0].jobs.tolist() == [0]
    assert ShortestRemainingTimeFirst(by_accelerator_time=True).select(view, None)[0].jobs.tolist() == [1]


@pytest.mark.parametrize(("backfill", "running"), [(True, {"b", "c"}), (False, {"b"})])
def test_strict_or_backfilling_is_a_choice(harness, backfill, running):
    harness.cluster("v100:2").policy("srtf", backfill=backfill)
    plan = harness.submit(
        job("a").workers(2).lasting(200.0), job("b").workers(1).lasting(100.0), job("c").workers(1).lasting(300.0)
    ).round()
    assert plan.running == running


def test_the_largest_gang_starts_first_and_is_not_pushed_out(harness):
    harness.cluster("v100:4").policy("largest-first")
    plan = harness.submit(job("one").workers(1), job("two").workers(2), job("three").workers(3)).round()
    assert plan.running == {"three", "one"}
    assert harness.submit(job("four").workers(4).at(10)).round().running == {"three", "one"}


def test_equals_go_by_submission(harness):
    for policy in ("sjf", "srtf", "largest-first"):
        made = Harness().cluster("v100:1").policy(policy)
        assert made.submit(job("a").lasting(100.0), job("b").lasting(100.0)).round().running == {"a"}
