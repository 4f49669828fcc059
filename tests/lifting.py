"""Water filling the textbook way, as a second opinion: a variable for every job and type, a program for every step, and whether
a job is a bottleneck found by maximising it alone. Slow, and in terms that have nothing in common with the policies' own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocator
from scenes import state_of, table_of, view_of

Share = Callable[[Sequence[int]], dict[int, float]]
"""From the open jobs of an entity to their parts of its weight."""


def fairly(weights: Sequence[float]) -> Share:
    return lambda still: {m: weights[m] / sum(weights[i] for i in still) for m in still}


def in_order() -> Share:
    return lambda still: {min(still): 1.0}


def time_of(policy: Allocator, view: Snapshot) -> np.ndarray:
    """Jobs × types, checked to be an allocation; the policy remembers nothing."""
    allocation, memo = policy.allocate(view, None)
    assert memo is None
    time = allocation.matrix(view.jobs.number, len(view.capacity))
    assert (time.sum(axis=1) <= 1 + 1e-8).all()
    assert (view.jobs.workers @ time <= view.capacity * (1 + 1e-8)).all()
    return time


class Textbook:
    """Columns of which each lifts some jobs (`level`, jobs × columns) and takes of what there is (`most`, limits × columns)."""

    def __init__(self, level: np.ndarray, most: np.ndarray, limits: np.ndarray) -> None:
        self.level, self.most, self.limits = level, most, limits
        self.count = len(level)

    @classmethod
    def alone(cls, gain: np.ndarray, workers: np.ndarray, capacity: np.ndarray) -> Textbook:
        """Jobs with gains by type and workers, on so many accelerators of each type."""
        m, j = gain.shape
        level = np.zeros((m, m * j))
        for i in range(m):
            level[i, i * j : (i + 1) * j] = gain[i]
        rows = [np.kron(np.eye(m), np.ones(j)), np.kron(workers, np.eye(j))]
        return cls(level, np.vstack(rows), np.concatenate((np.ones(m), capacity)))

    def maximise(self, cost: np.ndarray, least: np.ndarray, rise: np.ndarray | None = None) -> float:
        """max cost·(x, t) subject to levels of at least `least` + `rise`·t."""
        optimize = pytest.importorskip("scipy.optimize")
        rise = np.zeros(self.count) if rise is None else rise
        above = np.hstack((-self.level, rise[:, None]))
        below = np.hstack((self.most, np.zeros((len(self.most), 1))))
        bounds = [(0.0, None)] * self.level.shape[1] + [(None, None) if rise.any() else (0.0, 0.0)]
        limits = np.concatenate((1e-9 - least, self.limits))
        found = optimize.linprog(-cost, np.vstack((above, below)), limits, bounds=bounds, method="highs")
        assert found.status == 0, found.message
        return -float(found.fun)

    def highest(self, job: int, levels: np.ndarray) -> float:
        """How high a job can be lifted while the others keep their levels."""
        least = levels.copy()
        least[job] = 0.0
        return self.maximise(np.append(self.level[job], 0.0), least)

    def fill(self, accounts: Sequence[tuple[float, Sequence[int], Share]]) -> np.ndarray:
        """Levels by water filling; an entity is its weight, its jobs, and how they share."""
        levels, open_ = np.zeros(self.count), np.ones(self.count, dtype=bool)
        while open_.any():
            rise = np.zeros(self.count)
            for weight, members, share in accounts:
                still = [m for m in members if open_[m]]
                if still:
                    for job, part in share(still).items():
                        rise[job] = weight * part
            levels += rise * max(0.0, self.maximise(np.append(np.zeros(self.level.shape[1]), 1.0), levels, rise))
            stuck = [m for m in rise.nonzero()[0] if self.highest(m, levels) <= levels[m] + 1e-7]
            assert stuck, "nobody is a bottleneck"
            open_[stuck] = False
        return levels

    def check_pareto(self, levels: np.ndarray) -> None:
        """Nobody can be lifted while the others keep their levels."""
        total = self.maximise(np.append(self.level.sum(axis=0), 0.0), levels)
        assert total == pytest.approx(levels.sum(), abs=1e-6 * max(1.0, levels.sum()))


def random_view(seed: int, *, jobs: int = 7, types: int = 3, accounts: int = 3, kinds: int = 3) -> Snapshot:
    """A few jobs of a few kinds, some of them gangs, some unable to use a type, on a cluster too small or large enough."""
    rng = stream(seed, "testing", "water")
    names = tuple(f"type-{t}" for t in range(types))
    rates = {(f"kind-{k}", w): rng.uniform(0.2, 4.0, types).round(2) * w**0.8 for k in range(kinds) for w in (1, 2)}
    if seed % 3 == 0 and types > 1:
        rates["kind-0", 1] = rates["kind-0", 1] * np.array([0.0] + [1.0] * (types - 1))
    if seed % 4 == 0 and types > 1:  # two types are equally fast
        rates["kind-1", 1][1] = rates["kind-1", 1][0]
    sizes = rng.integers(1, 4, types) + (seed % 2)
    made = [
        Job(
            f"job-{i}",
            steps=1e6,
            kind=f"kind-{int(rng.integers(kinds))}",
            workers=int(rng.choice([1, 1, 2])),
            weight=float(rng.choice([1.0, 2.0, 3.0])),
            account=f"entity-{int(rng.integers(accounts))}",
        )
        for i in range(jobs)
    ]
    where = ",".join(f"{size}x{name}:{size}" for size, name in zip(sizes.tolist(), names))
    return view_of(state_of(Cluster.parse(where), made), 0.0, table_of(names, rates))


def gains_of(view: Snapshot) -> np.ndarray:
    """Jobs × types, each in units of an equal share of the cluster, times its workers; 0 where a gang does not fit."""
    rates = view.rates.of_jobs * (view.capacity[None, :] >= view.jobs.workers[:, None])
    equal = rates @ (view.capacity / view.capacity.sum())
    return np.divide(rates, equal[:, None], out=np.zeros_like(rates), where=equal[:, None] > 0) * view.jobs.workers[:, None]
