"""Least attained service with ad-hoc packing (Gandiva §3, Xiao et al., OSDI'18; the baseline of Gavel §7.3): where jobs want
more accelerators than there are, two of the same size are put together at random, and stay together if that helps.

A pair (a, b) on type j helps if  T_a(b)_j / T_a_j + T_b(a)_j / T_b_j > 1, the progress of both in units of running alone. It
is learnt by trying: only rates of pairs that have run are looked at. Pairs and the jobs that are left alone get equal, weighted
shares of time, whatever the type, as max-min fairness does that knows no types.

It must not know the rate of a pair that has not run, except whether there is one: a pair that does not fit into the memory of
an accelerator would fail at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import NEGLIGIBLE, Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.device_map import NONE
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.job_classes import JobClasses
from fairlead.policies.allocation.max_min import even_mix, level_out

_NOTHING: Floats = np.zeros(0)


@dataclass(frozen=True)
class GandivaPacking:
    """Equal shares of time, with random pairs of jobs on one accelerator that are kept if they help.

    A pair helps if its progress, in units of running alone, adds up to more than `min_gain`. Verdicts are given when shares
    are computed anew: the next time after a pair has run. A pair that did not help is not tried again. `seed` draws the pairs.
    """

    paper: ClassVar[str] = "Gandiva §3 (Xiao et al., OSDI'18); Gavel §7.3"
    min_gain: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.min_gain <= 2:
            raise InputError("policy gandiva-packing", "a number from 0 to 2", field="min_gain", value=self.min_gain)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        known = Pairs.from_memo(memo).among(view).judged(view, self.min_gain)
        jobs, usable = view.jobs, _usable(view)
        can, paired = usable.any(axis=1), np.zeros(len(jobs), dtype=np.bool_)
        excess = int(jobs.workers[can].sum() - view.capacity.sum())
        one, two = known.positions(view)
        lasting: Bools = np.asarray(_together(view, usable, one, two).any(axis=1))  # a type may be down
        known = known.only(lasting & (excess > 0))  # where all can run alone, nobody is in company
        if excess > 0:
            excess -= int(jobs.workers[one[lasting]].sum())
            known = self._explore(view, usable, known, excess)
        one, two = known.positions(view)
        paired[one] = paired[two] = True
        alone = (~paired & can).nonzero()[0]
        none = np.full(len(alone), -1, dtype=np.int64)
        return _equal_shares(view, usable, np.concatenate((one, alone)), np.concatenate((two, none))), known.to_memo()

    def _explore(self, view: Snapshot, usable: Bools, known: Pairs, excess: int) -> Pairs:
        """Put together who is alone, two of a size and at random, while so many more accelerators are wanted than there are."""
        if excess <= 0:
            return known
        jobs = view.jobs
        free: Bools = np.asarray(usable.any(axis=1))
        free[np.concatenate(known.positions(view))] = False
        shuffled = stream(self.seed, "gandiva-packing", known.draws).permutation(free.nonzero()[0])
        shuffled = shuffled[jobs.workers[shuffled].argsort(kind="stable")]
        size = jobs.workers[shuffled]
        rank = np.arange(len(size)) - size.searchsorted(size)  # among those of its size
        heads = ((rank % 2 == 0)[:-1] & (size[1:] == size[:-1])).nonzero()[0]
        one, two = np.minimum(shuffled[heads], shuffled[heads + 1]), np.maximum(shuffled[heads], shuffled[heads + 1])
        good = _together(view, usable, one, two).any(axis=1) & ~known.failed(jobs.number[one], jobs.number[two])
        one, two = one[good], two[good]
        saved = jobs.workers[one].cumsum()
        enough = int(saved.searchsorted(excess)) + 1
        return known.joined_by(view, one[:enough], two[:enough])


@dataclass(frozen=True)
class Pairs:
    """Who is put together, by number, with the run time each had at that moment; and who was, and should not have been."""

    first: Ints
    second: Ints
    ran: Floats  # of the first, and
    also_ran: Floats  # of the second
    bad_first: Ints
    bad_second: Ints
    draws: int  # how often pairs were drawn

    @classmethod
    def from_memo(cls, memo: Memo) -> Pairs:
        if memo is None:
            return cls(NONE, NONE, _NOTHING, _NOTHING, NONE, NONE, 0)
        return cls(**memo)

    def to_memo(self) -> Memo:
        return dict(self.__dict__)

    def among(self, view: Snapshot) -> Pairs:
        """Without pairs of which one has ended."""
        there = np.isin(self.first, view.jobs.number) & np.isin(self.second, view.jobs.number)
        bad = np.isin(self.bad_first, view.jobs.number) & np.isin(self.bad_second, view.jobs.number)
        return replace(self.only(there), bad_first=self.bad_first[bad], bad_second=self.bad_second[bad])

    def only(self, chosen: Bools) -> Pairs:
        columns = ("first", "second", "ran", "also_ran")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    def positions(self, view: Snapshot) -> tuple[Ints, Ints]:
        """Where both stand in the view."""
        return view.jobs.number.searchsorted(self.first), view.jobs.number.searchsorted(self.second)

    def judged(self, view: Snapshot, min_gain: float) -> Pairs:
        """Without pairs that have run and did not help."""
        jobs = view.jobs
        one, two = self.positions(view)
        tried = (jobs.run_s[one] > self.ran) & (jobs.run_s[two] > self.also_ran) & (jobs.type[one] == jobs.type[two])
        # Who runs together stands on the same accelerators, and is suspended at the same second.
        place = view.device_map.last
        together = jobs.running[one] & jobs.running[two]
        together |= ~(jobs.running[one] | jobs.running[two]) & _same(jobs.waiting_since_s, one, two)
        tried &= together & (place[self.first] == place[self.second])
        helps = ~tried
        at = tried.nonzero()[0]
        helps[at] = gain(view, one[at], two[at], jobs.type[one[at]]) > min_gain
        lost = ~helps
        bad_first = np.concatenate((self.bad_first, self.first[lost]))
        bad_second = np.concatenate((self.bad_second, self.second[lost]))
        return replace(self.only(helps), bad_first=bad_first, bad_second=bad_second)

    def failed(self, one: Ints, two: Ints) -> Bools:
        """Which of these pairs were tried and did not help."""
        return np.isin(one << 32 | two, self.bad_first << 32 | self.bad_second)

    def joined_by(self, view: Snapshot, one: Ints, two: Ints) -> Pairs:
        number, run_s = view.jobs.number, view.jobs.run_s
        return replace(
            self,
            first=np.concatenate((self.first, number[one])),
            second=np.concatenate((self.second, number[two])),
            ran=np.concatenate((self.ran, run_s[one])),
            also_ran=np.concatenate((self.also_ran, run_s[two])),
            draws=self.draws + 1,
        )


def gain(view: Snapshot, one: Ints, two: Ints, types: Ints) -> Floats:
    """Progress of both jobs of a pair on these types, in units of running alone."""
    rates, a, b = view.rates, view.rates.row[one], view.rates.row[two]
    together: Floats = rates.paired[a, b, types] / rates.alone[a, types] + rates.paired[b, a, types] / rates.alone[b, types]
    return together


def _same(column: Floats, one: Ints, two: Ints) -> Bools:
    equal: Bools = column[one] == column[two]
    return equal


def _usable(view: Snapshot) -> Bools:
    """Jobs × types: where each can run at the moment."""
    jobs, rates = view.jobs, view.rates
    allowed = (jobs.fits & rates.runs_on[rates.row])[:, None] >> np.arange(len(view.capacity)) & 1
    return (allowed > 0) & (jobs.workers[:, None] <= view.capacity)


def _together(view: Snapshot, usable: Bools, one: Ints, two: Ints) -> Bools:
    """Pairs × types: where both can run side by side."""
    rates, a, b = view.rates, view.rates.row[one], view.rates.row[two]
    both: Bools = usable[one] & usable[two] & (rates.paired[a, b] > 0) & (rates.paired[b, a] > 0)
    return both


def _equal_shares(view: Snapshot, usable: Bools, one: Ints, two: Ints) -> Allocation:
    """Equal, weighted shares of time for pairs and single jobs (`two` is -1), by position in the view."""
    jobs, types = view.jobs, len(view.capacity)
    pair = (two >= 0).nonzero()[0]
    mask, weight = usable[one], jobs.weight[one].copy()
    mask[pair] = _together(view, usable, one[pair], two[pair])
    weight[pair] = (weight[pair] + jobs.weight[two[pair]]) / 2
    look = np.column_stack((mask, jobs.workers[one], weight))
    kinds, of, count = np.unique(look, axis=0, return_inverse=True, return_counts=True)
    of, kind = of.reshape(-1), np.zeros(len(kinds), dtype=np.int64)
    workers = kinds[:, types].astype(np.int64)
    weights, rates = kinds[:, types + 1].astype(np.float64), kinds[:, :types].astype(np.float64)
    classes = JobClasses(of, count, kind, workers, weights, kind, rates, ())
    share = np.zeros((0, types))
    if len(one):
        mix = even_mix(classes, view.capacity)
        share = Allocation.tidy(classes.matrix(mix * level_out(classes, mix, view.capacity)[:, None]))
    row, on = (share > NEGLIGIBLE).nonzero()
    second = np.where(two >= 0, jobs.number[two], -1) if len(two) else NONE
    return Allocation(jobs.number[one[row]], second[row], on, share[row, on])
