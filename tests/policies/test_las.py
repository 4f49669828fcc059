"""Least attained service: by time or accelerator time, per weight, and exactly as long as it promises."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.plan import RoundPlan
from fairlead.engine.apply import apply_event
from fairlead.policies.ranking.las import TURN, LeastAttainedService
from fairlead.testing import Harness, job
from scenes import state_of, view_of

ROUND_S = 10.0


def chosen(jobs, running, time, policy, where="2xv100:2", **how):
    selection, memo = policy.select(view_of(state_of(Cluster.parse(where), jobs, running, **how), time), None)
    assert memo is None
    return selection


def test_who_has_had_least_goes_first():
    jobs = [Job("served", steps=1e6), Job("fresh", steps=1e6)]
    assert chosen(jobs, {0: [0]}, 100.0, LeastAttainedService(), "1xv100:1").jobs.tolist() == [1]


def test_by_accelerator_time_a_gang_uses_up_its_share_faster_than_by_time():
    jobs = [Job("gang", steps=1e6, workers=2), Job("single", steps=1e6), Job("third", steps=1e6)]
    running = {0: [0, 1], 1: [2]}
    by_service = chosen(jobs, running, 100.0, LeastAttainedService(backfill=False), "3xv100:3")
    assert by_service.jobs.tolist() == [2, 1]  # 0, 100, 200 accelerator-seconds; the gang does not fit behind them
    by_time = chosen(jobs, running, 100.0, LeastAttainedService(by="time", backfill=False), "3xv100:3")
    assert by_time.jobs.tolist() == [2, 0]  # 0, 100, 100 seconds: a tie goes by submission


def test_weight_divides_what_was_attained():
    jobs = [Job("heavy", steps=1e6, weight=3.0), Job("light", steps=1e6)]
    view = view_of(state_of(Cluster.parse("2xv100:2"), jobs, {0: [0], 1: [1]}), 90.0)
    order = LeastAttainedService().select(view, None)[0].jobs.tolist()
    assert order == [0, 1]  # 30 per weight, and 90


@pytest.mark.parametrize(("weights", "share"), [((1.0, 1.0), 0.5), ((3.0, 1.0), 0.75)])
def test_time_is_shared_by_weight(weights, share):
    made = Harness(SchedulerConfig(Part("las"), round_s=10.0)).cluster("v100:1")
    made.submit(*(job(f"j{i}").lasting(1e6).with_(weight=w) for i, w in enumerate(weights)))
    made.loop.run(until=4000.0)
    run_s = made.state.snapshot(4000.0).jobs.run_s
    assert run_s.sum() == 4000.0
    assert run_s[0] / 4000.0 == pytest.approx(share, abs=0.01)


def test_a_selection_holds_until_somebody_who_runs_catches_up_with_somebody_who_waits():
    jobs = [Job("ahead", steps=1e6), Job("behind", steps=1e6)]
    state = state_of(Cluster.parse("1xv100:1"), jobs, {0: [0]})
    apply_event(state, ev.RoundPlanned(RoundPlan(250.0, suspended=np.array([0]))))
    selection, _ = LeastAttainedService().select(view_of(state, 300.0, round_s=ROUND_S), None)
    assert selection.jobs.tolist() == [1]
    assert selection.valid_until == pytest.approx(550.0)
    assert selection.valid_until <= 550.0


def test_without_rounds_a_job_may_exceed_a_waiting_one_by_a_part_of_its_service():
    jobs = [Job("ahead", steps=1e6), Job("behind", steps=1e6)]
    state = state_of(Cluster.parse("1xv100:1"), jobs, {0: [0]})
    apply_event(state, ev.RoundPlanned(RoundPlan(250.0, suspended=np.array([0]))))
    selection, _ = LeastAttainedService().select(view_of(state, 300.0), None)
    assert selection.jobs.tolist() == [1]
    assert selection.valid_until == pytest.approx(300.0 + 250.0 * (1 + TURN))


def test_a_gangs_service_grows_as_fast_as_it_has_accelerators():
    jobs = [Job("gang", steps=1e6, workers=2), Job("other", steps=1e6, workers=2)]
    state = state_of(Cluster.parse("2xv100:2"), jobs, {0: [0, 1]})
    selection, _ = LeastAttainedService().select(view_of(state, 100.0, round_s=ROUND_S), None)
    assert selection.jobs.tolist() == [1]
    assert selection.valid_until == pytest.approx(200.0)  # from 0 to 200 accelerator-seconds, two a second


def test_where_nobody_waits_a_selection_holds_for_ever():
    selection = chosen([Job("a", steps=1e6)], {0: [0]}, 100.0, LeastAttainedService())
    assert selection.valid_until == math.inf


def test_without_rounds_two_take_turns_and_both_end():
    made = Harness(SchedulerConfig(Part("las"), round_s=0.0)).cluster("v100:1")
    made.submit(job("a").lasting(50.0), job("b").lasting(50.0)).run()
    assert max(made.ended_s("a"), made.ended_s("b")) == pytest.approx(100.0)
    assert min(made.ended_s("a"), made.ended_s("b")) == pytest.approx(99.0, abs=100.0 * TURN)


def taking_turns(seconds: float, jobs: int = 3) -> Harness:
    made = Harness(SchedulerConfig(Part("las"), round_s=0.0)).cluster("v100:1")
    return made.submit(*(job(f"j{i}").lasting(seconds) for i in range(jobs))).run()


def test_without_rounds_the_number_of_decisions_grows_with_the_logarithm_of_the_service():
    short, long = (taking_turns(seconds).loop.decisions for seconds in (1e4, 1e6))
    turns = math.log(1e6 / 1e4) / math.log(1 + TURN)  # of each job, in which its service grows from 1e4 to 1e6
    assert long - short <= 3 * turns


def test_without_rounds_equal_jobs_end_together():
    made = taking_turns(1e5)
    ends = [made.ended_s(f"j{i}") for i in range(3)]
    assert max(ends) == pytest.approx(3e5)
    assert min(ends) >= 3e5 * (1 - TURN)


def test_strict_order_keeps_the_small_waiting(harness):
    harness.cluster("v100:2").policy("las", backfill=False)
    assert harness.submit(job("a"), job("wide").workers(2), job("c")).round().running == {"a"}
