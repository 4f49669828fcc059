"""The one loop: exact ends inside rounds, decisions at the right moments, switching, stopping, and what can never run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Selection
from fairlead.engine.apply import replay_events
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop, Stalled
from fairlead.engine.state import State
from fairlead.policies.ranking.base import in_order
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing import Harness, check_events, job
from fairlead.workloads.throughput_tables import ThroughputTable
from scenes import table_of

ONE = Cluster.parse("1xv100:1")


def loop_of(jobs, policy="fifo", cluster=ONE, *, round_s=300.0, table=None, skip=True, policy_object=None, **backend) -> Loop:
    table = table or ThroughputTable.timed(cluster.type_names)

    def compose(data):
        return SchedulerConfig.from_data(data).build(table)

    stages = SchedulerConfig(Part(policy), round_s=round_s).build(table)
    if policy_object is not None:
        stages = replace(stages, policy=policy_object)
    simulated = SimulatedBackend(cluster, table, jobs, **backend)
    loop = Loop(State(cluster), simulated, stages, journal=MemoryJournal(), skip_quiet_rounds=skip, compose=compose)
    loop.record(ev.JournalOpened(0.0, cluster, {"policy": policy}, "loop", None))
    return loop


def ends(loop: Loop) -> dict[str, float]:
    jobs = loop.state.all_jobs()
    return {loop.state.job_of[n].name: end for n, end in zip(jobs.number.tolist(), jobs.ended_s.tolist())}


def phases(loop: Loop) -> dict[str, Phase]:
    jobs = loop.state.all_jobs()
    return {loop.state.job_of[n].name: Phase(phase) for n, phase in zip(jobs.number.tolist(), jobs.phase.tolist())}


# Rounds, or none.


def test_a_job_ends_at_its_exact_second_and_the_next_one_starts_with_the_round(harness):
    harness.cluster("v100:1").submit(job("a").lasting(450.25), job("b").lasting(100.0).at(10))
    harness.run()
    assert harness.ended_s("a") == 450.25
    assert harness.ended_s("b") == 600.0 + 100.0


def test_a_job_submitted_inside_a_round_starts_with_the_next(harness):
    harness.cluster("v100:1").submit(job("a").lasting(10.0).at(301))
    harness.run()
    assert harness.ended_s("a") == 610.0


def test_a_job_submitted_with_the_round_starts_with_it(harness):
    harness.cluster("v100:1").submit(job("a").lasting(10.0).at(600))
    harness.run()
    assert harness.ended_s("a") == 610.0


def test_without_rounds_jobs_start_the_moment_they_can():
    made = Harness(SchedulerConfig(round_s=0.0)).cluster("v100:1")
    made.submit(job("a").lasting(450.25), job("b").lasting(100.0).at(10), job("c").lasting(7.5).at(1000.5)).run()
    assert (made.ended_s("a"), made.ended_s("b"), made.ended_s("c")) == (450.25, 550.25, 1008.0)


def test_without_rounds_a_decision_is_taken_at_every_event_and_at_no_other_time():
    loop = loop_of([Job("a", 0.0, 100.0), Job("b", 30.0, 100.0), Job("c", 70.0, 10.0)], round_s=0.0)
    times = []
    loop.on_decision = lambda plan: times.append(plan.time)
    loop.run()
    assert sorted(set(times)) == [0.0, 30.0, 70.0, 100.0, 200.0, 210.0]


def test_quiet_rounds_are_skipped_and_counted_all_the_same():
    jobs = [Job("a", 0.0, 100_000.0), Job("b", 0.0, 10.0)]
    quick, slow = loop_of(jobs), loop_of(jobs, skip=False)
    for loop in (quick, slow):
        loop.run()
    assert ends(quick) == ends(slow)
    assert quick.decisions < 10 < 300 < slow.decisions
    assert quick.rounds == slow.rounds


def test_decisions_are_taken_at_multiples_of_the_round_only():
    loop = loop_of([Job(f"j{i}", 17.0 * i, 91.0) for i in range(20)], round_s=60.0, policy="las")
    times = []
    loop.on_decision = lambda plan: times.append(plan.time)
    loop.run()
    assert all(time % 60.0 == 0.0 for time in times)
    assert times == sorted(set(times))


def test_a_gap_between_jobs_is_jumped_over():
    loop = loop_of([Job("a", 0.0, 10.0), Job("b", 1e9 + 1, 10.0)], round_s=100.0)
    loop.run()
    assert ends(loop)["b"] == 1e9 + 110.0
    assert loop.decisions < 10


def test_a_policy_that_promises_nothing_is_asked_every_round():
    @dataclass
    class Unsure:
        asked: int = 0

        def select(self, view, memo):
            self.asked += 1
            return in_order(view, preempt=False), memo

    unsure = Unsure()
    loop = loop_of([Job("a", 0.0, 3000.0)], policy_object=unsure)
    loop.run()
    assert unsure.asked >= 10


def test_a_promise_is_kept_to_the_round_in_which_it_ends():
    @dataclass
    class Until:
        second: float
        asked: tuple[float, ...] = ()

        def select(self, view, memo):
            self.asked += (view.time,)
            return in_order(view, preempt=False, valid_until=self.second if view.time < self.second else math.inf), memo

    policy = Until(950.0)
    loop = loop_of([Job("a", 0.0, 3000.0)], policy_object=policy)
    loop.run()
    assert policy.asked[:2] == (0.0, 1200.0)


# What a policy remembers.


@dataclass(frozen=True)
class Counting:
    """Remembers how often it was asked, as data."""

    def select(self, view, memo):
        count = 1 if memo is None else memo["count"] + 1
        return in_order(view, valid_until=math.inf), {"count": count}


def test_a_memo_goes_in_and_comes_out_and_is_journaled():
    loop = loop_of([Job("a", 0.0, 700.0), Job("b", 400.0, 10.0)], policy_object=Counting())
    loop.run()
    told = [event.memo["count"] for event in loop.journal if isinstance(event, ev.MemoChanged)]
    assert told == list(range(1, loop.decisions + 1))
    assert replay_events(loop.journal).memo == loop.state.memo == {"count": loop.decisions}


# Switching the scheduler.


def test_a_switch_takes_effect_at_the_next_decision_and_not_before():
    jobs = [Job("long", 0.0, 2000.0), Job("longer", 0.0, 3000.0), Job("short", 10.0, 50.0)]
    switch = ev.SchedulerSwitched(400.0, {"policy": "srtf", "rounds": 300.0}, "to see")
    plain, switched = loop_of(jobs), loop_of(jobs, others=[switch])
    for loop in (plain, switched):
        loop.run()
    assert ends(plain) == {"long": 2000.0, "longer": 5100.0, "short": 5150.0}
    assert ends(switched) == {"short": 650.0, "long": 2300.0, "longer": 5400.0}
    suspended = [
        event.plan.time for event in switched.journal if isinstance(event, ev.RoundPlanned) and len(event.plan.suspended)
    ]
    assert suspended == [600.0]
    assert switched.state.scheduler == {"policy": "srtf", "rounds": 300.0}


def test_a_switch_of_the_rounds_length_changes_when_decisions_are_taken():
    switch = ev.SchedulerSwitched(100.0, {"policy": "fifo", "rounds": "event-driven"})
    loop = loop_of([Job("a", 0.0, 450.0), Job("b", 0.0, 10.0)], others=[switch])
    loop.run()
    assert ends(loop) == {"a": 450.0, "b": 460.0}


def test_a_switch_forgets_what_the_old_policy_remembered():
    switch = ev.SchedulerSwitched(400.0, {"policy": "fifo"})
    loop = loop_of([Job("a", 0.0, 700.0)], policy_object=Counting(), others=[switch])
    loop.run()
    assert loop.state.memo is None


def test_a_switch_needs_somebody_who_composes_the_new_scheduler():
    loop = loop_of([Job("a", 0.0, 700.0)], others=[ev.SchedulerSwitched(100.0, {"policy": "las"})])
    loop.compose = None
    with pytest.raises(FairleadError, match="needs `compose`"):
        loop.run()


def test_a_run_with_a_switch_replays_to_the_same_state():
    loop = loop_of([Job(f"j{i}", 40.0 * i, 400.0) for i in range(9)], others=[ev.SchedulerSwitched(900.0, {"policy": "las"})])
    loop.run()
    assert check_events(loop.journal).digest() == loop.state.digest()


# Stopping.


def test_a_run_can_be_told_to_stop_at_a_second_and_go_on_later():
    jobs = [Job("a", 0.0, 450.0), Job("b", 0.0, 100.0), Job("c", 5000.0, 10.0)]
    whole, parts = loop_of(jobs), loop_of(jobs)
    whole.run()
    for second in (100.0, 600.0, 3000.0, math.inf):
        parts.run(until=second)
        assert parts.backend.now <= second
    assert ends(parts) == ends(whole)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "tiresias"])
def test_what_is_over_at_a_second_is_known_when_a_run_stops_there(policy):
    loop = loop_of([Job("a", 0.0, 450.0), Job("b", 0.0, 100_000.0), Job("c", 460.0, 5.0)], policy, Cluster.parse("2xv100:2"))
    loop.run(until=500.0)
    assert loop.backend.now == 500.0
    assert phases(loop) == {"a": Phase.FINISHED, "b": Phase.RUNNING, "c": Phase.QUEUED}


def test_a_run_stops_when_the_one_who_watches_says_so():
    loop = loop_of([Job(f"j{i}", 0.0, 100.0) for i in range(10)])
    loop.run(stop=lambda state: int((state.all_jobs().phase == int(Phase.FINISHED)).sum()) >= 3)
    assert list(phases(loop).values()).count(Phase.FINISHED) == 3
    assert loop.state.busy


def test_a_loop_with_nothing_to_do_ends_at_once():
    loop = loop_of([])
    loop.run()
    assert loop.decisions <= 1


# What never runs.


def test_jobs_for_which_no_node_comes_back_are_left_with_a_reason_and_the_loop_ends(harness):
    harness.cluster("v100:2").outage(0, 50.0, math.inf).submit(job("lost").workers(2))
    harness.run()
    assert harness.phase("lost") is Phase.WAITING
    last = harness.round()
    assert str(last.reason("lost")) == "placement: Waiting for nodes: needs 2 GPUs; 0 eligible GPUs are up"


@dataclass(frozen=True)
class Nobody:
    """Starts nobody; `promises` tells whether it says that this will not change."""

    promises: bool

    def select(self, view, memo):
        return replace(Selection.empty(), valid_until=math.inf if self.promises else None), memo


def test_a_policy_that_promises_never_to_start_anybody_ends_the_loop():
    loop = loop_of([Job("a", 0.0, 10.0)], policy_object=Nobody(True))
    loop.run()
    assert phases(loop) == {"a": Phase.WAITING}


def test_a_policy_that_starts_nobody_for_ever_is_called_stalled(monkeypatch):
    monkeypatch.setattr("fairlead.engine.loop.STALLED_AFTER", 500)
    loop = loop_of([Job("a", 0.0, 10.0)], policy_object=Nobody(False))
    with pytest.raises(Stalled, match="no progress in 500 decisions"):
        loop.run()


def test_jobs_whose_turns_are_shorter_than_their_restarts_are_called_stalled(monkeypatch):
    monkeypatch.setattr("fairlead.engine.loop.STALLED_AFTER", 500)
    loop = loop_of([Job("a", 0.0, 100.0), Job("b", 0.0, 100.0)], "las", round_s=20.0, costs=Costs(30.0, 30.0))
    with pytest.raises(Stalled, match="2 live jobs: check whether starts and checkpoints take longer"):
        loop.run()


def test_turns_without_rounds_become_longer_than_restarts(monkeypatch):
    monkeypatch.setattr("fairlead.engine.loop.STALLED_AFTER", 500)
    loop = loop_of([Job("a", 0.0, 100.0), Job("b", 0.0, 100.0)], "las", round_s=0.0, costs=Costs(30.0, 30.0))
    loop.run()
    assert set(ends(loop)) == {"a", "b"}


def test_a_long_job_that_is_asked_about_every_round_is_not_stalled(monkeypatch):
    monkeypatch.setattr("fairlead.engine.loop.STALLED_AFTER", 500)
    loop = loop_of([Job("a", 0.0, 5000.0)], round_s=1.0, skip=False)
    loop.run()
    assert ends(loop) == {"a": 5000.0}


def test_refused_jobs_do_not_keep_the_loop_waiting():
    loop = loop_of([Job("wide", 0.0, 10.0, workers=9), Job("narrow", 0.0, 10.0)])
    loop.run()
    assert phases(loop) == {"wide": Phase.REFUSED, "narrow": Phase.FINISHED}
    assert not loop.state.busy


def test_a_termination_stage_ends_a_job_before_its_last_step():
    @dataclass(frozen=True)
    class Converged:
        def finished_early(self, view):
            return view.jobs.number[view.jobs.metric("loss") < 0.1]

    told = ev.MetricsReported(500.0, "loss", np.array([0, 1]), np.array([0.05, 0.5]))
    loop = loop_of(
        [Job("done", 0.0, 1e6), Job("not", 0.0, 900.0), Job("next", 0.0, 10.0)],
        cluster=Cluster.parse("2xv100:2"),
        others=[told],
    )
    loop.stages = replace(loop.stages, termination=Converged())
    loop.run()
    assert ends(loop) == {"done": 600.0, "not": 900.0, "next": 610.0}
    assert phases(loop)["done"] is Phase.FINISHED
    assert check_events(loop.journal).digest() == loop.state.digest()


def test_an_event_from_the_past_is_an_error():
    loop = loop_of([Job("a", 0.0, 10.0)])
    loop.run()
    with pytest.raises(FairleadError, match="NodeLost at second 1 comes after second"):
        loop.record(ev.NodeLost(1.0, 0))


def test_every_decision_of_a_faulty_run_is_replayed_to_the_same_state():
    table = table_of(("v100",), {("m", 1): (1.5,), ("m", 2): (2.5,)})
    jobs = [Job(f"j{i}", 100.0 * i, 900.0, "m", 1 + i % 2) for i in range(12)]
    faults = outage_events([Outage(0, 500.0, 900.0), Outage(1, 800.0, 2000.0)])
    loop = loop_of(jobs, "las", Cluster.parse("4xv100:2"), table=table, faults=faults)
    loop.run()
    assert all(phase is Phase.FINISHED for phase in phases(loop).values())
    assert check_events(loop.journal).digest() == loop.state.digest()


def test_an_event_that_cannot_be_applied_does_not_reach_the_journal() -> None:
    loop = loop_of([])
    before = list(loop.journal)
    with pytest.raises(FairleadError, match="no node number 99"):
        loop.record(ev.NodeRepaired(0.0, 99))
    assert list(loop.journal) == before
