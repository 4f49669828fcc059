"""What the round mechanism remembers: the allocation, when and for whom it was computed, how much of it has been received, and
the deficits of before. A value that becomes a memo and comes back from one; it decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.allocation import DIGITS, Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.events import Memo
from fairlead.core.holdings import NONE
from fairlead.core.reasons import Code, Reason
from fairlead.core.snapshot import Snapshot

_NOTHING: Floats = np.zeros(0)


@dataclass(frozen=True)
class Ledger:
    """Columns by entry of the allocation. `received` is as of `settled_s`; who has run since then adds to it."""

    allocation: Allocation
    computed_s: float
    known: Ints  # the jobs it was computed for, by number
    capacity: Ints
    facts: int  # how many had been learned about throughputs
    received: Floats  # seconds, by entry
    deficit: Floats  # seconds, by entry, from before this allocation
    running: Ints  # the entries that run since `settled_s`, in the order of their selection
    settled_s: float
    debt_keys: Ints  # deficits of job-type pairs that have no share now
    debts: Floats
    joined: Ints  # who came since and has entries, by number
    own: Memo  # what the allocator remembers

    @classmethod
    def opened(cls, view: Snapshot, allocation: Allocation, own: Memo) -> Ledger:
        nothing = np.zeros(len(allocation))
        known, capacity = view.jobs.number.copy(), view.capacity.copy()
        now, facts = view.time, _facts(view)
        return cls(allocation, now, known, capacity, facts, nothing, nothing, NONE, now, NONE, _NOTHING, NONE, own)

    def reopened(self, view: Snapshot, allocation: Allocation, own: Memo) -> Ledger:
        """A new allocation; what the old one still owed is carried over."""
        fresh = Ledger.opened(view, allocation, own)
        owed = self.deficit + self.allocation.share * (view.time - self.computed_s) - self.received_by(view)
        keys, debts = np.concatenate((_keys(self.allocation), self.debt_keys)), np.concatenate((owed, self.debts))
        alive = among(view.jobs.number, keys >> 35)
        keys, debts = keys[alive], debts[alive].round(3)
        order = keys.argsort(kind="stable")
        keys, debts = keys[order], debts[order]
        if not len(keys):
            return fresh
        wanted = _keys(allocation)
        at = np.minimum(keys.searchsorted(wanted), len(keys) - 1)
        found = keys[at] == wanted
        left = np.ones(len(keys), dtype=np.bool_)
        left[at[found]] = False
        left &= np.abs(debts) > 1e-3
        return replace(fresh, deficit=np.where(found, debts[at], 0.0), debt_keys=keys[left], debts=debts[left])

    def joined_by(self, view: Snapshot, numbers: Ints) -> Ledger:
        """Jobs that came since get an equal part of the time on every type they can use, until the next recomputation."""
        jobs, capacity = view.jobs.of(numbers), view.capacity
        part = min(1.0, float(capacity.sum()) / max(1, int(view.jobs.workers.sum()))) * capacity / max(1, capacity.sum())
        can = (
            (jobs.fits & view.rates.runs_on[view.rates.row[view.jobs.position_of(numbers)]])[:, None] >> np.arange(len(part))
        ) & 1
        can = can * (capacity[None, :] >= jobs.workers[:, None])
        joined = np.sort(np.concatenate((self.joined, numbers)))
        return replace(self._with(Allocation.alone(numbers, can * part[None, :])), joined=joined)

    def with_guests(self, numbers: Ints, types: Ints) -> tuple[Ledger, Ints]:
        """Jobs that use what is left over, as entries without a share; and where these entries stand."""
        guests = Allocation(numbers, np.full(len(numbers), -1, dtype=np.int64), types, np.zeros(len(numbers)))
        mine, wanted = _keys(self.allocation), _keys(guests)
        where, known = _found(mine, wanted)
        new = (~known).nonzero()[0]
        where[new] = len(mine) + np.arange(len(new))
        if not len(new):
            return self, where
        debts = self.debts_of(numbers[new], types[new])
        settled = among(np.sort(wanted[new]), self.debt_keys)  # from here on they stand with the entries
        ledger = replace(self, debt_keys=self.debt_keys[~settled], debts=self.debts[~settled])
        return ledger._with(Allocation(guests.first[new], guests.second[new], types[new], guests.share[new]), debts), where

    def _with(self, more: Allocation, deficit: Floats | None = None) -> Ledger:
        x, nothing = self.allocation, np.zeros(len(more))
        first, second, types = (
            np.concatenate(c) for c in ((x.first, more.first), (x.second, more.second), (x.types, more.types))
        )
        return replace(
            self,
            allocation=Allocation(first, second, types, np.concatenate((x.share, more.share)), x.reasons),
            received=np.concatenate((self.received, nothing)),
            deficit=np.concatenate((self.deficit, nothing if deficit is None else deficit)),
        )

    # Looking.

    def changed(self, view: Snapshot) -> bool:
        """Whether somebody came or went, or a node did, or something was learned, since it was computed."""
        same = np.array_equal(view.jobs.number, self.known) and np.array_equal(view.capacity, self.capacity)
        return not same or self.facts != _facts(view)

    def newcomers(self, view: Snapshot) -> Ints:
        """Who is here and has not been seen, neither by the allocation nor since."""
        number = view.jobs.number
        return number[~among(self.known, number) & ~among(self.joined, number)]

    def standing(self, view: Snapshot, pending: bool) -> Ints:
        """The entries with a share whose jobs are still here."""
        x = self.allocation
        stands: Bools = x.share > 0
        if pending or len(self.joined):  # who joined may have left again, and all is as it was
            stands &= among(view.jobs.number, x.first) & ((x.second < 0) | among(view.jobs.number, x.second))
        return stands.nonzero()[0]

    def received_by(self, view: Snapshot) -> Floats:
        """Seconds received by each entry until now."""
        if not len(self.running) or view.time <= self.settled_s:
            return self.received
        x, received = self.allocation, self.received.copy()
        received[self.running] += _ran(view, x.first[self.running], x.types[self.running], self.settled_s)
        return received

    def owed(self, view: Snapshot, received: Floats) -> Floats:
        """What each job of the view is owed on all types together (less than 0: it has had more than its share)."""
        x, number = self.allocation, view.jobs.number
        owed = self.deficit + x.share * (view.time - self.computed_s) - received
        pairs = (x.second >= 0).nonzero()[0]
        who = np.concatenate((x.first, x.second[pairs], self.debt_keys >> 35))
        seconds = np.concatenate((owed, owed[pairs], self.debts))
        here = among(number, who)
        total = np.bincount(number.searchsorted(who[here]), seconds[here], minlength=len(number)).astype(np.float64)
        return total.round(3)

    def debts_of(self, numbers: Ints, types: Ints) -> Floats:
        """What job-type pairs without a share are owed from before (less than 0: they have used what was left over)."""
        if not len(self.debt_keys):
            return np.zeros(len(numbers))
        wanted = (numbers << 35) | types
        at = np.minimum(self.debt_keys.searchsorted(wanted), len(self.debt_keys) - 1)
        return np.where(self.debt_keys[at] == wanted, self.debts[at], 0.0)

    def runs(self, entries: Ints) -> bool:
        """Whether just these run already."""
        if len(entries) != len(self.running):
            return False
        mine = np.zeros(len(self.received), dtype=np.bool_)
        mine[self.running] = True
        return bool(mine[entries].all())

    def after(self, view: Snapshot, received: Floats, chosen: Ints) -> Ledger:
        """Settled now, with these entries running from here on."""
        return replace(self, received=received, running=chosen, settled_s=view.time)

    # As data.

    def to_memo(self) -> Memo:
        x = self.allocation
        told = {str(number): [reason.by, str(reason.code), dict(reason.facts)] for number, reason in x.reasons.items()}
        columns = {"first": x.first, "second": x.second, "types": x.types, "share": x.share, "reasons": told}
        return {**columns, **{name: getattr(self, name) for name in _FIELDS}}

    @classmethod
    def from_memo(cls, memo: Memo) -> Ledger:
        assert isinstance(memo, Mapping)
        told = {
            int(number): Reason(by, Code(code), tuple(facts.items())) for number, (by, code, facts) in memo["reasons"].items()
        }
        allocation = Allocation(memo["first"], memo["second"], memo["types"], memo["share"], told)
        return cls(allocation, **{name: memo[name] for name in _FIELDS})


_FIELDS = (
    "computed_s",
    "known",
    "capacity",
    "facts",
    "received",
    "deficit",
    "running",
    "settled_s",
    "debt_keys",
    "debts",
    "joined",
    "own",
)


def _facts(view: Snapshot) -> int:
    return len(view.learned)


def among(numbers: Ints, wanted: Ints) -> Bools:
    """Which of the wanted are among these numbers, which ascend."""
    if not len(numbers):
        return np.zeros(len(wanted), dtype=np.bool_)
    there: Bools = numbers[np.minimum(numbers.searchsorted(wanted), len(numbers) - 1)] == wanted
    return there


def _keys(x: Allocation) -> Ints:
    """Job, partner and type as one number."""
    return (x.first << 35) | ((x.second + 1) << 7) | x.types


def _found(keys: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """Where the wanted keys stand, and whether they do."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
    order = keys.argsort(kind="stable")
    at = order[np.minimum(keys[order].searchsorted(wanted), len(keys) - 1)]
    return at, keys[at] == wanted


def _ran(view: Snapshot, numbers: Ints, types: Ints, since_s: float) -> Floats:
    """Seconds that jobs have run on these types since then, as far as they still do."""
    jobs = view.jobs
    at = np.minimum(jobs.number.searchsorted(numbers), len(jobs) - 1)
    there = (jobs.number[at] == numbers) & (jobs.type[at] == types) & (jobs.held[at] > 0)
    ran: Floats = np.where(there, view.time - np.maximum(since_s, jobs.run_started_s[at]), 0.0)
    return ran.round(DIGITS)
