"""What a job will be (Shockwave §5). A job trains in regimes, one after the other, each with a batch size and a share of
its epochs. Which regimes may still come is known from its declared mode; how long each lasts is not, and is forecast as the
mean of a Dirichlet posterior over their shares. The prior is even, or the shares that the job's owner has declared
(`core/schedule.py`). Never the job's true course, which is nobody's to see here.

Columns: one row for each job, one column for each regime. `lived` has the epochs that were trained in each regime so far;
regime `ongoing` is the present one; `prior` has the weight of each regime that is expected, past ones included, and 0 behind
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.job import Job, Regime, batch_size_of, planned_regimes, schedule_departure
from fairlead.core.plan import OtherBatches
from fairlead.core.snapshot import Snapshot

Rule: TypeAlias = Callable[[Floats, Floats, Ints, Floats], Floats]
"""(epochs declared, lived, ongoing, prior) → the epochs that each regime is expected to have in the end."""


ADAPTIVE = ("accordion", "gns")
"""Modes of which it is known what they may bring."""


def to_come(mode: str, batch_size: int, limit: int) -> tuple[int, ...]:
    """The batch sizes of the regimes that a mode may still bring behind the present one. GNS doubles up to its limit; Accordion
    goes to its large size, and whoever is there is expected to stay; a static job stays as it is."""
    if batch_size < 1 or limit < 1:
        field, value = ("batch_size", batch_size) if batch_size < 1 else ("limit", limit)
        raise InputError("forecast", "a whole number from 1 on", field=field, value=value)
    match mode:
        case "static":
            return ()
        case "accordion":
            return (limit,) if batch_size < limit else ()
        case "gns":
            ladder = []
            while batch_size < limit:
                batch_size = min(2 * batch_size, limit)
                ladder.append(batch_size)
            return tuple(ladder)
    raise InputError("forecast", "static, accordion or gns", field="mode", value=mode)


def evenly(count: Ints, width: int) -> Floats:
    """The prior of so many regimes of which nothing else is known."""
    return np.where(np.arange(width) < count[:, None], 1.0, 0.0)


def restated(epochs: Floats, lived: Floats, ongoing: Ints, prior: Floats) -> Floats:
    """The restatement rule: what is past is known, and the present and coming regimes share the rest of the epochs by their
    prior, Dir(m_1, …, m_k, S, …, S) where that is even. A present regime that has outlived its part keeps what it has, and
    those to come share what is left."""
    regime = np.arange(lived.shape[1])
    past, here = regime < ongoing[:, None], regime == ongoing[:, None]
    later = np.where(past | here, 0.0, prior)
    now, then = (prior * here).sum(axis=1), later.sum(axis=1)
    left = np.maximum(epochs - (lived * past).sum(axis=1), 0.0)
    present = np.maximum((lived * here).sum(axis=1), left * now / (now + then))
    each = np.maximum(left - present, 0.0) / np.where(then > 0, then, 1.0)
    return np.where(past, lived, np.where(here, present[:, None], later * each[:, None]))


def standard(epochs: Floats, lived: Floats, ongoing: Ints, prior: Floats) -> Floats:
    """The standard posterior, Dir(N/K + m_1, …, N/K + m_K), or with N times the declared shares for N/K, which takes epochs
    for independent draws."""
    posterior = epochs[:, None] * prior / prior.sum(axis=1)[:, None] + lived
    mean: Floats = posterior * (epochs / posterior.sum(axis=1))[:, None]
    return mean


def greedy(epochs: Floats, lived: Floats, ongoing: Ints, prior: Floats) -> Floats:
    """As it is now it will stay: what schedulers do that only react."""
    return restated(epochs, lived, ongoing, np.where(np.arange(lived.shape[1]) <= ongoing[:, None], prior, 0.0))


RULES: dict[str, Rule] = {"restatement": restated, "standard": standard, "greedy": greedy}


def ahead(expected: Floats, epochs: Floats, lived: Floats, ongoing: Ints) -> Floats:
    """The epochs still to be trained in each regime, in order. They add up to what the job declared and has not done, whatever
    an expectation says of the past; a job that has overrun its epochs has none ahead."""
    coming = np.where(np.arange(lived.shape[1]) >= ongoing[:, None], np.maximum(expected - lived, 0.0), 0.0)
    left = np.maximum(epochs - lived.sum(axis=1), 0.0)
    total = coming.sum(axis=1)
    here = np.arange(lived.shape[1]) == ongoing[:, None]
    coming = np.where((total > 0)[:, None], coming, here)
    scaled: Floats = coming * (left / np.where(total > 0, total, 1.0))[:, None]
    return scaled


def run_time(epochs_by_regime: Floats, epoch_s: Floats) -> Floats:
    """Seconds for so many epochs in each regime, alone on all the job asked for."""
    seconds: Floats = (epochs_by_regime * epoch_s).sum(axis=1)
    return seconds


def noised(seconds: Floats, noise: float, rng: np.random.Generator) -> Floats:
    """Run times off by up to ± `noise` of themselves, evenly drawn (§8.10)."""
    if not 0 <= noise <= 1:
        raise InputError("forecast", "a number from 0 to 1", field="noise", value=noise)
    return seconds * (1.0 + noise * rng.uniform(-1.0, 1.0, len(seconds)))


# What the jobs of a snapshot have been so far and are expected to be, regime by regime: what they announced (`view.regimes`),
# and what their declared mode may still bring or their owner's schedule has for them, through a rule of `forecast.py`. The
# unit
# is the declared step, which is as good as an epoch: a batch size changes how long it takes, not how many there are.
#
# Where estimation knows no rates at other batch sizes, and of modes that nothing is known about, nothing is foreseen: the job
# goes on as it is.


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
            promised[at] = not schedule_departure(job.schedule, job.steps, past, float(jobs.steps_done[at]))
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
        course = planned_regimes(job.schedule, had)
        sizes, prior = [size for size, _ in course], [share for _, share in course]
    else:
        sizes = had or [present]
        if job.mode in ADAPTIVE:
            sizes += [size for size in to_come(job.mode, present, max(speed)) if size in speed]
        prior = [1.0] * len(sizes)
    return _Course(starts, [now / speed.get(size, now) for size in sizes], prior)
