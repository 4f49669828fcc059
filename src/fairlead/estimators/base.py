"""Shared by estimators: rows of a throughput table by job, timed profiles of reference jobs, and rates observed from running
jobs. It makes no estimate itself."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import JobColumns
from fairlead.core.device_map import NONE, offsets_of
from fairlead.core.errors import InputError, require
from fairlead.core.job import BATCH_SIZE, TIMED, batch_size_of
from fairlead.core.plan import Observations, ObservedValues, Rates
from fairlead.core.rng import stream
from fairlead.core.snapshot import NameTable, Snapshot


class RateTable(Protocol):
    """A throughput table as estimators use it; the columns are a cluster's types."""

    @property
    def keys(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def alone(self) -> Floats: ...
    @property
    def spread(self) -> Floats: ...
    @property
    def paired(self) -> Floats: ...
    def row(self, kind: str, workers: int) -> int: ...


def rate_columns(alone: Floats, spread: Floats, paired: Floats) -> dict[str, Any]:
    """The arguments of `Rates` that do not depend on the jobs, so that they are computed once."""
    plain = Rates(NONE, alone, spread, paired)
    derived = {"best": alone.max(axis=1), "mask": plain.runs_on, "ranked": plain.preferred_types}
    return {"alone": alone, "spread": spread, "paired": paired, **derived}


class TableRows:
    """(kind, workers) → row of the table, cached in a small matrix; it is reset for a state with other codes of kinds."""

    def __init__(self, table: RateTable) -> None:
        self.table = table
        self._kinds: tuple[str, ...] = ()
        self._map: Ints = np.full((1, 1), -1)

    def of(self, jobs: JobColumns, names: NameTable) -> Ints:
        """The row of each job."""
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


@dataclass(frozen=True)
class Profiler:
    """Access of an estimator to true throughputs: only rates that it asks to measure. Measurements run on separate accelerators
    and have a relative error of standard deviation `noise`. Whether jobs fit into memory is found without a measurement."""

    table: RateTable = field(repr=False)
    noise: float = 0.0
    seed: int = 0

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        return self.table.keys

    @property
    def types(self) -> int:
        return int(self.table.alone.shape[1])

    def fits(self) -> Bools:
        """Rows × types: where a job fits."""
        return self.table.alone > 0

    def fits_colocated(self) -> Bools:
        """Rows × rows × types: where two jobs fit on the same accelerators."""
        both = self.table.paired > 0
        return both & both.transpose(1, 0, 2)

    def exclusive_rates(self) -> tuple[Floats, Floats]:
        """Rows × types, on as few nodes as possible and spread: for estimators to which these are given."""
        return self.table.alone, self.table.spread

    def reference_rates(self, rows: Ints) -> tuple[Floats, Floats, Floats]:
        """All rates of reference jobs: alone, spread (rows × types), and co-located with each other (rows × rows × types)."""
        table = self.table
        return table.alone[rows], table.spread[rows], table.paired[np.ix_(rows, rows)]

    def measure_alone(self, row: int, type_: int) -> float:
        return self._measured(float(self.table.alone[row, type_]), "alone", row, type_)

    def measure_colocated(self, row: int, other: int, type_: int) -> tuple[float, float]:
        """The rates of both jobs; 0 where they do not fit."""
        mine, its = float(self.table.paired[row, other, type_]), float(self.table.paired[other, row, type_])
        return self._measured(mine, "beside", row, other, type_), self._measured(its, "beside", other, row, type_)

    def _measured(self, true: float, *what: str | int) -> float:
        if not self.noise or true <= 0:
            return true
        return true * noise_factor(self.noise, stream(self.seed, "profiler", *what))


def noise_factor(noise: float, rng: np.random.Generator) -> float:
    """The factor of one noisy measurement."""
    return max(0.1, 1.0 + noise * float(rng.standard_normal()))


def check_measuring(where: str, noise: float, measurements: int, references: tuple[str, ...] | float | None) -> None:
    """Check the parameters that `online` and `profiled` share."""
    require(0 <= noise < 1, where, "a relative error from 0 to less than 1", "noise", noise)
    require(measurements >= 1, where, "at least 1", "measurements", measurements)
    if isinstance(references, (int, float)) and not 0 < references <= 1:
        raise InputError(where, "a fraction above 0 and up to 1, or names of job types", field="references", value=references)
    require(references != (), where, "at least one kind", "references", "[]")


def reference_rows(keys: tuple[tuple[str, int], ...], chosen: tuple[str, ...] | float | None, seed: int, where: str) -> Ints:
    """The rows of the reference jobs: of all kinds, of those named, or of a random fraction of them."""
    kinds = list(dict.fromkeys(kind for kind, _ in keys if kind != TIMED))
    if isinstance(chosen, tuple):
        unknown = [kind for kind in chosen if kind not in kinds]
        if unknown:
            raise InputError(where, "job types in the throughput table", field="references", value=unknown[0])
        kinds = [kind for kind in kinds if kind in chosen]
    elif chosen is not None:
        drawn = stream(seed, "references").permutation(len(kinds))[: int(np.ceil(chosen * len(kinds)))]
        kinds = [kinds[index] for index in sorted(drawn.tolist())]
    taken = set(kinds)
    return np.array([row for row, (kind, _) in enumerate(keys) if kind in taken], dtype=np.int64)


class ObservationCache(ABC):
    """Rates derived from observations. New observations are added; if some are gone, all are read again."""

    prefix: ClassVar[str]
    """The prefix of the names of its observations."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._values: ObservedValues = self._known
        self._reset()

    def update(self, values: ObservedValues) -> None:
        """Add the observations that are new."""
        if values is self._values:
            return
        mine = {name: value for name, value in values.items() if name.startswith(self.prefix)}
        if any(name not in mine for name in self._known):
            self._known = {}
            self._reset()
        for name, value in mine.items():
            before = self._known.get(name)
            if before is not value and before != value:
                self._add(value)
        self._known, self._values = mine, values

    @abstractmethod
    def _reset(self) -> None:
        """Forget all observations."""

    @abstractmethod
    def _add(self, value: ObservedValues) -> None: ...


ALONE, SPREAD, PAIRED = "alone", "spread", "paired"
RATE = "rate "


class ObservedRates(ObservationCache):
    """Rates at which jobs ran, by kind, workers, type and co-located job: means (NaN: none) and counts. A job is observed once
    in each interval of constant rate; the first `limit` intervals of a combination are kept."""

    prefix = RATE

    def __init__(self, rows: TableRows, types: tuple[str, ...]) -> None:
        count = len(rows.table.keys)
        self.version = 0  # changes with the arrays
        self._rows = rows
        self._code = {name: code for code, name in enumerate(types)}
        self._shape = {ALONE: (count, len(types)), SPREAD: (count, len(types)), PAIRED: (count, count, len(types))}
        super().__init__()

    def _reset(self) -> None:
        self.version += 1
        self.mean: dict[str, Floats] = {what: np.full(shape, np.nan) for what, shape in self._shape.items()}
        self.count: dict[str, Ints] = {what: np.zeros(shape, dtype=np.int64) for what, shape in self._shape.items()}

    def _add(self, value: ObservedValues) -> None:
        self.version += 1
        row, type_ = self._rows.table.row(*value["of"]), self._code[value["on"]]
        rates = [rate for _, _, rate in value["seen"]]
        what, at = SPREAD if value.get("spread") else ALONE, tuple[int, ...]((row, type_))
        if "beside" in value:
            what, at = PAIRED, (row, self._rows.table.row(*value["beside"]), type_)
        self.mean[what][at] = math.fsum(rates) / len(rates)
        self.count[what][at] = len(rates)


@dataclass(frozen=True)
class RateObserver:
    """Observes the rates of running jobs with a relative error `noise`; `alone`: exclusive rates too."""

    limit: int = 1
    noise: float = 0.0
    seed: int = 0
    alone: bool = True

    def observe(self, view: Snapshot, rows: TableRows, observed: ObservedRates) -> Observations:
        """New observations, and when the next job can be observed."""
        jobs = view.jobs.runners
        if not len(jobs):
            return Observations()
        as_declared = _as_declared(jobs, view)
        loading = as_declared & (jobs.since_s >= view.time)
        again = float(jobs.since_s[loading].min()) if np.count_nonzero(loading) else math.inf
        steady = as_declared & ~loading
        row, type_, other, spread = rows.of(jobs, view.names), jobs.type, partners(jobs, view), spread_gangs(jobs, view)
        values: dict[str, Any] = {}
        if self.alone:
            single = steady & (other == -1)
            for what, those in ((ALONE, single & ~spread), (SPREAD, single & spread)):
                few = those & (observed.count[what][row, type_] < self.limit)
                for index in few.nonzero()[0].tolist():
                    self._record(values, view, jobs, index, None, what)
        paired = steady & (other >= 0) & ~spread
        if np.count_nonzero(paired):
            few = paired & (observed.count[PAIRED][row, row[other], type_] < self.limit)
            for index in few.nonzero()[0].tolist():
                self._record(values, view, jobs, index, int(other[index]), PAIRED)
        return Observations(values, again)

    def _record(
        self, values: dict[str, Any], view: Snapshot, jobs: JobColumns, index: int, other: int | None, what: str
    ) -> None:
        number, since, on = int(jobs.number[index]), float(jobs.since_s[index]), view.cluster.type_names[int(jobs.type[index])]
        value: dict[str, Any] = {"of": _key(jobs, index, view), "on": on}
        name = "{}{}|{}".format(RATE, *value["of"])
        if other is not None:
            value["beside"] = _key(jobs, other, view)
            name += " beside {}|{}".format(*value["beside"])
        if what == SPREAD:
            value["spread"] = True
            name += " spread"
        name += f" on {on}"
        before = values.get(name) or view.observations.get(name)
        seen = [] if before is None else before["seen"]
        if len(seen) >= self.limit or any(n == number and s == since for n, s, _ in seen):
            return
        rate = float(jobs.rate[index])
        if self.noise:
            rate *= noise_factor(self.noise, stream(self.seed, "observed", name, number, repr(since)))
        values[name] = {**value, "seen": [*seen, [number, since, rate]]}


def _key(jobs: JobColumns, index: int, view: Snapshot) -> list[Any]:
    return [view.names.kinds[int(jobs.kind[index])], int(jobs.workers[index])]


def _as_declared(jobs: JobColumns, view: Snapshot) -> Bools:
    """Jobs that progress with the workers and the batch size of their kind; others are not representative of it."""
    fine: Bools = (jobs.held == jobs.workers) & (jobs.rate > 0)
    for index in jobs.batch_size.nonzero()[0].tolist():
        fine[index] &= batch_size_of(view.names.kinds[int(jobs.kind[index])]) == int(jobs.batch_size[index])
    if view.adaptations.signatures:
        sizes = jobs.metric(BATCH_SIZE)
        for index in (~np.isnan(sizes)).nonzero()[0].tolist():
            signature = (int(jobs.kind[index]), int(jobs.workers[index]), int(sizes[index]))
            fine[index] &= signature not in view.adaptations.signatures
    return fine


def partners(jobs: JobColumns, view: Snapshot) -> Ints:
    """The co-located job of each job, by position: -1 for none, -2 for more than one."""
    partner = np.full(len(jobs), -1, dtype=np.int64)
    places = view.device_map.places(jobs.number)[1]
    on = np.bincount(places)
    if not len(on) or on.max() <= 1:
        return partner
    order = places.argsort(kind="stable")
    place, owner = places[order], np.arange(len(jobs)).repeat(jobs.held)[order]
    together = on[place]
    first = ((together == 2) & np.append(place[1:] == place[:-1], False)).nonzero()[0]
    one, other = np.concatenate((owner[first], owner[first + 1])), np.concatenate((owner[first + 1], owner[first]))
    partner[one] = other
    partner[one[partner[one] != other]] = -2
    partner[owner[together > 2]] = -2
    return partner


def spread_gangs(jobs: JobColumns, view: Snapshot) -> Bools:
    """Which gangs are on more nodes than they need."""
    spread = np.zeros(len(jobs), dtype=np.bool_)
    gangs = (jobs.held > 1).nonzero()[0]
    if len(gangs):
        places = view.device_map.places(jobs.number[gangs])[1]
        spread[gangs] = view.cluster.spread(places, offsets_of(jobs.held[gangs]), jobs.type[gangs])
    return spread
