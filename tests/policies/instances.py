"""Random small moments of a cluster, for policies that answer with shares of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Floats
from fairlead.core.job import Job
from fairlead.core.plan import RoundPlan
from fairlead.core.snapshot import Snapshot
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.estimators.oracle import Oracle
from fairlead.testing.builders import cluster
from fairlead.workloads.throughput_tables import ThroughputTable

TYPES = ("v100", "p100", "k80")


@dataclass(frozen=True)
class Moment:
    """A view, and what a textbook needs of it."""

    view: Snapshot

    @property
    def rates(self) -> Floats:
        """Jobs × types."""
        return self.view.rates.of_jobs

    @property
    def workers(self) -> Floats:
        return self.view.jobs.workers.astype(np.float64)

    @property
    def capacity(self) -> Floats:
        return self.view.capacity.astype(np.float64)

    @property
    def equal(self) -> Floats:
        """Each job's throughput with the same time on every accelerator."""
        return self.rates @ (self.capacity / self.capacity.sum())


def moment(
    rates: Sequence[Sequence[float]],
    where: str,
    *,
    weights: Sequence[float] | None = None,
    workers: Sequence[int] | None = None,
    steps: Sequence[float] | None = None,
    accounts: Sequence[str] | None = None,
    deadlines: Sequence[float] | None = None,
    submitted: Sequence[float] | None = None,
    now: float = 0.0,
    paired: Floats | None = None,
    spread: Floats | None = None,
) -> Moment:
    """Jobs with these rates (jobs × types) on a cluster; rates that are alike are one kind. All are admitted and wait."""
    machine = cluster(where)
    count = len(rates)
    sizes = list(workers or [1] * count)
    kinds: dict[tuple[tuple[float, ...], int], int] = {}
    of = [kinds.setdefault((tuple(map(float, row)), size), len(kinds)) for row, size in zip(rates, sizes)]
    keys = tuple((f"kind-{index}", size) for index, (_, size) in enumerate(kinds))
    alone = np.array([row for row, _ in kinds])
    together = np.zeros((len(kinds), len(kinds), alone.shape[1])) if paired is None else paired
    table = ThroughputTable(machine.type_names, keys, alone, alone if spread is None else spread, together, "made up")
    state = State(machine)
    apply_event(state, ev.JournalOpened(0.0, machine, {}, "moment", None))
    for index in range(count):
        job = Job(
            f"job-{index}",
            submitted_s=0.0 if submitted is None else float(submitted[index]),
            steps=1e6 if steps is None else float(steps[index]),
            kind=f"kind-{of[index]}",
            workers=sizes[index],
            weight=1.0 if weights is None else float(weights[index]),
            account="" if accounts is None else accounts[index],
            deadline_s=np.inf if deadlines is None else float(deadlines[index]),
        )
        apply_event(state, ev.JobSubmitted(job.submitted_s, index, job))
    apply_event(state, ev.RoundPlanned(RoundPlan(max(now, state.time), admitted=np.arange(count))))
    return Moment(state.snapshot(max(now, state.time)).with_changes(estimate=Oracle(table).rates))


def random_moment(
    seed: int, *, jobs: int = 9, types: int = 3, gangs: bool = True, weighted: bool = True, everywhere: bool = False
) -> Moment:
    """Some kinds on some types, several jobs of each, a few that cannot run on one of the types (unless `everywhere`)."""
    rng = np.random.default_rng(seed)
    kinds = rng.uniform(0.2, 5.0, (max(2, jobs // 2), types))
    kinds[rng.random(kinds.shape) < (0.0 if everywhere else 0.1)] = 0.0
    kinds[:, 0] = np.maximum(kinds[:, 0], 0.3)
    of = rng.integers(0, len(kinds), jobs)
    sizes = rng.choice([1, 1, 2, 4], len(kinds)) if gangs else np.ones(len(kinds), dtype=int)
    counts = rng.integers(4, 9, types)
    where = ",".join(f"{name}:{count}" for name, count in zip(TYPES, counts))
    return moment(
        kinds[of].tolist(),
        where,
        workers=sizes[of].tolist(),
        weights=rng.choice([1.0, 2.0, 3.5], jobs).tolist() if weighted else None,
        steps=rng.uniform(1e3, 1e5, jobs).tolist(),
    )


def is_valid(moment: Moment, x: Floats) -> bool:
    """Whether X keeps the constraints (1) to (3) of the paper."""
    load = (x * moment.workers[:, None]).sum(axis=0)
    return bool((x >= 0).all() and (x.sum(axis=1) <= 1 + 1e-6).all() and (load <= moment.capacity + 1e-5).all())
