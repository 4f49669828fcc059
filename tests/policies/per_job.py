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
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.workloads.throughput_tables import ThroughputTable
from scenes import table_of, view_of

cp, sparse = pytest.importorskip("cvxpy"), pytest.importorskip("scipy.sparse")


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

    def check_shared(self, x: Allocation) -> None:
        """The same where jobs share accelerators: a pair takes them once, and the time of both."""
        numbers = self.view.jobs.number
        time, first = self.time(x), numbers.searchsorted(x.first)
        assert (x.share > 0).all()
        assert (time.sum(axis=1) <= 1 + 1e-7).all()
        load = np.bincount(x.types, x.share * self.workers[first], minlength=len(self.capacity))
        assert (load <= self.capacity * (1 + 1e-7)).all()
        paired = x.second >= 0
        assert (x.first[paired] < x.second[paired]).all()
        assert (self.workers[first[paired]] == self.workers[numbers.searchsorted(x.second[paired])]).all()

    def room_of(self, gang: int, kind: int) -> float:
        """The part of a type's nodes that a gang takes where it stands together."""
        cluster = self.view.cluster
        sizes = [node.accelerators for node in cluster.nodes if node.type == cluster.type_names[kind]]
        places = sum(size // gang for size in sizes)
        if gang > max(sizes):
            nodes = -(-gang // max(sizes))
            places = sum(sizes) // (nodes * max(sizes))
        return 1.0 / places if places else 1e6

    def program(self):
        """The unknowns, the throughputs and the constraints of every allocation (Gavel §3.1)."""
        x = cp.Variable(self.rates.shape, nonneg=True)
        throughput = cp.sum(cp.multiply(self.rates, x), axis=1)
        nowhere = cp.multiply(x, (self.rates == 0).astype(float)) == 0
        return x, throughput, [cp.sum(x, axis=1) <= 1, self.workers @ x <= self.capacity, nowhere]


@dataclass(frozen=True)
class Together:
    """Every column of the textbook's program for jobs that may share accelerators or stand apart, with no classes: who, beside
    whom (-1: nobody), on which type, at which rates, and whether a gang stands on as few nodes as possible."""

    made: Moment
    one: np.ndarray
    two: np.ndarray
    types: np.ndarray
    rate: np.ndarray  # columns × 2
    room: np.ndarray  # the part of the type's nodes that it takes

    @classmethod
    def of(cls, made: Moment, *, space_sharing: bool = False, placement_sensitive: bool = False) -> Together:
        rates, row, found = made.view.rates, made.view.rates.row, []
        jobs, types = made.rates.shape
        for m in range(jobs):
            for j in range(types):
                if not made.rates[m, j]:
                    continue
                gang = int(made.workers[m])
                room = made.room_of(gang, j) if placement_sensitive and gang > 1 else 0.0
                found.append((m, -1, j, made.rates[m, j], 0.0, room))
                if placement_sensitive and gang > 1:
                    found.append((m, -1, j, min(rates.spread[row[m], j], made.rates[m, j]), 0.0, 0.0))
                if space_sharing:
                    for n in range(m + 1, jobs):
                        both = rates.paired[row[m], row[n], j], rates.paired[row[n], row[m], j]
                        if made.rates[n, j] and gang == made.workers[n] and min(both) > 0:
                            found.append((m, n, j, *both, room))
        one, two, kinds, mine, theirs, room = (np.array(column) for column in zip(*found))
        return cls(made, one, two, kinds, np.column_stack((mine, theirs)), room)

    def matrix(self, value: np.ndarray, value_beside: np.ndarray) -> sparse.csr_matrix:
        """Jobs × columns."""
        column, paired = np.arange(len(self.one)), (self.two >= 0).nonzero()[0]
        rows, columns = np.append(self.one, self.two[paired]), np.append(column, paired)
        shape = (len(self.made.rates), len(column))
        return sparse.csr_matrix((np.append(value, value_beside[paired]), (rows, columns)), shape)

    def limits(self) -> tuple[sparse.csr_matrix, np.ndarray]:
        """What columns take of jobs' time, of accelerators and of nodes, and how much there is of each."""
        ones, column = np.ones(len(self.one)), np.arange(len(self.one))
        types = len(self.made.capacity)
        load = sparse.csr_matrix((1.0 * self.made.workers[self.one], (self.types, column)), (types, len(column)))
        nodes = sparse.csr_matrix((self.room, (self.types, column)), (types, len(column)))
        jobs = np.ones(len(self.made.rates))
        return sparse.vstack((self.matrix(ones, ones), load, nodes)), np.concatenate((jobs, self.made.capacity, np.ones(types)))

    def program(self):
        """The unknowns, the throughputs and the constraints."""
        x = cp.Variable(len(self.one), nonneg=True)
        takes, available = self.limits()
        return x, self.matrix(self.rate[:, 0], self.rate[:, 1]) @ x, [takes @ x <= available]

    def as_dealt(self, x: cp.Variable, allocation: Allocation, problem) -> float:
        """The value of a problem whose unknowns are no more than this allocation, and nearly all of it in sum; whether gangs
        stand together or apart is open."""
        numbers = self.made.view.jobs.number
        want = {}
        for first, second, kind, share in zip(allocation.first, allocation.second, allocation.types, allocation.share):
            want[numbers.searchsorted(first), numbers.searchsorted(second) if second >= 0 else -1, kind] = share
        keys = list(zip(self.one.tolist(), self.two.tolist(), self.types.tolist()))
        assert not set(want) - set(keys)
        at = {key: row for row, key in enumerate(dict.fromkeys(keys))}
        total = sparse.csr_matrix((np.ones(len(keys)), ([at[key] for key in keys], np.arange(len(keys)))))
        shares = np.array([want.get(key, 0.0) for key in at])
        same = [total @ x <= shares + 1e-9, cp.sum(x) >= shares.sum() * (1 - 1e-7)]
        dealt = cp.Problem(problem.objective, [*problem.constraints, *same])
        dealt.solve(solver=cp.HIGHS)
        assert dealt.status == "optimal"
        return float(dealt.value)


def solved(problem) -> float:
    """By an interior-point method, to nine digits."""
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assert problem.status == "optimal"
    return float(problem.value)


def arrived(cluster: Cluster, jobs: list[Job], now: float, table: ThroughputTable) -> Snapshot:
    """Jobs that came at their own seconds and have waited since."""
    state = State(cluster)
    for number, job in enumerate(jobs):
        apply_event(state, ev.JobSubmitted(job.submitted_s, number, job))
    apply_event(state, ev.RoundPlanned(RoundPlan(now, admitted=np.arange(len(jobs)))))
    return view_of(state, now, table)


def moment(
    seed: int,
    *,
    deadlines: bool = False,
    now: float = 500.0,
    jobs: int = 25,
    tight: float = 1.0,
    kinds: int = 6,
    nodes: int = 1,
    weighted: bool = False,
) -> Moment:
    """One to five types, some of which are equally fast; gangs; jobs that may not use every type. In company, and where gangs
    stand apart, jobs are more or less slower."""
    rng = np.random.default_rng(seed)
    types = TYPES[: int(rng.integers(1, 6))]
    hosts = tuple(Node(f"{name}-{i}", name, int(rng.integers(4, 9))) for name in types for i in range(nodes))
    known = tuple(AcceleratorType(name, price_per_hour=float(rng.uniform(0.3, 3.0))) for name in types)
    rates = {}
    for kind in range(int(rng.integers(1, kinds))):
        row = rng.uniform(0.2, 5.0, len(types)) if rng.random() < 0.6 else rng.integers(1, 4, len(types)).astype(float)
        row = row * (rng.random(len(types)) < 0.85)
        row[int(rng.integers(len(types)))] += 0.5
        rates[f"kind-{kind}", int(rng.choice([1, 1, 2, 4]))] = tuple(row.tolist())
    keys, beside = list(rates), np.random.default_rng((seed, 1))
    alone = np.array([[1.0] * len(types), *rates.values()])
    paired = alone[:, None, :] * beside.uniform(0.3, 1.0, (len(alone), *alone.shape))
    table = table_of(types, rates, paired=paired, spread=alone * beside.uniform(0.3, 1.0, alone.shape))
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
        weight = float(1 + index % 3) if weighted else 1.0
        made.append(
            Job(
                f"job-{index}",
                second,
                steps,
                kind,
                workers,
                weight,
                account=f"entity-{index % 3}",
                allowed_types=only,
                deadline_s=due,
            )
        )
    view = arrived(Cluster(hosts, known), made, now, table)
    fits = (view.jobs.fits[:, None] >> np.arange(len(types))) & 1
    return Moment(view, view.rates.of_jobs * fits, view.jobs.workers, view.capacity)
