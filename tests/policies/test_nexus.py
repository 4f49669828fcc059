"""Inference sessions beside training jobs, through the one loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import ELASTIC, Job, Phase
from fairlead.core.reasons import Reasons
from fairlead.core.routes import REPORTED, Route
from fairlead.core.stages import Stages
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.policies.serving.nexus import Nexus, SessionSpec
from fairlead.simulator.backend import SimulatedBackend
from fairlead.testing.invariants import check_events
from fairlead.workloads.throughput_tables import ThroughputTable

ENDLESS = 1e12
PHOTOS = SessionSpec(slo_ms=100, batches=(1, 32), latency_ms={"v100": (9, 40), "p100": (18, 80)}, rate=700)


def ran(cluster: str, jobs: list[Job], others: list[ev.Event], policy: Nexus, until: float) -> Loop:
    machine = Cluster.parse(cluster)
    table = ThroughputTable.timed(machine.type_names)
    standard = SchedulerConfig(round_s=60.0).build(table)
    journal = MemoryJournal()
    loop = Loop(
        State(machine),
        SimulatedBackend(machine, table, jobs, others=others),
        Stages(**{**standard.__dict__, "policy": policy}),
        journal,
    )
    loop.record(ev.JournalOpened(0.0, machine, {}))
    loop.run(until)
    check_events(journal.events)
    return loop


def held(loop: Loop) -> dict[str, int]:
    jobs = loop.state.all_jobs()
    return {loop.state.job_of[number].name: size for number, size in zip(jobs.number.tolist(), jobs.held.tolist()) if size}


def session(name: str = "photos", submitted_s: float = 0.0) -> Job:
    return Job(name, submitted_s, steps=ENDLESS, mode=ELASTIC)


def test_a_session_has_what_its_requests_need_and_training_the_rest():
    jobs = [*(Job(f"train-{n}", steps=5000.0) for n in range(8)), session(submitted_s=600.0)]
    before = ran("8xv100:4", jobs, [], Nexus({"photos": PHOTOS}), 599.0)
    after = ran("8xv100:4", jobs, [], Nexus({"photos": PHOTOS}), 700.0)
    assert len(held(before)) == 8
    assert held(after) == {"photos": 2, **{f"train-{n}": 1 for n in range(6)}}
    places = after.state.device_map.of(8).tolist()
    assert after.state.routes == {8: Route(tuple(places), (0.5, 0.5), 32, 700.0)}


def test_a_session_grows_and_shrinks_with_the_rate_it_reports():
    def sizes(*rates: float) -> int:
        told = [ev.MetricsReported(100.0 * (n + 1), REPORTED, np.array([0]), np.array([rate])) for n, rate in enumerate(rates)]
        return held(ran("8xv100:4", [session()], told, Nexus({"photos": PHOTOS}), 100.0 * len(rates) + 90.0))["photos"]

    assert sizes() == 2
    assert sizes(3000.0) == 5
    assert sizes(3000.0, 2500.0) == 5  # one more than needed is not worth a restart
    assert sizes(3000.0, 500.0) == 2


def test_a_session_that_is_not_elastic_has_the_replicas_it_was_submitted_with():
    told = [ev.MetricsReported(100.0, REPORTED, np.array([0]), np.array([3000.0]))]
    rigid = Job("photos", steps=ENDLESS, workers=3)
    jobs = [rigid, Job("wide", 10.0, steps=1000.0, workers=6)]
    loop = ran("8xv100:4", jobs, told, Nexus({"photos": PHOTOS}), 200.0)
    assert held(loop) == {"photos": 3}
    assert loop.state.all_jobs().starts.tolist() == [1, 0]
    route = loop.state.routes[0]
    assert (len(route.accelerators), route.batch, route.rate) == (3, 32, 3000.0)


def test_a_session_that_is_not_elastic_has_what_the_others_leave_when_they_share():
    """Six together need six accelerators; each with its own headroom they would seem to need seven."""
    names = [f"session-{n}" for n in range(6)]
    jobs = [*map(session, names), Job("rigid", steps=ENDLESS)]
    loop = ran("7xv100:7", jobs, [], Nexus({**dict.fromkeys(names, PHOTOS), "rigid": SMALL}), 50.0)
    assert held(loop).keys() == {*names, "rigid"}


def test_an_exclusive_session_divides_its_requests_evenly():
    """Two with more than they can do, which must not be a measure for who shares."""
    own, shared = Job("rigid", steps=ENDLESS, workers=2), session()
    loop = ran("8xv100:4", [own, shared], [], Nexus({"rigid": replace(PHOTOS, rate=6000.0), "photos": PHOTOS}), 50.0)
    assert {number: route.parts for number, route in loop.state.routes.items()} == {0: (0.5, 0.5), 1: (0.5, 0.5)}
    small = ran("8xv100:4", [own, shared], [], Nexus({"rigid": SMALL, "photos": PHOTOS}), 50.0)
    assert small.state.routes[0].parts == (0.5, 0.5)


QUIETER = [ev.MetricsReported(100.0, REPORTED, np.array([0]), np.array([200.0]))]


def test_a_spare_accelerator_is_given_back_to_a_session_that_needs_it():
    jobs = [session(), Job("rigid", 200.0, steps=ENDLESS, workers=3)]
    policy = Nexus({"photos": PHOTOS, "rigid": SMALL})
    assert held(ran("4xv100:4", jobs, QUIETER, policy, 190.0)) == {"photos": 2}
    assert held(ran("4xv100:4", jobs, QUIETER, policy, 1000.0)) == {"photos": 1, "rigid": 3}


def test_a_protected_session_keeps_its_accelerators_and_reasons_say_what_is_free():
    jobs = [Job("photos", steps=ENDLESS, mode=ELASTIC, min_run_s=1e6), Job("rigid", 200.0, steps=ENDLESS, workers=3)]
    policy = Nexus({"photos": PHOTOS, "rigid": PHOTOS})
    alone = ran("4xv100:4", jobs, QUIETER, policy, 1000.0)
    assert held(alone) == {"photos": 2}
    assert alone.plan.reasons[1] == Reasons.waiting(3, free=2)
    other = ran("4xv100:4,4xp100:4", jobs, QUIETER, policy, 1000.0)
    assert held(other) == {"photos": 2, "rigid": 3}
    assert other.state.cluster.type_names[other.state.all_jobs().type[1]] == "p100"


@pytest.mark.parametrize(("rate", "size"), [(1e-300, 2), (1e-20, 2), (1e300, 8), (np.inf, 2), (np.nan, 2), (-5.0, 2)])
def test_an_impossible_rate_is_ignored(rate, size):
    """It is the session's own word, and everybody's jobs depend on the decision."""
    told = [ev.MetricsReported(100.0, REPORTED, np.array([0]), np.array([rate]))]
    assert held(ran("8xv100:4", [session()], told, Nexus({"photos": PHOTOS}), 300.0)) == {"photos": size}


def test_a_session_that_reports_0_is_idle():
    told = [ev.MetricsReported(100.0, REPORTED, np.array([0]), np.array([rate])) for rate in (3000.0, 0.0)]
    loop = ran("8xv100:4", [session()], told, Nexus({"photos": PHOTOS}), 300.0)
    assert loop.state.routes[0].rate < 1.0
    assert held(loop)["photos"] <= 2


def test_a_session_that_ends_leaves_its_accelerators_to_training():
    jobs = [session(), Job("wide", 10.0, steps=100.0, workers=4)]
    cancelled = [ev.JobCancelled(500.0, 0)]
    loop = ran("4xv100:4", jobs, cancelled, Nexus({"photos": PHOTOS}), 2000.0)
    phases = loop.state.all_jobs().phase.tolist()
    assert [Phase(phase) for phase in phases] == [Phase.CANCELLED, Phase.FINISHED]
    assert loop.state.all_jobs().first_started_s[1] >= 500.0
    assert loop.state.routes == {}


def test_a_session_takes_the_type_on_which_it_needs_fewest_or_what_there_is():
    jobs = [session("photos"), session("more")]
    policy = Nexus({"photos": PHOTOS, "more": PHOTOS})
    two = ran("2xv100:2,8xp100:4", jobs, [], policy, 50.0)
    assert [two.state.cluster.type_names[kind] for kind in two.state.all_jobs().type.tolist()] == ["v100", "p100"]
    short = ran("1xv100:1", jobs, [], policy, 50.0)
    assert held(short) == {"photos": 1}
    assert "GPU" in str(short.plan.reasons[1])


def test_reason_of_a_session_that_no_type_can_serve():
    slow = SessionSpec(slo_ms=5, batches=(1,), latency_ms={"v100": (9,)}, rate=10)
    loop = ran("4xv100:4", [session()], [], Nexus({"photos": slow}), 50.0)
    assert not held(loop)
    assert str(loop.plan.reasons[0]).endswith("within its SLO; it has latencies on v100")


def test_training_within_its_minimum_run_is_protected():
    jobs = [Job("train", steps=5000.0, workers=3, min_run_s=900.0), session(submitted_s=60.0)]
    assert held(ran("4xv100:4", jobs, [], Nexus({"photos": PHOTOS}), 200.0)) == {"train": 3, "photos": 1}
    assert held(ran("4xv100:4", jobs, [], Nexus({"photos": PHOTOS}), 1200.0)) == {"photos": 2}


SMALL = SessionSpec(slo_ms=100, batches=(1, 32), latency_ms={"v100": (9, 40)}, rate=150)


def test_sessions_share_accelerators():
    names = [f"session-{n}" for n in range(8)]
    loop = ran("8xv100:4", [session(name) for name in names], [], Nexus(dict.fromkeys(names, SMALL)), 50.0)
    used = {place for route in loop.state.routes.values() for place in route.accelerators}
    assert len(loop.state.routes) == 8
    assert len(used) == 3  # a fifth for each, and headroom
    for route in loop.state.routes.values():
        assert sum(route.parts) == pytest.approx(1.0, abs=1e-3)


def test_a_session_that_is_submitted_twice_is_served_twice():
    told = [ev.MetricsReported(100.0, REPORTED, np.array([1]), np.array([1500.0]))]
    loop = ran("8xv100:4", [session(), session(), session("small")], told, Nexus({"photos": PHOTOS, "small": SMALL}), 300.0)
    assert {number: route.rate for number, route in loop.state.routes.items()} == {0: 700.0, 1: 1500.0, 2: 150.0}
    for route in loop.state.routes.values():
        assert sum(route.parts) == pytest.approx(1.0, abs=1e-3)


def test_a_growing_session_does_not_restart_others():
    names = [f"session-{n}" for n in range(8)]
    told = [ev.MetricsReported(100.0, REPORTED, np.array([3]), np.array([1200.0]))]
    loop = ran("8xv100:4", [session(name) for name in names], told, Nexus(dict.fromkeys(names, SMALL)), 300.0)
    assert loop.state.all_jobs().starts.tolist() == [1, 1, 1, 2, 1, 1, 1, 1]
    assert loop.state.routes[3].rate == 1200.0
    assert len({place for route in loop.state.routes.values() for place in route.accelerators}) == 4


def test_a_new_batch_alone_restarts_no_job():
    told = [ev.MetricsReported(100.0, REPORTED, np.array([0]), np.array([90.0]))]
    loop = ran("8xv100:4", [session()], told, Nexus({"photos": PHOTOS}), 300.0)
    assert loop.state.all_jobs().starts.tolist() == [1]
    assert loop.state.routes[0].rate == 90.0
    assert loop.state.routes[0].batch < 32
    assert [len(e.plan.launches) for e in loop.journal.events if isinstance(e, ev.RoundPlanned) and e.plan.routes] == [1, 0]


def test_running_training_jobs_are_not_moved():
    jobs = [*(Job(f"train-{n}", steps=5000.0) for n in range(8)), session(submitted_s=600.0)]
    loop = ran("8xv100:4", jobs, [], Nexus({"photos": PHOTOS}), 700.0)
    assert loop.state.all_jobs().moves.tolist() == [0] * 9
    assert loop.state.all_jobs().preemptions.tolist() == [0] * 6 + [1, 1] + [0]  # the last of fifo's order


def test_sessions_of_a_lost_node_are_placed_again():
    names = [f"session-{n}" for n in range(8)]
    machine = Cluster.parse("8xv100:4")
    table = ThroughputTable.timed(machine.type_names)
    standard = SchedulerConfig(round_s=60.0).build(table)
    world = SimulatedBackend(machine, table, [session(name) for name in names], faults=[ev.NodeLost(100.0, 0)])
    policy = Nexus(dict.fromkeys(names, SMALL))
    loop = Loop(State(machine), world, Stages(**{**standard.__dict__, "policy": policy}), MemoryJournal())
    loop.record(ev.JournalOpened(0.0, machine, {}))
    loop.run(300.0)
    check_events(loop.journal.events)
    assert len(loop.state.routes) == 8
    used = {place for route in loop.state.routes.values() for place in route.accelerators}
    assert used <= set(range(4, 8))


def test_a_scheduler_switched_to_midway_serves_sessions():
    """No session was known to the world when it began; a session's second is a second all the same."""
    machine = Cluster.parse("8xv100:4")
    table = ThroughputTable.timed(machine.type_names)
    asked = {"slo_ms": 100, "batches": [1, 32], "latency_ms": {"v100": [9, 40]}, "rate": 2000}
    other = {"policy": {"name": "nexus", "sessions": {"photos": asked}}, "rounds": 60}
    back = SchedulerConfig(round_s=60.0).to_data()
    switches = [ev.SchedulerSwitched(120.0, other), ev.SchedulerSwitched(600.0, back)]
    jobs = [Job("photos", steps=1000.0, mode=ELASTIC), Job("train", steps=1000.0)]
    compose = lambda data: SchedulerConfig.from_data(data).build(table)  # noqa: E731
    loop = Loop(
        State(machine), SimulatedBackend(machine, table, jobs, others=switches), compose(back), MemoryJournal(), compose=compose
    )
    loop.record(ev.JournalOpened(0.0, machine, back))
    loop.run(300.0)
    assert len(loop.state.routes[0].accelerators) == 3
    assert loop.state.all_jobs().rate.tolist() == [1.0, 1.0]
    loop.run()
    check_events(loop.journal.events)
    assert loop.state.all_jobs().ended_s.tolist() == [1000.0, 1000.0]


def test_a_protected_session_takes_nothing_from_others():
    """It cannot grow before it may be started again; until then its rate is no reason for anybody to leave."""
    jobs = [Job("busy", steps=ENDLESS, mode=ELASTIC, min_run_s=600.0), Job("own", steps=ENDLESS, workers=2)]
    told = [ev.MetricsReported(100.0, REPORTED, np.array([0]), np.array([5000.0]))]
    policy = Nexus({"busy": PHOTOS, "own": PHOTOS})
    loop = ran("8xv100:4", jobs, told, policy, 590.0)
    assert held(loop) == {"busy": 2, "own": 2}
    assert loop.state.all_jobs().starts.tolist() == [1, 1]
    assert held(ran("8xv100:4", jobs, told, policy, 700.0))["busy"] >= 6


def test_a_fork_after_a_switch_of_schedulers_continues_as_the_run_does():
    """Sessions that share an accelerator stay as they are until the other scheduler has decided."""
    machine = Cluster.parse("4xv100:4")
    table = ThroughputTable.timed(machine.type_names)
    asked = {"slo_ms": 100, "batches": [1, 32], "latency_ms": {"v100": [9, 40]}}
    rates = {"p0": 1500, "p1": 20, "p2": 20}
    sessions = {name: {**asked, "rate": rate} for name, rate in rates.items()}
    serving = SchedulerConfig.from_data({"policy": {"name": "nexus", "sessions": sessions}, "rounds": 10}).to_data()
    other = SchedulerConfig.from_data({"policy": "fifo", "rounds": 10}).to_data()
    compose = lambda data: SchedulerConfig.from_data(data).build(table)  # noqa: E731
    jobs = [Job(name, steps=500.0, mode=ELASTIC) for name in rates]
    loop = Loop(State(machine), SimulatedBackend(machine, table, jobs), compose(serving), MemoryJournal(), compose=compose)
    loop.record(ev.JournalOpened(0.0, machine, serving))
    loop.run(95.0)
    routes = dict(loop.state.routes)
    loop.record(ev.SchedulerSwitched(loop.backend.now, other))
    view = loop.state.snapshot(loop.backend.now).detached()
    fork = Loop(State.from_snapshot(view), SimulatedBackend.from_snapshot(view, table), loop.stages, MemoryJournal())
    assert len(routes) == 3
    assert view.routes == loop.state.routes == routes
    for one in (loop, fork):
        one.run()
    check_events(loop.journal.events)
    assert fork.state.all_jobs().ended_s.tolist() == loop.state.all_jobs().ended_s.tolist()
    assert loop.state.routes == {}


def test_a_fork_carries_the_routes():
    names = [f"session-{n}" for n in range(4)]
    loop = ran("8xv100:4", [session(name) for name in names], [], Nexus(dict.fromkeys(names, SMALL)), 50.0)
    view = loop.state.snapshot(loop.backend.now).detached()
    state = State.from_snapshot(view)
    assert state.routes == loop.state.routes == load(save(loop.state)).routes
    world = SimulatedBackend.from_snapshot(view, ThroughputTable.timed(view.cluster.type_names))
    fork = Loop(state, world, loop.stages, MemoryJournal())
    fork.run(500.0)
    assert state.all_jobs().starts.tolist() == [1] * 4
    assert state.all_jobs().rate.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"sessions": {"a": {"slo_ms": 0, "rate": 1, "batches": [1], "latency_ms": {"v100": [1]}}}}, "sessions.a.slo_ms"),
        ({"sessions": {"a": {"slo_ms": 9, "rate": 1, "batches": [2, 1], "latency_ms": {}}}}, "sessions.a.batches"),
        ({"sessions": {"a": {"slo_ms": 9, "rate": 1, "batches": [1], "latency_ms": {"v100": []}}}}, "a.latency_ms.v100"),
        ({"sessions": {"a": {"slo_ms": 9, "rate": 1e12, "batches": [1], "latency_ms": {}}}}, "rate.*at most 1,000,000 req"),
        ({"headroom": -1}, "headroom"),
        ({"training": "themis"}, "training"),
    ],
)
def test_wrong_parameters_are_named(parameters, told):
    config = SchedulerConfig.from_data({"policy": {"name": "nexus", **parameters}})
    with pytest.raises(InputError, match=told):
        config.build(None)


@pytest.mark.parametrize("parameter", ["neighbours", "spare"])
def test_fractional_counts_are_errors(parameter):
    with pytest.raises(InputError, match=f"field '{parameter}' is 1.5: expected a whole number"):
        Nexus(**{parameter: 1.5})
