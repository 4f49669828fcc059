"""Optimus: each next worker goes to the job whose run time it shortens most.

Every job gets one worker first, in the order of its expected end. Then, as long as accelerators are free, the job with the
largest marginal gain gets the next:

    gain = max over w′ of (time(w) − time(w′)) / (w′ − w),   time(w) = steps left / rate(w) (+ δ if it runs with another size).

So a job changes its size only where that saves more than the restart of δ seconds costs. Otherwise two jobs whose gains are
equal would exchange a worker, and restart, in every round: the one that had it last is the one with less left to do.

Speeds at other sizes come from the estimator (`view.rates.other_sizes`); jobs that are not elastic, or without such speeds,
have the size they request. Steps left are counted until the loss converges, where a curve was fitted to a job's reports
(`models.convergence`), otherwise as declared; with `oracle` always as declared."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import require
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.models.convergence import steps_to_converge


@dataclass(frozen=True)
class Optimus:
    """Give each job one worker, soonest end first; then add workers where they shorten run times the most."""

    paper: ClassVar[str] = "Optimus §4.1 (Peng et al., EuroSys'18)"
    oracle: bool = False  # use declared steps also for jobs that report their loss
    resizes_all: bool = False  # all jobs change their number of workers, not only those of mode elastic
    restart_s: float = 30.0  # seconds that a restart costs

    def __post_init__(self) -> None:
        require(0 <= self.restart_s < math.inf, "policy optimus", "seconds, at least 0", "restart_s", self.restart_s)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
        elastic = np.ones(len(view.jobs), dtype=np.bool_) if self.resizes_all else view.elastic
        options = _Options.of(view, self._left(view), elastic)
        free = view.capacity.tolist()
        given: dict[int, int] = {}  # by position: a type
        for at in options.takes_s.min(axis=1).argsort(kind="stable").tolist():
            if not any(free):
                break
            for type_ in options.takes_s[at].argsort(kind="stable").tolist():
                least = int(options.least[at, type_])
                if 0 < least <= free[type_]:
                    given[at], free[type_] = type_, free[type_] - least
                    break
        held = view.jobs.held.tolist()
        steps = {at: (type_, options.steps(at, type_).restarting(held[at], self.restart_s)) for at, type_ in given.items()}
        workers = _grown(steps, free)
        numbers = view.jobs.number[list(given)]
        return Selection(numbers, np.array([*given.values()], dtype=np.int64), np.array(workers, dtype=np.int64)), memo

    def _left(self, view: Snapshot) -> Floats:
        """Steps until each job is done, slightly above 0 for a job that is almost done."""
        jobs = view.jobs
        left = jobs.steps_left
        if not self.oracle:
            left = np.minimum(left, steps_to_converge(jobs, view.observations))
        return np.maximum(left, 1e-6 * jobs.steps)


class _Steps(NamedTuple):
    """The options of one job on a type: sizes, ascending, and the run time with each."""

    sizes: list[int]
    takes_s: list[float]

    def restarting(self, held: int, restart_s: float) -> _Steps:
        """With the time of a restart at every size but the present one; a job that does not run (0) starts anyway."""
        if not held:
            return self
        return _Steps(self.sizes, [time + restart_s * (size != held) for size, time in zip(self.sizes, self.takes_s)])

    def best_gain(self, at: int, free: int) -> tuple[float, int]:
        """The most time saved per added worker with at most `free` more, and the size for it; 0 if none saves time."""
        size, takes_s, best, found = self.sizes[at], self.takes_s[at], 0.0, at
        for other in range(at + 1, bisect_right(self.sizes, size + free)):
            gain = (takes_s - self.takes_s[other]) / (self.sizes[other] - size)
            if gain > best:
                best, found = gain, other
        return best, found


@dataclass(frozen=True)
class _Options:
    """By job and type the smallest size (0: none) and its run time; and the speed at each size, 0 where unknown."""

    left: Floats
    least: Ints
    takes_s: Floats
    sizes: Ints
    speeds: Floats  # sizes × jobs × types

    @classmethod
    def of(cls, view: Snapshot, left: Floats, elastic: Bools) -> _Options:
        jobs, rates = view.jobs, view.rates
        asked = rates.of_jobs * ((jobs.fits[:, None] >> np.arange(len(view.capacity))) & 1)
        least, rate = np.repeat(jobs.workers[:, None], asked.shape[1], axis=1), asked.copy()
        sizes, speeds = np.zeros(0, dtype=np.int64), np.zeros((0, *asked.shape))
        if rates.other_sizes is not None and elastic.any():
            sizes = np.array([size for size in rates.other_sizes.sizes if size <= view.capacity.max()], dtype=np.int64)
        if len(sizes) and rates.other_sizes is not None:
            speeds = np.where(elastic[:, None] & (asked > 0), rates.other_sizes.at(sizes.tolist())[:, rates.row], 0.0)
            first = (speeds > 0).argmax(axis=0)
            slowest = np.take_along_axis(speeds, first[None], axis=0)[0]
            least, rate = np.where(slowest > 0, sizes[first], least), np.where(slowest > 0, slowest, asked)
        takes = np.divide(left[:, None], rate, out=np.full(rate.shape, np.inf), where=rate > 0)
        return cls(left, np.where(rate > 0, least, 0), takes, sizes, speeds)

    def steps(self, at: int, type_: int) -> _Steps:
        speeds = self.speeds[:, at, type_]
        known = speeds.nonzero()[0]
        if not len(known):
            return _Steps([int(self.least[at, type_])], [float(self.takes_s[at, type_])])
        return _Steps(self.sizes[known].tolist(), (self.left[at] / speeds[known]).tolist())


def _grown(given: dict[int, tuple[int, _Steps]], free: list[int]) -> list[int]:
    """The workers of each job, in order, once the free accelerators have gone where they shorten run times most."""
    has = dict.fromkeys(given, 0)  # which of its sizes
    heap: list[tuple[float, int, int]] = []

    def offer(at: int) -> None:
        type_, steps = given[at]
        gain, size = steps.best_gain(has[at], free[type_])
        if gain > 0:
            heapq.heappush(heap, (-gain, at, size))

    for at in given:
        offer(at)
    while heap:
        _, at, size = heapq.heappop(heap)
        type_, steps = given[at]
        more = steps.sizes[size] - steps.sizes[has[at]]
        if more <= free[type_]:
            has[at], free[type_] = size, free[type_] - more
        offer(at)
    return [steps.sizes[has[at]] for at, (_, steps) in given.items()]
