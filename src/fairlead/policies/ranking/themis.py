"""Themis: finish-time fairness by auction (Mahajan et al., NSDI'20), and as a ranking (Blox Table 7).

    ρ_m = finish_m / fair_m,   fair_m = steps_m / rate_m · max(1, n·s_m / M)

fair_m is the run time of job m on its n-th part of the M accelerators, where n jobs are present, if its rate were in proportion
to its workers: rate_m is its rate with the s_m it requests. `Themis` expects the job to continue at its mean rate: finish_m =
elapsed / (part done). `ThemisRanking` expects it to get all it requests from now on: finish_m = elapsed + left / rate_m."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import require
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.ranking.base import first_crossing, in_order

_FROM_NOTHING = 1e6
"""The logarithm of how much better something is than nothing: more than all others together can gain."""
_TIE = 1e-6
"""Gains that differ by less are the same: what rounding leaves of sums with `_FROM_NOTHING`."""


@dataclass(frozen=True)
class Bid:
    """The sizes that a bidder would take, ascending, and its worth with each (above 0) and with nothing (0 or more)."""

    sizes: tuple[int, ...]
    worths: tuple[float, ...]
    nothing: float

    @property
    def gains(self) -> list[float]:
        """The logarithm of each size's worth over that of nothing."""
        if self.nothing > 0:
            return [math.log(worth / self.nothing) for worth in self.worths]
        return [_FROM_NOTHING + math.log(worth) for worth in self.worths]


def partial_allocation(bids: Sequence[Bid], pool: int) -> tuple[Ints, Floats]:
    """The amount of each bidder, and the part of it that it keeps. Of equally fair divisions, earlier bidders get more.

    Partial allocation (Cole, Gkatzelis and Goel, EC'13; Themis §4) of a pool of identical things:

        division:  max Π_i V_i(g_i)   s.t.  Σ_i g_i ≤ pool
        payment:   winner i keeps the part  c_i = Π_{j≠i} V_j(with i there) / Π_{j≠i} V_j(without i),  at least 1/e

    Things are indivisible, so the division is by dynamic programming over the pool. Bidders that have nothing and for whom
    nothing is worth 0 come first; where not all of them can be served, as many as possible are."""
    if sum(bid.sizes[-1] for bid in bids) <= pool:
        return np.array([bid.sizes[-1] for bid in bids], dtype=np.int64), np.ones(len(bids))
    gains = [bid.gains for bid in bids]
    before = _reached(bids, gains, pool)
    given, won = np.zeros(len(bids), dtype=np.int64), np.zeros(len(bids))
    left = pool
    for at in range(len(bids) - 1, -1, -1):
        best = before[at + 1][left]
        for size, gain in zip((0, *bids[at].sizes), (0.0, *gains[at])):
            if size <= left and before[at][left - size] + gain >= best - _TIE:
                given[at], won[at] = size, gain
                left -= size
                break
    behind = _reached(bids[::-1], gains[::-1], pool)[::-1]
    kept = np.ones(len(bids))  # a winner keeps at least 1/e: guaranteed for divisible goods, and enforced here
    for at in given.nonzero()[0].tolist():
        without = float((before[at] + behind[at + 1][::-1]).max())
        kept[at] = math.exp(min(0.0, max(-1.0, float(won.sum()) - float(won[at]) - without)))
    return given, kept


def _reached(bids: Sequence[Bid], gains: Sequence[Sequence[float]], pool: int) -> list[Floats]:
    """The highest gain of the first 0, 1, 2, … bidders, each by the amount that they have together."""
    reached = [np.zeros(pool + 1)]
    for bid, gained in zip(bids, gains):
        best = reached[-1].copy()
        for size, gain in zip(bid.sizes, gained):
            if size <= pool:
                best[size:] = np.maximum(best[size:], reached[-1][: pool + 1 - size] + gain)
        reached.append(best)
    return reached


_NINE_DIGITS = 9
"""Ratios that agree to this many digits are equal; the rest is rounding."""
_BEHIND = 1e-9


@dataclass(frozen=True)
class Themis:
    """Auction free GPUs among the jobs with the worst finish-time fairness; winners hold them for a lease.

    Of the jobs without a lease, the fraction `visible` with the highest ρ bids with its 1/ρ at the end of a lease, and the
    division is proportionally fair. Payments are cut from leases. What no bidder can use goes to the other jobs, the worst off
    first. An elastic job may get fewer workers than it requests."""

    paper: ClassVar[str] = "Themis §3–4 (Mahajan et al., NSDI'20)"
    visible: float = 0.2  # fraction of the jobs that may bid, those with the worst finish-time fairness
    lease_s: float = 1200.0  # seconds for which a winner holds its GPUs
    payments: bool = True  # a winner pays for the harm to other jobs with a shorter lease

    def __post_init__(self) -> None:
        require(0 < self.visible <= 1, "policy themis", "a fraction above 0, up to 1", "visible", self.visible)
        require(0 < self.lease_s < math.inf, "policy themis", "seconds above 0", "lease_s", self.lease_s)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs = view.jobs
        if not len(jobs):
            return Selection.empty(), memo
        leased = _leased_until(view, memo)
        table = _Table(view)
        held = jobs.running & (leased > view.time)
        bound = table.keep(held if view.protected is None else held | view.protected)
        order = _worst_first(view, ~bound & (view.rates.fastest > 0))
        bidders = order[: math.ceil(self.visible * len(order) - _BEHIND)]
        pool = sum(table.free)
        given, kept = partial_allocation(self._bids(view, bidders), pool) if pool else _NOTHING
        for at, workers in zip(bidders.tolist(), given.tolist()):
            table.give(at, workers)
        for at in order.tolist():  # accelerators that no bidder could use, or only on several types at once
            table.give(at, int(jobs.workers[at]))
        for at in (bound & table.elastic).nonzero()[0].tolist():
            table.give(at, int(jobs.workers[at]))
        settled = not table.move_up(order.tolist())

        chosen = table.workers > 0
        short = np.count_nonzero(table.workers[order] < jobs.workers[order]) > 0
        new = chosen & ~bound & (short | ~jobs.running)  # where there is enough for all, a lease that has run out may stand
        if new.any():
            part = np.ones(len(jobs))
            if self.payments:
                part[bidders[: len(kept)]] = kept
            leased = np.where(new, view.time + self.lease_s * part, leased)
            held = chosen & np.isfinite(leased)
            memo = {"jobs": jobs.number[held], "until": leased[held]}
        ends = leased[chosen & (leased > view.time)]
        until = float(ends.min(initial=math.inf)) - _BEHIND if settled else view.time
        return table.selection(until).until(view.protection_ends), memo

    def _bids(self, view: Snapshot, bidders: Ints) -> list[Bid]:
        """The part done at the end of a lease: 1/ρ up to a factor common to all sizes."""
        jobs = view.jobs
        done = (jobs.steps_done / jobs.steps)[bidders]
        gain = (view.rates.fastest / jobs.steps)[bidders] * self.lease_s
        bids, elastic = [], view.elastic[bidders].tolist()
        for asked, before, lease, any_size in zip(jobs.workers[bidders].tolist(), done.tolist(), gain.tolist(), elastic):
            sizes = tuple(range(1, asked + 1)) if any_size else (asked,)
            bids.append(Bid(sizes, tuple(before + lease * size / asked for size in sizes), before))
        return bids


@dataclass(frozen=True)
class ThemisRanking:
    """Run the job with the highest ρ first: the latest finish relative to 1/n of the cluster.

    ρ assumes all requested workers from now on."""

    paper: ClassVar[str] = "Themis (Mahajan et al., NSDI'20) as in Blox Table 7 (Agarwal et al., EuroSys'24)"
    backfill: bool = True  # jobs behind one that does not fit may start before it

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs = view.jobs
        if not len(jobs):
            return Selection.empty(), memo
        fair, fastest = fair_s(view), view.rates.fastest
        ratio = (view.time - jobs.submitted_s + jobs.steps_left / fastest) / fair
        selection = in_order(view, -ratio, backfill=self.backfill, valid_until=math.inf if self.backfill else None)
        if not self.backfill:  # the order of waiting jobs changes too, and the first blocks the others
            return selection, memo
        # A waiting job's ratio grows, a running one's does not fall, unless it is faster than was thought.
        waits = ~selection.chosen(jobs.number)
        falls = float(((jobs.rate / fastest - 1) / fair)[~waits].max(initial=0.0))
        turn = first_crossing(view.time, ratio, waits.nonzero()[0], (1 / fair)[waits] + falls)
        return selection.until(turn), memo


def fair_s(view: Snapshot) -> Floats:
    """The run time of each job, from beginning to end, on its fair part of the cluster as it is now."""
    jobs = view.jobs
    crowd = len(jobs) * jobs.workers / max(1, int(view.capacity.sum()))
    fair: Floats = jobs.steps / view.rates.fastest * np.maximum(1.0, crowd)
    return fair


def so_far(view: Snapshot) -> Floats:
    """ρ of each job if it continues at its mean rate; infinite for a job without progress."""
    jobs = view.jobs
    done = jobs.steps_done / jobs.steps
    elapsed = (view.time - jobs.submitted_s) / fair_s(view)
    ratio: Floats = np.divide(elapsed, done, out=np.full(len(done), math.inf), where=done > 0)
    return ratio


_NOTHING: tuple[Ints, Floats] = (np.empty(0, dtype=np.int64), np.empty(0))


def _leased_until(view: Snapshot, memo: Memo) -> Floats:
    """By job, when its lease ends or ended; minus infinity without one."""
    until = np.full(len(view.jobs), -math.inf)
    if memo:
        known = np.asarray(memo["jobs"], dtype=np.int64)
        here = np.isin(known, view.jobs.number)
        until[view.jobs.position_of(known[here])] = np.asarray(memo["until"], dtype=np.float64)[here]
    return until


def _worst_first(view: Snapshot, which: Bools) -> Ints:
    """Positions by falling ρ. Ties: waiting jobs, last started, larger part of the request, by submission."""
    jobs, at = view.jobs, which.nonzero()[0]
    started = np.where(jobs.running, jobs.run_started_s, math.inf)
    ratio = np.round(so_far(view), _NINE_DIGITS)
    return at[np.lexsort((-(jobs.held / jobs.workers)[at], -started[at], -ratio[at]))]


class _Table:
    """The state of a selection while it is made: free accelerators by type, and the workers of each job."""

    def __init__(self, view: Snapshot) -> None:
        self.view, self.free = view, view.capacity.tolist()
        self.elastic = view.elastic
        self.workers: Ints = np.zeros(len(view.jobs), dtype=np.int64)
        self.types: Ints = np.where(view.jobs.running, view.jobs.type, -1)
        self._preferred, self._row, self._fits = view.rates.preferred_types, view.rates.row.tolist(), view.jobs.fits.tolist()

    def keep(self, bound: Bools) -> Bools:
        """Keep the bound jobs where their type still has enough accelerators; return which were kept."""
        kept = np.zeros(len(bound), dtype=np.bool_)
        for at in bound.nonzero()[0].tolist():
            type_, held = int(self.types[at]), int(self.view.jobs.held[at])
            if self.free[type_] >= held:
                self.free[type_] -= held
                self.workers[at], kept[at] = held, True
        return kept

    def give(self, at: int, workers: int) -> None:
        """Give a job up to this many workers: all at once or, for an elastic job, as many as one type has."""
        missing = workers - int(self.workers[at])
        if missing <= 0:
            return
        elastic = bool(self.elastic[at])
        if self.workers[at]:  # it already has a type
            self._take(at, int(self.types[at]), min(missing, self.free[self.types[at]]) if elastic else 0)
            return
        candidates = sorted(self._by_speed(at), key=lambda type_: type_ != self.types[at])  # present type, then fastest first
        type_ = next((type_ for type_ in candidates if self.free[type_] >= workers), -1)
        if type_ < 0 and elastic:
            type_ = max(candidates, key=lambda type_: self.free[type_], default=-1)
        if type_ >= 0 and self.free[type_]:
            self._take(at, type_, min(workers, self.free[type_]))

    def move_up(self, order: Iterable[int]) -> bool:
        """Move jobs from a slower type to a faster idle one; return whether any moved."""
        moved = False
        for at in order:
            many, type_ = int(self.workers[at]), int(self.types[at])
            better = next((k for k in self._by_speed(at) if k == type_ or self.free[k] >= many), type_)
            if many and better != type_:
                self.free[type_] += many
                self.workers[at] = 0
                self._take(at, better, many)
                moved = True
        return moved

    def selection(self, valid_until: float) -> Selection:
        chosen = self.workers.nonzero()[0]
        numbers = self.view.jobs.numbers_at(chosen)
        return Selection(numbers, self.types[chosen], self.workers[chosen], valid_until=valid_until)

    def _take(self, at: int, type_: int, many: int) -> None:
        self.free[type_] -= many
        self.workers[at] += many
        self.types[at] = type_

    def _by_speed(self, at: int) -> list[int]:
        return [type_ for type_ in self._preferred[self._row[at]] if self._fits[at] >> type_ & 1]
