"""The state of the round mechanism: the allocation, when and for which jobs it was computed, the time received, and deficits of
earlier allocations. It is stored as a memo. It makes no decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from fairlead.core.allocation import DIGITS, Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import NO_JOB, ZERO, as_scalar_array, rounded
from fairlead.core.device_map import NONE
from fairlead.core.events import Memo
from fairlead.core.plan import LATE_S, unchecked
from fairlead.core.reasons import Code, Reason
from fairlead.core.snapshot import Snapshot

_NOTHING: Floats = np.zeros(0)
_BACKFILL: Floats = np.array(-1.0)  # below any share: entries without a share count, too
_A_FEW = 8  # up to this many keys are searched one by one, without sorting
_CLOSE = 64  # up to this many numbers per wanted number, a row of bits costs less than a search


@dataclass(frozen=True)
class RoundLedger:
    """Columns by entry of the allocation. `received` is as of `settled_s`; running entries have received more since then."""

    allocation: Allocation
    computed_s: float
    known: Ints  # the jobs it was computed for, by number
    capacity: Ints
    facts: int  # the number of observed throughputs and changed batch sizes
    received: Floats  # seconds, by entry
    deficit: Floats  # seconds, by entry, from before this allocation
    running: Ints  # the entries that run since `settled_s`, in the order of their selection
    settled_s: float
    debt_keys: Ints  # deficits of job-type pairs that have no share now
    debts: Floats
    joined: Ints  # jobs that came since and have entries, by number
    own: Memo  # the allocator's memo

    @classmethod
    def opened(cls, view: Snapshot, allocation: Allocation, own: Memo) -> RoundLedger:
        nothing, now = np.zeros(len(allocation)), view.time
        seen = allocation.moment or view
        known, capacity, facts = seen.jobs.number.copy(), seen.capacity.copy(), _facts(seen)
        return cls(allocation, now, known, capacity, facts, nothing, nothing, NONE, now, NONE, _NOTHING, NONE, own)

    @classmethod
    def blank(cls, view: Snapshot) -> RoundLedger:
        """The ledger before the first allocation exists: all jobs are newcomers."""
        return cls.opened(view, Allocation(NONE, NONE, NONE, _NOTHING), None).with_changes(known=NONE)

    def reopened(self, view: Snapshot, allocation: Allocation, own: Memo, lease_s: float) -> RoundLedger:
        """Open a ledger for a new allocation, and carry over the deficits of the old one."""
        x, owed = self.allocation, self.deficit + self.allocation.share * (view.time - self.computed_s)
        keys = np.concatenate((_keys(x), self.debt_keys))
        here = _are_here(view, *_jobs(keys))
        debts = rounded(np.concatenate((owed - self.received_by(view, lease_s), self.debts))[here], 3)
        keys = keys[here]
        if np.count_nonzero(keys[1:] < keys[:-1]):
            order = keys.argsort(kind="stable")
            keys, debts = keys[order], debts[order]
        wanted = _keys(allocation)
        at, stays = _sought(wanted, _keys(x)[self.running])
        fresh = RoundLedger.opened(view, allocation, own).with_changes(running=at[stays])
        if len(keys) <= len(wanted) and _same(keys, wanted[: len(keys)]):  # no share moved, except shares of the last arrivals
            return fresh.with_changes(deficit=np.concatenate((debts, np.zeros(len(wanted) - len(keys)))))
        at, found = _found(keys, wanted)
        elsewhere = np.abs(debts) > 1e-3
        elsewhere[at[found]] = False
        deficit = np.where(found, debts[at], 0.0) if len(debts) else np.zeros(len(wanted))
        return fresh.with_changes(deficit=deficit, debt_keys=keys[elsewhere], debts=debts[elsewhere])

    def refreshed(self, view: Snapshot, allocation: Allocation, own: Memo, lease_s: float) -> RoundLedger:
        """Replace an allocation although nothing has changed: the time since then counts on, so that each entry is owed what it
        was; an entry that was not there is owed nothing."""
        since_s, (at, found) = view.time - self.computed_s, _sought(_keys(self.allocation), _keys(allocation))
        owed = np.where(found, (self.allocation.share * since_s - self.received_by(view, lease_s))[at], ZERO)
        fresh = self.reopened(view, allocation, own, lease_s)
        received = rounded(allocation.share * since_s - owed, DIGITS)
        deficit = np.where(found, self.deficit[at], fresh.deficit) + np.maximum(-received, ZERO)  # owed beyond the new share
        received = np.maximum(received, ZERO)
        return fresh.with_changes(computed_s=self.computed_s, received=received, deficit=deficit)

    def joined_by(self, view: Snapshot, numbers: Ints) -> RoundLedger:
        """Give jobs that arrived since an equal part of the time on every usable type, until the next recomputation."""
        jobs, capacity, rows = view.jobs.of(numbers), view.capacity, view.rates.row[view.jobs.position_of(numbers)]
        part = min(1.0, float(capacity.sum()) / max(1, int(view.jobs.workers.sum()))) * capacity / max(1, capacity.sum())
        can = (jobs.fits & view.rates.runs_on[rows])[:, None] >> np.arange(len(part)) & 1
        can = can * (capacity[None, :] >= jobs.workers[:, None])
        more = Allocation.alone(numbers, can * part[None, :])
        return self._with(more, np.zeros(len(more)), joined=np.sort(np.concatenate((self.joined, numbers))))

    def with_backfill(self, numbers: Ints, types: Ints) -> tuple[RoundLedger, Ints]:
        """Add entries without a share for jobs that backfill, and return the positions of these entries."""
        mine, wanted = _keys(self.allocation), (numbers << 35) | types
        where, known = _sought(mine, wanted)
        new = (~known).nonzero()[0]
        if not len(new):
            return self, where
        where[new] = len(mine) + np.arange(len(new))
        backfill = Allocation(numbers[new], NO_JOB.repeat(len(new)), types[new], np.zeros(len(new)))
        changes: dict[str, object] = {}
        if len(unknown := backfill.first[~among(self.known, backfill.first)]):
            changes["joined"] = np.union1d(self.joined, unknown)
        at, owed = _found(self.debt_keys, wanted[new])
        if not np.count_nonzero(owed):
            return self._with(backfill, np.zeros(len(new)), **changes), where
        stays = np.ones(len(self.debts), dtype=np.bool_)
        stays[at[owed]] = False  # from now on the entries hold these deficits
        changes.update(debt_keys=self.debt_keys[stays], debts=self.debts[stays])
        return self._with(backfill, np.where(owed, self.debts[at], ZERO), **changes), where

    def _with(self, more: Allocation, deficit: Floats, **changes: object) -> RoundLedger:
        x = self.allocation
        return self.with_changes(
            allocation=unchecked(
                Allocation,
                first=np.concatenate((x.first, more.first)),
                second=np.concatenate((x.second, more.second)),
                types=np.concatenate((x.types, more.types)),
                share=np.concatenate((x.share, more.share)),
                reasons=x.reasons,
                moment=None,
                _keys=np.concatenate((_keys(x), _keys(more))),
            ),
            received=np.concatenate((self.received, np.zeros(len(more)))),
            deficit=np.concatenate((self.deficit, deficit)),
            **changes,
        )

    def with_changes(self, **changes: object) -> RoundLedger:
        """The same with some fields replaced: a faster `dataclasses.replace`."""
        other = object.__new__(RoundLedger)
        other.__dict__.update(self.__dict__, **changes)
        return other

    # Queries.

    def changed(self, view: Snapshot) -> bool:
        """Whether a job or a node came or left, a throughput changed, or co-located jobs were separated, since the allocation
        was computed."""
        same = _same(view.jobs.number, self.known) and _same(view.capacity, self.capacity)
        return not same or self.facts != _facts(view) or bool(_separated(view, self.allocation).any())

    def newcomers(self, view: Snapshot) -> Ints:
        """The jobs that neither the allocation nor `joined` covers."""
        number = view.jobs.number
        return number[~among(self.known, number) & ~among(self.joined, number)]

    def eligible_entries(self, view: Snapshot, pending: bool, *, backfill: bool) -> Ints:
        """The entries with a share whose jobs are still present; with `backfill` also entries without a share."""
        x = self.allocation
        eligible: Bools = x.share > (_BACKFILL if backfill else ZERO)
        if pending or len(self.joined):  # a job that joined may have left again
            eligible &= _are_here(view, x.first, x.second)
        if view.separated:
            eligible &= ~_separated(view, x)
        return eligible.nonzero()[0]

    def rows(self, view: Snapshot, pending: bool) -> tuple[Ints, Ints]:
        """By entry, the rows of its job and of the co-located job (-1: none); cached while jobs are the allocation's."""
        known: tuple[Ints, Ints] | None = self.__dict__.get("_rows")
        x, number = self.allocation, view.jobs.number
        others = pending or len(self.joined) > 0  # jobs differ from those it was computed for
        if others or known is None or len(known[0]) != len(x):
            known = number.searchsorted(x.first), x.second
            if x.paired:
                known = known[0], np.where(x.second >= 0, number.searchsorted(x.second), -1)
            if not others:
                self.__dict__["_rows"] = known
        return known

    def received_by(self, view: Snapshot, lease_s: float) -> Floats:
        """Seconds received by each entry until now; of each lease only the seconds of whole steps."""
        if not len(self.running) or view.time <= self.settled_s:
            return self.received
        x, received = self.allocation, self.received.copy()
        received[self.running] += _ran(view, x.first[self.running], x.types[self.running], self.settled_s, lease_s)
        return received

    def owed(self, view: Snapshot, received: Floats, rows: Ints) -> Floats:
        """Seconds owed to the jobs in these ascending rows of the view, over all types; below 0 is time beyond the share."""
        x, wanted = self.allocation, view.jobs.number[rows]
        numbers, seconds = [x.first], [self.deficit + x.share * (view.time - self.computed_s) - received]
        if x.paired:
            numbers, seconds = [x.first, x.second], seconds * 2
        if len(self.debts):
            first, second = _jobs(self.debt_keys)
            numbers, seconds = [*numbers, first, second], [*seconds, self.debts, self.debts]  # -1 where there is no partner
        jobs = np.concatenate(numbers)
        at = np.minimum(wanted.searchsorted(jobs), len(wanted) - 1)
        mine = wanted[at] == jobs
        return rounded(np.bincount(at, np.concatenate(seconds) * mine, len(wanted)).astype(np.float64), 3)

    def runs(self, entries: Ints) -> bool:
        """Whether exactly these entries run already."""
        if len(entries) != len(self.running):
            return False
        mine = np.zeros(len(self.received), dtype=np.bool_)
        mine[self.running] = True
        return bool(mine[entries].all())

    def after(self, view: Snapshot, received: Floats, chosen: Ints) -> RoundLedger:
        """The ledger settled at this moment, with these entries running from now on."""
        return self.with_changes(received=received, running=chosen, settled_s=view.time)

    # As data.

    def to_memo(self) -> Memo:
        x = self.allocation
        reasons = {str(number): [reason.by, str(reason.code), dict(reason.facts)] for number, reason in x.reasons.items()}
        columns = {"first": x.first, "second": x.second, "types": x.types, "share": x.share, "reasons": reasons}
        return {**columns, **{name: getattr(self, name) for name in _FIELDS}}

    @classmethod
    def from_memo(cls, memo: Memo) -> RoundLedger:
        assert isinstance(memo, Mapping)
        reasons = {
            int(number): Reason(by, Code(code), tuple(facts.items())) for number, (by, code, facts) in memo["reasons"].items()
        }
        columns = {name: memo[name] for name in ("first", "second", "types", "share")}
        allocation = unchecked(Allocation, **columns, reasons=reasons, moment=None)
        return unchecked(cls, allocation=allocation, **{name: memo[name] for name in _FIELDS})


_FIELDS = tuple(column.name for column in fields(RoundLedger) if column.name != "allocation")


def _same(one: Ints, other: Ints) -> bool:
    """Whether two integer columns are equal; comparing bytes takes a tenth of the time of counting differences."""
    return one.tobytes() == other.tobytes()


def _facts(view: Snapshot) -> int:
    return view.observation_count + view.adaptations.changes


def among(numbers: Ints, wanted: Ints) -> Bools:
    """Which of `wanted` are among the ascending `numbers`. Where these are dense, a lookup in a bit row replaces the search."""
    there: Bools
    if not len(numbers):
        return np.zeros(len(wanted), dtype=np.bool_)
    low, span = int(numbers[0]), int(numbers[-1] - numbers[0]) + 1
    if span > _CLOSE * len(wanted):
        there = numbers[np.minimum(numbers.searchsorted(wanted), len(numbers) - 1)] == wanted
        return there
    marks = np.zeros(span + 2, dtype=np.bool_)  # and one on either side for numbers outside
    marks[numbers - (low - 1)] = True
    there = marks[np.minimum(np.maximum(wanted - (low - 1), 0), span + 1)]
    return there


def _separated(view: Snapshot, x: Allocation) -> Bools:
    """By entry, whether its jobs must not be co-located any more."""
    if not (view.separated and x.paired):
        return np.zeros(len(x), dtype=np.bool_)
    pairs = zip(np.minimum(x.first, x.second).tolist(), np.maximum(x.first, x.second).tolist())
    return np.array([pair in view.separated for pair in pairs], dtype=np.bool_)


def _are_here(view: Snapshot, first: Ints, second: Ints) -> Bools:
    """The entries whose jobs are all present."""
    here = among(view.jobs.number, first)
    if len(second) and second.item(second.argmax()) >= 0:
        here &= (second < 0) | among(view.jobs.number, second)
    return here


def _keys(x: Allocation) -> Ints:
    """Job, partner and type as one number; cached in the allocation."""
    known: Ints | None = x.__dict__.get("_keys")
    if known is None:
        known = x.__dict__["_keys"] = (x.first << 35) | ((x.second + 1) << 7) | x.types
    return known


def _jobs(keys: Ints) -> tuple[Ints, Ints]:
    """The job and the partner (-1: none) of keys as `_keys` makes them."""
    return keys >> 35, (keys >> 7 & (1 << 28) - 1) - 1


def _sought(keys: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """As `_found`, for keys that need not ascend."""
    if len(keys) and len(wanted) <= _A_FEW:
        at = (keys == wanted[:, None]).argmax(axis=1)
        return at, keys[at] == wanted
    order = keys.argsort(kind="stable")
    at, known = _found(keys[order], wanted)
    return order[at] if len(order) else at, known


def _found(keys: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """The positions of the wanted keys among ascending `keys`, and whether each is present."""
    if not len(keys):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
    at = np.minimum(keys.searchsorted(wanted), len(keys) - 1)
    return at, keys[at] == wanted


def _ran(view: Snapshot, numbers: Ints, types: Ints, since_s: float, lease_s: float) -> Floats:
    """Seconds that running jobs have run on these types since then; of each lease only the seconds of whole steps."""
    jobs = view.jobs.runners  # fewer than all jobs in a long queue
    if not len(jobs):
        return np.zeros(len(numbers))
    jobs = jobs.only(np.minimum(jobs.number.searchsorted(numbers), len(jobs) - 1))
    there = (jobs.number == numbers) & (jobs.type == types)
    ran: Floats = (as_scalar_array(view.time) - np.maximum(as_scalar_array(since_s), jobs.run_started_s)) * there
    if lease_s > 0:
        rate = np.where(jobs.rate > ZERO, jobs.rate, 1.0)
        short = np.where(jobs.rate > ZERO, lease_s - np.floor(rate * lease_s) / rate, ZERO)
        ran = ran - (ran + LATE_S) // lease_s * short  # a lease may have begun that late
    return rounded(ran, DIGITS)
