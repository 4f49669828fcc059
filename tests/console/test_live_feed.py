"""The rows of the live stream, from events of simulations: a page that loses its connection and resumes has what a new one
has."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from reading import Page, events

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.console import live_feed
from fairlead.console.live_feed import LiveFeed
from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Node
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.runtime.control import views
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing.builders import cluster
from fairlead.workloads.throughput_tables import ThroughputTable

MACHINES = "v100:4,v100:4,k80:2"
USERS = ("ann", "bob", "zoe")


class JumpingHost(Host):
    """A clock that is always late enough for whatever is done at times."""

    seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 100.0
        return self.seconds


def compose(data: Any) -> Any:
    return SchedulerConfig.from_data(dict(data)).build(None, Registry.installed())


def eventful(seed: int) -> list[ev.Event]:
    """A simulation with gangs of three users, preemptions, a lost node, a drain, holds, requeues, cancellations, changes of
    jobs and of the scheduler; and at its end another node of a new type, and one less."""
    draw, machines = random.Random(seed), cluster(MACHINES)
    table, journal = ThroughputTable.timed(machines.type_names), MemoryJournal()
    jobs = []
    for n in range(40):
        user = draw.choice(USERS)
        about = {"user": user, "account": f"team-{user}", "kind": ""}
        steps, workers = draw.uniform(50, 900), draw.choice([1, 1, 2, 4])
        jobs.append(Job(f"secret-{user}-{n}", draw.uniform(0, 900), steps, workers=workers, **about))
    jobs.sort(key=lambda job: job.submitted_s)
    data = {"policy": "las", "rounds": 60.0}
    others = (
        *(ev.JobHeld(400.0, 3, jobs[3].user), ev.JobReleased(900.0, 3), ev.JobRequeued(500.0, 1), ev.JobCancelled(600.0, 2)),
        *(ev.NodeDrained(700.0, 2, reason="fan"), ev.NodeDrained(1100.0, 2, undo=True)),
        *(ev.JobUpdated(950.0, 5, {"priority": 4}), ev.JobHeld(1000.0, 39, jobs[39].user)),
    )
    faults = outage_events([Outage(0, 300.0, 500.0)])
    backend = SimulatedBackend(machines, table, jobs, others=others, faults=faults)
    stages = SchedulerConfig.from_data(data).build(table, Registry.installed())
    loop = Loop(State(machines), backend, stages, journal=journal)
    loop.record(ev.JournalOpened(0.0, machines, {**data, "estimator": "measured"}))
    loop.run()
    end = loop.state.time
    extra = Node("new-0", "a100", 2)
    more = [
        *(ev.NodeAdded(end, 3, extra, AcceleratorType("a100")), ev.NodeRepaired(end, 3)),
        ev.SchedulerSwitched(end, {"policy": "fifo", "estimator": "measured", "rounds": 60.0}, "for a change"),
        *(ev.NodeLost(end, 2), ev.NodeRemoved(end, 2), ev.NodeBackedOff(end, 1, end + 60, "no driver")),
    ]
    return [*journal.events, *more]


class Watched:
    """A control plane that does not run: events are recorded here."""

    def __init__(self) -> None:
        scheduler = {"policy": "las", "rounds": 60.0, "estimator": "measured"}
        self.plane = ControlPlane(cluster(MACHINES), scheduler, compose, MemoryJournal(), host=JumpingHost())
        self.feed = LiveFeed(self.plane)

    def record(self, some: list[ev.Event]) -> None:
        for event in some:
            self.plane.loop.record(event)
            if isinstance(event, ev.RoundPlanned):
                self.plane.loop.plan = event.plan
                self.plane.decisions.add(event.plan)
        self.plane.loop.journal.commit()

    def page(self, sight: str | None) -> Page:
        page = Page()
        deliver(page, self.feed.message(sight))
        return page


def deliver(page: Page, message: bytes) -> None:
    for event in events(iter(message.decode().split("\n"))):
        page.take(*event)


def same(page: Page, other: Page) -> None:
    assert page.jobs == other.jobs
    assert page.nodes == other.nodes
    assert (page.types, page.scheduler, page.last_id) == (other.types, other.scheduler, other.last_id)
    assert page.decisions[: len(other.decisions)] == other.decisions


@pytest.mark.parametrize("seed", range(12))
def test_a_page_that_resumes_has_what_a_new_page_has(seed):
    draw, watched = random.Random(seed), Watched()
    feed, some = watched.feed, eventful(seed)
    kept = {name: (sight, Page()) for name, sight in (("root", None), ("ann", "ann"), ("bob", "bob"))}
    connected: set[str] = set()
    texts: dict[str, bytes] = dict.fromkeys(kept, b"")
    begun, at, names = False, 0, set[str]()
    while at < len(some):
        step = draw.choice([1, 1, 3, 10, 40])
        watched.record(some[at : at + step])
        at += step
        for node in range(len(watched.plane.cluster.nodes)):
            if draw.random() < 0.3:
                use = tuple(draw.random() for _ in range(watched.plane.cluster.nodes[node].accelerators))
                watched.plane.hub.heartbeats[node] = Heartbeat(use, tuple(10 * one for one in use))
        for name, (sight, page) in kept.items():
            if name not in connected and draw.random() < 0.3:  # it comes (back)
                if not begun:
                    feed.wake()
                    begun = True
                epoch, _, revision = page.last_id.partition(":")
                resumes = bool(epoch) and feed.knows(epoch, int(revision))
                message = feed.message(sight, int(revision) if resumes else None)
                texts[name] += message
                deliver(page, message)
                connected.add(name)
            elif name in connected and draw.random() < 0.3:  # it loses its connection
                connected.discard(name)
        if begun and draw.random() < 0.7:
            before = feed.revision
            feed.refresh()
            for name in connected if feed.revision > before else ():
                message = feed.message(kept[name][0], before)
                texts[name] += message
                deliver(kept[name][1], message)
    feed.wake()
    before = feed.revision
    feed.refresh()
    for name, (sight, page) in kept.items():
        epoch, _, revision = page.last_id.partition(":")
        since = before if name in connected else int(revision or -1)
        deliver(page, feed.message(sight, since if feed.knows(epoch, since) else None))
        same(page, watched.page(sight))
        names.update(page.names)
    assert names == {"reset", "change"}
    for name, text in texts.items():
        if name != "root":
            assert not [other for other in USERS if other != name and other.encode() in text]
    check_against_records(watched, kept["root"][1])


def check_against_records(watched: Watched, page: Page) -> None:
    """What an admin's page has is what the records of `GET /v1/jobs` have."""
    plane = watched.plane
    assert len(page.jobs) == plane.loop.state.next_number
    for number, row in page.jobs.items():
        record = views.job_record(plane.loop, number, plane.backend.now)
        phase = "held" if record["held_by"] is not None else record["phase"]
        assert (row["state"], row["devices"], row["launches"]) == (phase, record["accelerators"], record["starts"])
        assert (row["name"], row["user"], row["account"], row["job_type"]) == tuple(
            record[name] for name in ("name", "user", "account", "kind")
        )
        assert row["reason"] == record.get("reason", {"code": ""})["code"]
        assert (row["ended"] is None) == (record["ended_s"] is None)
    states = {row["name"]: row["state"] for row in page.nodes.values()}
    assert states == {"v100-0": "up", "v100-1": "backed-off", "new-0": "up"}


@pytest.fixture
def watched() -> Watched:
    found = Watched()
    found.record([ev.JournalOpened(0.0, found.plane.cluster, dict(found.plane.scheduler))])
    found.feed.wake()
    return found


def submitted(number: int, user: str, **about: Any) -> ev.JobSubmitted:
    return ev.JobSubmitted(1.0, number, Job(f"of-{user}-{number}", 1.0, 100.0, user=user, **about))


def test_other_users_jobs_have_no_names(watched):
    watched.record([submitted(0, "ann", account="nlp", kind="bert", priority=7), submitted(1, "bob")])
    watched.feed.refresh()
    mine, other = (watched.page("bob").jobs[number] for number in (1, 0))
    assert (mine["name"], mine["user"]) == ("of-bob-1", "bob")
    shown = {name: value for name, value in other.items() if value not in ("", None)}
    assert shown == {"number": 0, "state": "queued", "gpus": 1, "gpu_type": -1, "devices": []}
    assert watched.page(None).jobs[0]["name"] == "of-ann-0"


def test_a_refresh_without_changes_sends_nothing(watched):
    watched.record([submitted(0, "ann")])
    watched.feed.refresh()
    before = watched.feed.revision
    watched.record([ev.MetricsReported(2.0, "loss", np.array([0]), np.array([1.0]))])
    watched.feed.refresh()
    assert watched.feed.revision == before


def test_a_feed_that_sleeps_notes_nothing_and_begins_a_new_epoch(watched):
    epoch = watched.feed.epoch
    watched.feed.sleep()
    watched.record([submitted(0, "ann")])
    assert not watched.feed._touched
    watched.feed.wake()
    assert watched.feed.epoch != epoch
    assert not watched.feed.knows(epoch, 1)
    assert watched.page(None).jobs.keys() == {0}
    assert watched.plane.observers.count(watched.feed._observe) == 1


def test_a_node_that_measures_about_the_same_gets_no_other_row(watched, monkeypatch):
    monkeypatch.setattr(live_feed, "PARTS", 1)
    heartbeats, feed = watched.plane.hub.heartbeats, watched.feed
    heartbeats[0] = Heartbeat((0.5, 0.5, 0.5, 0.5), (10.0, 10.0, 10.0, 10.0))
    feed.refresh()
    assert watched.page(None).nodes[0]["utilization"] == [50, 50, 50, 50]
    before = feed.revision
    heartbeats[0] = Heartbeat((0.54, 0.46, 0.5, 0.5), (10.4, 9.6, 10.0, 10.0))
    feed.refresh()
    assert feed.revision == before
    heartbeats[0] = Heartbeat((0.5, 0.44, 0.5, 0.5), (10.0, 10.0, 10.0, 10.0))
    feed.refresh()
    assert watched.page(None).nodes[0]["utilization"] == [50, 44, 50, 50]
    heartbeats[0] = Heartbeat((0.5, 0.44, 0.5, 0.5), (10.0, 10.0, 10.0, 10.6))
    feed.refresh()
    assert watched.page(None).nodes[0]["memory_gb"][-1] == 10.6
    assert feed.revision == before + 2


def test_a_silent_node_is_unreachable(watched, monkeypatch):
    monkeypatch.setattr(live_feed, "PARTS", 1)
    silent = {1: 3.0}
    monkeypatch.setattr(watched.plane.hub, "silent_s", lambda node: silent.get(node, 0.0))
    watched.feed.refresh()
    assert [node["state"] for node in watched.page(None).nodes.values()] == ["up", "unreachable", "up"]
    silent.clear()
    watched.feed.refresh()
    assert {node["state"] for node in watched.page(None).nodes.values()} == {"up"}


def test_a_reset_has_the_last_ended_jobs_and_a_page_that_missed_an_end_gets_one(watched, monkeypatch):
    monkeypatch.setattr(live_feed, "MAX_ENDED", 3)
    watched.record([submitted(number, "ann") for number in range(6)])
    watched.feed.refresh()
    before = watched.feed.revision
    for number in range(6):
        watched.record([ev.JobCancelled(2.0 + number, number)])
        watched.feed.refresh()
    assert watched.page(None).jobs.keys() == {3, 4, 5}
    assert not watched.feed.knows(watched.feed.epoch, before)
    assert watched.feed.knows(watched.feed.epoch, watched.feed.revision - 1)


def test_progress_is_sent_again_when_it_has_changed_by_a_hundredth(watched):
    watched.record([submitted(0, "ann")])
    state, one = watched.plane.loop.state, np.array([0])
    launches = Launches(one, one, np.array([0, 1]), one)
    watched.record([ev.RoundPlanned(RoundPlan(1.0, admitted=one)), ev.RoundPlanned(RoundPlan(1.0, launches=launches))])
    watched.feed.refresh()
    assert watched.page("ann").jobs[0]["devices"] == [0]
    for steps, moved in ((0.5, False), (2.0, True), (2.5, False), (50.0, True)):
        before = watched.feed.revision
        watched.record([ev.ProgressReported(state.time, one, np.array([steps]), np.array([0.0]), np.array([state.time]))])
        watched.feed.refresh()
        assert (watched.feed.revision > before) == moved
    assert watched.page("ann").jobs[0]["progress"] == 0.5
