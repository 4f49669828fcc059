"""Gavel's round mechanism (§5, Algorithm 1): the job that has received the smallest part of its allocated time goes first.

f_mj is the fraction of the time since the last recomputation that job (or pair) m has spent on type j. Its priority is X_mj /
f_mj. In every round entries go by priority; ties go by deficit, then by share, then by submission. A job runs once a round, and
a gang that does not fit is passed over. Free accelerators that no share can use are backfilled: the waiting job that is owed
most gets them, on its fastest free type.

The paper takes f_mj = t_mj / Σ_m' t_m'j, with which a job that is alone on a type would stay on its largest share for ever.
Here the denominator is the time since the recomputation, which all types share. All state is in the memo."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal

import numpy as np

from fairlead.core.allocation import DIGITS, Allocation, AllocationPending
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import NO, ZERO, rounded
from fairlead.core.device_map import NONE
from fairlead.core.errors import InputError, require
from fairlead.core.events import Memo
from fairlead.core.plan import LATE_S, Selection
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocator, known_changes_s
from fairlead.policies.allocation.mechanism.round_ledger import RoundLedger, among


@dataclass(frozen=True)
class TakenEntries:
    """The entries that run, in their order; the free accelerators by type; and which jobs are busy."""

    entries: Ints
    free: list[int]
    busy: Bools


def take_by_priority(
    keys: Sequence[Floats | Ints], jobs: Ints, partners: Ints, types: Ints, workers: Ints, capacity: Ints
) -> TakenEntries:
    """Take entries by descending keys, each where its type has room and none of its jobs is busy. The last key counts most (as
    in `lexsort`), then the position. `jobs` and `partners` (-1: none) are positions in `workers`."""
    free, busy = capacity.tolist(), bytearray(len(workers) + 1)  # the last position means no job
    chosen: list[Ints] = []
    paired = len(partners) > 0 and partners.item(partners.argmax()) >= 0
    left, wants = sum(free), workers[jobs]
    # Sort only as many entries at a time as could fill the cluster; a job with an entry on every type can use only one of them.
    size = left if len(jobs) <= 2 * left else left * max(1, len(jobs) // max(1, int(workers.sum())))
    order, waiting = _highest_entries(keys, None, size)
    while left and len(order):
        others: Iterable[int] = partners[order].tolist() if paired else repeat(-1)
        columns = (column[order].tolist() for column in (jobs, types, wants))
        taken: list[int] = []
        for place, job, type_, want, other in zip(range(len(order)), *columns, others):
            if busy[job] or free[type_] < want or busy[other]:
                continue
            free[type_] -= want
            left -= want
            busy[job] = 1
            if other >= 0:
                busy[other] = 1
            taken.append(place)
            if not left:
                break
        chosen.append(order[taken])
        if not left or waiting is None:
            break
        # Where gangs leave a few accelerators free, few entries of a long queue can use them.
        waiting &= wants <= np.array(free)[types]
        waiting &= ~np.frombuffer(busy, dtype=np.bool_)[jobs]
        order, waiting = _highest_entries(keys, waiting, size)
    entries = np.concatenate(chosen) if chosen else NONE
    return TakenEntries(entries, free, np.frombuffer(busy, dtype=np.bool_)[:-1])


def _highest_entries(keys: Sequence[Floats | Ints], waiting: Bools | None, size: int) -> tuple[Ints, Bools | None]:
    """The `size` waiting entries (None: all) with the highest keys, in order; and the mask of the entries after these."""
    key, behind = keys[-1], None
    entries = None if waiting is None else waiting.nonzero()[0]
    mine = key if entries is None else key[entries]
    if len(mine) > 2 * size:
        last = len(mine) - 1 - size
        least = np.partition(mine, last)[last]
        ahead = (mine >= least).nonzero()[0]
        entries = ahead if entries is None else entries[ahead]
        behind = key < least
        if waiting is not None:
            behind &= waiting
    if entries is None:
        return np.lexsort([-key for key in keys]), None
    return entries[np.lexsort([-key[entries] for key in keys])], behind


UNSERVED_PRIORITY = 1e9
"""The priority of a share of which nothing has been received yet, per unit of share: before all others."""

LONGEST_S = 1e9

REVISIT_S = 360.0
"""Length of a turn when there are no rounds."""

STICKINESS = {"priority": 1.0, "ties": 0.0}
"""By `carried`, how many rounds more a running job counts as owed."""

MOST_STICKY = 1000.0


@dataclass(frozen=True)
class RoundMechanism:
    """Realize time fractions round by round, by priority; recompute them when jobs or nodes come or leave.

    Recomputations are at least `min_interval_s` apart. With `max_interval_s` there is also one where nothing has changed for
    that long (Gavel §3); by default only for policies that learn from what ran, as others would answer the same. A policy may
    also name times of its own, such as changes of prices (`changes_s`). Until the next
    one, `newcomers` get an equal `share`, may backfill (`leftovers`), or `wait`. `work_conserving=false` turns backfill off.
    `types` are filled `together` by priority, `in-order` one after the other as the cluster names them, or in an order
    `shuffled` every round by `seed`. One after the other, the rest of a type is backfilled before the next type is filled.
    Every entry starts as if it had received `prior_s` seconds (default: half a round); otherwise the smallest unserved share
    would go before all others. `lease_s` is the length of a lease: only seconds of whole steps within a lease count as
    received; 0 counts every second. `carried` says where deficits from before a recomputation count: in the `priority`, or only
    between equal priorities (`ties`). With `ties`, jobs with small shares starve where jobs arrive or leave in most rounds. A
    running entry counts as owed `stickiness` rounds more, without which deficits would move jobs in nearly every round.

    Gavel's simulator is `min_interval_s=1920, newcomers=wait, lease_s=360` with `types=in-order` for heterogeneity-aware
    policies and `types=shuffled` for agnostic ones."""

    min_interval_s: float = 0.0  # recompute fractions at most this often, in seconds
    max_interval_s: float | None = None  # recompute fractions at least this often; 0: only at changes; default: by policy
    newcomers: Literal["share", "leftovers", "wait"] = "share"
    """Until then, new jobs get an equal share of every type, only GPUs that are left over, or wait."""
    work_conserving: bool = True  # GPUs that are left over go to waiting jobs
    types: Literal["together", "in-order", "shuffled"] = "together"
    """Fill types together by priority, in the order of the cluster, or shuffled every round."""
    prior_s: float | None = None
    """Seconds that count as received from the start, so that the smallest fraction does not go first; default: half a round."""
    lease_s: float = 0.0  # above 0: of each lease of this length, only seconds of whole steps count as received
    seed: int = 0  # seed of the random draws
    carried: Literal["priority", "ties"] | None = None
    """A deficit from before the last recomputation counts in the priority, or only decides ties; default: `ties` with
    `newcomers=wait`, as in Gavel's simulator, and otherwise `priority`."""
    stickiness: float | None = None
    """A running job counts as owed this many rounds more, so that fewer jobs move; default: 1, or 0 with `carried=ties`."""
    # The last memo with its ledger: cached, so that it need not be rebuilt.
    _ledger_cache: list[tuple[Memo, RoundLedger]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("min_interval_s", "max_interval_s", "prior_s", "lease_s"):
            value = getattr(self, name) or 0.0
            require(0 <= value <= LONGEST_S, "mechanism gavel-rounds", f"seconds from 0 to {LONGEST_S:g}", name, value)
        sticky = self.stickiness or 0.0
        require(0 <= sticky <= MOST_STICKY, "mechanism gavel-rounds", f"rounds from 0 to {MOST_STICKY:g}", "stickiness", sticky)
        if 0 < self.lease_s < 1:
            raise InputError("mechanism gavel-rounds", "0, or at least a second", field="lease_s", value=self.lease_s)

    def select(self, allocator: Allocator, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
        changes_s = known_changes_s(allocator, view)
        ledger, fresh, pending = self._ledger(allocator, view, memo, changes_s)
        next_change_s = _next_s(changes_s, view.time)
        by_type = self.work_conserving and self.types != "together"  # backfill each type before the next is filled
        if by_type:
            ledger = self._with_all_jobs(ledger, view)
        received = ledger.received_by(view, self.lease_s)
        eligible = ledger.eligible_entries(view, pending, backfill=by_type)
        taken = self._by_priority(ledger, view, eligible, received, ledger.rows(view, pending))
        numbers, types, others_wait = (NONE, NONE, False) if by_type else self._backfill(ledger, view, received, taken)
        chosen = taken.entries
        valid_until: float | None = None
        if len(chosen) == len(eligible) and not others_wait and not (self.lease_s and len(numbers)):
            # All shares run and no backfilled job must yield: valid until an event, or until recomputation is allowed.
            valid_until = max(view.time, ledger.computed_s + self.min_interval_s) if pending else self._expires_s(ledger)
            valid_until = min(valid_until, next_change_s)
        if len(numbers):
            ledger, backfill = ledger.with_backfill(numbers, types)
            chosen = np.concatenate((chosen, backfill))
            received = np.concatenate((received, np.zeros(len(ledger.received) - len(received))))
        if fresh or not ledger.runs(chosen):
            ledger = ledger.after(view, received, chosen)
            memo = ledger.to_memo()
            self._ledger_cache[:] = [(memo, ledger)]
        awaited = pending and self._is_due(ledger, view)  # being computed: ask again soon
        revisit = view.time if awaited else min(view.time + REVISIT_S, next_change_s)
        return _selection(view, ledger.allocation, chosen, valid_until, revisit), memo

    def _ledger(
        self, allocator: Allocator, view: Snapshot, memo: Memo, changes_s: Sequence[float]
    ) -> tuple[RoundLedger, bool, bool]:
        """The allocation, recomputed if due; whether it is new; and whether a change is still to be taken into account."""
        ledger = None if memo is None else self._read(memo)
        same = ledger is not None and not ledger.changed(view) and not _next_s(changes_s, ledger.computed_s) <= view.time
        if ledger is not None and same and view.time < self._expires_s(ledger):
            return ledger, False, False
        fresh, pending = ledger is None, True
        if ledger is None or self._is_due(ledger, view):
            try:
                allocation, own = allocator.allocate(view, None if ledger is None else ledger.own)
            except AllocationPending:
                ledger = ledger or RoundLedger.blank(view)
            else:
                if ledger is None:
                    ledger = RoundLedger.opened(view, allocation, own)
                else:
                    renewed = ledger.refreshed if same else ledger.reopened
                    ledger = renewed(view, allocation, own, self.lease_s)
                if allocation.moment is not None and _next_s(changes_s, allocation.moment.time) <= view.time:  # a change since
                    ledger = ledger.with_changes(capacity=np.zeros_like(ledger.capacity))
                fresh, pending = True, allocation.moment is not None and ledger.changed(view)
        if pending and self.newcomers == "share" and len(new := ledger.newcomers(view)):
            return ledger.joined_by(view, new), True, True
        return ledger, fresh, pending

    def _read(self, memo: Memo) -> RoundLedger:
        return next((ledger for known, ledger in self._ledger_cache if known is memo), None) or RoundLedger.from_memo(memo)

    def _is_due(self, ledger: RoundLedger, view: Snapshot) -> bool:
        """Whether a recomputation may happen now; the first one always may."""
        return not len(ledger.known) or view.time >= ledger.computed_s + self.min_interval_s - LATE_S

    def _expires_s(self, ledger: RoundLedger) -> float:
        """When fractions are recomputed although nothing has changed; this settles the ledger, like every change of jobs."""
        if not self.max_interval_s:
            return math.inf
        return ledger.computed_s + self.max_interval_s * ((ledger.settled_s - ledger.computed_s) // self.max_interval_s + 1)

    def _by_priority(
        self, ledger: RoundLedger, view: Snapshot, eligible: Ints, received: Floats, rows: tuple[Ints, Ints]
    ) -> TakenEntries:
        """Algorithm 1: which of the eligible entries run. `rows` are the rows of their jobs."""
        x = ledger.allocation
        columns: list[Any] = [*rows, x.types, x.share, ledger.deficit, received]
        if len(eligible) < len(x):
            columns = [column[eligible] for column in columns]
        mine, partners, types, share, deficit, time_received = columns
        turn_s = view.round_s or REVISIT_S
        prior_s = turn_s / 2 if self.prior_s is None else self.prior_s
        time_received = time_received + prior_s
        due = share * (view.time - ledger.computed_s + prior_s)
        carried = self.carried or ("ties" if self.newcomers == "wait" else "priority")
        if sticky := STICKINESS[carried] if self.stickiness is None else self.stickiness:
            credit = np.zeros(len(x))
            credit[ledger.running] = sticky * turn_s
            deficit = deficit + credit[eligible]
        if carried == "priority":
            due, time_received = due + np.maximum(deficit, ZERO), time_received - np.minimum(deficit, ZERO)
        if prior_s > 0:
            priority = due / time_received
        else:
            priority = np.divide(due, time_received, out=share * UNSERVED_PRIORITY, where=time_received > 0)
        keys: list[Floats | Ints] = [share, deficit, rounded(priority, DIGITS)]
        if self.types != "together":
            keys.append(-self._type_order(view)[types])
        taken = take_by_priority(keys, mine, partners, types, view.jobs.workers, view.capacity)
        return TakenEntries(eligible[taken.entries], taken.free, taken.busy)

    def _with_all_jobs(self, ledger: RoundLedger, view: Snapshot) -> RoundLedger:
        """Add an entry for every type that a job can use, with or without a share."""
        jobs, rates = view.jobs, view.rates
        usable = (jobs.fits & rates.runs_on[rates.row])[:, None] >> np.arange(len(view.capacity)) & 1
        if self.newcomers == "wait":
            usable *= among(ledger.known, jobs.number)[:, None]
        row, types = usable.nonzero()
        return ledger.with_backfill(jobs.number[row], types)[0]

    def _type_order(self, view: Snapshot) -> Ints:
        """The position of each type in the order in which types are filled."""
        count = len(view.capacity)
        return stream(self.seed, "turns", repr(view.time)).permutation(count) if self.types == "shuffled" else np.arange(count)

    def _backfill(self, ledger: RoundLedger, view: Snapshot, received: Floats, taken: TakenEntries) -> tuple[Ints, Ints, bool]:
        """The jobs that backfill, most time owed first; their types; and whether more jobs could backfill."""
        free = taken.free
        if not self.work_conserving or not any(free):
            return NONE, NONE, False
        jobs, rates = view.jobs, view.rates
        may = ~taken.busy & (jobs.workers <= max(free))
        if self.newcomers == "wait":
            may &= among(ledger.known, jobs.number)
        at = may.nonzero()[0]
        if not len(at):
            return NONE, NONE, False
        workers, classes = jobs.workers[at], rates.row[at]
        sizes = range(workers.item(workers.argmax()) + 1)
        room = [sum(1 << type_ for type_, left in enumerate(free) if left >= want) for want in sizes]  # on which types, as bits
        usable = jobs.fits[at] & rates.runs_on[classes] & np.array(room)[workers]
        able = usable.nonzero()[0]
        if len(able) > 1:
            able = able[(-ledger.owed(view, received, at[able])).argsort(kind="stable")]
        rows: list[int] = []
        types: list[int] = []
        least = min(workers[able].tolist(), default=0)
        columns = (column[able].tolist() for column in (at, workers, classes, usable))
        for row, want, of, can in zip(*columns):
            if not (usable_types := can & room[want]):
                continue
            on = max((type_ for type_ in range(len(free)) if usable_types >> type_ & 1), key=rates.alone[of].item)
            free[on] -= want
            rows.append(row)
            types.append(on)
            for size in range(free[on] + 1, len(room)):
                room[size] &= ~(1 << on)
            if not room[least]:
                break
        return jobs.number[np.array(rows, dtype=np.int64)], np.array(types, dtype=np.int64), len(rows) < len(able)


def _next_s(times: Sequence[float], after_s: float) -> float:
    at = bisect_right(times, after_s)
    return times[at] if at < len(times) else math.inf


def _selection(view: Snapshot, x: Allocation, chosen: Ints, valid_until: float | None, revisit: float) -> Selection:
    jobs, second, types = x.first[chosen], x.second[chosen], x.types[chosen]
    combination = None
    paired = (second >= NO).nonzero()[0]
    if len(paired):
        combination = np.concatenate((np.arange(len(jobs)), paired))
        jobs, types = np.concatenate((jobs, second[paired])), np.concatenate((types, types[paired]))
    at = view.jobs.number.searchsorted(jobs)
    jobs, workers = view.jobs.numbers_at(at), view.jobs.workers[at]
    if combination is None:
        return Selection.of(jobs, types, workers, valid_until, None, revisit=revisit, reasons=x.reasons)
    return Selection(jobs, types, workers, combination, valid_until=valid_until, revisit=revisit, reasons=x.reasons)
