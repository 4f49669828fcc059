"""What the jobs of a snapshot have been so far and are expected to be, regime by regime: what they announced (`view.regimes`)
and what their declared mode may still bring, through a rule of `forecast.py`. The unit is the declared step, which is as good
as an epoch: a batch size changes how long it takes, not how many there are.

Where estimation knows no rates at other batch sizes, and of modes that nothing is known about, nothing is foreseen: the job
goes on as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.adaptation import Regime
from fairlead.core.cluster import Floats, Ints
from fairlead.core.job import Job, batch_size_of
from fairlead.core.plan import OtherBatches
from fairlead.core.snapshot import Snapshot
from fairlead.policies.shockwave.forecast import ADAPTIVE, Rule, ahead, run_time, to_come


@dataclass(frozen=True)
class Trajectories:
    """Jobs × regimes, from the first one on; all at the speed of the fastest type that a job may use."""

    lived: Floats  # steps trained in each
    ahead: Floats  # steps still to train in each
    pace_s: Floats  # seconds a step
    now_s: Floats  # seconds a step of each job now

    @property
    def done(self) -> Floats:
        steps: Floats = self.lived.sum(axis=1)
        return steps

    @property
    def steps(self) -> Floats:
        """All that is expected to be trained in the end."""
        total: Floats = self.done + self.ahead.sum(axis=1)
        return total

    @property
    def past_s(self) -> Floats:
        """What is done took so long, alone and without interruption."""
        return run_time(self.lived, self.pace_s)

    @property
    def left_s(self) -> Floats:
        return run_time(self.ahead, self.pace_s)

    @property
    def longest_s(self) -> Floats:
        """The same if nobody becomes faster than it is, which a mode lets happen and does not promise."""
        left: Floats = np.maximum(self.ahead.sum(axis=1) * self.now_s, self.left_s)
        return left


def trajectories(view: Snapshot, rule: Rule, pace_s: Floats, types: Ints, least_s: float) -> Trajectories:
    """`pace_s` is how long a step of each job takes now, on its type of `types`. Who has done all that it declared and goes on
    is expected to take `least_s` more, for want of better knowledge."""
    jobs, batches = view.jobs, view.rates.other_batches
    courses = []
    for number, type_ in zip(jobs.number.tolist(), types.tolist()):
        courses.append(_course(view.job_of[number], view.regimes.get(number, ()), batches, type_))
    width = max((len(times) for _, times in courses), default=1)
    begun, times = np.full((len(courses), width + 1), np.inf), np.ones((len(courses), width))
    ongoing, count = np.zeros(len(courses), dtype=np.int64), np.ones(len(courses), dtype=np.int64)
    for at, (starts, slower) in enumerate(courses):
        begun[at, : len(starts)], times[at, : len(slower)] = starts, slower
        ongoing[at], count[at] = len(starts) - 1, len(slower)
    until = np.minimum(begun, jobs.steps_done[:, None])
    lived = np.diff(until, axis=1)
    coming = ahead(rule(jobs.steps, lived, ongoing, count), jobs.steps, lived, ongoing)
    over = jobs.steps_done >= jobs.steps
    if over.any():
        coming[over, ongoing[over]] = least_s / pace_s[over]
    return Trajectories(lived, coming, pace_s[:, None] * times, pace_s)


def _course(job: Job, past: Sequence[Regime], batches: OtherBatches | None, type_: int) -> tuple[list[float], list[float]]:
    """The steps at which the regimes so far began, and how many times as long a step of each takes as now, of those to come
    too."""
    if not past and job.mode not in ADAPTIVE:
        return [0.0], [1.0]
    starts = [0.0, *(regime.from_steps for regime in past[1:])]
    sizes = [regime.batch_size for regime in past] or [batch_size_of(job.kind) or 0]
    rates = {} if batches is None else batches.of(job.kind, job.workers)
    speed = {size: float(rate[type_]) for size, rate in rates.items() if rate[type_] > 0}
    now = speed.get(sizes[-1])
    if now is None:
        return starts, [1.0] * len(starts)
    if job.mode in ADAPTIVE:
        sizes += [size for size in to_come(job.mode, sizes[-1], max(speed)) if size in speed]
    return starts, [now / speed.get(size, now) for size in sizes]
