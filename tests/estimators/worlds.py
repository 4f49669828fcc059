"""A world with families of jobs, and a cluster that one can fill by hand, for tests of estimators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import TIMED, Job
from fairlead.core.plan import Observations, Rates
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import LearningEstimator
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.workloads.throughput_tables import ThroughputTable

TYPES = ("v100", "p100", "k80")
CLUSTER = Cluster.parse("8xv100:4,8xp100:4,8xk80:4")


def families(count: int = 4, members: int = 3, sizes: tuple[int, ...] = (1, 2), seed: int = 0) -> ThroughputTable:
    """Kinds "f-m": members of a family are alike in company and on types, and differ in their level."""
    rng = stream(seed, "families")
    keys: list[tuple[str, int]] = [(TIMED, 1)]
    rows = [np.ones(3)]
    family = [-1]
    speeds = np.array([1.0, 0.6, 0.2]) * rng.uniform(0.5, 2.0, (count, 3))
    for f in range(count):
        for m in range(members):
            level = rng.lognormal(1.0, 1.0)
            for size in sizes:
                keys.append((f"{f}-{m}", size))
                rows.append(speeds[f] * level * size**0.9 * rng.uniform(0.97, 1.03, 3))
                family.append(f)
    alone, group = np.array(rows), np.array(family)
    left = rng.uniform(0.35, 0.95, (count + 1, count + 1, 3))  # what company leaves; the last is the timed kind
    paired = left[group][:, group] * rng.uniform(0.97, 1.03, (len(keys), len(keys), 3)) * alone[:, None, :]
    workers = np.array([w for _, w in keys])
    paired *= (workers[:, None] == workers[None, :])[:, :, None]
    paired[0], paired[:, 0] = 0.0, 0.0
    spread = alone * np.where(workers > 1, 0.7, 1.0)[:, None]
    return ThroughputTable(TYPES, tuple(keys), alone, spread, paired, "families")


def changed(table: ThroughputTable, **arrays: np.ndarray) -> ThroughputTable:
    return replace(table, **arrays)


def waiting(*jobs: Job) -> State:
    state = State(CLUSTER)
    apply_event(state, ev.JournalOpened(0.0, CLUSTER, {}))
    for number, job in enumerate(jobs):
        apply_event(state, ev.JobSubmitted(0.0, number, job))
    return state


def one_of_each(table: ThroughputTable, size: int = 1) -> State:
    return waiting(*(Job(f"job {kind}", 0.0, 1e6, kind, workers) for kind, workers in table.keys if kind and workers == size))


def learned(estimator: LearningEstimator, state: State, at: float | None = None) -> tuple[Snapshot, Observations]:
    """The moment with what is learned at it, which the state knows from then on; jobs are those at the door too."""
    view = state.snapshot(at)
    lesson = estimator.observe(view)
    if lesson.values:
        apply_event(state, ev.ObservationsRecorded(view.time, lesson.values))
    view = state.snapshot(at)
    return view.with_changes(jobs=view.jobs if len(view.jobs) else view.queued), lesson


def known(estimator: LearningEstimator, state: State, at: float | None = None) -> Rates:
    return estimator.rates(learned(estimator, state, at)[0])
