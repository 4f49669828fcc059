"""What the jobs of a snapshot have been so far and are expected to be, regime by regime: what they announced (`view.regimes`),
and what their declared mode may still bring or their owner's schedule has for them, through a rule of `forecast.py`. The unit
is the declared step, which is as good as an epoch: a batch size changes how long it takes, not how many there are.

Where estimation knows no rates at other batch sizes, and of modes that nothing is known about, nothing is foreseen: the job
goes on as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairlead.core.adaptation import Regime
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.job import Job, batch_size_of
from fairlead.core.plan import OtherBatches
from fairlead.core.schedule import departure, foreseen
from fairlead.core.snapshot import Snapshot
from fairlead.policies.shockwave.forecast import ADAPTIVE, Rule, ahead, run_time, to_come


@dataclass(frozen=True)
class Trajectories:
    """Jobs × regimes, from the first one on; all at the speed of the fastest type that a job may use."""

    lived: Floats  # steps trained in each
    ahead: Floats  # steps still to train in each
    pace_s: Floats  # seconds a step
    now_s: Floats  # seconds a step of each job now
    promised: Bools  # whose owner says when it changes, and has been right so far

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
        """The same if nobody becomes faster than it is, which a mode lets happen and does not promise. A schedule does."""
        stays = np.maximum(self.ahead.sum(axis=1) * self.now_s, self.left_s)
        return np.where(self.promised, self.left_s, stays)


def trajectories(view: Snapshot, rule: Rule, pace_s: Floats, types: Ints, least_s: float) -> Trajectories:
    """`pace_s` is how long a step of each job takes now, on its type of `types`. Who has done all that it declared and goes on
    is expected to take `least_s` more, for want of better knowledge."""
    jobs, batches = view.jobs, view.rates.other_batches
    courses, promised = [], np.zeros(len(jobs), dtype=np.bool_)
    for at, (number, type_) in enumerate(zip(jobs.number.tolist(), types.tolist())):
        job, past = view.job_of[number], view.regimes.get(number, ())
        courses.append(_course(job, past, batches, type_))
        if job.schedule:
            promised[at] = not departure(job.schedule, job.steps, past, float(jobs.steps_done[at]))
    width = max((len(course.times) for course in courses), default=1)
    begun = np.full((len(courses), width + 1), np.inf)
    times, prior = np.ones((len(courses), width)), np.zeros((len(courses), width))
    ongoing = np.zeros(len(courses), dtype=np.int64)
    for at, course in enumerate(courses):
        begun[at, : len(course.starts)], times[at, : len(course.times)] = course.starts, course.times
        prior[at, : len(course.prior)], ongoing[at] = course.prior, len(course.starts) - 1
    until = np.minimum(begun, jobs.steps_done[:, None])
    lived = np.diff(until, axis=1)
    coming = ahead(rule(jobs.steps, lived, ongoing, prior), jobs.steps, lived, ongoing)
    over = jobs.steps_done >= jobs.steps
    if over.any():
        coming[over, ongoing[over]] = least_s / pace_s[over]
    return Trajectories(lived, coming, pace_s[:, None] * times, pace_s, promised)


class _Course(NamedTuple):
    starts: list[float]  # the steps at which the regimes so far began
    times: list[float]  # how many times as long a step of each takes as now, of those to come too
    prior: list[float]  # likewise, the weight of its share of the steps


def _course(job: Job, past: Sequence[Regime], batches: OtherBatches | None, type_: int) -> _Course:
    if not past and job.mode not in ADAPTIVE and not job.schedule:
        return _Course([0.0], [1.0], [1.0])
    starts = [0.0, *(regime.from_steps for regime in past[1:])]
    had = [regime.batch_size for regime in past]
    present = had[-1] if had else batch_size_of(job.kind) or 0
    rates = {} if batches is None else batches.of(job.kind, job.workers)
    speed = {size: float(rate[type_]) for size, rate in rates.items() if rate[type_] > 0}
    now = speed.get(present)
    if now is None:
        return _Course(starts, [1.0] * len(starts), [1.0] * len(starts))
    if job.schedule:
        course = foreseen(job.schedule, had)
        sizes, prior = [size for size, _ in course], [share for _, share in course]
    else:
        sizes = had or [present]
        if job.mode in ADAPTIVE:
            sizes += [size for size in to_come(job.mode, present, max(speed)) if size in speed]
        prior = [1.0] * len(sizes)
    return _Course(starts, [now / speed.get(size, now) for size in sizes], prior)
