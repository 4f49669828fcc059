"""The fairness ledger: GPU time that each user received and deserved, from the events of a journal alone.

It observes a state and changes nothing in it. Times are integer nanoseconds, so sums are exact in any order. A state has a
ledger if its journal is that of a cluster (it has a name); simulations have none. ADR 0071 has the rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from math import isqrt
from typing import Any, Protocol, TypeAlias

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Floats, Ints
from fairlead.core.device_map import DeviceMap
from fairlead.core.job import Job, account_levels
from fairlead.core.snapshot import NameTable

SECOND = 1_000_000_000
WEIGHT_UNIT = 1_000_000  # weights are whole multiples of a millionth
LEAST_WEIGHT, GREATEST_WEIGHT = 0.001, 1e6
DAY_S = 86_400.0

Holder: TypeAlias = tuple[str, str]
"""An account and a user in it."""

_NO_CHANGE = (
    ev.ForecastsRecorded,
    ev.JobReleased,
    ev.JobSubmitted,
    ev.MemoChanged,
    ev.MetricsReported,
    ev.ObservationsRecorded,
    ev.ProgressReported,
    ev.SlowdownExceeded,
)
"""Events that change neither demand nor capacity."""

# 2^(-elapsed / half-life) in whole numbers, so that every machine computes the same.
_BITS, _STEPS = 128, 64
_ONE = 1 << _BITS
_LN2 = sum((_ONE >> k) // k for k in range(1, _BITS + 1))
_ROOTS = [_ONE >> 1]  # 2^(-1), 2^(-1/2), 2^(-1/4), ...
for _ in range(_STEPS):
    _ROOTS.append(isqrt(_ROOTS[-1] << _BITS))


class ObservedState(Protocol):
    """What the ledger reads of a state."""

    time: float
    scheduler: Mapping[str, object]
    capacity: Ints
    live: Ints
    running: Ints
    device_map: DeviceMap
    job_of: dict[int, Job]
    _names: NameTable

    @property
    def columns(self) -> Mapping[str, Any]: ...


def nanoseconds(second: float) -> int:
    """A second of the journal in whole nanoseconds."""
    return round(float(second) * SECOND)


@lru_cache(4096)
def _remembered(elapsed: int, half_life: int) -> int:
    """2^(-elapsed / half_life), as a multiple of 2^-128."""
    whole, rest = divmod(max(elapsed, 0), half_life)
    bits, part = (rest << _STEPS) // half_life, _ONE >> whole
    for place, root in enumerate(_ROOTS[1:], 1):
        if bits >> (_STEPS - place) & 1:
            part = part * root >> _BITS
    return part


def remembered_time(start: int, end: int, now: int, half_life: int) -> int:
    """The time from `start` to `end`, each moment of it weighted by how much of it is remembered `now`."""
    return (_remembered(now - end, half_life) - _remembered(now - start, half_life)) * half_life // _LN2


def max_min_shares(total: int, demands: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Divide `total` by weighted max-min fairness: none gets more than its demand, and a smaller share of the rest only by its
    weight. The shares are whole numbers and sum up to `total`, or to the demand if that is less. What is left after division
    goes to the largest remainders, then to the first."""
    if total >= sum(demands):
        return list(demands)
    shares, left, weight, rest = list(demands), total, sum(weights), list(range(len(demands)))
    while more := [i for i in rest if demands[i] * weight > left * weights[i]]:  # not met by shares of equal weight
        if len(more) == len(rest):
            break
        met = set(rest).difference(more)
        left, weight = left - sum(demands[i] for i in met), weight - sum(weights[i] for i in met)
        rest = more
    parts = {i: divmod(left * weights[i], weight) for i in rest}
    over = left - sum(whole for whole, _ in parts.values())
    for place, i in enumerate(sorted(parts, key=lambda i: -parts[i][1])):
        shares[i] = parts[i][0] + (place < over)
    return shares


@dataclass(frozen=True)
class LedgerRules:
    """How long the ledger remembers, and the weights of accounts and of users in their accounts; others have weight 1."""

    half_life_s: float = 7 * DAY_S
    accounts: Mapping[str, float] = field(default_factory=dict)
    users: Mapping[str, float] = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        """Return what a scheduler file has under `ledger`: nothing if all are defaults."""
        data = {"half_life_s": self.half_life_s, "accounts": dict(self.accounts), "users": dict(self.users)}
        return {name: value for name, value in data.items() if value and value != LedgerRules.half_life_s}

    @cached_property
    def half_life(self) -> int:
        return nanoseconds(self.half_life_s)


def _weights(names: Sequence[str], weights: Mapping[str, float]) -> list[int]:
    return [round(weights.get(name, 1.0) * WEIGHT_UNIT) for name in names]


@dataclass(slots=True)
class LedgerRow:
    """The GPU time of a user in an account, in nanoseconds. What was `recent` counts less the older it is, as of `at`."""

    received: int = 0
    deserved: int = 0
    recent_received: int = 0
    recent_deserved: int = 0
    at: int = 0

    def forget(self, now: int, half_life: int) -> None:
        """Let the recent time age."""
        if now > self.at:
            part = _remembered(now - self.at, half_life)
            self.recent_received = self.recent_received * part >> _BITS
            self.recent_deserved = self.recent_deserved * part >> _BITS
            self.at = now


@dataclass
class FairnessLedger:
    """Received and deserved GPU time by account and user, up to `at`; what runs now is received when it stops."""

    since: int = 0  # nothing before is known
    at: int = 0  # deserved time is counted up to here
    rules: LedgerRules = field(default_factory=LedgerRules)
    rows: dict[Holder, LedgerRow] = field(default_factory=dict)
    available: int = 0  # GPU time of nodes that were up
    demanded: int = 0  # GPU time that there was to deserve: available and in demand, or held while the control plane was down
    counted_twice: int = 0  # received GPU time that was received by another job on the same GPU too
    capacity: int = 0  # GPUs that are up
    demand: dict[Holder, int] = field(default_factory=dict)  # GPUs that admitted jobs request
    outages: list[tuple[int, int]] = field(default_factory=list)  # of the control plane, since the start of a running job
    shared: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # past times on GPUs that are shared, merged

    def observe(self, state: ObservedState, event: ev.Event) -> None:
        """See an event that was applied to the state."""
        if isinstance(event, _NO_CHANGE):
            return
        now = nanoseconds(state.time)
        if isinstance(event, ev.ControlPlaneRestarted):
            self._restarted(state, nanoseconds(event.time if event.stopped_s is None else event.stopped_s), now)
        if isinstance(event, (ev.JournalOpened, ev.SchedulerSwitched)):
            self._settle(now)  # by the rules before
            self.rules = rules_of(state.scheduler)
        demand, capacity = _demand(state), int(state.capacity.sum())
        if demand != self.demand or capacity != self.capacity:
            self._settle(now)
            self.demand, self.capacity = demand, capacity

    def stop(self, state: ObservedState, jobs: Ints, time: Floats) -> None:
        """Count the GPU time of running jobs that stop, each at its own second or all at one; before the state stops them."""
        columns = (state.columns[name][jobs].tolist() for name in ("run_started_s", "held"))
        times: dict[int, tuple[int, int]] = {}
        for number, started_s, gpus, second in zip(jobs.tolist(), *columns, np.broadcast_to(time, jobs.shape).tolist()):
            start, end = max(nanoseconds(started_s), self.since), nanoseconds(second)
            if end <= start:
                continue
            times[number] = start, end
            job, now = state.job_of[number], max(nanoseconds(state.time), end)
            row = self._row((job.account, job.user), now)
            row.received += gpus * (end - start)
            row.recent_received += gpus * remembered_time(start, end, now, self.rules.half_life)
            for down, up in self.outages:  # without a control plane a job deserves what it holds
                if (first := max(start, down)) < (last := min(end, up)):
                    row.deserved += gpus * (last - first)
                    row.recent_deserved += gpus * remembered_time(first, last, now, self.rules.half_life)
                    self.demanded += gpus * (last - first)
        if state.device_map.shared or self.shared:
            self._stop_sharing(state, jobs, times)

    def up_to(self, state: ObservedState, now_s: float) -> FairnessLedger:
        """Return a copy in which all running jobs have received their GPU time up to a second."""
        copy, now = FairnessLedger.load(self.save()), nanoseconds(now_s)
        copy.stop(state, state.running, np.array(now_s))
        copy._settle(now)
        for row in copy.rows.values():
            row.forget(now, self.rules.half_life)
        return copy

    def accounts(self) -> dict[str, LedgerRow]:
        """Return the sums over the users of each account, by name; of a ledger `up_to` a second."""
        sums: dict[str, LedgerRow] = {}
        for account, rows in groupby(sorted(self.rows), key=lambda holder: holder[0]):
            sums[account] = sum_of_rows(self.rows[holder] for holder in rows)
        return sums

    def save(self) -> bytes:
        """Return the ledger as bytes; equal ledgers give equal bytes."""
        rows = [[*holder, *astuple(row)] for holder, row in sorted(self.rows.items())]
        demand = [[*holder, gpus] for holder, gpus in sorted(self.demand.items())]
        plain = {name: getattr(self, name) for name in _PLAIN} | {"rows": rows, "demand": demand}
        plain |= {"rules": self.rules.to_data(), "outages": self.outages, "shared": sorted(self.shared.items())}
        return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def load(cls, data: bytes) -> FairnessLedger:
        """Return the ledger that was saved."""
        plain = json.loads(data)
        ledger = cls(**{name: plain[name] for name in _PLAIN}, rules=LedgerRules(**plain["rules"]))
        ledger.rows = {(account, user): LedgerRow(*values) for account, user, *values in plain["rows"]}
        ledger.demand = {(account, user): gpus for account, user, gpus in plain["demand"]}
        ledger.outages = [(down, up) for down, up in plain["outages"]]
        ledger.shared = {gpu: [(start, end) for start, end in times] for gpu, times in plain["shared"]}
        return ledger

    @classmethod
    def beginning_with(cls, state: ObservedState) -> FairnessLedger:
        """Return a ledger for a state whose earlier events are not known."""
        now = nanoseconds(state.time)
        return cls(now, now, rules_of(state.scheduler), capacity=int(state.capacity.sum()), demand=_demand(state))

    def _row(self, holder: Holder, now: int) -> LedgerRow:
        row = self.rows.get(holder)
        if row is None:
            row = self.rows[holder] = LedgerRow()
        row.forget(now, self.rules.half_life)
        return row

    def _settle(self, until: int) -> None:
        """Count deserved time with the present demand."""
        elapsed, start = until - self.at, self.at
        if elapsed <= 0:
            return
        self.at = until
        self.available += self.capacity * elapsed
        if not self.demand or not self.capacity:
            return
        recent = remembered_time(start, until, until, self.rules.half_life)
        for holder, share in self._shares(elapsed).items():
            row = self._row(holder, until)
            row.deserved += share
            row.recent_deserved += share * recent // elapsed
            self.demanded += share

    def _shares(self, elapsed: int) -> dict[Holder, int]:
        """The GPU time that each user deserves of a time: accounts divide the GPUs, then those below each its share, and
        at last the users of an account."""
        holders = sorted(self.demand)
        levels = [*account_levels([account for account, _ in holders]), [user for _, user in holders]]
        demands = [self.demand[holder] * elapsed for holder in holders]
        divided = [(self.capacity * elapsed, [*range(len(holders))])]  # a share, and the holders that divide it
        for level, names in enumerate(levels):
            weights = self.rules.accounts if level < len(levels) - 1 else self.rules.users
            groups, divided = divided, []
            for total, members in groups:
                below: dict[str, list[int]] = {}
                for at in members:
                    below.setdefault(names[at], []).append(at)
                wanted = [sum(demands[at] for at in part) for part in below.values()]
                divided += zip(max_min_shares(total, wanted, _weights([*below], weights)), below.values())
        found: dict[Holder, int] = {}
        for total, members in divided:  # several where `a` and `a/`, in old journals, are the same account
            parts = max_min_shares(total, [demands[at] for at in members], _weights([str(at) for at in members], {}))
            found |= {holders[at]: share for at, share in zip(members, parts)}
        return found

    def _restarted(self, state: ObservedState, stopped: int, now: int) -> None:
        """From `stopped` to `now` there was no control plane: no user deserves GPUs that no scheduler could give out."""
        self._settle(min(stopped, now))
        if stopped < now:
            started = nanoseconds(state.columns["run_started_s"][state.running].min(initial=state.time))
            self.outages = [(down, up) for down, up in self.outages if up > started] + [(stopped, now)]
        self.at = max(self.at, now)

    def _stop_sharing(self, state: ObservedState, jobs: Ints, times: Mapping[int, tuple[int, int]]) -> None:
        """Count the time that several of these jobs, and of those before them, spent on a GPU together."""
        left = state.device_map.occupancy.tolist()
        owners, places = (column.tolist() for column in state.device_map.places(jobs))
        for number, gpu in zip(owners, places):
            if left[gpu] == 1 and gpu not in self.shared:
                continue
            before = self.shared.get(gpu, [])
            after = _merged(before, times[number]) if number in times else before
            length = times[number][1] - times[number][0] if number in times else 0
            self.counted_twice += length + sum(b - a for a, b in before) - sum(b - a for a, b in after)
            self.shared[gpu] = after
            left[gpu] -= 1
            if not left[gpu]:
                del self.shared[gpu]


def sum_of_rows(rows: Iterable[LedgerRow]) -> LedgerRow:
    """Return the sum of rows of the same time."""
    sums = LedgerRow()
    for row in rows:
        sums.received, sums.deserved = sums.received + row.received, sums.deserved + row.deserved
        sums.recent_received += row.recent_received
        sums.recent_deserved += row.recent_deserved
        sums.at = max(sums.at, row.at)
    return sums


_DEMAND = ("account", "user", "workers", "held")
_PLAIN = ("since", "at", "available", "demanded", "counted_twice", "capacity")


def rules_of(scheduler: Mapping[str, Any]) -> LedgerRules:
    """Return the rules that a scheduler's description has."""
    rules = scheduler.get("ledger")
    return LedgerRules(**rules) if isinstance(rules, Mapping) else LedgerRules()


def _demand(state: ObservedState) -> dict[Holder, int]:
    """The GPUs that the admitted jobs of each user request, or hold if that is more."""
    names, (account, user, workers, held) = state._names, (state.columns[name][state.live] for name in _DEMAND)
    place, size = account * len(names.users) + user, len(names.accounts) * len(names.users)
    codes, place = np.unique(place, return_inverse=True) if size > len(place) else (np.arange(size), place)  # sorting is slow
    gpus = np.bincount(place, np.maximum(workers, held), minlength=len(codes))
    there = np.flatnonzero(gpus)
    pairs = (divmod(code, len(names.users)) for code in codes[there].tolist())
    return {(names.accounts[a], names.users[u]): int(n) for (a, u), n in zip(pairs, gpus[there].tolist())}


def _merged(times: Sequence[tuple[int, int]], more: tuple[int, int]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted((*times, more)):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged
