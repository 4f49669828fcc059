"""The policy `gandiva-packing`: least attained service with random co-location (Gandiva §3, Xiao et al., OSDI'18; the baseline
of Gavel §7.3). Where jobs want more accelerators than there are, two of the same size are paired at random, and stay so if it
helps.

A pair (a, b) on type j helps if  T_a(b)_j / T_a_j + T_b(a)_j / T_b_j > 1, the progress of both in units of running alone. This
is learned by trial: only rates of pairs that have run are used. Pairs and single jobs get equal, weighted shares of time on any
type, as under type-agnostic max-min fairness.

It must not know the rate of a pair that has not run, except whether there is one: a pair that does not fit into the memory of
an accelerator would fail at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import NEGLIGIBLE, Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.device_map import NONE
from fairlead.core.errors import require
from fairlead.core.events import Memo
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.job_classes import JobClasses, even_mix, fill_fixed_mix

_EMPTY: Floats = np.zeros(0)


@dataclass(frozen=True)
class GandivaPacking:
    """Give all jobs equal time; co-locate random pairs of jobs, and keep the pairs that help.

    A pair helps if its progress, in units of running alone, sums to more than `min_gain`. Pairs are evaluated when shares are
    computed the next time after they have run, which is every 12 minutes if no job comes or goes. A pair that did not help is
    not tried again. `seed` draws the pairs.
    """

    paper: ClassVar[str] = "Gandiva §3 (Xiao et al., OSDI'18); Gavel §7.3"
    max_interval_s: ClassVar[float] = 720.0  # of the round mechanism, unless that has its own: what ran shows which pairs help
    min_gain: float = 1.0  # a pair is kept if its normalized speeds add up to more than this
    seed: int = 0  # seed of the random draws

    def __post_init__(self) -> None:
        require(0 <= self.min_gain <= 2, "policy gandiva-packing", "a number from 0 to 2", "min_gain", self.min_gain)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        known = JobPairs.from_memo(memo).among(view).evaluated(view, self.min_gain)
        jobs, usable = view.jobs, _usable(view)
        can, paired = usable.any(axis=1), np.zeros(len(jobs), dtype=np.bool_)
        excess = int(jobs.workers[can].sum() - view.capacity.sum())
        one, two = known.positions(view)
        lasting: Bools = np.asarray(_colocatable(view, usable, one, two).any(axis=1))  # a type may be down
        known = known.only(lasting & (excess > 0))  # no job is co-located where all can run alone
        if excess > 0:
            excess -= int(jobs.workers[one[lasting]].sum())
            known = self._explore(view, usable, known, excess)
        one, two = known.positions(view)
        paired[one] = paired[two] = True
        alone = (~paired & can).nonzero()[0]
        none = np.full(len(alone), -1, dtype=np.int64)
        return _equal_shares(view, usable, np.concatenate((one, alone)), np.concatenate((two, none))), known.to_memo()

    def _explore(self, view: Snapshot, usable: Bools, known: JobPairs, excess: int) -> JobPairs:
        """Pair single jobs of equal size at random, while `excess` more accelerators are requested than there are."""
        if excess <= 0:
            return known
        jobs = view.jobs
        free: Bools = np.asarray(usable.any(axis=1))
        free[np.concatenate(known.positions(view))] = False
        shuffled = stream(self.seed, "gandiva-packing", known.draws).permutation(free.nonzero()[0])
        shuffled = shuffled[jobs.workers[shuffled].argsort(kind="stable")]
        size = jobs.workers[shuffled]
        rank = np.arange(len(size)) - size.searchsorted(size)  # among jobs of its size
        heads = ((rank % 2 == 0)[:-1] & (size[1:] == size[:-1])).nonzero()[0]
        one, two = np.minimum(shuffled[heads], shuffled[heads + 1]), np.maximum(shuffled[heads], shuffled[heads + 1])
        good = _colocatable(view, usable, one, two).any(axis=1) & ~known.rejected(jobs.number[one], jobs.number[two])
        one, two = one[good], two[good]
        saved = jobs.workers[one].cumsum()
        enough = int(saved.searchsorted(excess)) + 1
        return known.joined_by(view, one[:enough], two[:enough])


@dataclass(frozen=True)
class JobPairs:
    """Co-located pairs by job number, with the run time that each job had when they were paired; and rejected pairs."""

    first: Ints
    second: Ints
    ran: Floats  # seconds, of the first
    also_ran: Floats  # seconds, of the second
    bad_first: Ints
    bad_second: Ints
    draws: int  # how many times pairs were drawn

    @classmethod
    def from_memo(cls, memo: Memo) -> JobPairs:
        if memo is None:
            return cls(NONE, NONE, _EMPTY, _EMPTY, NONE, NONE, 0)
        return cls(**memo)

    def to_memo(self) -> Memo:
        return dict(self.__dict__)

    def among(self, view: Snapshot) -> JobPairs:
        """Without pairs of jobs that have ended."""
        there = np.isin(self.first, view.jobs.number) & np.isin(self.second, view.jobs.number)
        bad = np.isin(self.bad_first, view.jobs.number) & np.isin(self.bad_second, view.jobs.number)
        return replace(self.only(there), bad_first=self.bad_first[bad], bad_second=self.bad_second[bad])

    def only(self, chosen: Bools) -> JobPairs:
        columns = ("first", "second", "ran", "also_ran")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    def positions(self, view: Snapshot) -> tuple[Ints, Ints]:
        """The positions of both jobs in the view."""
        return view.jobs.number.searchsorted(self.first), view.jobs.number.searchsorted(self.second)

    def evaluated(self, view: Snapshot, min_gain: float) -> JobPairs:
        """Reject pairs that have run and did not help."""
        jobs = view.jobs
        one, two = self.positions(view)
        tried = (jobs.run_s[one] > self.ran) & (jobs.run_s[two] > self.also_ran) & (jobs.type[one] == jobs.type[two])
        # Co-located jobs have the same accelerators and are suspended at the same time.
        place = view.device_map.last
        together = jobs.running[one] & jobs.running[two]
        together |= ~(jobs.running[one] | jobs.running[two]) & (jobs.waiting_since_s[one] == jobs.waiting_since_s[two])
        tried &= together & (place[self.first] == place[self.second])
        helps = ~tried
        at = tried.nonzero()[0]
        helps[at] = _gain(view, one[at], two[at], jobs.type[one[at]]) > min_gain
        lost = ~helps
        bad_first = np.concatenate((self.bad_first, self.first[lost]))
        bad_second = np.concatenate((self.bad_second, self.second[lost]))
        return replace(self.only(helps), bad_first=bad_first, bad_second=bad_second)

    def rejected(self, one: Ints, two: Ints) -> Bools:
        """Which of these pairs were rejected."""
        return np.isin(one << 32 | two, self.bad_first << 32 | self.bad_second)

    def joined_by(self, view: Snapshot, one: Ints, two: Ints) -> JobPairs:
        number, run_s = view.jobs.number, view.jobs.run_s
        return replace(
            self,
            first=np.concatenate((self.first, number[one])),
            second=np.concatenate((self.second, number[two])),
            ran=np.concatenate((self.ran, run_s[one])),
            also_ran=np.concatenate((self.also_ran, run_s[two])),
            draws=self.draws + 1,
        )


def _gain(view: Snapshot, one: Ints, two: Ints, types: Ints) -> Floats:
    """Progress of both jobs of a pair on these types, in units of running alone."""
    rates, a, b = view.rates, view.rates.row[one], view.rates.row[two]
    together: Floats = rates.paired[a, b, types] / rates.alone[a, types] + rates.paired[b, a, types] / rates.alone[b, types]
    return together


def _usable(view: Snapshot) -> Bools:
    """Jobs × types: where each job can run now."""
    jobs, rates = view.jobs, view.rates
    allowed = (jobs.fits & rates.runs_on[rates.row])[:, None] >> np.arange(len(view.capacity)) & 1
    return (allowed > 0) & (jobs.workers[:, None] <= view.capacity)


def _colocatable(view: Snapshot, usable: Bools, one: Ints, two: Ints) -> Bools:
    """Pairs × types: where both jobs can run co-located."""
    rates, a, b = view.rates, view.rates.row[one], view.rates.row[two]
    both: Bools = usable[one] & usable[two] & (rates.paired[a, b] > 0) & (rates.paired[b, a] > 0)
    return both


def _equal_shares(view: Snapshot, usable: Bools, one: Ints, two: Ints) -> Allocation:
    """Equal, weighted shares of time for pairs and single jobs (`two` is -1), by position in the view."""
    jobs, types = view.jobs, len(view.capacity)
    pair = (two >= 0).nonzero()[0]
    mask, weight = usable[one], jobs.weight[one].copy()
    mask[pair] = _colocatable(view, usable, one[pair], two[pair])
    weight[pair] = (weight[pair] + jobs.weight[two[pair]]) / 2
    features = np.column_stack((mask, jobs.workers[one], weight))
    kinds, of, count = np.unique(features, axis=0, return_inverse=True, return_counts=True)
    of, kind = of.reshape(-1), np.zeros(len(kinds), dtype=np.int64)
    workers = kinds[:, types].astype(np.int64)
    weights, rates = kinds[:, types + 1].astype(np.float64), kinds[:, :types].astype(np.float64)
    classes = JobClasses(of, count, kind, workers, weights, kind, rates, ())
    share = np.zeros((0, types))
    if len(one):
        mix = even_mix(classes, view.capacity)
        share = Allocation.tidy(classes.matrix(mix * fill_fixed_mix(classes, mix, view.capacity)[:, None]))
    row, on = (share > NEGLIGIBLE).nonzero()
    second = np.where(two >= 0, jobs.number[two], -1) if len(two) else NONE
    return Allocation(jobs.number[one[row]], second[row], on, share[row, on])
