"""Optimus: workers go where they shorten the most.

Every job gets one worker first, in the order of its expected end. Then, as long as accelerators are free, the one with the
largest marginal gain gets the next:

    gain = steps left · (1 / rate(w) − 1 / rate(w′)) / (w′ − w),   w′ the next size at which its speed is known.

Speeds at other sizes are estimation's (`view.rates.other_sizes`); who is not elastic, or of whom nothing is known, has the
size that it asked for. Steps left are those until the loss has converged, where a curve was fitted to what a job reports
(`core.convergence`), and else those it declared; with `oracle` always the latter."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fairlead.core.convergence import steps_to_converge
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot


class _Steps(NamedTuple):
    """What one job can be given on a type: sizes, ascending, and how long it would take with each."""

    sizes: list[int]
    takes_s: list[float]


@dataclass(frozen=True)
class Optimus:
    """A worker for each, soonest end first; the others where they shorten the most."""

    paper: ClassVar[str] = "Optimus §4.1 (Peng et al., EuroSys'18)"
    oracle: bool = False
    everybody: bool = False

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs = view.jobs
        if not len(jobs):
            return Selection.nobody(), memo
        options = self._options(view)
        free = view.capacity.tolist()
        given: dict[int, tuple[int, int]] = {}  # by position: a type, and which of its sizes
        first = [min((each.takes_s[0], kind) for kind, each in of.items()) if of else (np.inf, -1) for of in options]
        for at in sorted(range(len(jobs)), key=lambda at: first[at][0]):
            for kind, each in sorted(options[at].items(), key=lambda one: one[1].takes_s[0]):
                if free[kind] >= each.sizes[0]:
                    given[at], free[kind] = (kind, 0), free[kind] - each.sizes[0]
                    break
        self._grow(options, given, free)
        order = list(given)
        types = np.array([given[at][0] for at in order], dtype=np.int64)
        workers = np.array([options[at][given[at][0]].sizes[given[at][1]] for at in order], dtype=np.int64)
        return Selection(jobs.number[order], types, workers), memo

    def _grow(self, options: list[dict[int, _Steps]], given: dict[int, tuple[int, int]], free: list[int]) -> None:
        heap = [(-gain, at) for at, (kind, size) in given.items() if (gain := _gain(options[at][kind], size)) > 0]
        heapq.heapify(heap)
        while heap:
            _, at = heapq.heappop(heap)
            kind, size = given[at]
            mine = options[at][kind]
            more = mine.sizes[size + 1] - mine.sizes[size]
            if more > free[kind]:
                continue
            given[at], free[kind] = (kind, size + 1), free[kind] - more
            if (gain := _gain(mine, size + 1)) > 0:
                heapq.heappush(heap, (-gain, at))

    def _options(self, view: Snapshot) -> list[dict[int, _Steps]]:
        """By position, and by type on which it can run."""
        jobs, rates = view.jobs, view.rates
        left = self._left(view)
        asked, mine, fits = rates.of_jobs, jobs.workers.tolist(), jobs.fits.tolist()
        elastic = [True] * len(jobs) if self.everybody else view.elastic.tolist()
        known, sizes = np.zeros((0, *asked.shape)), np.zeros(0, dtype=np.int64)
        if rates.other_sizes is not None and any(elastic):
            sizes = np.array([size for size in rates.other_sizes.sizes if size <= view.capacity.max()], dtype=np.int64)
            known = np.array([rates.other_sizes.at(size)[rates.row] for size in sizes.tolist()]).reshape(-1, *asked.shape)
        options: list[dict[int, _Steps]] = []
        for at, size in enumerate(mine):
            of: dict[int, _Steps] = {}
            for kind in range(len(view.capacity)):
                if fits[at] >> kind & 1 and asked[at, kind] > 0:
                    speeds = known[:, at, kind]
                    can = speeds.nonzero()[0] if elastic[at] else ()
                    if len(can):
                        of[kind] = _Steps(sizes[can].tolist(), (left[at] / speeds[can]).tolist())
                    else:
                        of[kind] = _Steps([size], [left[at] / float(asked[at, kind])])
            options.append(of)
        return options

    def _left(self, view: Snapshot) -> list[float]:
        """Steps until each is done; who is all but done still has a little to do."""
        jobs = view.jobs
        left = jobs.steps_left
        if not self.oracle:
            left = np.minimum(left, steps_to_converge(jobs, view.learned))
        steps: list[float] = np.maximum(left, 1e-6 * jobs.steps).tolist()
        return steps


def _gain(of: _Steps, size: int) -> float:
    if size + 1 == len(of.sizes):
        return 0.0
    return (of.takes_s[size] - of.takes_s[size + 1]) / (of.sizes[size + 1] - of.sizes[size])
