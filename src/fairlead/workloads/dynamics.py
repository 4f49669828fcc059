"""Job dynamics: how a job really behaves where its speed is not one number of a table, and how its loss falls. The simulator
knows this; a scheduler sees only what jobs report. This module knows no files and no backend."""

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
    """The progress of a job, and its resources."""

    steps: float  # done so far
    type: str
    workers: int
    per_node: tuple[int, ...]  # its workers on each of its nodes, most first
    batch_size: int = 0  # given by a plan; 0: none
    table: Callable[[int], float] = _no_table
    """Steps per second of its model at a batch size, by the simulator's table for this placement; 0 where it has none."""
    rate: float = 0.0  # steps per second of its job type, likewise
    cpus: float = math.inf  # for each worker, by the plan or the share of its nodes
    host_memory_gb: float = math.inf
    learned: object = None  # the `Speed.learned` of the last speed at which it made progress


@dataclass(frozen=True, slots=True)
class Speed:
    """Steps per second from given conditions on, the step up to which that holds, and the real batch size."""

    rate: float
    until: float = math.inf
    batch_size: int = 0  # 0: unknown
    reports: Mapping[str, float] = field(default_factory=dict)  # other metrics that the job reports
    learned: object = None  # what the job knows of itself after progress at this speed, over all its runs


class JobDynamics(Protocol):
    """How fast a job runs, as a pure function. A step is one of the declared batch size, whatever the batch size is."""

    def speed(self, conditions: RunConditions) -> Speed:
        """The speed under these conditions."""
        ...

    def work(self, declared: float) -> float:
        """How many steps the job really runs."""
        return declared


def run_time_s(job_dynamics: JobDynamics, declared: float, conditions: RunConditions) -> float:
    """How long a job would run without interruption; infinity where it makes no progress."""
    work, seconds = job_dynamics.work(declared), 0.0
    while conditions.steps < work:
        speed = job_dynamics.speed(conditions)
        until = min(speed.until, work)
        if not (speed.rate > 0 and until > conditions.steps):
            return math.inf
        seconds += (until - conditions.steps) / speed.rate
        conditions = replace(conditions, steps=until, learned=speed.learned)
    return seconds


SEPARATOR, AT = "|", "@"
REGIMES_EXPECTED = f"batch sizes and shares of the steps, as in 32{AT}0.3{SEPARATOR}256{AT}0.7"

MAX_REGIMES = 10_000  # of one job
MAX_BATCH_SIZE = 10**9


@dataclass(frozen=True)
class Regimes(JobDynamics):
    """A batch size that changes during training: rate = table(batch size) · batch size / declared batch size.

    `parts` are (batch size, share of the declared steps), in order. Shares that add up to more than 1 make a job that runs
    longer than declared; with less than 1 it ends earlier."""

    declared_size: int
    steps: float
    parts: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, job: Job, parts: Iterable[tuple[int, float]]) -> Regimes:
        """The regimes of a job; adjacent parts with one batch size are one regime."""
        size = batch_size_of(job.kind)
        assert size is not None, "a job without a batch size has no regimes"
        joined = [(b, math.fsum(s for _, s in some)) for b, some in groupby(parts, key=lambda part: part[0])]
        return cls(size, job.steps, tuple(joined))

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """The step at which each regime ends. A difference to the declared steps that is only rounding is removed."""
        ends = [share * self.steps for share in accumulate(share for _, share in self.parts)]
        if math.isclose(ends[-1], self.steps, rel_tol=1e-9):
            ends[-1] = self.steps
        return tuple(ends)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """All batch sizes, each once."""
        return tuple(dict.fromkeys(size for size, _ in self.parts))

    def speed(self, conditions: RunConditions) -> Speed:
        """The speed of the present regime, or of the batch size that a plan gives instead."""
        at = min(bisect_right(self.ends, conditions.steps), len(self.ends) - 1)
        last = at == len(self.ends) - 1
        size = conditions.batch_size or self.parts[at][0]
        rate = conditions.table(size) * size / self.declared_size
        return Speed(rate, math.inf if last or conditions.batch_size else self.ends[at], size)

    def work(self, declared: float) -> float:
        """The end of the last regime."""
        return self.ends[-1]


def format_regimes(parts: Iterable[tuple[int, float]]) -> str:
    """The notation `32@0.3|256@0.7`."""
    return SEPARATOR.join(f"{size}{AT}{float(share)!r}" for size, share in parts)


def parse_regimes(text: str) -> tuple[tuple[int, float], ...]:
    """The inverse of `format_regimes`; raises ValueError with what was expected."""
    pieces = text.split(SEPARATOR)
    if len(pieces) > MAX_REGIMES:
        raise ValueError(f"at most {MAX_REGIMES:,} regimes")
    try:
        parts = tuple((int(size), float(share)) for size, share in (piece.split(AT) for piece in pieces))
    except ValueError:
        raise ValueError(REGIMES_EXPECTED) from None
    return check_regimes(parts)


def check_regimes(parts: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """The parts, if batch sizes and shares are valid; else ValueError."""
    if not parts or not all(1 <= size <= MAX_BATCH_SIZE and 0 < share < math.inf for size, share in parts):
        raise ValueError(f"{REGIMES_EXPECTED}, with batch sizes of at least 1 and shares above 0")
    return parts


LOSS_CURVE_EXPECTED = "start|floor|scale with start ≥ floor > 0 and scale > 0"


@dataclass(frozen=True, slots=True)
class LossCurve:
    """loss(x) = floor + (start − floor) · e^(−x / scale), where x is the share of its steps that a job has done."""

    start: float
    floor: float
    scale: float

    @property
    def valid(self) -> bool:
        """Whether the numbers make a falling curve."""
        return 0 < self.floor <= self.start < math.inf and 0 < self.scale < math.inf

    def at(self, share: float) -> float:
        """The loss after a share of the steps."""
        return self.floor + (self.start - self.floor) * math.exp(-share / self.scale)

    @classmethod
    def converging(cls, at: float, floor: float, start: float, within: float) -> LossCurve:
        """The curve that comes within that of its floor after a share `at` of its steps."""
        return cls(start, floor, at / math.log((start - floor) / (within * floor)))
