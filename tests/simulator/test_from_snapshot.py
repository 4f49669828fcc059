"""From a moment of a run on: the same jobs at the same places end at the same seconds."""

from __future__ import annotations

import math
import pickle

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
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing import check_events, cluster, random_jobs, random_table
from fairlead.workloads.dynamics import JobDynamics, RunConditions, Speed
from fairlead.workloads.throughput_tables import ThroughputTable

POLICIES = {
    "fifo": Part("fifo"),
    "fifo backfilling": Part("fifo", {"backfill": True}),
    "sjf": Part("sjf"),
    "srtf": Part("srtf"),
    "las": Part("las"),
    "tiresias": Part("tiresias", {"thresholds": [500.0, 4000.0]}),
    "gittins": Part("gittins", {"min_history": 5}),
}


def ends_of(state: State) -> dict[str, tuple[float, int]]:
    jobs = state.all_jobs()
    columns = (jobs.number.tolist(), jobs.ended_s.tolist(), jobs.phase.tolist())
    return {state.job_of[number].name: (ended, phase) for number, ended, phase in zip(*columns)}


ALL_COSTS = Costs(37.0, 61.0, 23.0, 700.0, {"kind-0": Costs(5.0, 400.0, 290.0, 1300.0)})
OUTAGES = (Outage(0, 2222.0, 4000.0), Outage(1, 7000.5, 9100.0), Outage(0, 15000.0, 16000.0))


def halves(
    policy: Part, where: str, second: float, round_s: float, *, seed: int = 4, costs: Costs | None = None, outages=()
) -> tuple[State, State, float]:
    """The state at the end of a run, and at the end of one that went on from a snapshot of it."""
    machine = cluster(where)
    table = random_table(seed, machine.type_names)
    jobs = random_jobs(seed, 60, table=table, largest=min(4, int(machine.size_of_type.max())))
    stages = SchedulerConfig(policy, round_s=round_s).build(table)
    whole = Loop(State(machine), SimulatedBackend(machine, table, jobs, costs=costs, faults=outage_events(outages)), stages)
    whole.run(until=second)
    now = whole.backend.now
    view = pickle.loads(pickle.dumps(whole.state.snapshot(now).detached()))
    memo = whole.state.memo
    later = [job for job in jobs if job.submitted_s > now]
    whole.run()
    coming = [event for event in outage_events(outages) if event.time > now]
    world = SimulatedBackend.from_snapshot(view, table, later, costs=costs, faults=coming)
    rest = Loop(State.from_snapshot(view, memo), world, stages)
    rest.run()
    return whole.state, rest.state, now


def still_to_come(whole: State, now: float) -> dict[str, tuple[float, int]]:
    """Of a whole run, the ends after a second."""
    return {job: end for job, end in ends_of(whole).items() if not end[0] <= now}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("where", ["v100:4,v100:2", "v100:4,k80:4"])
def test_going_on_from_the_middle_of_a_run_gives_the_same_ends(name, where):
    whole, rest, now = halves(POLICIES[name], where, 6000.0, 300.0)
    expected = still_to_come(whole, now)
    assert len(expected) > 10
    assert ends_of(rest) == expected


@pytest.mark.parametrize("name", ["fifo", "srtf", "tiresias"])
def test_going_on_works_without_rounds_too(name):
    """There the first look is at once, and what a policy promises from then on may differ by a rounding."""
    whole, rest, now = halves(POLICIES[name], "v100:4,v100:2", 5000.0, 0.0)
    expected, found = ({job: end for job, (end, _) in ends.items()} for ends in (still_to_come(whole, now), ends_of(rest)))
    assert found == pytest.approx(expected, rel=1e-9)


# A snapshot of those who share does not say how much they had saved before their company changed.
@pytest.mark.parametrize(("name", "outages"), [("srtf", ()), ("las", ()), ("gandiva-packing", ()), ("las", OUTAGES)])
@pytest.mark.parametrize("second", [299.7, 1234.5, 2999.7, 4321.0, 5999.7, 12345.6])
def test_going_on_at_any_moment_costs_what_it_would_have_cost(second, name, outages):
    whole, rest, now = halves(Part(name), "v100:4,v100:2", second, 300.0, costs=ALL_COSTS, outages=outages)
    assert ends_of(rest) == still_to_come(whole, now)
    assert whole.all_jobs().preemptions.sum() >= 10, "else this shows nothing"


def test_who_is_through_and_has_not_said_so_ends_at_once():
    """On a real cluster a job reports its last step before its process has ended."""
    machine, table = Cluster.parse("1xv100:1"), ThroughputTable.timed(("v100",))
    loop = Loop(State(machine), SimulatedBackend(machine, table, [Job("a", 0.0, 500.0)]), SchedulerConfig().build(table))
    loop.run(until=0.0)
    view = loop.state.snapshot(700.0).detached()
    assert SimulatedBackend.from_snapshot(view, table).wait(math.inf, 0.0)[-1].at.tolist() == [700.0]


def middle(jobs: list[Job], second: float, costs: Costs, where: str = "1xv100:1") -> tuple[Loop, SimulatedBackend]:
    """A run stopped at a second, and a world that goes on from there."""
    machine = Cluster.parse(where)
    table = ThroughputTable.timed(machine.type_names)
    loop = Loop(
        State(machine), SimulatedBackend(machine, table, jobs, costs=costs), SchedulerConfig(round_s=100.0).build(table)
    )
    loop.run(until=second)
    view = loop.state.snapshot(second).detached()
    later = [job for job in jobs if job.submitted_s > second]
    return loop, SimulatedBackend.from_snapshot(view, table, later, costs=costs)


def test_who_is_loading_goes_on_loading():
    _, world = middle([Job("a", 0.0, 500.0)], 100.0, Costs(launch_s=150.0))
    told = world.wait(math.inf, 0.0)
    assert told[-1].at.tolist() == [650.0]


def test_who_has_run_before_pays_for_a_restart_and_not_for_a_launch():
    loop, world = middle([Job("a", 0.0, 500.0)], 100.0, Costs(launch_s=10.0, restart_s=40.0))
    world.wait(100.0, 0.0)
    one = np.array([0])
    world.submit(RoundPlan(100.0, suspended=one))
    world.submit(RoundPlan(100.0, launches=Launches(one, one, np.array([0, 1]), one)))
    told = world.wait(math.inf, 0.0)
    assert told[-1].at.tolist() == [100.0 + 40.0 + 410.0]
    assert loop.state.all_jobs().starts.tolist() == [1]


@pytest.mark.parametrize(("every_s", "saved"), [(math.inf, 0.0), (40.0, 80.0), (100.0, 100.0)])
def test_what_a_real_job_has_reported_is_not_saved_by_that(every_s, saved):
    """It was launched at second 0, and told at second 100 where it was; its node is lost at second 110."""
    loop, _ = middle([Job("a", 0.0, 500.0)], 99.0, Costs())
    one, at = np.array([0]), np.array([100.0])
    loop.record(ev.ProgressReported(100.0, one, at, np.ones(1), at))
    view = loop.state.snapshot(105.0).detached()
    table, costs = ThroughputTable.timed(("v100",)), Costs(checkpoint_every_s=every_s)
    world = SimulatedBackend.from_snapshot(view, table, costs=costs, faults=[ev.NodeLost(110.0, 0)])
    interrupted = world.wait(110.0, 0.0)[-1]
    assert isinstance(interrupted, ev.JobsInterrupted)
    assert interrupted.steps.tolist() == [saved]


def test_what_a_job_did_before_counts_at_its_speed_of_then():
    """It reported 100 steps and half a step a second at second 100; from second 200 on it does a step a second."""
    loop, _ = middle([Job("a", 0.0, 500.0)], 99.0, Costs())
    one, at = np.array([0]), np.array([100.0])
    loop.record(ev.ProgressReported(100.0, one, at, np.array([0.5]), at))
    world = SimulatedBackend.from_snapshot(loop.state.snapshot(200.0).detached(), ThroughputTable.timed(("v100",)))
    assert world.wait(math.inf, 0.0)[-1].at.tolist() == [200.0 + 500.0 - 150.0]


def test_a_time_limit_goes_on_counting():
    _, world = middle([Job("a", 0.0, 500.0, time_limit_s=250.0)], 100.0, Costs())
    failed = world.wait(math.inf, 0.0)[-1]
    assert isinstance(failed, ev.JobsFailed)
    assert failed.at.tolist() == [250.0]


def test_nodes_that_are_down_stay_down_until_they_are_repaired():
    machine = Cluster.parse("2xv100:1")
    table = ThroughputTable.timed(machine.type_names)
    stages = SchedulerConfig(round_s=100.0).build(table)
    jobs = [Job("a", 0.0, 150.0), Job("b", 0.0, 150.0)]
    outage = [Outage(0, 50.0, 400.0)]
    loop = Loop(State(machine), SimulatedBackend(machine, table, jobs, faults=outage_events(outage)), stages)
    loop.run(until=100.0)
    view = loop.state.snapshot(100.0).detached()
    rest = Loop(
        State.from_snapshot(view),
        SimulatedBackend.from_snapshot(view, table, faults=[ev.NodeRepaired(400.0, 0)]),
        stages,
        journal=MemoryJournal(),
    )
    rest.run()
    loop.run()
    assert ends_of(rest.state) == ends_of(loop.state)
    assert any(isinstance(event, ev.NodeRepaired) for event in rest.journal)


def test_what_comes_later_gets_numbers_behind_those_that_are_there():
    loop, world = middle([Job("a", 0.0, 500.0), Job("b", 0.0, 500.0), Job("c", 300.0, 1.0)], 100.0, Costs())
    told = world.wait(300.0, 0.0)
    assert [event.number for event in told if isinstance(event, ev.JobSubmitted)] == [2]
    assert loop.state.next_number == 2


def test_a_world_can_begin_with_nobody():
    machine = Cluster.parse("1xv100:1")
    view = State(machine).snapshot(77.0).detached()
    table = ThroughputTable.timed(machine.type_names)
    loop = Loop(
        State.from_snapshot(view),
        SimulatedBackend.from_snapshot(view, table, [Job("a", 100.0, 5.0)]),
        SchedulerConfig(round_s=0.0).build(table),
    )
    loop.run()
    assert ends_of(loop.state) == {"a": (105.0, int(Phase.FINISHED))}


def test_another_scheduler_can_go_on_from_the_same_moment():
    machine = Cluster.parse("1xv100:1")
    table = ThroughputTable.timed(machine.type_names)
    jobs = [Job("long", 0.0, 5000.0), Job("short", 50.0, 10.0)]
    fifo, srtf = (SchedulerConfig(Part(name), round_s=100.0).build(table) for name in ("fifo", "srtf"))
    loop = Loop(State(machine), SimulatedBackend(machine, table, jobs), fifo)
    loop.run(until=200.0)
    view = loop.state.snapshot(200.0).detached()
    found = {}
    for name, stages in (("fifo", fifo), ("srtf", srtf)):
        fork = Loop(State.from_snapshot(view), SimulatedBackend.from_snapshot(view, table), stages, journal=MemoryJournal())
        fork.run()
        found[name] = {job: end for job, (end, _) in ends_of(fork.state).items()}
    assert found["fifo"] == {"long": 5000.0, "short": 5010.0}
    assert found["srtf"]["short"] < 400.0
    loop.run()
    assert {job: end for job, (end, _) in ends_of(loop.state).items()} == found["fifo"]


class Telling(JobDynamics):
    """It says how far it is at every hundredth step, and always the same of itself."""

    def speed(self, conditions: RunConditions) -> Speed:
        hundreds = conditions.steps // 100
        return Speed(1.0, 100 * (hundreds + 1), 32, {"hundreds": hundreds, "likes": 7.0})


def test_in_a_fork_jobs_do_not_say_again_what_they_have_said():
    machine, dynamics = cluster("v100:2"), {"a": Telling(), "b": Telling()}
    table = ThroughputTable.timed(machine.type_names)
    stages = SchedulerConfig(round_s=60.0).build(table)
    jobs = [Job("a", steps=1000.0), Job("b", steps=1000.0)]
    whole = Loop(State(machine), SimulatedBackend(machine, table, jobs, dynamics=dynamics), stages, journal=MemoryJournal())
    whole.run(250.0)
    view = whole.state.snapshot(250.0).detached()
    told = len(whole.journal.events)
    rest = Loop(
        State.from_snapshot(view),
        SimulatedBackend.from_snapshot(view, table, dynamics=dynamics),
        stages,
        journal=MemoryJournal(),
    )
    for loop in (whole, rest):
        loop.run()
    reports, again = (
        [encode(event) for event in events if isinstance(event, ev.MetricsReported)]
        for events in (whole.journal.events[told:], rest.journal.events)
    )
    assert again == reports
    assert len(again) == 7  # the hundreds that were still to come, of both at once


def test_a_fork_leaves_the_original_untouched():
    machine = Cluster.parse("2xv100:2")
    table = ThroughputTable.timed(machine.type_names)
    jobs = [Job(f"j{i}", 30.0 * i, 200.0) for i in range(6)]
    loop = Loop(
        State(machine),
        SimulatedBackend(machine, table, jobs),
        SchedulerConfig(round_s=100.0).build(table),
        journal=MemoryJournal(),
    )
    loop.record(ev.JournalOpened(0.0, machine, {}, "fork", None))
    loop.run(until=200.0)
    before = loop.state.digest()
    view = loop.state.snapshot(200.0).detached()
    fork = Loop(State.from_snapshot(view), SimulatedBackend.from_snapshot(view, table), loop.stages)
    fork.run()
    assert loop.state.digest() == before
    loop.run()
    assert check_events(loop.journal).digest() == loop.state.digest()
