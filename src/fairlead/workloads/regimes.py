"""Jobs whose batch size changes as they train, and their speed with it: a list of regimes, each a batch size and the share of
the declared steps that is trained at it. A step is always one of the declared batch size, so the work stays the same:

    rate = table(batch size) · batch size / declared batch size

It knows neither files nor policies."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

from fairlead.core.job import Job, batch_size_of
from fairlead.workloads.nature import Nature, Speed, Standing

BETWEEN, AT = "|", "@"
EXPECTED = f"batch sizes and shares of the steps, as in 32{AT}0.3{BETWEEN}256{AT}0.7"

MOST = 10_000
"""Regimes of one job."""
LARGEST = 10**9


@dataclass(frozen=True)
class Regimes(Nature):
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

    def speed(self, standing: Standing) -> Speed:
        """A batch size that a plan gives stays, in place of the regimes'."""
        at = min(bisect_right(self.ends, standing.steps), len(self.ends) - 1)
        last = at == len(self.ends) - 1
        size = standing.batch_size or self.parts[at][0]
        rate = standing.table(size) * size / self.declared_size
        return Speed(rate, math.inf if last or standing.batch_size else self.ends[at], size)

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
