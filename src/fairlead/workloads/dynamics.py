"""How a job really behaves where its speed is not one number of a table: what a simulated world knows of a job and no scheduler
may see, except for what comes of it. It knows neither files nor backends."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import Protocol

from fairlead.core.job import Job, batch_size_of


def _no_table(batch_size: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Where a job stands: how far it is, and on what it runs."""

    steps: float  # done so far
    type: str
    workers: int
    per_node: tuple[int, ...]  # its workers on each of its nodes, most first
    batch_size: int = 0  # that a plan gave it; 0: none
    table: Callable[[int], float] = _no_table
    """Steps per second of its model at a batch size, as the world's table has them for where it stands; 0 where it has none."""
    rate: float = 0.0  # steps per second of its kind, likewise
    cpus: float = math.inf  # for each worker, as a plan gave them, or as its nodes have them for each accelerator
    host_memory_gb: float = math.inf


@dataclass(frozen=True, slots=True)
class Speed:
    """From a standing on: steps per second, up to how many steps that holds, and the batch size it really runs with."""

    rate: float
    until: float = math.inf
    batch_size: int = 0  # 0: unknown
    reports: Mapping[str, float] = field(default_factory=dict)  # what else the job then tells of itself, by names of its own


class JobDynamics(Protocol):
    """The same standing is always answered with the same speed. Steps are those that the job declared: of one size, whatever
    the batch size is."""

    def speed(self, conditions: RunConditions) -> Speed: ...

    def work(self, declared: float) -> float:
        """How many steps it really does."""
        return declared


def run_time_s(job_dynamics: JobDynamics, declared: float, conditions: RunConditions) -> float:
    """How long a job would run from this standing on, if it were left alone; infinity where it would not get on."""
    work, seconds = job_dynamics.work(declared), 0.0
    while conditions.steps < work:
        speed = job_dynamics.speed(conditions)
        until = min(speed.until, work)
        if not (speed.rate > 0 and until > conditions.steps):
            return math.inf
        seconds += (until - conditions.steps) / speed.rate
        conditions = replace(conditions, steps=until)
    return seconds


# Jobs whose batch size changes as they train, and their speed with it: a list of regimes, each a batch size and the share of
# the declared steps that is trained at it. A step is always one of the declared batch size, so the work stays the same:
#
# rate = table(batch size) · batch size / declared batch size
#
# It knows neither files nor policies.

BETWEEN, AT = "|", "@"
EXPECTED = f"batch sizes and shares of the steps, as in 32{AT}0.3{BETWEEN}256{AT}0.7"

MOST = 10_000
"""Regimes of one job."""
LARGEST = 10**9


@dataclass(frozen=True)
class Regimes(JobDynamics):
    """`parts` are (batch size, share), in their order. Shares that add up to more than 1 are a job that overruns what it
    declared, those that add up to less one that is done before."""

    declared_size: int
    steps: float
    parts: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, job: Job, parts: Iterable[tuple[int, float]]) -> Regimes:
        """Those of a job; neighbours of one batch size are one regime."""
        size = batch_size_of(job.kind)
        assert size is not None, "who has no batch size has no regimes"
        joined = [(b, math.fsum(s for _, s in some)) for b, some in groupby(parts, key=lambda part: part[0])]
        return cls(size, job.steps, tuple(joined))

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """The steps at which each is over. What differs from the declared steps by rounding alone does not differ."""
        ends = [share * self.steps for share in accumulate(share for _, share in self.parts)]
        if math.isclose(ends[-1], self.steps, rel_tol=1e-9):
            ends[-1] = self.steps
        return tuple(ends)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(size for size, _ in self.parts))

    def speed(self, conditions: RunConditions) -> Speed:
        """A batch size that a plan gives stays, in place of the regimes'."""
        at = min(bisect_right(self.ends, conditions.steps), len(self.ends) - 1)
        last = at == len(self.ends) - 1
        size = conditions.batch_size or self.parts[at][0]
        rate = conditions.table(size) * size / self.declared_size
        return Speed(rate, math.inf if last or conditions.batch_size else self.ends[at], size)

    def work(self, declared: float) -> float:
        return self.ends[-1]


def spelt(parts: Iterable[tuple[int, float]]) -> str:
    return BETWEEN.join(f"{size}{AT}{float(share)!r}" for size, share in parts)


def parsed(text: str) -> tuple[tuple[int, float], ...]:
    """The inverse; raises ValueError with what was expected."""
    pieces = text.split(BETWEEN)
    if len(pieces) > MOST:
        raise ValueError(f"at most {MOST:,} regimes")
    try:
        parts = tuple((int(size), float(share)) for size, share in (piece.split(AT) for piece in pieces))
    except ValueError:
        raise ValueError(EXPECTED) from None
    return checked(parts)


def checked(parts: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    if not parts or not all(1 <= size <= LARGEST and 0 < share < math.inf for size, share in parts):
        raise ValueError(f"{EXPECTED}, with batch sizes of at least 1 and shares above 0")
    return parts


# How a job's loss falls as it trains: what a simulated world knows of a job and no scheduler may see, except for what the job
# reports on its way. It knows neither files nor backends.


@dataclass(frozen=True, slots=True)
class LossCurve:
    """loss(x) = floor + (start − floor) · e^(−x / scale), where x is the share of its steps that a job has done."""

    start: float
    floor: float
    scale: float

    @property
    def wrong(self) -> str:
        """What would be right, or nothing."""
        good = 0 < self.floor <= self.start < math.inf and 0 < self.scale < math.inf
        return "" if good else "start|floor|scale with start ≥ floor > 0 and scale > 0"

    def at(self, share: float) -> float:
        return self.floor + (self.start - self.floor) * math.exp(-share / self.scale)

    def share_within(self, threshold: float) -> float:
        """The share of its steps after which the loss is within `threshold`, relatively, of its floor."""
        return max(0.0, self.scale * math.log((self.start - self.floor) / (threshold * self.floor)))

    @classmethod
    def converging(cls, at: float, floor: float, start: float, within: float) -> LossCurve:
        """The curve that comes within that of its floor after a share `at` of its steps."""
        return cls(start, floor, at / math.log((start - floor) / (within * floor)))
