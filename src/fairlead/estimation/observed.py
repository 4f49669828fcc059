"""What jobs really did: the rates at which they were seen to run, remembered as facts by kind, workers, type and company.

A job is seen once in each stretch of even speed (its number and the second in which the stretch began name it), so that how
often one looks changes nothing. `limit` stretches of a combination are remembered; their mean is its rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.core.adaptation import BATCH_SIZE
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import JobColumns
from fairlead.core.holdings import offsets_of
from fairlead.core.job import batch_size_of
from fairlead.core.plan import Facts, Lesson
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.estimation.followed import Followed
from fairlead.estimation.profiler import off
from fairlead.estimation.rows import Rows

ALONE, SPREAD, PAIRED = "alone", "spread", "paired"
RATE = "rate "
"""How the names of these facts begin."""


class Observed(Followed):
    """The facts as arrays of means (NaN: not seen) and counts."""

    begins = RATE

    def __init__(self, rows: Rows, types: tuple[str, ...]) -> None:
        count = len(rows.table.keys)
        self.version = 0  # another one whenever the arrays change
        self._rows = rows
        self._code = {name: code for code, name in enumerate(types)}
        self._shape = {ALONE: (count, len(types)), SPREAD: (count, len(types)), PAIRED: (count, count, len(types))}
        super().__init__()

    def _forget(self) -> None:
        self.version += 1
        self.mean: dict[str, Floats] = {what: np.full(shape, np.nan) for what, shape in self._shape.items()}
        self.count: dict[str, Ints] = {what: np.zeros(shape, dtype=np.int64) for what, shape in self._shape.items()}

    def _take(self, fact: Facts) -> None:
        self.version += 1
        row, type_ = self._rows.table.row(*fact["of"]), self._code[fact["on"]]
        rates = [rate for _, _, rate in fact["seen"]]
        what, at = SPREAD if fact.get("spread") else ALONE, tuple[int, ...]((row, type_))
        if "beside" in fact:
            what, at = PAIRED, (row, self._rows.table.row(*fact["beside"]), type_)
        self.mean[what][at] = math.fsum(rates) / len(rates)
        self.count[what][at] = len(rates)


@dataclass(frozen=True)
class Observer:
    """Looks at those who run. `noise` is the relative error of what it sees, `alone` whether it looks at those without
    company too."""

    limit: int = 1
    noise: float = 0.0
    seed: int = 0
    alone: bool = True

    def look(self, view: Snapshot, rows: Rows, observed: Observed) -> Lesson:
        jobs = view.jobs.runners
        if not len(jobs):
            return Lesson()
        as_asked = _as_asked(jobs, view)
        loading = as_asked & (jobs.since_s >= view.time)
        again = float(jobs.since_s[loading].min()) if np.count_nonzero(loading) else math.inf
        steady = as_asked & ~loading
        row, type_, mate, spread = rows.of(jobs, view.names), jobs.type, mates(jobs, view), spread_gangs(jobs, view)
        facts: dict[str, Any] = {}
        if self.alone:
            single = steady & (mate == -1)
            for what, those in ((ALONE, single & ~spread), (SPREAD, single & spread)):
                few = those & (observed.count[what][row, type_] < self.limit)
                for index in few.nonzero()[0].tolist():
                    self._see(facts, view, jobs, index, None, what)
        paired = steady & (mate >= 0) & ~spread
        if np.count_nonzero(paired):
            few = paired & (observed.count[PAIRED][row, row[mate], type_] < self.limit)
            for index in few.nonzero()[0].tolist():
                self._see(facts, view, jobs, index, int(mate[index]), PAIRED)
        return Lesson(facts, again)

    def _see(self, facts: dict[str, Any], view: Snapshot, jobs: JobColumns, index: int, mate: int | None, what: str) -> None:
        number, since, on = int(jobs.number[index]), float(jobs.since_s[index]), view.cluster.type_names[int(jobs.type[index])]
        fact: dict[str, Any] = {"of": _key(jobs, index, view), "on": on}
        name = f"{RATE}{_spelled(fact['of'])}"
        if mate is not None:
            fact["beside"] = _key(jobs, mate, view)
            name += f" beside {_spelled(fact['beside'])}"
        if what == SPREAD:
            fact["spread"] = True
            name += " spread"
        name += f" on {on}"
        before = facts.get(name) or view.learned.get(name)
        seen = [] if before is None else before["seen"]
        if len(seen) >= self.limit or any(n == number and s == since for n, s, _ in seen):
            return
        rate = float(jobs.rate[index])
        if self.noise:
            rate *= off(self.noise, stream(self.seed, "observed", name, number, repr(since)))
        facts[name] = {**fact, "seen": [*seen, [number, since, rate]]}


def _key(jobs: JobColumns, index: int, view: Snapshot) -> list[Any]:
    return [view.names.kinds[int(jobs.kind[index])], int(jobs.workers[index])]


def _spelled(key: list[Any]) -> str:
    return f"{key[0]}|{key[1]}"


def _as_asked(jobs: JobColumns, view: Snapshot) -> Bools:
    """Who makes progress with the workers and the batch size of its kind; others tell nothing about it."""
    fine: Bools = (jobs.held == jobs.workers) & (jobs.rate > 0)
    for index in jobs.batch_size.nonzero()[0].tolist():
        fine[index] &= batch_size_of(view.names.kinds[int(jobs.kind[index])]) == int(jobs.batch_size[index])
    if view.adaptations.looks:
        sizes = jobs.metric(BATCH_SIZE)
        for index in (~np.isnan(sizes)).nonzero()[0].tolist():
            look = (int(jobs.kind[index]), int(jobs.workers[index]), int(sizes[index]))
            fine[index] &= look not in view.adaptations.looks
    return fine


def mates(jobs: JobColumns, view: Snapshot) -> Ints:
    """Who else is on each one's accelerators, by position: -1 for nobody, -2 for more than one other."""
    mate = np.full(len(jobs), -1, dtype=np.int64)
    places = view.holdings.places(jobs.number)[1]
    on = np.bincount(places)
    if not len(on) or on.max() <= 1:
        return mate
    order = places.argsort(kind="stable")
    place, owner = places[order], np.arange(len(jobs)).repeat(jobs.held)[order]
    together = on[place]
    first = ((together == 2) & np.append(place[1:] == place[:-1], False)).nonzero()[0]
    one, other = np.concatenate((owner[first], owner[first + 1])), np.concatenate((owner[first + 1], owner[first]))
    mate[one] = other
    mate[one[mate[one] != other]] = -2
    mate[owner[together > 2]] = -2
    return mate


def spread_gangs(jobs: JobColumns, view: Snapshot) -> Bools:
    """Which gangs stand on more nodes than they need."""
    wide = np.zeros(len(jobs), dtype=np.bool_)
    gangs = (jobs.held > 1).nonzero()[0]
    if len(gangs):
        places = view.holdings.places(jobs.number[gangs])[1]
        wide[gangs] = view.cluster.spread(places, offsets_of(jobs.held[gangs]), jobs.type[gangs])
    return wide
