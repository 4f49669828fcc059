"""The clusters and workloads on which contracts are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from fairlead.core import events as ev
from fairlead.core.job import ELASTIC, Job
from fairlead.core.plan import RoundPlan
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Stages
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing.builders import asking_of_hosts, cluster, random_jobs, random_table, with_hosts
from fairlead.workloads.dynamics import LossCurve
from fairlead.workloads.throughput_tables import ThroughputTable

SCENES = (("v100:4,v100:4", 0), ("v100:4,v100:2,k80:4,k80:1", 1), ("p100:8", 2))
"""Clusters and seeds on which policies and placements are tried."""


def play(
    stages: Callable[[ThroughputTable], Stages],
    where: str,
    seed: int,
    *,
    count: int = 24,
    skip: bool = True,
    costs: Costs | None = None,
    faults: bool = False,
    hosts: bool = False,
    on_decision: Callable[[RoundPlan, Snapshot], None] | None = None,
) -> tuple[State, list[ev.Event]]:
    """A random workload on a small cluster, to the end; the last state, and all that happened. Every third job is elastic. With
    `hosts`, CPUs and host memory are scarce too."""
    machine = cluster(where)
    table = random_table(seed, machine.type_names)
    jobs = random_jobs(seed, count, table=table, largest=min(4, int(machine.size_of_type.max())))
    jobs = [replace(job, mode=ELASTIC) if number % 3 == 2 else job for number, job in enumerate(jobs)]
    if hosts:
        machine, jobs = with_hosts(machine), asking_of_hosts(seed, jobs)
    outages = [Outage(0, 2000.0, 5000.0), Outage(len(machine.nodes) - 1, 9000.0, 9500.0)] if faults else []
    backend = SimulatedBackend(machine, table, jobs, costs=costs, faults=outage_events(outages))
    return _run(backend, stages(table), skip, on_decision)


def random_searches(
    seed: int, count: int, *, table: ThroughputTable, largest: int = 4
) -> tuple[list[Job], dict[str, LossCurve]]:
    """`random_jobs`, two in three of them in groups, and loss curves for those and a few others."""
    rng = stream(seed, "testing", "searches")
    jobs, losses = [], {}
    for index, job in enumerate(random_jobs(seed, count, table=table, largest=largest)):
        together = index % 3 < 2
        jobs.append(replace(job, group=f"group-{index % 3}", group_order=index // 3) if together else job)
        if together or rng.random() < 0.5:
            floor = float(rng.uniform(0.1, 1.0))
            losses[job.name] = LossCurve(floor * float(rng.uniform(1.0, 20.0)), floor, float(rng.uniform(0.02, 0.3)))
    return jobs, losses


def play_searches(
    stages: Callable[[ThroughputTable], Stages], where: str, seed: int, *, count: int = 12, skip: bool = True
) -> tuple[State, list[ev.Event]]:
    """A random workload that reports losses on a small cluster with outages, to the end."""
    machine = cluster(where)
    table = random_table(seed, machine.type_names)
    jobs, losses = random_searches(seed, count, table=table, largest=min(4, int(machine.size_of_type.max())))
    faults = outage_events([Outage(0, 2000.0, 5000.0)])
    return _run(SimulatedBackend(machine, table, jobs, faults=faults, losses=losses), stages(table), skip)


def _run(
    backend: SimulatedBackend, stages: Stages, skip: bool, on_decision: Callable[[RoundPlan, Snapshot], None] | None = None
) -> tuple[State, list[ev.Event]]:
    machine, journal = backend.world.cluster, MemoryJournal()
    loop = Loop(State(machine), backend, stages, journal=journal, skip_quiet_rounds=skip)
    if on_decision is not None:
        loop.on_decision = lambda plan: on_decision(plan, loop.state.snapshot(backend.now))
    loop.record(ev.JournalOpened(0.0, machine, {}, "contract", None))
    loop.run()
    return loop.state, journal.events


def encoded(events: Iterable[ev.Event]) -> list[bytes]:
    """The events as a journal has them, to compare."""
    return [encode(event) for event in events]


def check_skipping(skipping: list[ev.Event], stepping: list[ev.Event], where: str, *, blame: str, label: str = "") -> None:
    """The same bytes, whether quiet rounds are skipped or not; `blame` says what is wrong where they differ."""
    ours, theirs = encoded(skipping), encoded(stepping)
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    assert ours == theirs, (
        f"{label}on {where}, event {at} differs: {ours[at : at + 1]} when rounds are skipped, "
        f"{theirs[at : at + 1]} when they are not; {blame}"
    )
