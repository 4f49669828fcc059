"""Work in proportion to what changes: on a cluster of thousands of nodes, nothing looks at all launches or wakes the loop for
each report."""

from __future__ import annotations

import math
import threading

import pytest

from fairlead.runtime.control.inbox import Inbox
from fairlead.runtime.control.launches import LaunchTracker
from fairlead.runtime.control.tracked_launch import NodeRanks, TrackedLaunch
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.orders import Ended, Kill, Launch, Revoke, Task


def launch(job: int, node: int, generation: int = 1) -> TrackedLaunch:
    return TrackedLaunch(job, generation, f"job-{job}", Task(("true",)), (NodeRanks(node, (0,), (0,)),))


def looked_at(nodes: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many launches are looked at while one moves from one node to another, and an agent connects again."""
    launches = LaunchTracker(lambda node: "", lambda key: (0, 0))
    for job in range(nodes):
        launches.start(launch(job, job))
    count = 0
    for name in ("nodes_left", "leaving", "places", "key"):
        read = vars(TrackedLaunch)[name].fget

        def counted(run: TrackedLaunch, read=read) -> object:
            nonlocal count
            count += 1
            return read(run)

        monkeypatch.setattr(TrackedLaunch, name, property(counted))
    assert launches.revoke(7) == [(7, Revoke(7, 1))]
    assert launches.start(launch(7, nodes, 2)) == []  # it waits for itself
    assert launches.start(launch(nodes, 7)) == []  # it waits for the GPU
    orders, _ = launches.ended(7, Ended(7, 1, 0, True, 5, 5))
    assert [(node, type(order), order.job) for node, order in orders] == [(nodes, Launch, 7), (7, Launch, nodes)]
    assert launches.compare({3: [(3, 1)]}, lambda node: (0,), lambda job: True) == ([], [])
    orders, _ = launches.compare({4: [(4, 1), (9999, 1)]}, lambda node: (0,), lambda job: False)
    assert orders == [(4, Kill(9999, 1))]
    assert (launches.uses(5), launches.has_part_on(5), launches.jobs_on(6)) == (True, True, {6: False})
    assert launches.node_lost(5)[1][0].job == 5
    assert not launches.has_part_on(5)
    monkeypatch.undo()
    return count


def test_a_change_looks_only_at_the_launches_that_it_is_about(monkeypatch):
    assert looked_at(200, monkeypatch) == looked_at(20, monkeypatch)


def test_a_launch_waits_for_unknown_ones_that_an_agent_finds_on_its_node_or_of_its_job():
    launches = LaunchTracker(lambda node: "", lambda key: (0, 0))
    launches.start(launch(0, 0))
    launches.revoke(0)
    launches.start(launch(1, 0))  # waits for job 0
    launches.start(launch(2, 1))
    launches.revoke(2)
    launches.start(launch(3, 1, 2))  # waits for job 2
    orders, _ = launches.compare({0: [(0, 1), (9, 1)], 2: [(3, 1)]}, lambda node: (0,), lambda job: True)
    assert orders == [(0, Revoke(0, 1)), (0, Revoke(9, 1)), (2, Revoke(3, 1))]
    assert [type(order) for _, order in launches.ended(0, Ended(0, 1, 0, True, 5, 5))[0]] == []
    assert [order.job for _, order in launches.ended(0, Ended(9, 1, 0, True, 5, 5))[0]] == [1]
    assert launches.ended(1, Ended(2, 1, 0, True, 5, 5))[0] == []
    assert [order.job for _, order in launches.ended(2, Ended(3, 1, 0, True, 5, 5))[0]] == [3]


def test_requests_that_can_wait_are_taken_together_and_in_order():
    inbox, taken = Inbox(Host()), list[int]()

    def put(number: int, within_s: float) -> None:
        inbox.put(lambda now: (taken.append(number), ())[1], within_s=within_s)  # type: ignore[func-returns-value]

    def take() -> None:
        for handle, _ in inbox.take(math.inf, lambda: 0.0):
            handle(0.0)

    put(1, 3600.0)
    put(2, 3600.0)
    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    put(3, 3600.0)
    assert taken == []
    put(4, 0.0)
    taking.join(60.0)
    assert taken == [1, 2, 3, 4]
    put(5, 0.01)
    take()  # without any other request
    assert taken[-1] == 5
