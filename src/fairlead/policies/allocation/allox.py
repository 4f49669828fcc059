"""AlloX: minimal average completion time on types of several speeds, by matching jobs to queue places (Le et al., EuroSys'20;
the baseline of Gavel §7.3).

If job m is k-th from the end on an accelerator of type j, its processing time p_mj = steps left / throughput is part of k
completion times. So the sum of completion times, up to a constant, is

    min Σ_m k(m) · p_m,j(m)    with every job in one place (j, k), and N_j jobs in each place

since the N_j accelerators of a type are alike, and none has more than ⌈n / N_j⌉ of n jobs in its queue. The program is a
transportation problem: its vertices are integers. The first job of a queue has all of the time there; the others wait. Only as
many jobs are matched as make queues of a given depth, in the order of submission; up to that the optimum is exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import JobColumns
from fairlead.core.errors import require
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.program import Model, Program

TIE = 5e-7
"""Fraction of the mean processing time by which staying on a type is cheaper: it decides only between equal optima."""

BOX = 2.0
"""Upper bound of a column. No job is in more than one place, so that it never binds; it helps the dual simplex."""

MIN_REDUCED_COST = 1e-8
"""Fraction of the mean processing time: a column that would improve the optimum by less per job is left out."""


@dataclass(frozen=True)
class AlloX:
    """Minimize the average completion time, by matching single-worker jobs to queue positions on each GPU type.

    Of the waiting jobs, the part `alpha` that was submitted first is matched, so that short jobs do not pass a long one for
    ever. These are at least as many as free accelerators and, where more than one type is free, at most `max_depth` times as
    many. A job keeps its accelerator to its end, as in AlloX and in Gavel's comparison. With `preempt`, running jobs are
    matched again, and stay where the optimum leaves a choice.

    AlloX has no gangs. Here each worker of a gang counts as a job, on the type on which the gang ends soonest. Where only some
    of its workers are first in their queues, their accelerators are reserved. The rest goes to the other gangs by submission,
    each on the fastest type that has enough. With `gangs=share`, as in Shockwave's simulator, a gang is matched as one worker.
    From then on it has 1/workers of the time, and takes no accelerator from the matching."""

    paper: ClassVar[str] = "AlloX (Le et al., EuroSys'20); Gavel §7.3"
    alpha: float = 0.3  # part of the waiting jobs that is matched, by submission
    preempt: bool = False  # jobs may be preempted for jobs that come before them in the order
    max_depth: int = 32  # queue places for each GPU, at most
    gangs: Literal["whole", "share"] = "whole"  # a matched gang has all of the time on its GPUs, or 1/workers of it

    def __post_init__(self) -> None:
        require(0 < self.alpha <= 1, "policy allox", "a number above 0, up to 1", "alpha", self.alpha)
        require(self.max_depth >= 1, "policy allox", "a whole number of at least 1", "max_depth", self.max_depth)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        jobs, rates = view.jobs, view.rates
        types = len(view.capacity)
        usable = ((jobs.fits & rates.runs_on[rates.row])[:, None] >> np.arange(types) & 1).astype(np.bool_)
        usable &= jobs.workers[:, None] <= view.capacity
        free = view.capacity.copy()
        before = np.full(len(jobs), -1, dtype=np.int64) if self.preempt else _remembered(view, memo)
        width = jobs.workers if self.gangs == "whole" else np.ones_like(jobs.workers)
        sharing = width < jobs.workers  # gangs with a part of the time
        given = _kept(np.where(sharing, -1, before), usable, width, free)
        speed = np.where(usable, rates.of_jobs, 0.0)
        first_come = np.lexsort((jobs.number, jobs.submitted_s))
        queue = first_come[(given[first_come] < 0) & usable[first_come].any(axis=1)]
        wanted = np.where(usable & (free > 0), speed, 0.0)
        matched = self._head(queue[wanted[queue].any(axis=1)], width, free)
        for at in matched[width[matched] > 1].tolist():
            wanted[at] *= np.arange(types) == _earliest_finish_type(at, jobs, speed, free, given)
        matched = matched[wanted[matched].any(axis=1)]
        incomplete = np.zeros(len(jobs), dtype=np.bool_)
        if len(matched):
            part = matched.repeat(width[matched])
            left = np.maximum(jobs.steps_left[part], 1e-9)[:, None]
            times = np.divide(left, wanted[part], out=np.full((len(part), types), np.inf), where=wanted[part] > 0)
            here = np.where(jobs.running, jobs.type, -1)[part]
            type_of_job = match_jobs(times, free, here)
            starts = queue_heads(times, type_of_job, free, here)
            begun, on = part[starts], type_of_job[starts]
            whole = np.bincount(begun, minlength=len(jobs))[begun] == width[begun]
            given[begun[whole]] = on[whole]
            incomplete[begun[~whole]] = True
            free -= np.bincount(on, minlength=types)
        _start_gangs(queue[(width[queue] > 1) & ~incomplete[queue]], speed, width, free, given)
        had = sharing & (before >= 0) & usable[np.arange(len(jobs)), before]
        given[had] = before[had]
        chosen = (given >= 0).nonzero()[0]
        numbers, on = jobs.number[chosen], given[chosen]
        alone = np.full(len(chosen), -1, dtype=np.int64)
        share = Allocation.tidy(width[chosen] / jobs.workers[chosen])
        return Allocation(numbers, alone, on, share), {"jobs": numbers, "types": on}

    def _head(self, waits: Ints, workers: Ints, free: Ints) -> Ints:
        """The waiting jobs that are matched, by submission."""
        places, parts = int(free.sum()), workers[waits].cumsum()
        few = max(places, int(self.alpha * int(parts[-1]))) if len(waits) else 0
        if np.count_nonzero(free) > 1:  # with one type there is nothing to match
            few = min(few, self.max_depth * places)
        return waits[parts - workers[waits] < few]


def match_jobs(times: Floats, free: Ints, here: Ints | None = None) -> Ints:
    """The type of each job in an optimum, by column generation. `times` are jobs × types, infinite where a job cannot run."""
    count = len(times)
    if np.count_nonzero(free) == 1:  # one type: nothing to match
        return np.full(count, int(free.argmax()))
    times = np.where(free > 0, times, np.inf)
    scale = float(np.mean(times.min(axis=1)))
    bonus = np.zeros_like(times) if here is None else TIE * (here[:, None] == np.arange(len(free)))
    queues = _QueuePlaces(times / scale, bonus, free)
    job, type_, place = queues.initial_columns()
    model = Model(
        queues.worth(job, type_, place),
        np.zeros(len(job)),
        np.full(len(job), BOX),
        np.concatenate((np.ones(count), np.zeros(queues.places))),
        np.concatenate((np.ones(count), free.repeat(queues.deep).astype(np.float64))),
        queues.entries(job, type_, place),
    )
    program = Program("allox", model)
    solution, known = program.solve(), queues.keys(job, type_, place)
    while True:
        more = queues.missing(solution.duals)
        # The solver's tolerance can leave a column that is already there a little too cheap.
        more = more[:, ~np.isin(queues.keys(*more), known)]
        if not more.size:
            break
        known = np.concatenate((known, queues.keys(*more)))
        worth = queues.worth(*more)
        program.add_columns(worth, np.zeros(len(worth)), np.full(len(worth), BOX), queues.entries(*more))
        job, type_ = np.concatenate((job, more[0])), np.concatenate((type_, more[1]))
        solution = program.solve(primal=True)
    found = np.full(count, -1, dtype=np.int64)
    taken = solution.values > 0.5
    found[job[taken]] = type_[taken]
    return found


@dataclass(frozen=True)
class _QueuePlaces:
    """The queue places of all types. A column is (job, type, place from the end)."""

    times: Floats
    bonus: Floats  # for staying
    free: Ints

    @property
    def deep(self) -> Ints:
        """The number of places of an accelerator of each type."""
        deep: Ints = np.where(self.free > 0, -(-len(self.times) // np.maximum(self.free, 1)), 0)
        return deep

    @property
    def places(self) -> int:
        return int(self.deep.sum())

    def worth(self, job: Ints, type_: Ints, place: Ints) -> Floats:
        worth: Floats = self.bonus[job, type_] - self.times[job, type_] * place
        return worth

    def entries(self, job: Ints, type_: Ints, place: Ints) -> tuple[Ints, Ints, Floats]:
        column = np.arange(len(job))
        row = len(self.times) + (self.deep.cumsum() - self.deep)[type_] + place - 1
        return np.concatenate((job, row)), np.concatenate((column, column)), np.ones(2 * len(job))

    def keys(self, job: Ints, type_: Ints, place: Ints) -> Ints:
        """A number for each column."""
        return (job * len(self.free) + type_) * (len(self.times) + 1) + place

    def initial_columns(self) -> tuple[Ints, Ints, Ints]:
        """The columns of a greedy guess, shortest first, and the places around each job's position in every queue."""
        load = np.zeros(self.times.shape[1])
        guess = np.empty(len(self.times), dtype=np.int64)
        width, rows = np.maximum(self.free, 1), self.times
        for job in rows.min(axis=1).argsort(kind="stable").tolist():
            guess[job] = type_ = int((load + rows[job]).argmin())
            load[type_] += rows[job, type_] / width[type_]
        found: list[tuple[Ints, Ints, Ints]] = []
        for type_ in range(len(self.free)):
            can = np.isfinite(self.times[:, type_]).nonzero()[0]
            inside = guess[can] == type_
            time = self.times[can, type_]
            order = can[inside][(-time[inside]).argsort(kind="stable")]
            longer = (-self.times[order, type_]).searchsorted(-time)  # the number of longer jobs in the queue, by job
            at = longer // width[type_] + 1
            own = np.full(len(self.times), 0, dtype=np.int64)
            own[order] = np.arange(len(order)) // width[type_] + 1  # the guess itself, so that there is a solution
            for place in (at - 1, at, at + 1, own[can]):
                good = (place >= 1) & (place <= self.deep[type_])
                found.append((can[good], np.full(np.count_nonzero(good), type_), place[good]))
        columns = np.concatenate([np.stack(part) for part in found], axis=1)
        job, types, place = np.unique(columns, axis=1)
        return job, types, place

    def missing(self, duals: Floats) -> Ints:
        """Jobs, types and places: for each job and type the place with the highest reduced worth, where that is above 0."""
        count = len(self.times)
        found: list[Ints] = []
        start = count
        for type_, deep in enumerate(self.deep.tolist()):
            if not deep:
                continue
            price, start = duals[start : start + deep], start + deep
            can = np.isfinite(self.times[:, type_]).nonzero()[0]
            place = cheapest_places(price, self.times[can, type_])
            on = np.full(len(can), type_)
            good = self.worth(can, on, place) - duals[can] - price[place - 1] > MIN_REDUCED_COST
            found.append(np.stack((can[good], on[good], place[good])))
        return np.concatenate(found, axis=1)


def cheapest_places(price: Floats, time: Floats) -> Ints:
    """For each time t the place k = 1, 2, … with the least k · t + price[k - 1]: a corner of the prices' lower hull."""
    hull: list[int] = []
    values = price.tolist()
    for k, value in enumerate(values):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (values[b] - values[a]) * (k - a) < (value - values[a]) * (b - a):
                break
            hull.pop()
        hull.append(k)
    corners = np.array(hull)
    slope = np.diff(price[corners]) / np.diff(corners)  # ascending: a later place is cheaper while it costs less than it saves
    return np.asarray(corners[slope.searchsorted(-time)] + 1)


def queue_heads(times: Floats, type_of_job: Ints, free: Ints, here: Ints) -> Bools:
    """The jobs that start now, given each job's type: the shortest of each type. Where a choice is left, running jobs stay."""
    starts = np.zeros(len(type_of_job), dtype=np.bool_)
    for type_ in range(len(free)):
        mine = (type_of_job == type_).nonzero()[0]
        width = int(free[type_])
        away = (here[mine] != type_).astype(np.int64)
        mine = mine[np.lexsort((mine, away, times[mine, type_]))]  # shortest first
        front = len(mine) % width if len(mine) > width else 0  # the number of filled first places
        behind = mine[front : front + width]  # any of these may run first on the other accelerators
        behind = behind[(here[behind] != type_).argsort(kind="stable")]
        starts[mine[:front]] = True
        starts[behind[: width - front]] = True
    return starts


def _remembered(view: Snapshot, memo: Memo) -> Ints:
    """The type that each job had before (-1: none); at first, the type on which it runs."""
    jobs = view.jobs
    if memo is None:
        return np.where(jobs.running, jobs.type, -1)
    before = np.full(len(jobs), -1, dtype=np.int64)
    known = np.isin(memo["jobs"], jobs.number)
    before[jobs.number.searchsorted(memo["jobs"][known])] = memo["types"][known]
    return before


def _kept(before: Ints, usable: Bools, workers: Ints, free: Ints) -> Ints:
    """The types that jobs keep, as far as there are accelerators, which are `free` no more; -1: none."""
    given = np.full(len(before), -1, dtype=np.int64)
    for at in (before >= 0).nonzero()[0].tolist():
        type_ = before[at]
        if usable[at, type_] and free[type_] >= workers[at]:
            given[at] = type_
            free[type_] -= workers[at]
    return given


def _earliest_finish_type(gang: int, jobs: JobColumns, speed: Floats, free: Ints, given: Ints) -> int:
    """The type on which a gang would be done first, if the jobs on its accelerators run to their ends."""
    done = np.full(len(free), np.inf)
    for type_ in (speed[gang] > 0).nonzero()[0].tolist():
        there = (given == type_).nonzero()[0]
        ends = jobs.steps_left[there] / speed[there, type_]
        order = ends.argsort(kind="stable")
        room = free[type_] + np.concatenate(([0], jobs.workers[there[order]].cumsum()))
        enough = int((room >= jobs.workers[gang]).argmax())
        done[type_] = (0.0 if not enough else ends[order[enough - 1]]) + jobs.steps_left[gang] / speed[gang, type_]
    return int(done.argmin())


def _start_gangs(gangs: Ints, speed: Floats, workers: Ints, free: Ints, given: Ints) -> None:
    for at in gangs[given[gangs] < 0].tolist():
        fits = (speed[at] > 0) & (free >= workers[at])
        if fits.any():
            type_ = int(np.where(fits, speed[at], -1.0).argmax())
            given[at] = type_
            free[type_] -= workers[at]
