"""What an allocation policy answers: the fraction of time that a job, or two jobs together, should spend on each type until
the next recomputation (Gavel §3.1). It says nothing about rounds or places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import JobColumns
from fairlead.core.errors import FairleadError, InvalidPlan
from fairlead.core.plan import Rates
from fairlead.core.reasons import Reason

if TYPE_CHECKING:
    from fairlead.core.snapshot import Snapshot

NEGLIGIBLE = 1e-6
"""Shares below this are rounding errors of a solver, and dropped."""

DIGITS = 9
"""Shares are rounded to this many digits, so that two solvers give the same number for the same optimum."""


class AllocationPending(FairleadError):
    """The requested allocation is still being computed; the last one is used until then. Only on a real cluster."""


@dataclass(frozen=True)
class Allocation:
    """The matrix X as a list of its entries above 0.

    Entry i gives job `first[i]` (together with job `second[i]`, unless that is -1) the fraction `share[i]` of time on type
    `types[i]`. A job's shares sum to at most 1. `reasons` explains jobs that the policy left out, or gave too little.
    `moment` is the snapshot it was computed for, if that is an earlier one: jobs may have come and gone since.
    """

    first: Ints
    second: Ints
    types: Ints
    share: Floats
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    moment: Snapshot | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not len(self.first) == len(self.second) == len(self.types) == len(self.share):
            raise InvalidPlan("an allocation's columns differ in length")

    @classmethod
    def alone(cls, numbers: Ints, matrix: Floats, reasons: Mapping[int, Reason] | None = None) -> Allocation:
        """From X itself: jobs (by number) × types, each job alone."""
        share = cls.tidy(matrix)
        row, types = share.nonzero()
        return cls(numbers[row], np.full(len(row), -1, dtype=np.int64), types, share[row, types], reasons or {})

    @staticmethod
    def tidy(share: Floats) -> Floats:
        """Round shares down (their sum must not exceed the capacity), to at most 1; drop negligible ones."""
        rounded: Floats = np.minimum(np.floor(share * 10.0**DIGITS + 0.01) / 10.0**DIGITS, 1.0)
        return np.where(rounded > NEGLIGIBLE, rounded, 0.0)

    def __len__(self) -> int:
        return len(self.share)

    @property
    def paired(self) -> bool:
        """Whether any jobs are to be co-located."""
        return len(self.second) > 0 and self.second.item(self.second.argmax()) >= 0

    def matrix(self, numbers: Ints, types: int) -> Floats:
        """Time by job and type, alone or co-located; `numbers` ascend."""
        time = np.zeros((len(numbers), types))
        for members in (self.first, self.second):
            there = members >= 0
            np.add.at(time, (numbers.searchsorted(members[there]), self.types[there]), self.share[there])
        return time

    def throughputs(self, jobs: JobColumns, rates: Rates) -> Floats:
        """Effective throughput of each job: Σ over types and combinations of rate × share."""
        got = np.zeros(len(jobs))
        for mine, other in ((self.first, self.second), (self.second, self.first)):
            there = (mine >= 0).nonzero()[0]
            at, types = jobs.number.searchsorted(mine[there]), self.types[there]
            row = rates.row[at]
            rate = rates.alone[row, types]
            paired = (other[there] >= 0).nonzero()[0]
            if len(paired):
                other_row = rates.row[jobs.number.searchsorted(other[there[paired]])]
                rate[paired] = rates.paired[row[paired], other_row, types[paired]]
            np.add.at(got, at, rate * self.share[there])
        return got
