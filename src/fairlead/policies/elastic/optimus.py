"""Optimus: each next worker goes to the job whose run time it shortens most.

Every job gets one worker first, in the order of its expected end. Then, as long as accelerators are free, the job with the
largest marginal gain gets the next:

    gain = steps left · (1 / rate(w) − 1 / rate(w′)) / (w′ − w),   w′ the next size at which its speed is known.

Speeds at other sizes come from the estimator (`view.rates.other_sizes`); jobs that are not elastic, or without such speeds,
have the size they request. Steps left are counted until the loss converges, where a curve was fitted to a job's reports
(`models.convergence`), otherwise as declared; with `oracle` always as declared."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
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
        workers = _grown({at: (type_, options.steps(at, type_)) for at, type_ in given.items()}, free)
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

    def gain(self, at: int) -> float:
        """The time saved per added worker at the next size."""
        if at + 1 == len(self.sizes):
            return 0.0
        return (self.takes_s[at] - self.takes_s[at + 1]) / (self.sizes[at + 1] - self.sizes[at])


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
    heap = [(-gain, at) for at, (_, steps) in given.items() if (gain := steps.gain(0)) > 0]
    heapq.heapify(heap)
    while heap:
        _, at = heapq.heappop(heap)
        type_, steps = given[at]
        more = steps.sizes[has[at] + 1] - steps.sizes[has[at]]
        if more > free[type_]:
            continue
        has[at], free[type_] = has[at] + 1, free[type_] - more
        if (gain := steps.gain(has[at])) > 0:
            heapq.heappush(heap, (-gain, at))
    return [steps.sizes[has[at]] for at, (_, steps) in given.items()]
