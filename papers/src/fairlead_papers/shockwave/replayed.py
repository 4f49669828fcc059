"""Pollux' jobs with the batch sizes that they had under Pollux (§8.7): a job's samples at each size are what it trained there,
and its workers are as many as it asked for. So all schedulers have the same jobs, which adapt in the same way, and differ in
who runs when.

Pollux counts progress, of which a step at a large batch size is worth less than its samples say; here the samples count, as
they would be trained again. Sizes are rounded to doublings of the application's smallest, which is what a forecast can
foresee."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.cluster import Cluster, Floats
from fairlead.core.events import Event, JournalOpened, MetricsReported
from fairlead.core.job import BATCH_SIZE, TIMED, batch_size_of, kind_of, model_of
from fairlead.engine.apply import apply_event
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.state import State
from fairlead.experiments.run_record import RunRecord
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.costs import Costs
from fairlead.workloads.applications import Application, ApplicationDynamics, consolidated_placement
from fairlead.workloads.dynamics import Regimes
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace

START_S = 30.0
"""What every start costs, as Pollux' simulator has it."""

ON_A_NODE = 4
POLLUX = SchedulerConfig.from_data({"preset": "pollux"})


@dataclass(frozen=True)
class Replayed:
    """What Pollux made of its jobs, and the same jobs for others."""

    record: RunRecord
    trace: Trace
    table: ThroughputTable

    @property
    def alone_s(self) -> Floats:
        """How long each job takes alone, with the workers it asked for."""
        seconds = []
        for job in self.trace.jobs:
            parts = cast(Regimes, self.trace.dynamics[job.name]).parts
            rows = (self.table.row(kind_of(model_of(job.kind), size), job.workers) for size, _ in parts)
            declared = batch_size_of(job.kind) or 1
            taken = (share * job.steps * declared / size / self.table.alone[row, 0] for (size, share), row in zip(parts, rows))
            seconds.append(sum(taken))
        return np.array(seconds)


def every_so_many(trace: Trace, every: int, accelerators: int) -> Trace:
    """One job in so many, at its own time: as much load for so many fewer accelerators. Who asks for more than there are is
    left out."""
    return trace.with_jobs(job for job in trace.jobs[::every] if job.workers <= accelerators)


def cluster_of(accelerators: int) -> Cluster:
    return Cluster.parse(f"{accelerators}xv100:{min(ON_A_NODE, accelerators)}")


def replayed(trace: Trace, accelerators: int) -> Replayed:
    """Pollux first, then the jobs that it leaves to others."""
    journal = MemoryJournal()
    costs = Costs(launch_s=START_S, restart_s=START_S)
    found = run_simulation(Simulation(trace, cluster_of(accelerators), POLLUX, costs=costs), journal=journal)
    jobs, dynamics = [], {}
    sizes_of: dict[str, set[int]] = {}
    for number, spans in _sizes(journal).items():
        job = found.state.job_of[number]
        job_dynamics = trace.dynamics[job.name]
        assert isinstance(job_dynamics, ApplicationDynamics)
        samples = [(size, count) for size, count in _samples(job_dynamics.application, spans) if count > 0]
        first = samples[0][0]
        steps = math.fsum(count for _, count in samples) / first
        mine = replace(job, kind=kind_of(model_of(job.kind), first), steps=steps, mode="gns")
        jobs.append(mine)
        dynamics[job.name] = Regimes.of(mine, [(size, count / first / steps) for size, count in samples])
        sizes_of.setdefault(model_of(job.kind), set()).update(size for size, _ in samples)
    made = replace(trace.with_jobs(jobs), dynamics=dynamics)
    applications = {model_of(job.kind): trace.dynamics[job.name] for job in trace.jobs}
    return Replayed(found.record, made, _table(made, sizes_of, applications))


def _sizes(events: Iterable[Event]) -> Mapping[int, list[tuple[int, float, float]]]:
    """By job: batch size, and the progress from which and up to which it was trained at it."""
    opened, *others = events
    state = State(cast(JournalOpened, opened).cluster)
    found: dict[int, list[tuple[int, float]]] = {}
    for event in (opened, *others):
        apply_event(state, event)
        if isinstance(event, MetricsReported) and event.name == BATCH_SIZE:
            done = state.snapshot(event.time).jobs
            at = dict(zip(done.number.tolist(), done.steps_done.tolist()))
            for number, size in zip(event.jobs.tolist(), event.values.tolist()):
                found.setdefault(number, []).append((int(size), at.get(number, 0.0)))
    ended = {number: state.job_of[number].steps for number in found}
    return {
        number: [(size, begun, end) for (size, begun), end in zip(told, [*(b for _, b in told[1:]), ended[number]])]
        for number, told in sorted(found.items())
    }


def _samples(app: Application, spans: Iterable[tuple[int, float, float]]) -> Iterable[tuple[int, float]]:
    """By stretch: the batch size, rounded, and how many samples make so much progress at it."""
    for told, begun, end in spans:
        size = _doubled(app, told)
        bounds = np.unique(np.clip([begun, *app.ends.tolist(), end], begun, end))
        steps = 0.0
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
            steps += (high - low) / app.gain(size, app.epoch(low))
        yield size, steps * size


def _doubled(app: Application, size: int) -> int:
    exponent = round(math.log2(max(size, app.smallest) / app.smallest))
    while app.smallest << exponent > app.largest:
        exponent -= 1
    return app.smallest << exponent


def _table(trace: Trace, sizes_of: Mapping[str, set[int]], dynamics: Mapping[str, object]) -> ThroughputTable:
    """Steps a second at each batch size that occurs, by workers that are asked for."""
    keys: list[tuple[str, int]] = [(TIMED, 1)]
    rates = [1.0]
    asked = sorted({(model_of(job.kind), job.workers) for job in trace.jobs})
    for model, workers in asked:
        job_dynamics = dynamics[model]
        assert isinstance(job_dynamics, ApplicationDynamics)
        app = job_dynamics.application
        for size in sorted(sizes_of[model]):
            keys.append((kind_of(model, size), workers))
            rates.append(1.0 / app.step_s(consolidated_placement(workers, ON_A_NODE), app.split(size, workers)))
    alone = np.array(rates)[:, None]
    return ThroughputTable(("v100",), tuple(keys), alone, alone, np.zeros((len(keys), len(keys), 1)), "applications")
