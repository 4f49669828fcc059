"""What starting, saving and loading cost, to the second; how jobs end otherwise than by their last step."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.testing import Harness, check_events, job
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from scenes import table_of

ROUND = 100.0


def with_costs(costs: Costs, policy: str = "srtf", **parameters) -> Harness:
    return Harness(SchedulerConfig(Part(policy, parameters), round_s=ROUND), costs=costs).cluster("v100:1")


def test_the_first_start_costs_a_launch():
    made = with_costs(Costs(launch_s=12.0, restart_s=99.0)).submit(job("a").lasting(50.0)).run()
    assert made.ended_s("a") == 62.0


def test_every_later_start_costs_a_restart():
    made = with_costs(Costs(launch_s=12.0, restart_s=20.0))
    made.submit(job("long").lasting(500.0), job("short").lasting(30.0).at(150)).run()
    # long: 12 s launch, 188 steps until 200; short: 200–242; long again at 300, 20 s restart, 312 steps left.
    assert made.ended_s("short") == 242.0
    assert made.ended_s("long") == 300.0 + 20.0 + 312.0


@pytest.mark.parametrize(
    "costs", [Costs(launch_s=7.4, restart_s=5.1), Costs(launch_s=8.0, restart_s=6.0)], ids=["odd", "rounds"]
)
@pytest.mark.parametrize("policy", ["las", "max-min-fairness"])
def test_where_starts_take_longer_than_rounds_who_loads_is_left_alone_as_on_a_real_cluster(policy: str, costs: Costs):
    """A run on a busy machine, simulated anew: without that nobody would ever make a step."""
    scheduler = SchedulerConfig(Part(policy), round_s=2.0, first_step_s=120.0)
    jobs = [Job(f"job-{n}", submitted_s=0.7 * n, steps=20.0, workers=1 + n % 2) for n in range(5)]
    given = Simulation(Trace.of(jobs), Cluster.parse("3xv100:3"), scheduler, costs=costs)
    logs = list[list[bytes]]()
    for skip in (True, False):
        journal = MemoryJournal()
        run = run_simulation(replace(given, skip_quiet_rounds=skip), journal=journal)
        assert run.state.columns["phase"][:5].tolist() == [Phase.FINISHED] * 5
        logs.append([encode(event) for event in journal])
    assert logs[0] == logs[1], "rounds that change nothing are still left out, and no others"


def test_a_suspended_job_loses_the_time_of_its_last_save():
    made = with_costs(Costs(checkpoint_s=15.0)).submit(job("long").lasting(500.0), job("short").lasting(30.0).at(150)).run()
    # long: 200 s of which the last 15 are spent saving; 315 steps left at 300.
    assert made.ended_s("long") == 300.0 + 315.0
    made.check()


def test_a_save_longer_than_the_run_loses_nothing_that_was_there_before():
    made = with_costs(Costs(checkpoint_s=150.0)).submit(job("long").lasting(500.0), job("short").lasting(30.0).at(50)).run()
    assert made.ended_s("long") == 200.0 + 500.0


def test_regular_saves_slow_a_job_by_the_time_they_take():
    made = with_costs(Costs(checkpoint_s=25.0, checkpoint_every_s=75.0)).submit(job("a").lasting(300.0)).run()
    assert made.ended_s("a") == pytest.approx(400.0)


def test_kinds_can_have_costs_of_their_own():
    rates = table_of(("v100",), {("big", 1): (1.0,), ("small", 1): (1.0,)})
    costs = Costs(launch_s=5.0, by_kind={"big": Costs(launch_s=60.0)})
    made = Harness(SchedulerConfig(round_s=0.0), table=rates, costs=costs).cluster("v100:2")
    made.submit(Job("big", 0.0, 10.0, "big"), Job("small", 0.0, 10.0, "small"), Job("timed", 0.0, 10.0)).run()
    assert (made.ended_s("big"), made.ended_s("small"), made.ended_s("timed")) == (70.0, 15.0, 30.0)


def test_a_kinds_own_costs_stand_for_all_of_the_general_ones():
    own = Costs(restart_s=1.0)
    costs = Costs(10.0, 20.0, 30.0, 40.0, by_kind={"own": own})
    assert costs.of("own") == own
    assert costs.of("other") is costs


def test_a_job_that_is_moved_pays_for_its_restart():
    rates = table_of(("fast", "slow"), {("m", 1): (2.0, 1.0)})
    made = Harness(SchedulerConfig(round_s=0.0), table=rates, costs=Costs(launch_s=10.0, restart_s=20.0))
    made.cluster(Cluster.parse("1xfast:1,1xslow:1"))
    made.submit(Job("first", 0.0, 100.0, "m"), Job("second", 0.0, 200.0, "m")).run()
    # first: 10 + 50 on fast. second: 50 steps on slow until 60, then 20 s restart and 150 steps at 2 a second.
    assert made.ended_s("first") == 60.0
    assert made.ended_s("second") == 60.0 + 20.0 + 75.0


def test_service_counts_the_time_a_job_holds_its_accelerators_whether_it_progresses_or_not():
    made = with_costs(Costs(launch_s=30.0)).submit(job("a").lasting(50.0).workers(1)).run()
    assert made.state.all_jobs().run_s.tolist() == [80.0]


# Time limits.


def test_a_time_limit_ends_a_job_at_the_exact_second():
    made = Harness().cluster("v100:1").submit(job("a").lasting(500.0).with_(time_limit_s=123.5)).run()
    assert made.phase("a") is Phase.FAILED
    assert made.ended_s("a") == 123.5
    failed = [event for event in made.journal if isinstance(event, ev.JobsFailed)]
    assert [(event.why, event.at.tolist()) for event in failed] == [("time limit", [123.5])]


def test_a_job_whose_last_step_falls_on_its_limit_finishes():
    made = Harness().cluster("v100:1").submit(job("a").lasting(123.5).with_(time_limit_s=123.5)).run()
    assert made.phase("a") is Phase.FINISHED


def test_a_time_limit_counts_run_time_over_all_stretches_and_not_waiting():
    made = with_costs(Costs())
    made.submit(job("long").lasting(1000.0).with_(time_limit_s=250.0), job("short").lasting(150.0).at(50)).run()
    # long runs 0–100, waits for short 100–250, runs again from 300 with 150 s left.
    assert made.ended_s("short") == 250.0
    assert made.ended_s("long") == 450.0
    assert made.phase("long") is Phase.FAILED


def test_a_time_limit_counts_the_time_of_launching():
    made = with_costs(Costs(launch_s=100.0)).submit(job("a").lasting(60.0).with_(time_limit_s=120.0)).run()
    assert (made.phase("a"), made.ended_s("a")) == (Phase.FAILED, 120.0)


def test_of_jobs_that_end_in_one_wait_each_ends_in_its_own_way():
    made = Harness(SchedulerConfig(round_s=1000.0)).cluster("v100:4")
    made.submit(
        job("late").lasting(500.0).with_(time_limit_s=100.0),
        job("done").lasting(200.0),
        job("later").lasting(500.0).with_(time_limit_s=300.0),
    ).run()
    assert [made.phase(name) for name in ("late", "done", "later")] == [Phase.FAILED, Phase.FINISHED, Phase.FAILED]
    assert [made.ended_s(name) for name in ("late", "done", "later")] == [100.0, 200.0, 300.0]


# Cancelling.


def cancelled_at(second: float, number: int, jobs: list[Job], round_s: float = ROUND) -> Loop:
    cluster = Cluster.parse("1xv100:1")
    table = ThroughputTable.timed(cluster.type_names)
    backend = SimulatedBackend(cluster, table, jobs, others=[ev.JobCancelled(second, number)])
    loop = Loop(State(cluster), backend, SchedulerConfig(round_s=round_s).build(table), journal=MemoryJournal())
    loop.record(ev.JournalOpened(0.0, cluster, {}, "cancelling", None))
    loop.run()
    assert check_events(loop.journal).digest() == loop.state.digest()
    return loop


JOBS = [Job("first", 0.0, 500.0), Job("second", 0.0, 50.0), Job("third", 10.0, 20.0)]


def outcome(loop: Loop) -> list[tuple[Phase, float]]:
    jobs = loop.state.all_jobs()
    return [(Phase(phase), end) for phase, end in zip(jobs.phase.tolist(), jobs.ended_s.tolist())]


def test_a_job_cancelled_while_it_runs_frees_its_accelerator_for_the_next_round():
    loop = cancelled_at(130.0, 0, JOBS)
    assert outcome(loop) == [(Phase.CANCELLED, 130.0), (Phase.FINISHED, 250.0), (Phase.FINISHED, 320.0)]
    assert loop.state.all_jobs().run_s.tolist() == [130.0, 50.0, 20.0]


def test_a_job_cancelled_while_it_waits_never_runs():
    loop = cancelled_at(130.0, 1, JOBS)
    assert outcome(loop) == [(Phase.FINISHED, 500.0), (Phase.CANCELLED, 130.0), (Phase.FINISHED, 520.0)]
    assert math.isnan(loop.state.all_jobs().first_started_s[1])


def test_a_job_cancelled_before_it_was_let_in_never_enters():
    loop = cancelled_at(15.0, 2, JOBS)
    assert outcome(loop)[2] == (Phase.CANCELLED, 15.0)
    admitted = [n for event in loop.journal if isinstance(event, ev.RoundPlanned) for n in event.plan.admitted.tolist()]
    assert 2 not in admitted


def test_cancelling_works_without_rounds():
    loop = cancelled_at(130.0, 0, JOBS, round_s=0.0)
    assert outcome(loop) == [(Phase.CANCELLED, 130.0), (Phase.FINISHED, 180.0), (Phase.FINISHED, 200.0)]


# Carrying out plans, without a scheduler.


def test_a_backend_carries_out_a_plan_and_tells_what_came_of_it():
    cluster = Cluster.parse("2xv100:2")
    backend = SimulatedBackend(cluster, ThroughputTable.timed(("v100",)), [Job("a", 5.0, 100.0)], costs=Costs(3.0, 7.0, 2.0))
    assert not backend.exhausted
    told = backend.wait(1000.0, 0.0)
    assert [type(event) for event in told] == [ev.JobSubmitted]
    assert backend.now == 5.0
    one = np.array([0])
    (progress,) = backend.submit(RoundPlan(5.0, launches=Launches(one, one, np.array([0, 1]), np.array([1]))))
    assert not backend.wait(25.0, 0.0)
    assert (progress.steps.tolist(), progress.rates.tolist(), progress.since.tolist()) == ([0.0], [1.0], [8.0])
    assert backend.now == 25.0
    (progress,) = backend.submit(RoundPlan(25.0, suspended=one))
    assert not backend.wait(40.0, 0.0)
    assert (progress.steps.tolist(), progress.rates.tolist()) == ([15.0], [0.0])
    backend.submit(RoundPlan(40.0, launches=Launches(one, one, np.array([0, 1]), np.array([0]))))
    told = backend.wait(1000.0, 0.0)
    assert told[-1].at.tolist() == [40.0 + 7.0 + 85.0]
    assert backend.exhausted


def test_after_an_event_a_wait_ends_at_the_next_multiple_of_the_grain():
    jobs = [Job("a", 130.0), Job("b", 199.0), Job("c", 201.0)]
    backend = SimulatedBackend(Cluster.parse("1xv100:1"), ThroughputTable.timed(("v100",)), jobs)
    assert [event.job.name for event in backend.wait(10_000.0, 100.0)] == ["a", "b"]
    assert backend.now == 200.0
    assert [event.job.name for event in backend.wait(250.0, 100.0)] == ["c"]
    assert backend.now == 250.0
    assert list(backend.wait(math.inf, 100.0)) == []
    assert backend.now == 250.0
