"""Every policy and preset decides on while the cluster changes: in the middle of a run a node of a known GPU type and one of a
new type join, and a node leaves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fairlead.config.registry import Registry, presets
from fairlead.config.schedulers import compose
from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.job import ELASTIC, Phase
from fairlead.core.plan import RoundPlan
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.testing import check_events, cluster
from fairlead.testing.builders import random_jobs, random_table

pytestmark = pytest.mark.long

FIRST = cluster("v100:4,v100:2,k80:4")
KNOWN, NEW, TYPE = Node("v100-3", "v100", 4), Node("h100-4", "h100", 4), AcceleratorType("h100", 80.0, 4.0)
LAST = FIRST.with_node(3, KNOWN).with_node(4, NEW, TYPE)
LEAVES = 1

POLICIES = [entry.name for entry in Registry.installed().of("policy") if entry.origin == "fairlead"]


class ChangingRun:
    """A loop on a simulated cluster, with the stages of a real one; nodes are added and removed between events."""

    def __init__(self, scheduler: dict[str, Any], first: Cluster = FIRST, *, count: int = 14) -> None:
        table = random_table(5, LAST.type_names)
        jobs = random_jobs(5, count, table=table, largest=4)
        jobs = [replace(job, submitted_s=job.submitted_s / 4 * (number > 2)) for number, job in enumerate(jobs)]
        jobs = [replace(job, mode=ELASTIC) if number % 3 == 2 else job for number, job in enumerate(jobs)]
        self.backend = SimulatedBackend(LAST, table, jobs)
        self.journal = MemoryJournal()
        stages = compose({"rounds": 120, **scheduler})
        self.loop = Loop(State(first), self.backend, stages, journal=self.journal, on_decision=self.note)
        self.loop.record(ev.JournalOpened(0.0, first, {}, "changing", None))
        self.used: set[int] = set()  # nodes on which jobs were started

    def note(self, plan: RoundPlan) -> None:
        self.used |= set(LAST.node_of[plan.launches.accelerators].tolist())

    def until(self, second: float) -> float:
        self.loop.run(until=second)
        return self.backend.now

    def record(self, *events: ev.Event) -> None:
        for event in events:
            self.loop.record(event)
        self.loop._wake_s = self.backend.now  # as after an event of the backend

    def add(self, node: int) -> None:
        now = self.backend.now
        self.record(
            ev.NodeAdded(
                now, node, LAST.nodes[node], TYPE if node == 4 and "h100" not in self.loop.state.cluster.type_code else None
            ),
            ev.NodeRepaired(now, node),
        )

    def drain_and_remove(self, node: int) -> None:
        self.record(ev.NodeDrained(self.backend.now, node, reason="old"))
        while len(self.loop.state.device_map.on(LAST.node_of == node)):
            before = self.backend.now
            assert self.until(before + 120.0) > before
        self.record(ev.NodeRemoved(self.backend.now, node))
        self.used.discard(node)

    def check(self) -> State:
        """All jobs end, on the nodes that are there, and the journal replays to the same state."""
        state = self.loop.state
        phases = [Phase(int(state.columns["phase"][number])) for number in state.job_of]
        assert set(phases) <= {Phase.FINISHED, Phase.FAILED}, phases
        assert check_events(self.journal.events, residents=4).digest() == state.digest()
        return state


def run(scheduler: dict[str, Any]) -> ChangingRun:
    scene = ChangingRun(scheduler)
    scene.until(1200.0)
    scene.add(3)
    scene.until(1500.0)
    scene.add(4)
    scene.until(2400.0)
    scene.drain_and_remove(LEAVES)
    scene.until(math.inf)
    return scene


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_decides_on_while_nodes_join_and_leave(policy: str) -> None:
    scene = run({"policy": policy})
    state = scene.check()
    assert {3, 4} <= scene.used
    assert LEAVES not in scene.used
    assert state.cluster.nodes[LEAVES].removed
    assert str(state.cluster) == "8 × v100, 4 × k80, 4 × h100"


SCHEDULERS = [{"policy": name} for name in POLICIES] + [{"preset": name} for name in presets()]


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda scheduler: "-".join(*scheduler.items()))
def test_a_cluster_without_nodes_refuses_jobs_until_it_has_some(scheduler: dict[str, Any]) -> None:
    scene = ChangingRun(scheduler, Cluster(()), count=5)
    scene.until(600.0)
    early = [*scene.loop.state.refusals]
    assert all("the cluster has no nodes yet" in reason.text for reason in scene.loop.state.refusals.values())
    for node in range(len(LAST.nodes)):
        scene.add(node)
    scene.until(math.inf)
    phases = [Phase(int(scene.loop.state.columns["phase"][number])) for number in range(5)]
    assert len(early) >= 3
    assert {phase for number, phase in enumerate(phases) if number not in early} <= {Phase.FINISHED, Phase.FAILED}
    assert check_events(scene.journal.events, residents=4).digest() == scene.loop.state.digest()


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda scheduler: "-".join(*scheduler.items()))
def test_where_nodes_may_join_jobs_wait_for_one_that_suits(scheduler: dict[str, Any]) -> None:
    scene = ChangingRun(scheduler, Cluster(()), count=5)
    scene.loop.stages = replace(scene.loop.stages, await_nodes=True)
    scene.loop.allow_stalls = True
    scene.until(600.0)
    assert len(scene.loop.state.queue) >= 3
    for node in range(len(LAST.nodes)):
        scene.add(node)
        scene.until(scene.backend.now + 60.0)
    for node in reversed(range(len(LAST.nodes))):
        scene.drain_and_remove(node)
    assert not scene.loop.state.cluster.number_of_node
    scene.until(scene.backend.now + 600.0)
    for node in range(len(LAST.nodes)):
        scene.add(node)
    scene.until(math.inf)
    assert not scene.loop.state.refusals
    scene.check()


@pytest.mark.parametrize("preset", presets())
def test_a_preset_decides_on_while_nodes_join_and_leave(preset: str) -> None:
    scene = run({"preset": preset})
    scene.check()
    assert {3, 4} & scene.used
