"""Sessions of all sorts beside training: with replicas of their own and elastic, left alone for a while, at rates that rise and
fall, on nodes that come and go. Whoever waits has to; and the same question has the same answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import ELASTIC, Job
from fairlead.core.rng import stream
from fairlead.core.routes import REPORTED
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing.builders import cluster
from fairlead.testing.contracts.scenes import check_skipping
from fairlead.testing.invariants import check_events, check_reasons
from fairlead.workloads.throughput_tables import ThroughputTable

WHERE = ("v100:4,v100:4", "v100:2,k80:2", "v100:1,p100:3,k80:4", "p100:8")


def workload(seed: int, machine: Cluster) -> tuple[list[Job], dict[str, Any], list[ev.MetricsReported]]:
    """Jobs, what is asked of those that are sessions, and the rates that they report."""
    rng = stream(seed, "testing", "sessions")
    jobs = [
        Job(
            f"job-{number}",
            submitted,
            float(rng.uniform(500, 3000)),
            mode=ELASTIC if rng.random() < 0.5 else "static",
            min_run_s=float(rng.choice([0, 0, 500])),
        )
        for number, submitted in enumerate(np.sort(rng.uniform(0, 2000, 9)).tolist())
    ]
    sessions = {}
    for job in jobs:
        if rng.random() < 0.7:
            ms, types = float(rng.uniform(2, 30)), [name for name in machine.type_names if rng.random() < 0.8]
            latency = {name: [(1 + at) * ms * k for k in (1, 2, 4)] for at, name in enumerate(types or machine.type_names[:1])}
            slo, rate = ms * float(rng.uniform(4, 24)), float(rng.choice([1, 20, 200, 900, 3000]))
            sessions[job.name] = {"slo_ms": slo, "batches": [1, 8, 32], "latency_ms": latency, "rate": rate}
    told = []
    for second in np.sort(rng.uniform(500, 3500, 8)).tolist():
        there = np.array([number for number, job in enumerate(jobs) if job.submitted_s < second and rng.random() < 0.5])
        if len(there):
            rates = rng.choice([0.0, 5.0, 300.0, 2000.0, math.nan], len(there))
            told.append(ev.MetricsReported(second, REPORTED, there.astype(np.int64), rates))
    return jobs, sessions, told


def played(seed: int, *, skip: bool) -> list[ev.Event]:
    machine = cluster(WHERE[seed % len(WHERE)])
    table = ThroughputTable.timed(machine.type_names)
    jobs, sessions, told = workload(seed, machine)
    given = {
        "sessions": sessions,
        "training": ("fifo", "las", "srtf")[seed % 3],
        "neighbours": seed % 3,
        "spare": seed // 3 % 3,
    }
    config = SchedulerConfig(Part("nexus", given), round_s=60.0)
    faults = outage_events([Outage(0, 1000.0, 2500.0)] if seed % 2 else [])
    backend = SimulatedBackend(machine, table, jobs, faults=faults, others=told, costs=Costs(5.0, 20.0))
    loop = Loop(State(machine), backend, config.build(table), MemoryJournal(), skip_quiet_rounds=skip)
    loop.on_decision = lambda plan: check_reasons(plan, loop.state.snapshot(backend.now))
    loop.record(ev.JournalOpened(0.0, machine, config.to_data()))
    loop.run()
    check_events(loop.journal)
    return list(loop.journal)


@pytest.mark.parametrize("seed", [1, 5, 14, 39])
def test_no_session_waits_beside_free_accelerators_and_rounds_can_be_skipped(seed):
    blame = "who serves whom changed, though nothing had happened"
    check_skipping(played(seed, skip=True), played(seed, skip=False), WHERE[seed % len(WHERE)], blame=blame)
