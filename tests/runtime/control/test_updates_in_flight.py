"""Requests to change jobs that arrive together with others: the loop has to survive whatever order they come in."""

from __future__ import annotations

import threading

from serving import PATIENCE_S, served

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.runtime.control.inbox import Inbox
from fairlead.runtime.control.job_changes import JobChanges
from fairlead.runtime.control.job_tracker import TrackedJobs
from fairlead.runtime.control.launches import LaunchTracker
from fairlead.runtime.host import Host
from fairlead.runtime.http_client import ControlPlaneClient


def test_a_job_that_ends_just_before_its_update_gets_no_event_and_the_control_plane_lives() -> None:
    with served("v100:1") as control:
        client = ControlPlaneClient(control.url, control.token)
        client.submit([{"name": "brief", "run": "true"}])
        answers, answered = list[int](), threading.Event()
        with control.plane.backend.lock:  # the loop takes both requests at once
            control.plane.backend.cancel(0)
            control.plane.backend.changes.update(0, {"priority": 1}, lambda found: (answers.append(len(found)), answered.set()))
        assert answered.wait(PATIENCE_S)
        assert (answers, client.job("brief")["phase"]) == ([0], "cancelled")
        assert client.update("brief", {"account": "lab"})["account"] == "lab"


def test_two_updates_of_one_commit_leave_the_time_limit_of_the_first() -> None:
    cluster, job = Cluster.parse("1xv100:1"), Job("a", time_limit_s=100.0)
    state, jobs, inbox = State(cluster), TrackedJobs(), Inbox(Host())
    apply_event(state, ev.JobSubmitted(0.0, 0, job))
    jobs.add(0, job)
    changes = JobChanges(jobs, LaunchTracker(lambda node: "", lambda key: (0, 0)), inbox, lambda orders: None, set())
    changes.state = lambda: state
    changes.update(0, {"time_limit_s": 200.0})
    changes.update(0, {"priority": 1})
    events = [event for handle, _ in inbox.take(0.0, lambda: 1.0) for event in handle(1.0)]
    for event in events:
        apply_event(state, event)
    jobs.limits.start(0, 10.0)
    assert (jobs.limits.next_s, state.columns["time_limit_s"][0]) == (210.0, 200.0)
