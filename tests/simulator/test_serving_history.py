"""Who served whom, and what became of the requests, from what happened to jobs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import ELASTIC, Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.routes import REPORTED, Resident, Route, Server, ServingPlan, Session, latencies
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.sessions import ServingHistory, SessionTracker
from fairlead.simulator.world import World
from fairlead.testing import cluster
from fairlead.workloads.throughput_tables import ThroughputTable

ONE = np.array([0])
LAUNCH = Launches(ONE, ONE * 0, np.array([0, 1]), ONE)
ROUTE = {0: Route((0,), (1.0,), 8, 10.0)}
UP = ev.ProgressReported(0.0, ONE, np.zeros(1), np.ones(1), np.zeros(1))


def told(*events: ev.Event) -> ServingHistory:
    """Of a session that is launched at second 0."""
    requests = SessionTracker(Cluster.parse("2xv100:2"), {"a": Session("a", 10.0, 0.1, {"v100": np.full(32, 0.01)})})
    begin = (ev.JobSubmitted(0.0, 0, Job("a")), ev.RoundPlanned(RoundPlan(0.0, launches=LAUNCH, routes=ROUTE)))
    for event in (*begin, *events):
        requests.observe(event)
    return requests.history()


def finished(second: float) -> ev.JobsFinished:
    return ev.JobsFinished(second, ONE, np.array([second]))


def reported(second: float, rate: float) -> ev.MetricsReported:
    return ev.MetricsReported(second, REPORTED, ONE, np.array([rate]))


def at_rate(rate: float, accelerators: int, seconds: float) -> ServingHistory:
    session = Session("a", rate, 0.1, {"v100": latencies([1, 32], [0.009, 0.04])})
    plan = ServingPlan((Server("v100", (Resident("a", 32, 1.0, 1.0),)),) * accelerators, {})
    return ServingHistory((session,), {"a": ((0.0, seconds, rate),)}, plan, ((0.0, seconds),) * accelerators)


@pytest.mark.parametrize("rate", [1500.0, 1700.0, 2400.0])
def test_a_sample_of_an_overload_is_as_late_as_the_whole(rate):
    """Two accelerators do 1,600 a second; a stretch that began with an empty queue would answer all."""
    history = at_rate(rate, 2, 60.0)
    whole, part = history.served(), history.sampled(history.requests() / 4)
    assert part.sessions[0].requests < whole.sessions[0].requests / 4
    assert part.attainment == pytest.approx(whole.attainment, abs=0.02)


def test_a_sample_is_of_the_seconds_and_the_arrivals_that_were_asked_for():
    history = at_rate(1000.0, 2, 60.0)
    (part,) = history.sampled(8000.0, begin_s=10.0, end_s=20.0, how="uniform").sessions
    (again,) = history.sampled(8000.0, begin_s=10.0, end_s=20.0, seed=1, how="uniform").sessions
    assert part.requests == pytest.approx(again.requests, abs=2)  # a Poisson process would differ by dozens
    assert part.requests < 8000


def test_what_leads_in_is_served_and_not_counted():
    history = at_rate(2400.0, 2, 10.0)
    (cold,), (warm,) = (history.served(begin_s=5.0, end_s=5.1, lead_in_s=lead).sessions for lead in (0.0, 2.0))
    assert cold.requests == pytest.approx(240, abs=60)
    assert warm.requests == pytest.approx(240, abs=60)
    assert cold.attainment > 0.9
    assert warm.attainment < 0.8


def test_who_has_ended_gets_no_requests():
    later = ev.NodeLost(4000.0, 1)
    assert told(UP, finished(50.0), reported(3600.0, 20.0), later).rates == {"a": ((0.0, 50.0, 10.0),)}
    assert told(UP, finished(50.0), ev.JobCancelled(1000.0, 0)).rates == {"a": ((0.0, 50.0, 10.0),)}
    assert told(UP, reported(20.0, 5.0), finished(50.0)).requests() == 10 * 20 + 5 * 30


def test_a_replica_that_never_came_up_served_nobody():
    again = ev.RoundPlanned(RoundPlan(30.0, routes={0: Route((0,), (1.0,), 16, 10.0)}))
    up = ev.ProgressReported(40.0, ONE, np.zeros(1), np.ones(1), np.array([40.0]))
    assert told(ev.JobsInterrupted(60.0, ONE, np.zeros(1))).windows == ()
    assert told(ev.NodeLost(60.0, 1)).windows == ()
    late = told(again, up, finished(60.0))
    assert (late.windows, late.plan.servers[0].residents[0].batch) == (((40.0, 60.0),), 16)


def moved(second: float, *places: int) -> ev.RoundPlanned:
    launch = Launches(ONE, ONE * 0, np.array([0, len(places)]), np.array(places))
    routes = {0: Route(places, (1.0,) * len(places), 8, 10.0)}
    return ev.RoundPlanned(RoundPlan(second, suspended=ONE, launches=launch, routes=routes))


def going(second: float, since: float, rate: float = 1.0) -> ev.ProgressReported:
    return ev.ProgressReported(second, ONE, np.zeros(1), np.full(1, rate), np.array([since]))


def test_replicas_that_stay_go_on_while_others_start():
    wider = (UP, moved(30.0, 0, 1), going(30.0, 40.0))
    assert told(*wider, finished(60.0)).windows == ((0.0, 60.0), (40.0, 60.0))
    assert told(*wider, moved(50.0, 1), going(50.0, 55.0), finished(60.0)).windows == ((0.0, 50.0), (40.0, 60.0))
    assert told(UP, moved(30.0, 1), going(30.0, 40.0), finished(60.0)).windows == ((0.0, 30.0), (40.0, 60.0))


def test_replicas_that_have_not_started_serve_nobody_whatever_comes_between():
    wider = (UP, moved(30.0, 0, 1), going(30.0, 40.0))
    assert told(*wider, ev.JobsInterrupted(35.0, ONE, np.zeros(1)), ev.NodeLost(60.0, 1)).windows == ((0.0, 35.0),)
    assert told(*wider, moved(35.0, 1), going(35.0, 45.0), finished(60.0)).windows == ((0.0, 35.0), (45.0, 60.0))
    larger = ev.RoundPlanned(RoundPlan(35.0, routes={0: Route((0, 1), (0.5, 0.5), 16, 10.0)}))
    batches = told(*wider, larger, finished(60.0))
    assert batches.windows == ((0.0, 35.0), (35.0, 60.0), (40.0, 60.0))
    assert [server.residents[0].batch for server in batches.plan.servers] == [8, 16, 16]


def test_a_session_that_says_it_stands_still_has_left_where_it_was():
    """As on a cluster, where the whole gang is started again."""
    history = told(UP, moved(30.0, 0, 1), going(32.0, 32.0, 0.0), going(40.0, 40.0), finished(60.0))
    assert history.windows == ((0.0, 32.0), (40.0, 60.0), (40.0, 60.0))


@pytest.mark.parametrize(("rate", "taken"), [(0.0, 0.0), (-5.0, 10.0), (math.inf, 10.0), (math.nan, 10.0), (1e300, 1e6)])
def test_a_rate_of_0_is_idle_and_one_that_cannot_be_says_nothing(rate, taken):
    assert told(UP, reported(20.0, rate), finished(50.0)).rates["a"][-1] == (20.0, 50.0, taken)


def test_reports_of_who_has_ended_keep_no_run_going():
    machine = Cluster.parse("2xv100:2")
    table = ThroughputTable.timed(machine.type_names)
    jobs, late = [Job("a", steps=100.0), Job("b", 10.0, steps=100.0)], ev.MetricsReported(5e4, REPORTED, ONE, np.ones(1))
    world = SimulatedBackend(machine, table, jobs, others=[reported(50.0, 3.0), late])
    loop = Loop(State(machine), world, SchedulerConfig(round_s=60.0).build(table), MemoryJournal())
    loop.record(ev.JournalOpened(0.0, machine, {}))
    loop.run()
    assert loop.state.all_jobs().ended_s.max() < 200.0
    assert loop.state.time < 200.0
    assert [event.time for event in loop.journal if isinstance(event, ev.MetricsReported)] == [50.0]


def session_in_a_world() -> World:
    machine = cluster("v100:4")
    world = World(machine, ThroughputTable.timed(machine.type_names), Costs())
    world.add({0: Job("s", steps=1e6, mode=ELASTIC)})
    return world


def test_a_world_knows_who_serves_from_the_route_and_not_from_the_size():
    wide, routes = Launches(ONE, ONE * 0, np.array([0, 3]), np.arange(3)), {0: Route((0, 1, 2), (0.4, 0.3, 0.3), 8, 100.0)}
    world = session_in_a_world()
    world.route(wide, routes)
    world.launch(wide, 0.0)
    assert world.columns["rate"][0] == 1.0
    world.stop(ONE, 1.0, saved=True)
    world.route(wide, {})
    world.launch(wide, 2.0)
    assert world.columns["rate"][0] == 3.0
    world.refresh(world.route(Launches.none(), routes), 3.0)
    assert world.columns["rate"][0] == 1.0
