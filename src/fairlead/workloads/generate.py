"""Synthetic workloads after the papers: Gavel §7.1 (Poisson arrivals, job types from a table, durations over three decades) and
Shockwave §8.1 (size classes by accelerator-hours). A generator is a value that makes a trace of a seed. Every purpose draws
from a stream of its own, job by job, so that changing one option or the number of jobs changes no other draw. This module knows
no file format and no scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import significant
from fairlead.core.errors import InputError, UnknownName, near_or_all, require
from fairlead.core.job import EXPERT, TIMED, Job, Schedule, batch_size_of, kind_of, model_of
from fairlead.core.rng import stream
from fairlead.workloads.catalogue import catalogue, memory_gb_of
from fairlead.workloads.dynamics import JobDynamics, Regimes
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import MAX_TIME_S, Trace

MILLISECONDS = 3
"""Digits of times that logarithms and powers make: their last bits differ between machines."""

# How the batch sizes of generated jobs change, by mode:
#
# static     never
# accordion  declared and largest alternate: small while gradients change fast, at first and sometimes later (Shockwave §5)
# gns        doubles up to the largest, as gradient noise grows; every division of the steps is equally likely
# expert     a schedule that a user wrote: multiples of the declared batch size, each for a share of the steps
#
# The largest batch size is that of the table for the model with these workers.

Parts = tuple[tuple[int, float], ...]
Multiples = tuple[tuple[float, float], ...]

MODES = ("static", "accordion", "gns", EXPERT)

DRAWS = 32
"""Numbers in [0, 1) for a job: no batch size doubles more often."""

_NEGLIGIBLE = 1e-9  # share
_FIRST = (0.25, 0.35)  # of the steps, for which Accordion begins small
_AGAIN, _LATER, _SHORT = 0.25, (0.4, 0.75), (0.02, 0.06)  # how many return to it, when, and for how long


def batch_sizes_of(table: ThroughputTable, kind: str, workers: int) -> tuple[int, ...]:
    """The batch sizes at which the model of a job type runs wherever the job type does, ascending."""
    first, model = table.alone[table.row(kind, workers)] > 0, model_of(kind)
    rows = [row for row, (other, many) in enumerate(table.keys) if many == workers and model_of(other) == model]
    sizes = [batch_size_of(table.keys[row][0]) for row in rows if (table.alone[row][first] > 0).all()]
    return tuple(sorted(size for size in sizes if size is not None))


def regime_parts(mode: str, kind: str, sizes: Sequence[int], schedule: Multiples, draws: Floats) -> Parts:
    """The regimes of one job: (batch size, share of the steps)."""
    declared = batch_size_of(kind)
    if declared is None or mode == "static":
        return ()
    if mode == EXPERT:
        # The largest size that is not above the multiple, or the smallest size.
        fitting = [[size for size in sizes if size <= declared * multiple] for multiple, _ in schedule]
        return tuple((max(some, default=min(sizes)), share) for some, (_, share) in zip(fitting, schedule))
    larger = [size for size in sizes if size > declared]
    if not larger:
        return ((declared, 1.0),)
    return _accordion(declared, larger[-1], draws) if mode == "accordion" else _doubling(declared, larger, draws)


def declared_schedule(parts: Parts) -> Schedule:
    """Regimes as a declared schedule of exactly the declared steps: shares beyond them are cut, and the last regime is
    extended."""
    declared: list[tuple[int, float]] = []
    left = 1.0
    for size, share in (*parts[:-1], (parts[-1][0], 1.0)):
        share = min(share, left)
        if declared and declared[-1][0] == size:
            declared[-1] = (size, declared[-1][1] + share)
        elif share > _NEGLIGIBLE:
            declared.append((size, share))
        left -= share
    return tuple(declared)


def mean_rate(parts: Parts, table: ThroughputTable, kind: str, workers: int, column: int) -> float:
    """Declared steps per second over all regimes of a job, on one type."""
    declared = batch_size_of(kind) or 1
    rates = [float(table.alone[table.row(kind_of(model_of(kind), size), workers), column]) for size, _ in parts]
    return 1.0 / math.fsum(share * declared / (size * rate) for (size, share), rate in zip(parts, rates))


def _accordion(small: int, large: int, draws: Floats) -> Parts:
    chance, *rest = draws[:4].tolist()
    first, later, short = (low + (high - low) * draw for (low, high), draw in zip((_FIRST, _LATER, _SHORT), rest))
    if chance >= _AGAIN:
        return ((small, first), (large, 1.0 - first))
    return ((small, first), (large, later - first), (small, short), (large, 1.0 - later - short))


def _doubling(declared: int, larger: Sequence[int], draws: Floats) -> Parts:
    doubled = [declared * 2**power for power in range((larger[-1] // declared).bit_length())]
    sizes = [size for size in doubled if size == declared or size in larger]
    gaps = significant(-np.log1p(-draws[: len(sizes)]))  # exponential gaps are uniform over all divisions
    return tuple(zip(sizes, (gaps / gaps.sum()).tolist()))


GANG_SHARES: Mapping[str, Mapping[int, float]] = {"single": {1: 1.0}, "multiple": {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}}

SIZE_CLASSES = ((0.72, 0.2, 8.0), (0.20, 8.0, 16.0), (0.05, 16.0, 72.0), (0.03, 72.0, 144.0))
"""Shockwave's small, medium, large and extra large jobs: share, minimum and maximum accelerator-hours. The paper leaves the
last class open; here it ends at twice its minimum, 18 hours on 8 accelerators."""

MIN_HOURS, MAX_HOURS = 0.2, 5.0
"""The run times of Shockwave's jobs. More than 40 accelerator-hours do not fit on 8 accelerators."""

MAX_JOBS = 10_000_000

USERS = 12
"""Number of users of generated jobs, on the command line, in sweeps and in Python."""

GENERATOR = "generator"
"""The source of errors about parameters."""


@dataclass(frozen=True)
class Generator:
    """The parameters of a workload. Shares are of jobs and add up to 1.

    `durations` are run times alone on the reference type: `"gavel"` is 10^x minutes, x uniform in [1.5, 3] for 80 % and in [3,
    4] for 20 %; `"shockwave"` draws a size class and accelerator-hours uniformly in it, and gives the job one of the numbers of
    workers that keep it between 0.2 and 5 hours (or else the one that comes closest); a tuple of seconds is drawn from
    uniformly. The size of the gang is drawn before the job type, and the job type uniformly among those with a rate at that
    size, so that the shares of sizes are exact.
    Defaults are those of `fairlead trace generate`. `simulate` and `compare` generate 200 jobs, 6 per hour, workers "multiple".
    """

    jobs: int = 100
    jobs_per_hour: float | None = 4.0  # Poisson, the first at 0; None: all at 0
    table: ThroughputTable = field(default_factory=catalogue, repr=False)
    kinds: tuple[str, ...] = ()  # job types, or models for all their batch sizes; empty: all of the table
    reference_type: str = "v100"
    durations: str | tuple[float, ...] = "gavel"
    workers: str | Mapping[int, float] = "single"  # or "multiple": 70 % 1, 10 % 2, 15 % 4, 5 % 8; or size → share
    priorities: float = 0.0  # the share of jobs of high priority: priority 1 and `high_weight`
    high_weight: float = 5.0
    accounts: Mapping[str, float] = field(default_factory=dict)  # name → share; empty: no accounts
    users: int = USERS  # how many, drawn uniformly; 0: no users
    slos: tuple[float, ...] = ()  # multiples of the duration, drawn uniformly: the deadline; empty: none
    modes: Mapping[str, float] = field(default_factory=lambda: {"static": 1.0})  # job types without batch size stay static
    schedule: Multiples = ()  # of mode expert: (multiple of the declared batch size, share of the steps)
    memory: bool = False  # whether jobs request memory, by the catalogue's model
    name: str = "generated"

    def __post_init__(self) -> None:
        countable = isinstance(self.jobs, int) and 1 <= self.jobs <= MAX_JOBS
        _check(countable, "jobs", self.jobs, f"a whole number from 1 to {MAX_JOBS:,}")
        rate = self.jobs_per_hour
        _check(rate is None or 0 < rate < math.inf, "jobs_per_hour", rate, "a number above 0, or none for a static trace")
        known = ", ".join(self.table.types)
        _check(self.reference_type in self.table.types, "reference_type", self.reference_type, f"one of {known}")
        if isinstance(self.durations, str):
            _check(self.durations in ("gavel", "shockwave"), "durations", self.durations, "gavel, shockwave or seconds")
        else:
            good = bool(self.durations) and all(0 < seconds < math.inf for seconds in self.durations)
            _check(good, "durations", self.durations, "at least one duration, each above 0 seconds")
        if isinstance(self.workers, str):
            _check(self.workers in GANG_SHARES, "workers", self.workers, "single, multiple, or shares of gang sizes")
        for size in self._gang_shares():
            _check(isinstance(size, int) and size >= 1, "workers", size, "gang sizes of at least 1")
        _check_shares("workers", self._gang_shares())
        _check(0 <= self.priorities <= 1, "priorities", self.priorities, "a share between 0 and 1")
        _check(0 < self.high_weight < math.inf, "high_weight", self.high_weight, "a number above 0")
        if self.accounts:
            _check_shares("accounts", self.accounts)
        _check(isinstance(self.users, int) and self.users >= 0, "users", self.users, "a whole number of at least 0")
        _check(all(0 < m < math.inf for m in self.slos), "slos", self.slos, "multiples of the duration above 0")
        for mode in self.modes:
            _check(mode in MODES, "modes", mode, f"one of {', '.join(MODES)}")
        _check_shares("modes", self.modes)
        wanted = "multiples of the batch size, each above 0, and shares of the steps, for mode expert alone"
        good = all(0 < multiple < math.inf and 0 < share < math.inf for multiple, share in self.schedule)
        needed = self.modes.get(EXPERT, 0) > 0
        _check(bool(self.schedule) or not needed, "schedule", "none", "one, such as '1@0.3|4@0.7', where modes have expert")
        _check(good and (needed or not self.schedule), "schedule", self.schedule, wanted)
        chosen = self._chosen_kinds()
        for size, share in self._gang_shares().items():
            some = share == 0 or bool(self._kinds_at(size, chosen))
            _check(some, "workers", size, f"a size at which some kind has a rate on {self.reference_type}")
        if self.memory:
            for kind in chosen:
                _memory_of(kind)

    def trace(self, seed: int) -> Trace:
        """The jobs of one seed, in the order of their arrival."""
        _check(isinstance(seed, int) and seed >= 0, "seed", seed, "a whole number of at least 0")
        arrivals = self._arrivals(seed)
        durations, workers = self._durations_and_workers(seed)
        kinds = self._kinds(seed, workers)
        high = stream(seed, "priority").random(self.jobs) < self.priorities
        accounts = self._named(seed, "entity", self.accounts)
        modes = self._named(seed, "mode", self.modes)
        users = (stream(seed, "user").random(self.jobs) * self.users).astype(np.int64).tolist()
        multiples = np.array(self.slos or (math.inf,))[_pick(seed, "slo", self.jobs, len(self.slos) or 1)]
        column = self.table.types.index(self.reference_type)
        regimes = self._regimes(seed, modes, kinds, workers)
        jobs, dynamics = [], dict[str, JobDynamics]()
        for i, kind in enumerate(kinds):
            parts, rate = regimes[i], float(self.table.alone[self.table.row(kind, workers[i]), column])
            work = durations[i] * (mean_rate(parts, self.table, kind, workers[i], column) if parts else rate)
            jobs.append(
                Job(
                    f"job-{i:04d}",
                    submitted_s=arrivals[i],
                    steps=work if kind == TIMED else max(1.0, float(round(work))),
                    kind=kind,
                    workers=workers[i],
                    weight=self.high_weight if high[i] else 1.0,
                    priority=int(high[i]),
                    user=f"user-{users[i]:02d}" if self.users else "",
                    account=accounts[i],
                    deadline_s=float(multiples[i]) * durations[i],
                    memory_gb=_memory_of(kind) if self.memory else 0.0,
                    mode="static" if batch_size_of(kind) is None else modes[i],
                    schedule=declared_schedule(parts) if parts and modes[i] == EXPERT else (),
                )
            )
            if parts:
                dynamics[jobs[-1].name] = Regimes.of(jobs[-1], parts)
        return Trace.of(jobs, f"{self.name}-{seed}", dynamics=dynamics)

    def _regimes(self, seed: int, modes: Sequence[str], kinds: Sequence[str], workers: Sequence[int]) -> list[Parts]:
        """The regimes of each job; empty where its batch size does not change."""
        changing = [mode != "static" and batch_size_of(kind) is not None for mode, kind in zip(modes, kinds)]
        signatures = {(kind, size) for change, kind, size in zip(changing, kinds, workers) if change}
        sizes = {one: batch_sizes_of(self.table, *one) for one in signatures}
        draws = stream(seed, "regimes").random((self.jobs, DRAWS))
        return [
            regime_parts(mode, kind, sizes[kind, size], self.schedule, draw) if change else ()
            for change, mode, kind, size, draw in zip(changing, modes, kinds, workers, draws)
        ]

    def _gang_shares(self) -> Mapping[int, float]:
        return GANG_SHARES[self.workers] if isinstance(self.workers, str) else self.workers

    def _chosen_kinds(self) -> tuple[str, ...]:
        known = self.table.kinds or (TIMED,)
        chosen: dict[str, None] = {}
        for name in self.kinds or known:
            found = [kind for kind in known if name in (kind, model_of(kind))]
            if not found:
                hint = near_or_all(name, dict.fromkeys((*map(model_of, known), *known)))
                raise InputError(GENERATOR, f"a job type or model in the table ({hint})", field="kinds", value=name)
            chosen.update(dict.fromkeys(found))
        return tuple(chosen)

    def _kinds_at(self, workers: int, chosen: Sequence[str]) -> list[str]:
        """The chosen kinds that run on the reference type with this many workers."""
        column = self.table.types.index(self.reference_type)
        rows = [0 if kind == TIMED else self.table.row_of.get((kind, workers)) for kind in chosen]
        return [kind for kind, row in zip(chosen, rows) if row is not None and self.table.alone[row, column] > 0]

    def _arrivals(self, seed: int) -> list[float]:
        if self.jobs_per_hour is None:
            return [0.0] * self.jobs
        gaps = -np.log1p(-stream(seed, "arrival").random(self.jobs)) * 3600.0
        gaps[0] = 0.0
        soon = float(gaps.sum()) <= MAX_TIME_S * self.jobs_per_hour
        _check(soon, "jobs_per_hour", self.jobs_per_hour, f"so many that the last of all comes within {MAX_TIME_S:g} seconds")
        gaps /= self.jobs_per_hour
        return [float(s) for s in np.cumsum(gaps).round(MILLISECONDS)]

    def _durations_and_workers(self, seed: int) -> tuple[list[float], list[int]]:
        shares = {size: share for size, share in self._gang_shares().items() if share > 0}
        sizes = np.array(sorted(shares), dtype=np.int64)
        weights = np.array([shares[size] for size in sizes.tolist()])
        draw = stream(seed, "workers").random(self.jobs)
        if self.durations != "shockwave":
            seconds = self._durations(seed)
            return [float(s) for s in seconds], sizes[_by_share(draw, np.tile(weights, (self.jobs, 1)))].tolist()
        hours = _accelerator_hours(seed, self.jobs)
        workers = sizes[_by_share(draw, weights * _comes_closest(hours[:, None] / sizes))]
        return [float(s) for s in hours / workers * 3600.0], workers.tolist()

    def _durations(self, seed: int) -> Floats:
        if isinstance(self.durations, tuple):
            return np.array(self.durations, dtype=np.float64)[_pick(seed, "duration", self.jobs, len(self.durations))]
        position = stream(seed, "duration").random(self.jobs)
        is_long = stream(seed, "duration-class").random(self.jobs) >= 0.8
        minutes = 10.0 ** np.where(is_long, 3.0 + position, 1.5 + 1.5 * position)
        return np.asarray((60.0 * minutes).round(MILLISECONDS), dtype=np.float64)

    def _kinds(self, seed: int, workers: Sequence[int]) -> list[str]:
        chosen = self._chosen_kinds()
        at = {size: self._kinds_at(size, chosen) for size in set(workers)}
        draw = stream(seed, "kind").random(self.jobs).tolist()
        return [at[size][int(u * len(at[size]))] for size, u in zip(workers, draw)]

    def _named(self, seed: int, purpose: str, shares: Mapping[str, float]) -> list[str]:
        if not shares:
            return [""] * self.jobs
        names, weights = list(shares), np.array(list(shares.values()))
        draw = stream(seed, purpose).random(self.jobs)
        return [names[i] for i in _by_share(draw, np.tile(weights, (self.jobs, 1))).tolist()]


def _accelerator_hours(seed: int, jobs: int) -> Floats:
    shares, lows, highs = np.array(SIZE_CLASSES).T
    chosen = _by_share(stream(seed, "size-class").random(jobs), np.tile(shares, (jobs, 1)))
    within = stream(seed, "size").random(jobs)
    return np.asarray(lows[chosen] + within * (highs - lows)[chosen], dtype=np.float64)


def _comes_closest(hours: Floats) -> Bools:
    """For each job, the sizes (columns) that keep its hours within bounds, or else the closest one."""
    missed = np.maximum(np.maximum(MIN_HOURS - hours, hours - MAX_HOURS), 0.0)
    return np.asarray(missed <= missed.min(axis=1, keepdims=True), dtype=np.bool_)


def _by_share(draw: Floats, weights: Floats) -> Ints:
    """The column that a draw in [0, 1) falls on, row by row; columns are as wide as their weights."""
    edges = np.cumsum(weights, axis=1)
    return np.asarray((draw[:, None] * edges[:, -1:] >= edges).sum(axis=1), dtype=np.int64)


def _pick(seed: int, purpose: str, jobs: int, choices: int) -> Ints:
    return (stream(seed, purpose).random(jobs) * choices).astype(np.int64)


def _memory_of(kind: str) -> float:
    try:
        return memory_gb_of(kind)
    except UnknownName:
        raise InputError(GENERATOR, "a job type of the catalogue, whose memory is known", field="memory", value=kind) from None


def _check(good: bool, name: str, value: object, expected: str) -> None:
    require(good, GENERATOR, expected, name, value)


def _check_shares(name: str, shares: Mapping[str, float] | Mapping[int, float]) -> None:
    values = list(shares.values())
    good = all(0 <= share <= 1 for share in values) and math.isclose(sum(values), 1.0, abs_tol=1e-6)
    _check(good, name, dict(shares), "shares from 0 to 1 that add up to 1")
