"""Hold, release, requeue and update: what users do to submitted jobs, in the state, in decisions and in simulations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InvalidPlan
from fairlead.core.job import EndedRun, Job, Phase
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.codec import decode, encode
from fairlead.engine.explain import why_not_running
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.experiments.resimulate import exogenous_inputs
from fairlead.simulator.backend import Other, SimulatedBackend
from fairlead.testing import Harness, check_events, job
from fairlead.testing.invariants import check_state
from fairlead.workloads.throughput_tables import ThroughputTable
from scenes import state_of

TWO = Cluster.parse("2xv100:2")
ONE = np.array([0])


def fresh(*jobs: Job) -> State:
    state = State(TWO)
    apply_event(state, ev.JournalOpened(0.0, TWO, {}))
    for number, each in enumerate(jobs):
        apply_event(state, ev.JobSubmitted(float(number), number, each))
    return state


def test_a_held_job_is_not_admitted_and_says_who_holds_it() -> None:
    state = fresh(Job("a"), Job("b"))
    apply_event(state, ev.JobHeld(5.0, 0, "ann"))
    assert state.snapshot().queued.number.tolist() == [1]
    reason = why_not_running(state, None, 0, 6.0)
    assert reason is not None
    assert reason.text.startswith("Held by ann")
    apply_event(state, ev.JobReleased(9.0, 0))
    assert state.snapshot().queued.number.tolist() == [0, 1]
    assert state.snapshot(10.0).queued.waited_s.tolist() == [1.0, 9.0]


def test_a_held_job_leaves_the_admitted_jobs() -> None:
    state = state_of(TWO, [Job("a", steps=100.0), Job("b", steps=100.0)], {0: [0]})
    apply_event(state, ev.JobHeld(5.0, 1))
    assert state.live.tolist() == [0]
    assert (state.queue.tolist(), state.eligible.tolist()) == ([1], [])
    check_state(state)


def test_a_running_job_cannot_be_held_and_an_ended_job_stays_as_it_is() -> None:
    state = state_of(TWO, [Job("a", steps=100.0)], {0: [0]})
    with pytest.raises(InvalidPlan, match="'a' is running and cannot be held"):
        apply_event(state, ev.JobHeld(5.0, 0))
    apply_event(state, ev.JobsFinished(6.0, ONE, np.array([6.0])))
    apply_event(state, ev.JobHeld(7.0, 0))
    assert (state.held, state.all_jobs().phase.tolist()) == ({}, [Phase.FINISHED])


def test_a_requeued_job_keeps_what_it_did_and_waits_again() -> None:
    state = state_of(TWO, [Job("a", steps=100.0)], {0: [0, 1]}, started_s=0.0)
    apply_event(state, ev.ProgressReported(0.0, ONE, np.array([0.0]), np.array([2.0]), np.array([0.0])))
    apply_event(state, ev.JobRequeued(10.0, 0, hold=True, by="ann"))
    jobs = state.all_jobs()
    assert (jobs.phase.tolist(), jobs.steps_done.tolist(), jobs.run_s.tolist()) == ([Phase.QUEUED], [20.0], [10.0])
    assert state.device_map.of(0).tolist() == []
    assert (state.held, state.busy) == ({0: "ann"}, False)
    check_state(state)


@pytest.mark.parametrize("how", ["finished", "failed", "cancelled"])
def test_an_ended_job_that_is_requeued_has_all_its_attempts_and_its_whole_time_limit(how: str) -> None:
    state = state_of(TWO, [Job("a", steps=100.0, time_limit_s=50.0)], {0: [0]}, started_s=0.0)
    apply_event(state, ev.ProgressReported(0.0, ONE, np.array([0.0]), np.array([1.0]), np.array([0.0])))
    end = {
        "finished": ev.JobsFinished(20.0, ONE, np.array([20.0])),
        "failed": ev.JobsFailed(20.0, ONE, np.array([20.0]), "status 3", 3),
        "cancelled": ev.JobCancelled(20.0, 0),
    }
    apply_event(state, end[how])
    apply_event(state, ev.JobRequeued(30.0, 0))
    jobs = state.all_jobs()
    assert (jobs.phase.tolist(), np.isnan(jobs.ended_s).tolist(), jobs.failures.tolist()) == ([Phase.QUEUED], [True], [0])
    assert jobs.steps_done.tolist() == [0.0 if how == "finished" else 20.0]
    assert (jobs.run_s.tolist(), jobs.time_limit_s.tolist()) == ([20.0], [70.0])
    assert not state.last_failure
    assert state.ended_runs == {0: (EndedRun(Phase[how.upper()], 3 * (how == "failed"), 0.0, 20.0, 20.0, 20.0, 30.0),)}
    assert load(save(state)).ended_runs == state.ended_runs
    apply_event(state, ev.JobUpdated(31.0, 0, {"time_limit_s": 90.0}))
    assert state.all_jobs().time_limit_s.tolist() == [110.0]
    check_state(state)


def test_a_job_that_finishes_while_it_stops_has_finished_and_is_not_held_any_more() -> None:
    state = state_of(TWO, [Job("a", steps=100.0)], {0: [0]})
    apply_event(state, ev.JobRequeued(5.0, 0, hold=True))
    apply_event(state, ev.JobsFinished(6.0, ONE, np.array([6.0])))
    assert (state.all_jobs().phase.tolist(), state.queue.tolist(), state.held) == ([Phase.FINISHED], [], {})


def test_a_member_of_a_group_that_runs_again_leaves_its_completed_trials() -> None:
    jobs = [Job(f"t{n}", steps=10.0, group="study") for n in range(2)]
    state = state_of(TWO, jobs, {0: [0], 1: [1]})
    apply_event(state, ev.JobsFinished(10.0, np.array([0, 1]), np.array([10.0, 10.0])))
    apply_event(state, ev.JobRequeued(11.0, 0))
    assert state.snapshot().completed_trials.number.tolist() == [1]
    assert load(save(state)).digest() == state.digest()
    assert load(save(state)).groups == state.groups


def test_an_update_reaches_the_columns_and_only_some_fields_can_be_changed() -> None:
    state = fresh(Job("a", account="old"))
    changes = {"name": "b", "account": "lab", "priority": 7, "weight": 2.5, "deadline_s": 60.0, "time_limit_s": 30.0}
    apply_event(state, ev.JobUpdated(1.0, 0, changes))
    view = state.snapshot()
    assert (view.queued.priority.tolist(), view.queued.weight.tolist(), view.weighted) == ([7], [2.5], True)
    assert (view.queued.deadline_s.tolist(), view.queued.time_limit_s.tolist()) == ([60.0], [30.0])
    assert view.names.accounts[view.queued.account[0]] == "lab"
    assert state.job_of[0].name == "b"
    with pytest.raises(InvalidPlan, match="'workers' of a job cannot be changed"):
        apply_event(state, ev.JobUpdated(2.0, 0, {"workers": 2}))
    apply_event(state, ev.JobCancelled(3.0, 0))
    apply_event(state, ev.JobUpdated(4.0, 0, {"priority": 2, "account": "late"}))
    assert (state.job_of[0].priority, state.job_of[0].account) == (7, "late"), "it ended before the request arrived"


def test_a_simulated_job_that_ends_before_a_recorded_update_stays_as_it_is() -> None:
    table = ThroughputTable.timed(TWO.type_names)
    backend = SimulatedBackend(TWO, table, [Job("a", steps=50.0)], others=(ev.JobUpdated(100.0, 0, {"priority": 5}),))
    loop = Loop(State(TWO), backend, SchedulerConfig.from_data({"policy": "fifo"}).build(table, Registry.installed()))
    loop.run()
    assert (loop.state.all_jobs().phase.tolist(), loop.state.job_of[0].priority) == ([Phase.FINISHED], 0)


ACTIONS = ("hold", "release", "requeue", "requeue --hold", "update", "cancel", "launch", "finish", "interrupt")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2)), max_size=25))
def test_whatever_users_do_the_state_is_sound_and_the_journal_and_the_snapshot_give_it_again(actions: list[tuple[str, int]]):
    journal: list[ev.Event] = [ev.JournalOpened(0.0, TWO, {})]
    journal += [ev.JobSubmitted(0.0, n, Job(f"j{n}", steps=1e6, group="g" if n else "")) for n in range(3)]
    state = replay_events(journal)
    for second, (action, number) in enumerate(actions, 1):
        now, one, phase = float(second), np.array([number]), int(state.columns["phase"][number])
        free = [place for place in range(2) if state.device_map.occupancy[place] == 0]
        event: ev.Event | None = None
        if action == "hold" and phase != Phase.RUNNING:
            event = ev.JobHeld(now, number, "ann")
        elif action in ("requeue", "requeue --hold"):
            event = ev.JobRequeued(now, number, "hold" in action, "ann")
        elif action == "release":
            event = ev.JobReleased(now, number)
        elif action == "update":
            event = ev.JobUpdated(now, number, {"priority": second, "account": f"a{second % 3}"})
        elif action == "cancel":
            event = ev.JobCancelled(now, number)
        elif action == "launch" and phase < Phase.RUNNING and free and number not in state.held:
            admitted = one if phase == Phase.QUEUED else one[:0]
            launches = Launches(one, one * 0, np.array([0, 1]), np.array(free[:1]))
            event = ev.RoundPlanned(RoundPlan(now, admitted=admitted, launches=launches))
        elif action == "finish" and phase == Phase.RUNNING:
            event = ev.JobsFinished(now, one, np.array([now]))
        elif action == "interrupt" and phase == Phase.RUNNING:
            event = ev.JobsInterrupted(now, one, np.array([0.0]))
        if event is not None:
            journal.append(event)
            apply_event(state, event)
            check_state(state)
    again = replay_events([decode(encode(event)) for event in journal])
    assert again.digest() == state.digest()
    loaded = load(save(state))
    assert (loaded.digest(), loaded.held, loaded.groups, loaded.dependents) == (
        state.digest(),
        state.held,
        state.groups,
        state.dependents,
    )


def test_decisions_leave_a_held_job_alone(harness: Harness) -> None:
    harness.cluster("v100:1").policy("fifo").submit(job("first"), job("held"), job("last"))
    assert harness.round().launched == {"first"}
    harness.loop.record(ev.JobHeld(harness.state.time, 1, "ann"))
    harness.run()
    phases = [harness.phase(name) for name in ("first", "held", "last")]
    assert phases == [Phase.FINISHED, Phase.QUEUED, Phase.FINISHED]


def simulated(*others: Other, policy: str = "fifo") -> Loop:
    """Two jobs of 100 s on one GPU, and what users do."""
    cluster = Cluster.parse("1xv100:1")
    table, journal = ThroughputTable.timed(cluster.type_names), MemoryJournal()
    jobs = [Job("a", 0.0, 100.0), Job("b", 1.0, 100.0)]
    backend = SimulatedBackend(cluster, table, jobs, others=others)
    stages = SchedulerConfig.from_data({"policy": policy, "rounds": 10.0}).build(table, Registry.installed())
    loop = Loop(State(cluster), backend, stages, journal=journal)
    loop.record(ev.JournalOpened(0.0, cluster, {"policy": policy, "rounds": 10.0}))
    loop.run()
    check_events(journal.events)
    return loop


def test_a_simulation_replays_a_hold_whether_the_job_runs_or_waits() -> None:
    """Reality held `b` while it waited. Here the same hold meets `a`, which runs: it saves and stops."""
    for number in (0, 1):
        loop = simulated(ev.JobHeld(30.0, number, "ann"), ev.JobReleased(500.0, number))
        ended = loop.state.all_jobs().ended_s.tolist()
        assert ended[number] > 500.0
        assert ended[1 - number] < 300.0
        assert loop.state.all_jobs().run_s.tolist() == pytest.approx([100.0, 100.0])


def test_a_simulation_replays_requeues_and_updates() -> None:
    loop = simulated(ev.JobRequeued(35.0, 0), ev.JobUpdated(36.0, 1, {"weight": 2.0}), ev.JobRequeued(5000.0, 0))
    jobs = loop.state.all_jobs()
    assert jobs.phase.tolist() == [Phase.FINISHED, Phase.FINISHED]
    assert (jobs.starts.tolist()[0], jobs.weight.tolist()) == (2, [1.0, 2.0])


def test_a_journal_with_holds_can_be_simulated_again() -> None:
    journal = simulated(ev.JobHeld(30.0, 1, "ann"), ev.JobUpdated(31.0, 1, {"priority": 4}), ev.JobReleased(500.0, 1)).journal
    world, record = exogenous_inputs(list(journal))
    assert [type(event) for event in world.others] == [ev.JobHeld, ev.JobUpdated, ev.JobReleased]
    assert [each.priority for each in world.trace.jobs] == [0, 0]
    assert record.jobs.ended_s[1] > 500.0


def test_a_requeued_job_in_a_snapshot_of_an_earlier_version_keeps_its_whole_time_limit() -> None:
    state = state_of(TWO, [Job("a", steps=1000.0, time_limit_s=100.0)], {0: [0]})
    apply_event(state, ev.JobsFailed(91.0, ONE, np.array([91.0]), "it failed"))
    apply_event(state, ev.JobRequeued(95.0, 0, False, "ann"))
    earlier = load(save(state))
    earlier.ended_runs = {}  # earlier versions did not save them
    for each in (state, earlier):
        apply_event(each, ev.JobUpdated(96.0, 0, {"time_limit_s": 50.0}))
        assert (each.columns["time_limit_s"][0], each.uncounted_s(0)) == (141.0, 91.0)
