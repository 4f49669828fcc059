"""Gavel's round mechanism (§5): whoever has had least of the time it was allocated goes first.

f_mj is the fraction of the time since the last recomputation that job (or pair) m has spent on type j, and X_mj / f_mj its
priority. In every round entries go by priority, ties by deficit, then by share, then by submission; a job runs once a round,
and a gang that does not fit is passed over. What nobody with a share can use goes to whoever waits, on its fastest free type.

The paper takes f_mj = t_mj / Σ_m' t_m'j. On one type that is the same order, since all have the same denominator. Between types
it is not: a job that is alone on a type has f = 1 there whatever it has received, and would stay on its largest share for ever.
Time since the recomputation is a denominator that all types share.

It must not know how shares are computed; all it remembers is in the memo."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fairlead.core.allocation import DIGITS, Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.holdings import NONE
from fairlead.core.plan import Selection
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocator
from fairlead.rounds.ledger import Ledger, among

FIRST = 1e9
"""The priority of a share of which nothing has been received yet, per unit of share: before all others."""

REVISIT_S = 360.0
"""Without rounds, turns are so long."""


@dataclass(frozen=True)
class Turns:
    """Shares realised round by round, by priority; recomputed when jobs come or go and when nodes do.

    Recomputations are at least `least_interval_s` apart. `newcomers` of the meantime get an agnostic `share`, may use what is
    left over (`leftovers`), or `wait`. `prior_s` counts as received by everybody on every type from the start (half a round of
    six minutes): without it the smallest share of which nothing was received yet would go before all others. `types` are filled
    `together` by priority, `in-order` one after the other as the cluster names them, or in an order `shuffled` every round, by
    `seed`; one after the other, what is left of a type goes to whoever waits before the next is filled. With leases of
    `lease_s`, of each only the seconds of a job's whole steps count as received; 0 counts every second.

    Gavel's simulator is `least_interval_s=1920, newcomers=wait, lease_s=360` with `types=in-order` for policies that know types
    and `types=shuffled` for those that do not.
    """

    least_interval_s: float = 0.0
    newcomers: Literal["share", "leftovers", "wait"] = "share"
    leftovers: bool = True
    types: Literal["together", "in-order", "shuffled"] = "together"
    prior_s: float = 180.0
    lease_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("least_interval_s", "prior_s", "lease_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError("mechanism turns", "seconds from 0 on", field=name, value=value)

    def select(self, allocator: Allocator, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.nobody(), memo
        ledger, fresh = self._ledger(allocator, view, memo)
        pending = ledger.changed(view)
        by_type = self.leftovers and self.types != "together"  # what is left of a type is given away before the next is filled
        if by_type:
            ledger = self._with_everybody(ledger, view)
        received = ledger.received_by(view, self.lease_s)
        standing = ledger.standing(view, pending, guests=by_type)
        chosen, free, busy = self._by_priority(ledger, view, standing, received)
        holds: float | None = None
        if len(chosen) == len(standing):  # every share: until something happens, or what has happened may be reckoned with
            holds = max(view.time, ledger.computed_s + self.least_interval_s) if pending else math.inf
        numbers, types = (NONE, NONE) if by_type else self._left_over(ledger, view, free, busy)
        if len(numbers):
            ledger, guests = ledger.with_guests(numbers, types)
            chosen = np.concatenate((chosen, guests))
            received = np.concatenate((received, np.zeros(len(ledger.received) - len(received))))
        if fresh or not ledger.runs(chosen):
            memo = ledger.after(view, received, chosen).to_memo()
        return _selection(view, ledger.allocation, chosen, holds), memo

    def _ledger(self, allocator: Allocator, view: Snapshot, memo: Memo) -> tuple[Ledger, bool]:
        """The present allocation, computed anew where something has changed and the interval has passed."""
        if memo is None:
            allocation, own = allocator.allocate(view, None)
            return Ledger.opened(view, allocation, own), True
        ledger = Ledger.from_memo(memo)
        if not ledger.changed(view):
            return ledger, False
        if view.time >= ledger.computed_s + self.least_interval_s:
            allocation, own = allocator.allocate(view, ledger.own)
            return ledger.reopened(view, allocation, own, self.lease_s), True
        if self.newcomers == "share" and len(new := ledger.newcomers(view)):
            return ledger.joined_by(view, new), True
        return ledger, False

    def _by_priority(
        self, ledger: Ledger, view: Snapshot, standing: Ints, received: Floats
    ) -> tuple[Ints, list[int], set[int]]:
        """Algorithm 1: the entries that run of those that stand, what is free by type, and who is busy."""
        x = ledger.allocation
        share, types, received = x.share[standing], x.types[standing], received[standing] + self.prior_s
        had = received > 0
        elapsed = view.time - ledger.computed_s + self.prior_s
        priority = np.where(had, share * elapsed / np.where(had, received, 1.0), share * FIRST)
        keys = [-share, -ledger.deficit[standing], -priority.round(DIGITS)]
        if self.types != "together":
            keys.append(self._type_order(view)[types])
        order = standing[np.lexsort(keys)]
        first = x.first[order]
        workers = view.jobs.workers[view.jobs.number.searchsorted(first)]
        free, busy, chosen = view.capacity.tolist(), set[int](), list[int]()
        left = sum(free)
        columns = (order, first, x.second[order], x.types[order], workers)
        for entry, one, two, kind, want in zip(*(column.tolist() for column in columns)):
            if free[kind] < want or one in busy or two in busy:
                continue
            free[kind] -= want
            left -= want
            busy.add(one)
            if two >= 0:
                busy.add(two)
            chosen.append(entry)
            if not left:
                break
        return np.array(chosen, dtype=np.int64), free, busy

    def _with_everybody(self, ledger: Ledger, view: Snapshot) -> Ledger:
        """With an entry for every type that a job can use, with a share or without."""
        jobs, rates = view.jobs, view.rates
        usable = (jobs.fits & rates.runs_on[rates.row])[:, None] >> np.arange(len(view.capacity)) & 1
        if self.newcomers == "wait":
            usable *= among(ledger.known, jobs.number)[:, None]
        row, types = usable.nonzero()
        return ledger.with_guests(jobs.number[row], types)[0]

    def _type_order(self, view: Snapshot) -> Ints:
        """The place of each type in the order in which types are filled."""
        count = len(view.capacity)
        return stream(self.seed, "turns", repr(view.time)).permutation(count) if self.types == "shuffled" else np.arange(count)

    def _left_over(self, ledger: Ledger, view: Snapshot, free: list[int], busy: set[int]) -> tuple[Ints, Ints]:
        """Jobs, and their types, that use what is left: who has had least of it first, on the fastest type that is free."""
        if not self.leftovers or not any(free) or len(busy) == len(view.jobs):
            return NONE, NONE
        jobs, rates = view.jobs, view.rates
        may = among(ledger.known, jobs.number).tolist() if self.newcomers == "wait" else [True] * len(jobs)
        at = np.array([i for i, n in enumerate(jobs.number.tolist()) if n not in busy and may[i]], dtype=np.int64)
        at = at[jobs.workers[at] <= max(free)]
        if not len(at):
            return NONE, NONE
        row = rates.row[at]
        speed = rates.alone[row]
        kind = (-speed).argsort(axis=1, kind="stable").ravel()  # of each job, fastest first
        one, place = at.repeat(len(free)), np.tile(np.arange(len(free)), len(at))
        usable = (jobs.fits[one] >> kind & 1).astype(np.bool_) & (rates.alone[row.repeat(len(free)), kind] > 0)
        one, place, kind = one[usable], place[usable], kind[usable]
        order = np.lexsort((one, place, -ledger.debts_of(jobs.number[one], kind)))
        numbers, types = list[int](), list[int]()
        gone = set[int]()
        columns = (jobs.number[one[order]], kind[order], jobs.workers[one[order]])
        for number, on, want in zip(*(column.tolist() for column in columns)):
            if number not in gone and free[on] >= want:
                free[on] -= want
                gone.add(number)
                numbers.append(number)
                types.append(on)
        return np.array(numbers, dtype=np.int64), np.array(types, dtype=np.int64)


def _selection(view: Snapshot, x: Allocation, chosen: Ints, holds: float | None) -> Selection:
    jobs, second, types = x.first[chosen], x.second[chosen], x.types[chosen]
    combination = None
    paired = (second >= 0).nonzero()[0]
    if len(paired):
        combination = np.concatenate((np.arange(len(jobs)), paired))
        jobs, types = np.concatenate((jobs, second[paired])), np.concatenate((types, types[paired]))
    workers = view.jobs.workers[view.jobs.number.searchsorted(jobs)]
    told: dict[str, Any] = {"combination": combination, "holds_until": holds, "reasons": x.reasons}
    return Selection(jobs, types, workers, revisit=view.time + REVISIT_S, **told)
