"""Fair share, as in Slurm's priority plug-in: F = 2^(−U / S), and the highest goes first.

Accounts are ordered by F, then the accounts below each (`a/b` below `a`), then the users of an account, then their jobs by
submission (Slurm's Fair Tree). S is the share: the weight over the sum of the weights of all siblings. U is the part of recent
GPU time in that of the account above, or of the cluster. GPU time is forgotten with a half-life.

The memo has the GPU time of each user, and the jobs that were selected then. It changes only when these change, so quiet rounds
can be skipped. A job that has ended counts until the decision after its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import significant
from fairlead.core.errors import require
from fairlead.core.events import Memo
from fairlead.core.job import MAX_WEIGHT, MIN_WEIGHT, account_levels
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.ranking.base import in_order

_ACCOUNT = 1 << 32  # a holder's code is that of its account times this, plus that of its user
_FORGOTTEN_S = 1e-3  # GPU-seconds


@dataclass(frozen=True)
class FairShare:
    """Run jobs of users with the least recent GPU time for their share first."""

    paper: ClassVar[str] = "Slurm's multifactor priority plug-in (Fair Tree)"
    half_life_s: float = 604_800.0  # GPU time of a user counts half after this many seconds
    users: Mapping[str, float] = field(default_factory=dict)  # weights of users in their accounts; others have weight 1
    accounts: Mapping[str, float] = field(default_factory=dict)  # weights of accounts among their siblings; default: 1
    backfill: bool = True  # jobs behind one that does not fit may start before it
    preempt: bool = False  # jobs may be preempted for jobs that come before them in the order

    def __post_init__(self) -> None:
        where = "policy fair-share"
        require(0 < self.half_life_s < math.inf, where, "a number above 0", "half_life_s", self.half_life_s)
        for name in ("users", "accounts"):
            for who, weight in getattr(self, name).items():
                expected = f"a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
                require(MIN_WEIGHT <= weight <= MAX_WEIGHT, where, expected, f"{name}.{who}", weight)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs = view.jobs
        mine = jobs.account * _ACCOUNT + jobs.user
        holders, used, interrupted = self._used(view, mine, memo)
        quiet = self.backfill and not self.preempt  # no waiting job fits then, in any order
        levels = np.stack(self.exponents(view, holders, used), axis=1)
        _, rank = np.unique(levels, axis=0, return_inverse=True)
        key = rank.reshape(-1)[holders.searchsorted(mine)]
        until = math.inf if quiet else None
        selection = in_order(view, key, backfill=self.backfill, preempt=self.preempt, valid_until=until)
        if self.preempt:
            selection = replace(selection, revisit=view.time + self.half_life_s / 100)
        order = selection.jobs.argsort()
        chosen, gpus = selection.jobs[order], selection.workers[order]
        same = memo and np.array_equal(memo["jobs"], chosen) and np.array_equal(memo["gpus"], gpus)
        if (same and not interrupted) or not (memo or len(jobs)):
            return selection, memo
        at = jobs.position_of(chosen)
        known = (used >= _FORGOTTEN_S) | np.isin(holders, mine)
        return selection, {
            "time": view.time,
            "holders": holders[known],
            "used": significant(used[known]),
            "jobs": chosen,
            "gpus": gpus,
            "of": mine[at],
            "service": jobs.accelerator_s[at],
        }

    def exponents(self, view: Snapshot, holders: Ints, used: Floats) -> tuple[Floats, ...]:
        """By holder, U / S of its account at every level of the tree, and of its user. `used` is recent GPU time."""
        accounts, of = np.unique(holders // _ACCOUNT, return_inverse=True)
        weights = np.array([self.users.get(view.names.users[code], 1.0) for code in (holders % _ACCOUNT).tolist()])
        found: list[Floats] = []
        above = np.zeros(len(holders), dtype=np.int64)  # by holder, the number of its account at the level before
        for level in account_levels([view.names.accounts[code] for code in accounts.tolist()]):
            place = {name: at for at, name in enumerate(dict.fromkeys(level))}
            mine = np.array([place[name] for name in level], dtype=np.int64)[of]
            of_accounts = np.array([self.accounts.get(name, 1.0) for name in place])
            totals = np.bincount(mine, used, minlength=len(place))
            whole = np.maximum(totals, _FORGOTTEN_S)
            account = np.empty(len(place))
            for parent in np.unique(above).tolist():
                some = np.unique(mine[above == parent])
                account[some] = totals[some] / whole[some].sum() * of_accounts[some].sum() / of_accounts[some]
            found.append(significant(account)[mine])
            above = mine
        user = used / whole[above] * np.bincount(above, weights, minlength=len(whole))[above] / weights
        return (*found, significant(user))

    def _used(self, view: Snapshot, mine: Ints, memo: Memo) -> tuple[Ints, Floats, bool]:
        """Users in accounts with their recent GPU time, and whether a selected job was interrupted since the memo."""
        jobs, now = view.jobs, view.time
        if not memo:  # also after a switch of the scheduler: what live jobs have used is known
            holders, of = np.unique(mine, return_inverse=True)
            return holders, np.bincount(of, jobs.accelerator_s, minlength=len(holders)).astype(np.float64), False
        since, numbers, gpus = float(memo["time"]), np.asarray(memo["jobs"]), np.asarray(memo["gpus"])
        holders = np.union1d(memo["holders"], mine)
        used = np.zeros(len(holders))
        used[holders.searchsorted(memo["holders"])] = np.asarray(memo["used"]) * self._left(now - since)
        end = np.full(len(numbers), now)
        ran = now - since + np.zeros(len(numbers))
        live = np.isin(numbers, jobs.number)
        at = jobs.position_of(numbers[live])
        waits = ~jobs.running[at]
        end[live] = np.where(waits, np.clip(jobs.waiting_since_s[at], since, now), now)
        ran[live] = (jobs.accelerator_s[at] - np.asarray(memo["service"])[live]) / gpus[live]
        weight = self.half_life_s / math.log(2) * (self._left(now - end) - self._left(now - np.maximum(since, end - ran)))
        used += np.bincount(holders.searchsorted(memo["of"]), gpus * weight, minlength=len(holders))
        return holders, used, bool((waits & (jobs.waiting_since_s[at] > since)).any())

    def _left(self, age_s: float | Floats) -> Floats:
        """How much of GPU time of this age counts."""
        return np.exp2(-np.asarray(age_s) / self.half_life_s)
