"""Runs that switch, stop, go on and fork, and journals of what came too late: each once went wrong."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.errors import JournalError
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Launches, RoundPlan, Selection
from fairlead.core.stages import Stages
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import decode, encode
from fairlead.engine.decide import decide
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing import cluster, job, random_jobs, random_table
from fairlead.workloads.throughput_tables import ThroughputTable


def compose(table):
    return lambda data: SchedulerConfig.from_data(data).build(table)


def looped(where, jobs, policy, *, round_s=300.0, table=None, journal=None, **world):
    machine = cluster(where)
    table = table or ThroughputTable.timed(machine.type_names)
    stages = SchedulerConfig.from_data({"policy": policy, "rounds": round_s or "event-driven"}).build(table)
    backend = SimulatedBackend(machine, table, jobs, **world)
    return Loop(State(machine), backend, stages, journal=journal or MemoryJournal(), compose=compose(table))


@pytest.mark.parametrize(("before", "after"), [(300.0, 120), (0.0, 300), (300.0, "event-driven"), (120.0, 300)])
def test_a_switch_to_another_round_length_does_not_end_the_run(before, after):
    jobs = random_jobs(3, 20)
    switch = ev.SchedulerSwitched(2250.0, {"policy": "tiresias", "rounds": after}, "a test")
    loop = looped("v100:4", jobs, "fifo", round_s=before, others=[switch])
    loop.run()
    assert not loop.state.busy
    assert loop.stages.round_s == (0.0 if after == "event-driven" else after)


def test_overlapping_outages_neither_end_the_run_nor_depend_on_skipping():
    logs = []
    for skip in (True, False):
        outages = outage_events([Outage(0, 4000.0, 9500.0), Outage(0, 6000.0, 11000.0)])
        loop = looped("p100:8", random_jobs(5, 20), "las", faults=outages)
        loop.skip_quiet_rounds = skip
        loop.run()
        assert not loop.state.busy
        logs.append([encode(event) for event in loop.journal])
    assert logs[0] == logs[1]


def test_a_run_in_pieces_is_the_run_in_one():
    ends = []
    for pieces in ([], [777.0, 2000.0, 2001.5, 9000.0]):
        loop = looped("v100:4", random_jobs(7, 20), "tiresias", round_s=0.0)
        for until in pieces:
            loop.run(until=until)
            assert loop.backend.now <= until
        loop.run()
        ends.append(loop.state.all_jobs().ended_s)
    assert np.array_equal(*ends)


def test_a_fork_right_after_a_decision_knows_what_starting_costs():
    given = Costs(launch_s=100.0)
    loop = looped("v100:1", [Job("a", 0.0, 1000.0)], "fifo", costs=given)
    loop.run(until=0.0)
    view = loop.state.snapshot(0.0).detached()
    table = ThroughputTable.timed(("v100",))
    fork = Loop(State.from_snapshot(view), SimulatedBackend.from_snapshot(view, table, costs=given), loop.stages)
    fork.run()
    assert fork.state.all_jobs().ended_s.tolist() == [1100.0]


def test_a_fork_numbers_new_jobs_behind_all_that_ever_were():
    loop = looped("v100:2", [Job("long", 0.0, 5000.0), Job("short", 0.0, 10.0)], "fifo")
    loop.run(until=600.0)
    view = loop.state.snapshot(600.0).detached()
    table = ThroughputTable.timed(("v100",))
    fork = Loop(State.from_snapshot(view), SimulatedBackend.from_snapshot(view, table, [Job("new", 700.0, 10.0)]), loop.stages)
    fork.run()
    assert {job.name: number for number, job in fork.state.job_of.items()} == {"long": 0, "new": 2}


def test_faults_of_the_past_do_not_reach_a_fork():
    loop = looped("v100:2", [Job("a", 0.0, 5000.0)], "fifo")
    loop.run(until=1200.0)
    view = loop.state.snapshot(1200.0).detached()
    table = ThroughputTable.timed(("v100",))
    backend = SimulatedBackend.from_snapshot(view, table, faults=outage_events([Outage(0, 100.0, 200.0)]))
    fork = Loop(State.from_snapshot(view), backend, loop.stages)
    fork.run()
    assert fork.state.all_jobs().ended_s.tolist() == [5000.0]


def test_a_detached_snapshot_with_a_queue_can_be_decided_on_elsewhere():
    loop = looped("v100:2", [Job("a", 0.0, 50.0), Job("b", 10.0, 50.0)], "fifo")
    loop.run(until=0.0)
    for event in loop.backend.wait(10.0, 0.0):
        loop.record(event)
    here, _ = decide(loop.state.snapshot(10.0), None, loop.stages)
    there = pickle.loads(pickle.dumps(loop.state.snapshot(10.0).detached()))
    plan, _ = decide(there, None, loop.stages)
    assert plan.launches.jobs.tolist() == here.launches.jobs.tolist() == [1]


def test_a_neighbour_that_comes_and_goes_is_no_checkpoint():
    machine, table = cluster("v100:1"), random_table(0, ("v100",))
    kind = table.kinds[0]
    backend = SimulatedBackend(machine, table, [Job("a", 0.0, 1e6, kind), Job("b", 0.0, 1.0, kind)])
    backend.wait(0.0, 0.0)
    one = np.array([0])
    for number, second in ((0, 0.0), (1, 900.0)):
        backend.wait(second, 0.0)
        backend.submit(RoundPlan(second, launches=Launches(np.array([number]), one, np.array([0, 1]), one)))
    backend.wait(1000.0, 0.0)
    assert backend.world.saved_steps(np.array([0]), 1500.0).tolist() == [0.0]


def test_regular_checkpoints_count_on_while_neighbours_come_and_go():
    machine, table = cluster("v100:1"), random_table(0, ("v100",))
    kind, rate = table.kinds[0], float(table.alone[1, 0])
    jobs = [Job("a", 0.0, 1e6, kind), Job("b", 0.0, 1e6, kind)]
    backend = SimulatedBackend(machine, table, jobs, costs=Costs(checkpoint_every_s=100.0))
    backend.wait(0.0, 0.0)
    one = np.array([0])
    for number, second in ((0, 0.0), (1, 250.0)):
        backend.wait(second, 0.0)
        backend.submit(RoundPlan(second, launches=Launches(np.array([number]), one, np.array([0, 1]), one)))
    saved = backend.world.saved_steps(np.array([0]), 399.0)
    assert saved == pytest.approx([rate * 250.0 + rate * (2 / 3) * 50.0])  # the save of second 300


@pytest.mark.parametrize("scheduler", [{"run_to_completion": True}, {}])
def test_whoever_is_protected_is_not_moved_to_a_faster_type_either(scheduler):
    table = random_table(0, ("v100", "k80"))
    kind = table.kinds[0]
    protected = 0.0 if scheduler else 1e6
    jobs = [Job("first", 0.0, 200.0, kind), Job("second", 0.0, 9000.0, kind, min_run_s=protected)]
    machine = cluster("v100:1,k80:1")
    stages = SchedulerConfig.from_data({"policy": "fifo", **scheduler}).build(table)
    loop = Loop(State(machine), SimulatedBackend(machine, table, jobs), stages)
    loop.run()
    assert loop.state.all_jobs().moves.tolist() == [0, 0]


def test_a_policy_that_combines_lives_with_a_minimum_run():
    class Pairs:
        """Puts the two youngest jobs together, whatever the oldest thinks of it."""

        def select(self, view, memo):
            jobs = view.jobs.number[-2:]
            same = np.zeros(len(jobs), np.int64)
            return Selection(jobs, same, same + 1, combination=same, batch_sizes=same), memo

    table = random_table(0, ("v100",))
    kind = table.kinds[0]
    jobs = [Job("old", 0.0, 9000.0, kind, min_run_s=3000.0), Job("b", 400.0, 50.0, kind), Job("c", 400.0, 50.0, kind)]
    machine = cluster("v100:2")
    standard = SchedulerConfig().build(table)
    stages = Stages(**{**standard.__dict__, "policy": Pairs()})
    loop = Loop(State(machine), SimulatedBackend(machine, table, jobs), stages)
    loop.run(until=600.0)
    running = loop.state.all_jobs()
    assert running.held.tolist() == [1, 1, 1]
    assert running.preemptions.tolist() == [0, 0, 0]


def test_a_cancellation_that_comes_too_late_changes_nothing_and_replays(harness):
    harness.cluster("v100:1").submit(job("a").lasting(10)).run()
    phase = harness.phase("a")
    harness.loop.record(ev.JobCancelled(harness.state.time + 1, 0))
    assert harness.phase("a") is phase is Phase.FINISHED


def test_a_late_report_does_not_set_a_waiting_job_in_motion(harness):
    harness.cluster("v100:1").submit(job("a").lasting(1000)).round()
    loop = harness.loop
    loop.record(ev.RoundPlanned(RoundPlan(10.0, suspended=np.array([0]))))
    one = np.array([1.0])
    loop.record(ev.ProgressReported(11.0, np.array([0]), 10 * one, one, 11 * one))
    assert loop.state.snapshot(500.0).jobs.steps_done.tolist() == [10.0]


def test_one_scheduler_serves_states_that_name_kinds_in_another_order():
    table = random_table(0, ("v100",))
    first, second = table.kinds[:2]
    machine = cluster("v100:2")
    stages = SchedulerConfig.from_data({"policy": "srtf"}).build(table)
    for kinds in ((first, second), (second, first)):
        state = State(machine)
        for number, kind in enumerate(kinds):
            apply_event(state, ev.JobSubmitted(0.0, number, Job(kind, 0.0, 100.0, kind)))
        rates = stages.estimator.rates(state.snapshot().admitting(np.array([0, 1])))
        assert rates.fastest.tolist() == [float(table.alone[table.row(kind, 1), 0]) for kind in kinds]


def test_gittins_without_rounds_looks_again_when_a_job_changes_its_queue():
    jobs = [Job("long", 0.0, 10000.0), Job("short", 1.0, 10.0)]
    loop = looped("v100:1", jobs, "gittins", round_s=0.0)
    loop.run()
    ended = loop.state.all_jobs().ended_s
    assert ended[1] < 3300.0


@pytest.mark.parametrize(
    "memo",
    [
        {"x": np.array([1.5, np.inf, np.nan])},
        {"x": np.zeros((0, 3)), "y": [1, None, True, -np.inf]},
        {"deep": {"er": [np.array([[1, 2], [3, 4]])]}, "n": np.int64(3)},
        None,
    ],
)
def test_a_memo_comes_back_as_it_went_in(memo):
    back = decode(encode(ev.MemoChanged(0.0, memo)))
    assert isinstance(back, ev.MemoChanged)
    np.testing.assert_equal(back.memo, memo)


@pytest.mark.parametrize("memo", [{3: 1}, {"x": {1, 2}}, {"$x": 1}])
def test_a_memo_that_could_not_come_back_is_refused(memo):
    with pytest.raises(JournalError, match="a memo"):
        encode(ev.MemoChanged(0.0, memo))


def test_the_digest_sees_what_a_policy_remembers():
    one, other = State(cluster("v100:1")), State(cluster("v100:1"))
    apply_event(other, ev.MemoChanged(0.0, {"x": 1}))
    assert one.digest() != other.digest()


def test_a_job_that_no_node_can_feed_is_refused():
    from fairlead.core.cluster import Cluster, Node
    from fairlead.testing import Harness

    harness = Harness().cluster(Cluster((Node("small", "v100", 4, cpus=4.0),)))
    seen = harness.submit(job("hungry").with_(cpus=64.0)).round()
    assert seen.refused == {"hungry"}
    assert "64 CPUs" in str(seen.reason("hungry"))
