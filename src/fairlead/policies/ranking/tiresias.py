"""Tiresias: discretized two-dimensional LAS, and its Gittins variant.

A job's attained service is its accelerator time a. Queue q(a) = number of thresholds ≤ a; lower queues go first. Inside a
queue, the job that started earlier goes first, then the one submitted earlier, so that a newcomer does not preempt its equals.
With `promote_after` = k, a job that has waited k times its run time returns to the first queue (§4.2, PROMOTEKNOB). With
`first: running` a queue is a line: a job enters it at the end, also one that runs, and after each decision running jobs move
ahead of waiting ones, as in the simulator of Tiresias' authors. With `first: submitted` only submission counts inside a queue,
as in the simulator of Pollux's authors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError, require
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.ranking.base import in_order

_EPOCH = float(2**32)
"""Longer than any run, in seconds: puts queue and start time into one sortable number, exact to a microsecond."""


@dataclass(frozen=True)
class Tiresias:
    """Run the lowest queue of attained GPU time first; first come, first served inside a queue."""

    paper: ClassVar[str] = "Tiresias §4 (Gu et al., NSDI'19)"
    thresholds: tuple[float, ...] = (3250.0, 7200.0)  # GPU-seconds of attained service at which a job moves to the next queue
    promote_after: float | None = None  # a job that has waited this many times its run time returns to the first queue
    backfill: bool = True  # jobs behind one that does not fit may start before it
    first: Literal["started", "running", "submitted"] = "started"
    """Which job of a queue goes first: the one that started earlier; one that ran when the queue was last served, then the one
    that came to it earlier; the one submitted first."""

    def __post_init__(self) -> None:
        _check("policy tiresias", self.thresholds, self.promote_after)
        known = self.first in ("started", "running", "submitted")
        require(known, "policy tiresias", "started, running or submitted", "first", self.first)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs = view.jobs
        memo, attained, run_s = _promoted(view, memo, self.promote_after, self.thresholds)
        queue = _queue(attained, self.thresholds)
        if self.first == "running":
            key, memo = _in_line(view, memo, queue)
        else:  # ties go by submission, and jobs that never started come last
            start = np.fmin(jobs.first_started_s, _EPOCH - 1) if self.first == "started" else np.zeros(len(jobs))
            key = (queue * _EPOCH + start).astype(np.float64, copy=False)
        selection = in_order(view, key, backfill=self.backfill, valid_until=math.inf)
        demotion = _next_demotion(view, selection, attained, queue, self.thresholds)
        return selection.until(min(demotion, _next_promotion(view, selection, queue, run_s, self.promote_after))), memo


def _in_line(view: Snapshot, memo: Memo, queue: Ints) -> tuple[Floats, Memo]:
    """Each job's place where every queue is a line, and the memo with the lines. Jobs that come to a queue go to its end, in
    the order of their submission; of the others, running jobs go first, and otherwise they keep their order."""
    jobs, number = view.jobs, view.jobs.number
    before, was = np.full(len(jobs), len(jobs), dtype=np.int64), np.full(len(jobs), -1, dtype=np.int64)
    if memo and "line" in memo:
        line, queues = (np.asarray(memo[name], dtype=np.int64) for name in ("line", "queues"))
        here = np.isin(line, number)
        at = jobs.position_of(line[here])
        before[at], was[at] = np.arange(len(at)), queues[here]
    comes = was != queue
    order = np.lexsort((np.where(comes, number, before), ~jobs.running & ~comes, comes, queue))
    place: Floats = np.empty(len(jobs))
    place[order] = np.arange(len(jobs))
    if memo and np.array_equal(memo.get("line", ()), number[order]) and np.array_equal(memo["queues"], queue[order]):
        return place, memo
    return place, {**(memo or {}), "line": number[order], "queues": queue[order]}


@dataclass(frozen=True)
class Gittins:
    """As Tiresias, with jobs of a queue by their Gittins index over the service of finished jobs.

    G(a) = max over Δ of P(S ≤ a + Δ | S > a) / E[min(S − a, Δ) | S > a]: the highest chance to finish per accelerator time
    spent. Until `min_history` jobs have finished, the order inside a queue is that of Tiresias."""

    paper: ClassVar[str] = "Tiresias §4.1 (Gu et al., NSDI'19)"
    thresholds: tuple[float, ...] = (3250.0, 7200.0)  # GPU-seconds of attained service at which a job moves to the next queue
    promote_after: float | None = None  # a job that has waited this many times its run time returns to the first queue
    min_history: int = 20  # finished jobs that are needed before the Gittins index is used
    backfill: bool = True  # jobs behind one that does not fit may start before it

    def __post_init__(self) -> None:
        _check("policy gittins", self.thresholds, self.promote_after)
        require(self.min_history >= 1, "policy gittins", "a whole number of at least 1", "min_history", self.min_history)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs = view.jobs
        memo, attained, run_s = _promoted(view, memo, self.promote_after, self.thresholds)
        queue = _queue(attained, self.thresholds)
        start = np.where(np.isnan(jobs.first_started_s), _EPOCH - 1, jobs.first_started_s)
        index = np.zeros(len(jobs))
        if len(view.history) >= self.min_history:
            index = gittins_index(attained, np.sort(view.history))
        rank = np.empty(len(jobs))
        rank[np.lexsort((start, -index, queue))] = np.arange(len(jobs))
        selection = in_order(view, rank, backfill=self.backfill)  # an index may turn at any time: no promise
        demotion = _next_demotion(view, selection, attained, queue, self.thresholds)
        promotion = _next_promotion(view, selection, queue, run_s, self.promote_after)
        return replace(selection, revisit=min(demotion, promotion)), memo


def gittins_index(age: Floats, services: Floats) -> Floats:
    """The index of each age under the empirical distribution of `services` (sorted); 0 beyond the longest."""
    total = np.concatenate(([0.0], np.cumsum(services)))
    steps = np.unique(np.quantile(services, np.linspace(0.05, 1.0, 20)))  # Δ: a grid over the observed services
    done = np.searchsorted(services, age, side="right")  # services ≤ a
    alive = len(services) - done
    reach = np.searchsorted(services, age[:, None] + steps[None, :], side="right")
    finish = reach - done[:, None]
    spent = total[reach] - total[done][:, None] - age[:, None] * finish + steps[None, :] * (len(services) - reach)
    ratio = np.divide(finish, spent, out=np.zeros_like(spent), where=(spent > 0) & (alive[:, None] > 0))
    best: Floats = ratio.max(axis=1, initial=0.0)
    return best


_LATEST_PROMOTION = 1e9
"""The largest `promote_after`, a multiple of run time: after one second of running it is thirty years."""


def _check(policy: str, thresholds: tuple[float, ...], promote_after: float | None) -> None:
    if not all(0 < t < math.inf for t in thresholds) or list(thresholds) != sorted(set(thresholds)):
        raise InputError(policy, "ascending numbers above 0", field="thresholds", value=list(thresholds))
    if promote_after is not None and not 0 < promote_after <= _LATEST_PROMOTION:
        expected = f"a number above 0, at most {_LATEST_PROMOTION:g}; omit it to turn promotion off"
        raise InputError(policy, expected, field="promote_after", value=promote_after)


def _queue(attained: Floats, thresholds: tuple[float, ...]) -> Ints:
    queue = np.zeros(len(attained), dtype=np.int64)
    for threshold in thresholds:
        queue += attained >= threshold
    return queue


def _next_demotion(view: Snapshot, selection: Selection, attained: Floats, queue: Ints, thresholds: tuple[float, ...]) -> float:
    """When the first selected job reaches its queue's threshold; infinity if no job waits."""
    if len(selection) == len(view.jobs):
        return math.inf
    at = view.jobs.position_of(selection.jobs)
    limits = np.array((*thresholds, math.inf))[queue[at]]
    wait = float(((limits - attained[at]) / selection.workers).min(initial=math.inf))
    return view.time + wait * (1 - 1e-13) - 1e-9


def _next_promotion(view: Snapshot, selection: Selection, queue: Ints, run_s: Floats, promote_after: float | None) -> float:
    """When the first waiting job has waited too long; a suspended job starts to wait now."""
    jobs = view.jobs
    if promote_after is None or len(selection) == len(jobs):
        return math.inf
    since = np.where(jobs.running, view.time, jobs.waiting_since_s)
    low = ~selection.chosen(jobs.number) & (queue > 0)
    return float((since + promote_after * run_s)[low].min(initial=math.inf)) - 1e-9


def _promoted(
    view: Snapshot, memo: Memo, promote_after: float | None, thresholds: tuple[float, ...]
) -> tuple[Memo, Floats, Floats]:
    """The memo, and service and run time since the last promotion; without promotions, the run time is not used."""
    jobs = view.jobs
    service = jobs.accelerator_s
    if promote_after is None:
        return memo, service, service
    run_s, number = jobs.run_s, jobs.number
    service0, run0 = np.zeros(len(jobs)), np.zeros(len(jobs))
    if memo and "jobs" in memo:
        known = np.asarray(memo["jobs"], dtype=np.int64)
        here = np.isin(known, number)
        at = jobs.position_of(known[here])
        service0[at] = np.asarray(memo["service"], dtype=np.float64)[here]
        run0[at] = np.asarray(memo["run"], dtype=np.float64)[here]
    waits = ~jobs.running & (_queue(service - service0, thresholds) > 0)
    starved = waits & (jobs.waiting_since_s + promote_after * (run_s - run0) <= view.time)
    if starved.any():
        service0[starved], run0[starved] = service[starved], run_s[starved]
        moved = service0 > 0
        memo = {**(memo or {}), "jobs": number[moved], "service": service0[moved], "run": run0[moved]}
    return memo, service - service0, run_s - run0
