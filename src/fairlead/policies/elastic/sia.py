"""Sia: elastic jobs over several types of accelerators at once.

    min  Σ_m [ Σ_c x_mc · (r_mc · s_mc)^p + penalty · (1 − Σ_c x_mc) ],   s_mc = rate_m(c) / min_c rate_m(c)
    s.t. Σ_c x_mc ≤ 1,   Σ_mc x_mc · workers_c ≤ accelerators of each type

over configurations c, a type and a number of workers: halves of a node down to one, and whole nodes. r_mc is what a restart
leaves of a job's speed where c is not its present configuration, as in `pollux`. An elastic job begins with one worker and at
most doubles; a job that is not elastic has one size on each type. Speeds are the estimator's (`view.rates`) on every type.

The relaxation has at most as many jobs between two configurations as there are types. All others have theirs; these take the
best that is left, then jobs without any, and then jobs that find a better configuration in what is still free."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError, require
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.program import Model, Program
from fairlead.policies.elastic.base import sizes_on

_WHOLE = 1 - 1e-6
_SWEEPS = 4
_MAX_PENALTY = 100.0  # beyond this, gains and protected jobs would vanish in rounding
_STAYS = 1e-6
"""The bonus of the present configuration, to break ties."""


@dataclass(frozen=True)
class Sia:
    """Choose GPU types and sizes of all jobs together for the most goodput, fairer with lower `power`."""

    paper: ClassVar[str] = "Sia §3.4 (Jayaram Subramanya et al., SOSP'23)"
    power: float = -0.5  # exponent of the mean over jobs; lower is fairer
    penalty: float = 1.1  # penalty for a job that waits, at most 100
    restart_s: float = 30.0  # seconds that a restart costs

    def __post_init__(self) -> None:
        require(-10 <= self.power < 0, "policy sia", "a number from -10 to below 0", "power", self.power)
        if not 1 < self.penalty <= _MAX_PENALTY:
            raise InputError("policy sia", f"a number above 1, at most {_MAX_PENALTY:g}", field="penalty", value=self.penalty)
        require(0 <= self.restart_s < math.inf, "policy sia", "seconds, at least 0", "restart_s", self.restart_s)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
        job, type_, size, gain = self._options(view)
        if not len(job):
            return Selection.empty(), memo
        chosen = _chosen(job, type_, size, gain, len(view.jobs), view.capacity)
        return Selection(view.jobs.number[job[chosen]], type_[chosen], size[chosen]), memo

    def _options(self, view: Snapshot) -> tuple[Ints, Ints, Ints, Floats]:
        """The options of each job: its position, a type, workers, and the gain over nothing."""
        job, type_, size, rate = _speeds(view)
        jobs = view.jobs
        least = np.full(len(jobs), np.inf)
        np.minimum.at(least, job, rate)
        present = jobs.running[job] & (jobs.type[job] == type_) & (jobs.held[job] == size)
        age, spent = view.time - jobs.submitted_s, np.maximum(jobs.starts - 1, 0) * self.restart_s
        left = np.where(jobs.running, np.maximum(age - spent, 0.0) / np.maximum(age + self.restart_s, 1e-9), 1.0)
        speedup = rate / least[job] * np.where(present, 1.0, left[job])
        gain = self.penalty - np.maximum(speedup, 1e-9) ** self.power + _STAYS * present
        if view.protected is not None:  # protected jobs stay
            gain = np.where(view.protected[job], np.where(present, 1e3, 0.0), gain)
        worth = gain > 0
        return job[worth], type_[worth], size[worth], gain[worth]


def _speeds(view: Snapshot) -> tuple[Ints, Ints, Ints, Floats]:
    """Configurations in which jobs make progress: position, type, workers, rate."""
    jobs, rates = view.jobs, view.rates
    found: list[tuple[Ints, int, int, Floats]] = []
    known = np.zeros(len(jobs), dtype=np.bool_)  # jobs with known speeds at several sizes
    for type_, capacity in enumerate(view.capacity.tolist()):
        usual = sizes_on(int(view.cluster.largest_node_of_type[type_]), capacity) if capacity else ()
        sizes = sorted({*usual, *jobs.held[jobs.running & (jobs.type == type_)].tolist()})
        for size, speeds in zip(sizes, rates.other_sizes.at(sizes)) if rates.other_sizes is not None and sizes else ():
            speed = speeds[rates.row, type_]
            mine = view.elastic & ((jobs.fits >> type_) & 1 == 1) & (speed > 0) & (size <= capacity)
            known |= mine
            rows = mine.nonzero()[0]
            found.append((rows, type_, size, speed[rows]))
    job, kind_of, size_of, rate = _columns(found)
    smallest = np.full(len(jobs), np.iinfo(np.int64).max)
    np.minimum.at(smallest, job, size_of)
    most = np.maximum(np.where(jobs.running, 2 * jobs.held, 1), smallest)[job]
    may = (size_of <= most) | (size_of == jobs.held[job])
    found = []
    for type_, capacity in enumerate(view.capacity.tolist()):
        asked = rates.of_jobs[:, type_]
        rest = (((jobs.fits >> type_) & 1 == 1) & ~known & (asked > 0) & (jobs.workers <= capacity)).nonzero()[0]
        for size in np.unique(jobs.workers[rest]).tolist():
            rows = rest[jobs.workers[rest] == size]
            found.append((rows, type_, size, asked[rows]))
    parts = zip((job[may], kind_of[may], size_of[may], rate[may]), _columns(found))
    job, kind_of, size_of, rate = (np.concatenate(both) for both in parts)
    return job, kind_of, size_of, rate


def _columns(found: list[tuple[Ints, int, int, Floats]]) -> tuple[Ints, Ints, Ints, Floats]:
    lengths = [len(rows) for rows, *_ in found]
    types, sizes = (np.repeat(np.array([one[at] for one in found], dtype=np.int64), lengths) for at in (1, 2))
    job = np.concatenate([np.empty(0, dtype=np.int64), *(rows for rows, *_ in found)])
    return job, types, sizes, np.concatenate([np.empty(0), *(speed for *_, speed in found)])


def _chosen(job: Ints, type_: Ints, size: Ints, gain: Floats, jobs: int, capacity: Ints) -> list[int]:
    """One option for as many jobs as there is room: by the relaxed program, then the best of what is left."""
    column, types = np.arange(len(job)), len(capacity)
    model = Model(
        gain,
        np.zeros(len(job)),
        np.ones(len(job)),
        np.full(jobs + types, -math.inf),
        np.concatenate((np.ones(jobs), capacity.astype(np.float64))),
        (
            np.concatenate((job, jobs + type_)),
            np.concatenate((column, column)),
            np.concatenate((np.ones(len(job)), size.astype(np.float64))),
        ),
    )
    share = Program("types and sizes for elastic jobs", model).solve().values
    given = {int(job[at]): at for at in (share > _WHOLE).nonzero()[0].tolist()}
    free = capacity.tolist()
    for at in given.values():
        free[type_[at]] -= int(size[at])
    for sweep in range(_SWEEPS):  # first jobs without a configuration, starting with jobs between two
        before = dict(given)
        for at in np.lexsort((column, -gain, share <= 1 - _WHOLE)).tolist():
            now = given.get(int(job[at]))
            back = int(size[now]) if now is not None and type_[now] == type_[at] else 0
            better = now is None or (sweep > 0 and gain[at] > gain[now])
            if better and size[at] <= free[type_[at]] + back:
                if now is not None:
                    free[type_[now]] += int(size[now])
                free[type_[at]] -= int(size[at])
                given[int(job[at])] = at
        if sweep and given == before:
            break
    return [given[one] for one in sorted(given)]
