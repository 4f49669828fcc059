"""Forecast of the regimes of a job (Shockwave §5). A job trains in regimes, one after the other, each with a batch size and a
share of its epochs. Its declared mode says which regimes may follow; their lengths are forecast as the mean of a Dirichlet
posterior over their shares. The prior is even, or the shares of the job's declared schedule. The forecast never sees the true
course.

Arrays have one row per job and one column per regime. `trained` has the epochs trained in each regime so far; `current` is the
index of the present regime; `prior` has the weight of each expected regime, past ones included, and 0 behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError, require
from fairlead.core.job import Job, Regime, batch_size_of, planned_regimes, schedule_departure
from fairlead.core.plan import OtherBatches
from fairlead.core.snapshot import Snapshot

Rule: TypeAlias = Callable[[Floats, Floats, Ints, Floats], Floats]
"""(declared epochs, trained, current, prior) → the expected total epochs of each regime."""


ADAPTIVE = ("accordion", "gns")
"""Modes whose possible batch sizes are known."""


def next_batch_sizes(mode: str, batch_size: int, limit: int) -> tuple[int, ...]:
    """The batch sizes that may follow under a mode: GNS doubles up to its limit, Accordion goes to its large size."""
    if batch_size < 1 or limit < 1:
        field, value = ("batch_size", batch_size) if batch_size < 1 else ("limit", limit)
        raise InputError("forecast", "a whole number of at least 1", field=field, value=value)
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


def even_prior(count: Ints, width: int) -> Floats:
    """The uninformed prior over this many regimes."""
    return np.where(np.arange(width) < count[:, None], 1.0, 0.0)


def restatement(epochs: Floats, trained: Floats, current: Ints, prior: Floats) -> Floats:
    """The restatement rule: past regimes are known, and the present and later ones share the remaining epochs by their prior,
    Dir(m_1, …, m_k, S, …, S) if it is even; a present regime keeps at least what it has."""
    regime = np.arange(trained.shape[1])
    past, here = regime < current[:, None], regime == current[:, None]
    later = np.where(past | here, 0.0, prior)
    now, then = (prior * here).sum(axis=1), later.sum(axis=1)
    left = np.maximum(epochs - (trained * past).sum(axis=1), 0.0)
    present = np.maximum((trained * here).sum(axis=1), left * now / (now + then))
    each = np.maximum(left - present, 0.0) / np.where(then > 0, then, 1.0)
    return np.where(past, trained, np.where(here, present[:, None], later * each[:, None]))


def standard_posterior(epochs: Floats, trained: Floats, current: Ints, prior: Floats) -> Floats:
    """The standard posterior, Dir(N/K + m_1, …, N/K + m_K), or with N times the declared shares instead of N/K."""
    posterior = epochs[:, None] * prior / prior.sum(axis=1)[:, None] + trained
    mean: Floats = posterior * (epochs / posterior.sum(axis=1))[:, None]
    return mean


def greedy_forecast(epochs: Floats, trained: Floats, current: Ints, prior: Floats) -> Floats:
    """No change: the forecast of schedulers that only react."""
    return restatement(epochs, trained, current, np.where(np.arange(trained.shape[1]) <= current[:, None], prior, 0.0))


RULES: dict[str, Rule] = {"restatement": restatement, "standard": standard_posterior, "greedy": greedy_forecast}


def remaining_epochs(expected: Floats, epochs: Floats, trained: Floats, current: Ints) -> Floats:
    """The epochs left in each regime, in order; they sum to the declared epochs that are not done."""
    coming = np.where(np.arange(trained.shape[1]) >= current[:, None], np.maximum(expected - trained, 0.0), 0.0)
    left = np.maximum(epochs - trained.sum(axis=1), 0.0)
    total = coming.sum(axis=1)
    here = np.arange(trained.shape[1]) == current[:, None]
    coming = np.where((total > 0)[:, None], coming, here)
    scaled: Floats = coming * (left / np.where(total > 0, total, 1.0))[:, None]
    return scaled


def run_time(epochs_by_regime: Floats, epoch_s: Floats) -> Floats:
    """Seconds for these epochs in each regime, without contention."""
    seconds: Floats = (epochs_by_regime * epoch_s).sum(axis=1)
    return seconds


def with_noise(seconds: Floats, noise: float, rng: np.random.Generator) -> Floats:
    """Run times with a uniform relative error of up to ± `noise` (§8.10)."""
    require(0 <= noise <= 1, "forecast", "a number from 0 to 1", "noise", noise)
    return seconds * (1.0 + noise * rng.uniform(-1.0, 1.0, len(seconds)))


@dataclass(frozen=True)
class Trajectories:
    """Past and expected regimes of jobs, as jobs × regimes. The unit is the declared step at any batch size."""

    trained: Floats  # steps done in each regime
    remaining: Floats  # steps left in each regime
    step_s: Floats  # seconds per step in each regime
    present_step_s: Floats  # seconds per step of each job now
    scheduled: Bools  # jobs that have followed their declared schedule so far

    @property
    def done(self) -> Floats:
        steps: Floats = self.trained.sum(axis=1)
        return steps

    @property
    def steps(self) -> Floats:
        """The expected total steps."""
        total: Floats = self.done + self.remaining.sum(axis=1)
        return total

    @property
    def past_s(self) -> Floats:
        """Run time of the steps done, without contention and restarts."""
        return run_time(self.trained, self.step_s)

    @property
    def left_s(self) -> Floats:
        return run_time(self.remaining, self.step_s)

    @property
    def longest_s(self) -> Floats:
        """The same without any speed-up, as a mode permits a speed-up but does not promise it; a schedule does."""
        stays = np.maximum(self.remaining.sum(axis=1) * self.present_step_s, self.left_s)
        return np.where(self.scheduled, self.left_s, stays)


def changing_jobs(view: Snapshot) -> list[int]:
    """The positions of jobs that have, or may have, more than one regime."""
    jobs = [view.job_of[number] for number in view.jobs.number.tolist()]
    begun = np.isin(view.jobs.number, np.fromiter(view.regimes, np.int64, len(view.regimes))).tolist()
    return [at for at, job in enumerate(jobs) if begun[at] or job.mode in ADAPTIVE or job.schedule]


def forecast_trajectories(
    view: Snapshot, rule: Rule, step_s: Floats, types: Ints, changing: Sequence[int], min_left_s: float
) -> Trajectories:
    """Forecast the jobs of a view on these types, at the present time per step, with the regimes of the `changing` ones. A job
    beyond its declared steps is expected to take `min_left_s` more."""
    jobs, batches, regimes = view.jobs, view.rates.other_batches, view.regimes
    courses, scheduled = dict[int, _Course](), np.zeros(len(jobs), dtype=np.bool_)
    for at in changing:
        number = int(jobs.number[at])
        job, past = view.job_of[number], regimes.get(number, ())
        courses[at] = _course(job, past, batches, int(types[at]))
        if job.schedule:
            scheduled[at] = not schedule_departure(job.schedule, job.steps, past, float(jobs.steps_done[at]))
    width = max((len(course.times) for course in courses.values()), default=1)
    begun = np.full((len(jobs), width + 1), np.inf)
    times, prior = np.ones((len(jobs), width)), np.zeros((len(jobs), width))
    begun[:, 0], prior[:, 0] = 0.0, 1.0
    current = np.zeros(len(jobs), dtype=np.int64)
    for at, course in courses.items():
        begun[at, : len(course.starts)], times[at, : len(course.times)] = course.starts, course.times
        prior[at, : len(course.prior)], current[at] = course.prior, len(course.starts) - 1
    until = np.minimum(begun, jobs.steps_done[:, None])
    trained = np.diff(until, axis=1)
    coming = remaining_epochs(rule(jobs.steps, trained, current, prior), jobs.steps, trained, current)
    over = jobs.steps_done >= jobs.steps
    if over.any():
        coming[over, current[over]] = min_left_s / step_s[over]
    return Trajectories(trained, coming, step_s[:, None] * times, step_s, scheduled)


class _Course(NamedTuple):
    starts: list[float]  # the steps at which the regimes so far began
    times: list[float]  # relative time per step of each regime, later ones included
    prior: list[float]  # weight of its share of the steps


def _course(job: Job, past: Sequence[Regime], batches: OtherBatches | None, type_: int) -> _Course:
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
            sizes += [size for size in next_batch_sizes(job.mode, present, max(speed)) if size in speed]
        prior = [1.0] * len(sizes)
    return _Course(starts, [now / speed.get(size, now) for size in sizes], prior)
