"""Random moments, and the textbook's program for them: a variable for each job and type, solved by cvxpy. It knows nothing of
classes, grids or columns, so that it can judge the policies that do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.allocation import Allocation
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.job import Job
from fairlead.core.plan import RoundPlan
from fairlead.core.snapshot import Snapshot
from fairlead.engine.state import State
from fairlead.workloads.profiles import ThroughputTable
from scenes import table_of, view_of

cp = pytest.importorskip("cvxpy")


TYPES = ("v100", "p100", "k80", "a100", "t4")


@dataclass(frozen=True)
class Moment:
    """A view and what the textbook needs of it: rates (0 where a job cannot run), gang sizes and accelerators by type."""

    view: Snapshot
    rates: np.ndarray
    workers: np.ndarray
    capacity: np.ndarray

    def throughputs(self, x: Allocation) -> np.ndarray:
        return (self.time(x) * self.rates).sum(axis=1)

    def time(self, x: Allocation) -> np.ndarray:
        return x.matrix(self.view.jobs.number, len(self.capacity))

    def check(self, x: Allocation) -> None:
        """The allocation is one: nobody has more than all of the time, no type gives more than it has."""
        time = self.time(x)
        assert (time >= 0).all()
        assert (time.sum(axis=1) <= 1 + 1e-7).all()
        assert (self.workers @ time <= self.capacity * (1 + 1e-7)).all()
        assert not time[self.rates == 0].any()

    def program(self):
        """The unknowns, the throughputs and the constraints of every allocation (Gavel §3.1)."""
        x = cp.Variable(self.rates.shape, nonneg=True)
        throughput = cp.sum(cp.multiply(self.rates, x), axis=1)
        nowhere = cp.multiply(x, (self.rates == 0).astype(float)) == 0
        return x, throughput, [cp.sum(x, axis=1) <= 1, self.workers @ x <= self.capacity, nowhere]


def solved(problem) -> float:
    """By an interior-point method, to nine digits."""
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assert problem.status == "optimal"
    return float(problem.value)


def arrived(cluster: Cluster, jobs: list[Job], now: float, table: ThroughputTable) -> Snapshot:
    """Jobs that came at their own seconds and have waited since."""
    state = State(cluster)
    for number, job in enumerate(jobs):
        state.apply(ev.JobSubmitted(job.submitted_s, number, job))
    state.apply(ev.RoundPlanned(RoundPlan(now, admitted=np.arange(len(jobs)))))
    return view_of(state, now, table)


def moment(seed: int, *, deadlines: bool = False, now: float = 500.0, jobs: int = 25, tight: float = 1.0) -> Moment:
    """One to five types, some of which are equally fast; gangs; jobs that may not use every type."""
    rng = np.random.default_rng(seed)
    types = TYPES[: int(rng.integers(1, 6))]
    nodes = tuple(Node(name, name, int(rng.integers(4, 9))) for name in types)
    known = tuple(AcceleratorType(name, price_per_hour=float(rng.uniform(0.3, 3.0))) for name in types)
    rates = {}
    for kind in range(int(rng.integers(1, 6))):
        row = rng.uniform(0.2, 5.0, len(types)) if rng.random() < 0.6 else rng.integers(1, 4, len(types)).astype(float)
        row = row * (rng.random(len(types)) < 0.85)
        row[int(rng.integers(len(types)))] += 0.5
        rates[f"kind-{kind}", int(rng.choice([1, 1, 2, 4]))] = tuple(row.tolist())
    table, keys = table_of(types, rates), list(rates)
    submitted = np.sort(rng.uniform(0.0, now, int(rng.integers(1, jobs))))
    made = []
    for index, second in enumerate(submitted.tolist()):
        kind, workers = keys[int(rng.integers(len(keys)))]
        row = np.array(rates[kind, workers])
        steps = float(rng.uniform(10.0, 5000.0))
        can = tuple(name for name, rate in zip(types, row) if rate > 0)
        only = (can[int(rng.integers(len(can)))],) if rng.random() < 0.1 else ()
        due = np.inf
        if deadlines and rng.random() < 0.6:
            due = now - second + steps / row.max() * float(rng.choice([3.0, 4.0, 20.0])) * tight
        made.append(Job(f"job-{index}", second, steps, kind, workers, allowed_types=only, deadline_s=due))
    view = arrived(Cluster(nodes, known), made, now, table)
    fits = (view.jobs.fits[:, None] >> np.arange(len(types))) & 1
    return Moment(view, view.rates.of_jobs * fits, view.jobs.workers, view.capacity)
