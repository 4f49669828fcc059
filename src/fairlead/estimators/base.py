"""Which row of a table of throughputs a job is about: looked up by kind and workers, and kept. It knows no rates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import JobColumns
from fairlead.core.device_map import offsets_of
from fairlead.core.errors import InputError
from fairlead.core.job import BATCH_SIZE, TIMED, batch_size_of
from fairlead.core.plan import Observations, ObservedValues
from fairlead.core.rng import stream
from fairlead.core.snapshot import NameTable, Snapshot


class RateTable(Protocol):
    """What an estimation asks of a table; the columns are a cluster's types."""

    @property
    def keys(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def alone(self) -> Floats: ...
    @property
    def spread(self) -> Floats: ...
    @property
    def paired(self) -> Floats: ...
    def row(self, kind: str, workers: int) -> int: ...


class Rows:
    """(kind, workers) → row of the table, through a small matrix that grows with what was seen. It is a cache: codes of kinds
    belong to a state, so it is begun anew for a state that names them otherwise."""

    def __init__(self, table: RateTable) -> None:
        self.table = table
        self._kinds: tuple[str, ...] = ()
        self._map: Ints = np.full((1, 1), -1)

    def of(self, jobs: JobColumns, names: NameTable) -> Ints:
        kind, workers = jobs.kind, jobs.workers
        if not len(kind):
            return kind
        kinds = names.kinds
        if self._kinds is not kinds:
            if kinds[: len(self._kinds)] != self._kinds:
                self._map = np.full((1, 1), -1)
            self._kinds = kinds
        known = self._map
        try:
            rows: Ints = known[kind, workers]
        except IndexError:
            shape = (int(max(kind.max() + 1, known.shape[0])), int(max(workers.max() + 1, known.shape[1])))
            larger = np.full(shape, -1)
            larger[: known.shape[0], : known.shape[1]] = known
            self._map = known = larger
            rows = known[kind, workers]
        if rows.item(rows.argmin()) < 0:
            for index in np.flatnonzero(rows < 0).tolist():
                k, w = int(kind[index]), int(workers[index])
                known[k, w] = self.table.row(kinds[k], w)
            rows = known[kind, workers]
        return rows


# The narrow way from the true throughputs to what an estimation knows. A profiler times what it is asked to time and tells
# nothing else; who wants to know a rate has to have it measured. Whether a job (or two together) starts at all is found
# without
# timing: it is a question of memory, answered in a second.


@dataclass(frozen=True)
class Profiler:
    """Timed runs on accelerators set aside; each is off by a relative error with standard deviation `noise`."""

    table: RateTable = field(repr=False)
    noise: float = 0.0
    seed: int = 0

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        return self.table.keys

    @property
    def types(self) -> int:
        return int(self.table.alone.shape[1])

    # Without timing.

    def fits(self) -> Bools:
        """Rows × types: where a job starts."""
        return self.table.alone > 0

    def fit_together(self) -> Bools:
        """Rows × rows × types: where two start on the same accelerators."""
        both = self.table.paired > 0
        return both & both.transpose(1, 0, 2)

    # Where an estimator is told that rates alone are known, since single jobs were timed before.

    def known_alone(self) -> tuple[Floats, Floats]:
        """Rows × types, on as few nodes as possible and spread."""
        return self.table.alone, self.table.spread

    # With timing.

    def alone(self, row: int, type_: int) -> float:
        return self._timed(float(self.table.alone[row, type_]), "alone", row, type_)

    def beside(self, row: int, mate: int, type_: int) -> tuple[float, float]:
        """The rates of both; 0 where they do not start together."""
        mine, its = float(self.table.paired[row, mate, type_]), float(self.table.paired[mate, row, type_])
        return self._timed(mine, "beside", row, mate, type_), self._timed(its, "beside", mate, row, type_)

    def in_full(self, rows: Ints) -> tuple[Floats, Floats, Floats]:
        """Everything about some jobs, alone, spread and beside each other: what is measured once, beforehand, of reference
        jobs. rows × types, the same, rows × rows × types."""
        table = self.table
        return table.alone[rows], table.spread[rows], table.paired[np.ix_(rows, rows)]

    def _timed(self, true: float, *what: str | int) -> float:
        if not self.noise or true <= 0:
            return true
        return true * off(self.noise, stream(self.seed, "profiler", *what))


def off(noise: float, rng: np.random.Generator) -> float:
    """The factor by which one measurement is off."""
    return max(0.1, 1.0 + noise * float(rng.standard_normal()))


def check_references(where: str, chosen: tuple[str, ...] | float | None) -> None:
    """What can be said of them without a table."""
    if isinstance(chosen, (int, float)) and not 0 < chosen <= 1:
        raise InputError(where, "a part above 0 and up to 1, or names of kinds", field="references", value=chosen)
    if chosen == ():
        raise InputError(where, "at least one kind", field="references", value="[]")


def reference_rows(keys: tuple[tuple[str, int], ...], chosen: tuple[str, ...] | float | None, seed: int, where: str) -> Ints:
    """The rows of the reference jobs: of all kinds, of those named, or of a part of them drawn at random."""
    kinds = list(dict.fromkeys(kind for kind, _ in keys if kind != TIMED))
    if isinstance(chosen, tuple):
        unknown = [kind for kind in chosen if kind not in kinds]
        if unknown:
            raise InputError(where, "kinds that the throughput table has", field="references", value=unknown[0])
        kinds = [kind for kind in kinds if kind in chosen]
    elif chosen is not None:
        drawn = stream(seed, "references").permutation(len(kinds))[: int(np.ceil(chosen * len(kinds)))]
        kinds = [kinds[index] for index in sorted(drawn.tolist())]
    taken = set(kinds)
    return np.array([row for row, (kind, _) in enumerate(keys) if kind in taken], dtype=np.int64)


# What is made of facts that are told again and again: it takes in those that are new, and begins anew where some are gone,
# which is another history. It knows its facts by how their names begin, and nothing of what they say.


class Followed(ABC):
    """A cache: it follows from the facts it is given last."""

    begins: ClassVar[str]
    """How the names of its facts begin."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._facts: ObservedValues = self._known
        self._forget()

    def follow(self, facts: ObservedValues) -> None:
        """Take in what is new."""
        if facts is self._facts:
            return
        mine = {name: value for name, value in facts.items() if name.startswith(self.begins)}
        if any(name not in mine for name in self._known):
            self._known = {}
            self._forget()
        for name, value in mine.items():
            before = self._known.get(name)
            if before is not value and before != value:
                self._take(value)
        self._known, self._facts = mine, facts

    @abstractmethod
    def _forget(self) -> None:
        """Be as if nothing had been told."""

    @abstractmethod
    def _take(self, fact: ObservedValues) -> None: ...


# What jobs really did: the rates at which they were seen to run, remembered as facts by kind, workers, type and company.
#
# A job is seen once in each stretch of even speed (its number and the second in which the stretch began name it), so that how
# often one looks changes nothing. `limit` stretches of a combination are remembered; their mean is its rate.

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

    def _take(self, fact: ObservedValues) -> None:
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

    def look(self, view: Snapshot, rows: Rows, observed: Observed) -> Observations:
        jobs = view.jobs.runners
        if not len(jobs):
            return Observations()
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
        return Observations(facts, again)

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
        before = facts.get(name) or view.observations.get(name)
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
    if view.adaptations.signatures:
        sizes = jobs.metric(BATCH_SIZE)
        for index in (~np.isnan(sizes)).nonzero()[0].tolist():
            look = (int(jobs.kind[index]), int(jobs.workers[index]), int(sizes[index]))
            fine[index] &= look not in view.adaptations.signatures
    return fine


def mates(jobs: JobColumns, view: Snapshot) -> Ints:
    """Who else is on each one's accelerators, by position: -1 for nobody, -2 for more than one other."""
    mate = np.full(len(jobs), -1, dtype=np.int64)
    places = view.device_map.places(jobs.number)[1]
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
        places = view.device_map.places(jobs.number[gangs])[1]
        wide[gangs] = view.cluster.spread(places, offsets_of(jobs.held[gangs]), jobs.type[gangs])
    return wide
