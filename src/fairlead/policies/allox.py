"""AlloX: the least average completion time on accelerators of several speeds, by matching jobs to places in line (Le et al.,
EuroSys'20; the baseline of Gavel §7.3).

If job m is k-th from the end on an accelerator of type j, its processing time p_mj = steps left / throughput is part of k
completion times. So the sum of completion times, up to what has passed already, is

    min Σ_m k(m) · p_m,j(m)    with every job in one place (j, k), and N_j jobs in each place

since the N_j accelerators of a type are alike, and none has more than ⌈n / N_j⌉ of n jobs in line. What has passed is the same
for a job wherever it goes, and is left out. The program is a transportation problem: its vertices are whole numbers. Whoever
comes first in a line has all of the time there; the others wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.program import Program

TIE = 5e-7
"""Of the mean processing time: by so much staying on a type is cheaper, which decides between equals and nothing else."""


@dataclass(frozen=True)
class AlloX:
    """Least average completion time, by matching single-worker jobs to places in line on each type.

    Of those who wait, the `alpha` that were submitted first are matched (at least as many as there are free accelerators), so
    that short jobs do not pass a long one for ever. Who has been given an accelerator keeps it to its end, as in AlloX and in
    Gavel's comparison; with `preempt`, who runs is matched anew with the others, and stays where the optimum leaves a choice.

    Gangs are outside of AlloX: they come after the single workers, by submission, on the fastest type that has enough left.
    """

    paper: ClassVar[str] = "AlloX (Le et al., EuroSys'20); Gavel §7.3"
    alpha: float = 0.3
    preempt: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise InputError("policy allox", "a number above 0, up to 1", field="alpha", value=self.alpha)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        jobs, rates = view.jobs, view.rates
        types = len(view.capacity)
        usable = ((jobs.fits & rates.runs_on[rates.row])[:, None] >> np.arange(types) & 1).astype(np.bool_)
        usable &= jobs.workers[:, None] <= view.capacity
        free = view.capacity.copy()
        given = np.full(len(jobs), -1, dtype=np.int64)
        if not self.preempt:
            _keep(_remembered(view, memo), usable, jobs.workers, free, given)
        speed = np.where(usable, rates.of_jobs, 0.0)
        first_come = np.lexsort((jobs.number, jobs.submitted_s))
        waits = first_come[(given[first_come] < 0) & (jobs.workers[first_come] == 1)]
        waits = waits[(usable[waits] & (free > 0)).any(axis=1)]
        matched = waits[: max(int(free.sum()), int(self.alpha * len(waits)))]
        if len(matched):
            left = np.maximum(jobs.steps_left[matched], 1e-9)[:, None]
            times = np.divide(left, speed[matched], out=np.full((len(matched), types), np.inf), where=speed[matched] > 0)
            here = np.where(jobs.running, jobs.type, -1)[matched]
            line = assigned(times, free, here)
            starts = first_in_line(times, line, free, here)
            given[matched[starts]] = line[starts]
            free -= np.bincount(line[starts], minlength=types)
        _let_gangs_in(first_come[jobs.workers[first_come] > 1], speed, jobs.workers, free, given)
        chosen = (given >= 0).nonzero()[0]
        numbers, on = jobs.number[chosen], given[chosen]
        alone = np.full(len(chosen), -1, dtype=np.int64)
        return Allocation(numbers, alone, on, np.ones(len(chosen))), {"jobs": numbers, "types": on}


def assigned(times: Floats, free: Ints, here: Ints | None = None) -> Ints:
    """The type of each job in an optimum. `times` are jobs × types, infinite where a job cannot run; `here` is where each runs
    now (-1: nowhere)."""
    count = len(times)
    deep = np.where(free > 0, -(-count // np.maximum(free, 1)), 0)
    kind = np.arange(len(free)).repeat(deep)  # the places in line, type after type
    place = np.arange(len(kind)) - (deep.cumsum() - deep)[kind] + 1
    cost = times[:, kind] * place
    scale = float(np.mean(np.where(free > 0, times, np.inf).min(axis=1)))
    if here is not None:
        cost = cost - TIE * scale * (here[:, None] == kind)
    row, column = np.isfinite(cost).nonzero()
    entries = np.arange(len(row))
    program = Program(
        "allox",
        -cost[row, column] / scale,
        np.zeros(len(row)),
        np.ones(len(row)),
        np.concatenate((np.ones(count), np.zeros(len(kind)))),
        np.concatenate((np.ones(count), free[kind].astype(np.float64))),
        (np.concatenate((row, count + column)), np.concatenate((entries, entries)), np.ones(2 * len(row))),
    )
    value = program.solve().values
    found = np.full(count, -1, dtype=np.int64)
    taken = value > 0.5
    found[row[taken]] = kind[column[taken]]
    return found


def first_in_line(times: Floats, line: Ints, free: Ints, here: Ints) -> Bools:
    """Who starts now, given everybody's type: the shortest of each. Where a choice is left, who is there already."""
    starts = np.zeros(len(line), dtype=np.bool_)
    for kind in range(len(free)):
        mine = (line == kind).nonzero()[0]
        width = int(free[kind])
        away = (here[mine] != kind).astype(np.int64)
        mine = mine[np.lexsort((mine, away, times[mine, kind]))]  # shortest first
        front = len(mine) % width if len(mine) > width else 0  # of the foremost places, so many are filled
        behind = mine[front : front + width]  # any of these may come first on an accelerator whose foremost place is not
        behind = behind[(here[behind] != kind).argsort(kind="stable")]
        starts[mine[:front]] = True
        starts[behind[: width - front]] = True
    return starts


def total_completion(times: Floats, line: Ints, free: Ints) -> float:
    """The sum of completion times from now on, if the jobs of a type go shortest first on its accelerators."""
    total = 0.0
    for kind in range(len(free)):
        longest_first = np.sort(times[line == kind, kind])[::-1]
        total += float(longest_first @ (np.arange(len(longest_first)) // max(1, int(free[kind])) + 1))
    return total


def _remembered(view: Snapshot, memo: Memo) -> Ints:
    """The type that each job was given before; at first, that on which it runs. -1: none."""
    jobs = view.jobs
    if memo is None:
        return np.where(jobs.running, jobs.type, -1)
    before = np.full(len(jobs), -1, dtype=np.int64)
    known = np.isin(memo["jobs"], jobs.number)
    before[jobs.number.searchsorted(memo["jobs"][known])] = memo["types"][known]
    return before


def _keep(before: Ints, usable: Bools, workers: Ints, free: Ints, given: Ints) -> None:
    """Leave everybody its type, as far as there are accelerators: some may have been lost."""
    for at in (before >= 0).nonzero()[0].tolist():
        kind = before[at]
        if usable[at, kind] and free[kind] >= workers[at]:
            given[at] = kind
            free[kind] -= workers[at]


def _let_gangs_in(gangs: Ints, speed: Floats, workers: Ints, free: Ints, given: Ints) -> None:
    for at in gangs[given[gangs] < 0].tolist():
        fits = (speed[at] > 0) & (free >= workers[at])
        if fits.any():
            kind = int(np.where(fits, speed[at], -1.0).argmax())
            given[at] = kind
            free[kind] -= workers[at]
