"""What the scenarios of a forecast draw, each by its own seed: run times of jobs whose end is unknown, arrivals, node faults.
It knows the state that they are learned from, and no simulation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.core.errors import require
from fairlead.core.events import NodeLost, NodeRepaired
from fairlead.core.job import TIMED, Job, Phase
from fairlead.core.rng import stream
from fairlead.engine.state import State
from fairlead.runtime.protocol.task_parts import array_of

DAY_S, HOUR_S = 86400.0, 3600.0

SHRINKAGE, SHARED_SHRINKAGE = 2.0, 20.0
"""A group of n finished jobs counts n / (n + the first); the rest is the next larger group. Where groups share the shape of
their distribution, it counts n / (n + the second); the rest is a group of this shape."""

MIN_SHARED = 50
"""With fewer finished jobs, groups share no shape."""

MIN_VARIANCE = 1e-4
"""Of the logarithms of run times."""

NORMAL_FIFTHS = np.array([NormalDist().inv_cdf(share) for share in (0.1, 0.3, 0.5, 0.7, 0.9)])

SHARED_SHAPE = np.linspace(0.0025, 0.9975, 200)
"""The shares of the probability at which the shared distribution is known."""

MAX_RUNS = 1000
"""The most recent run times of a group that count."""

MAX_RATIO = 20.0
"""A job that runs longer than all known runs ends at most at so many times their length."""

MAX_ARRIVALS = 2000
"""Jobs that arrive in one scenario."""

MAX_FAULTS = 1000


class Survival(NamedTuple):
    """The run times of a group of jobs (Kaplan–Meier): `mass` is the probability of each of the sorted `runs`, and `left` that
    of a longer one."""

    runs: Floats
    mass: Floats
    left: float


@dataclass(frozen=True)
class RunGroup:
    """Run times of jobs of a group, sorted, and which are `over`: the other jobs still run, and will have run longer."""

    times: Floats
    over: Bools

    @classmethod
    def of(cls, ran_s: Sequence[float], over: Sequence[bool]) -> RunGroup:
        """From run times so far, the most recent last, and whether they are over."""
        times, ended = np.array(ran_s[-MAX_RUNS:]), np.array(over[-MAX_RUNS:], dtype=np.bool_)
        order = np.lexsort((~ended, times))
        return cls(times[order], ended[order])

    def survival(self, draw: np.random.Generator | None = None) -> Survival:
        """The distribution of run times; with `draw`, one that these run times may also come from (Bayesian bootstrap)."""
        weights = np.ones(len(self.times)) if draw is None else draw.standard_exponential(len(self.times))
        hazard = np.where(self.over, weights / np.cumsum(weights[::-1])[::-1], 0.0)
        survives = np.cumprod(1.0 - np.minimum(hazard, 1.0))
        mass = np.concatenate(([1.0], survives[:-1])) * hazard
        return Survival(self.times[self.over], mass[self.over], float(survives[-1]))


@dataclass(frozen=True)
class SharedShape:
    """What groups of run times, by user and job type, have in common: log T = location of the group + deviation, where
    deviations have one distribution. Locations are normal around the mean of their job type, or of `every` group, with variance
    `between`; a run deviates with variance `within` (empirical Bayes)."""

    deviations: Floats  # at SHARED_SHAPE
    every: float
    kinds: Mapping[str, tuple[float, int]]  # the mean location of their groups, and how many these are
    between: float
    within: float

    @classmethod
    def of(cls, groups: Mapping[tuple[str, ...], Survival]) -> SharedShape | None:
        """From the run times by user and job type; None if there are too few jobs."""
        logs = [(np.log(np.maximum(one.runs, 1.0)), one.mass / one.mass.sum()) for one in groups.values()]
        several = [place for place, (runs, _) in enumerate(logs) if len(runs) > 1]
        if sum(len(logs[at][0]) for at in several) < MIN_SHARED:
            return None
        counts, means = np.array([len(runs) for runs, _ in logs]), np.array([float(runs @ mass) for runs, mass in logs])
        of_kind: dict[str, list[float]] = {}
        for (*_, kind), mean in zip(groups, means.tolist()):
            of_kind.setdefault(kind, []).append(mean)
        deviation = [(logs[at][0] - means[at]) * math.sqrt(counts[at] / (counts[at] - 1)) for at in several]
        weight = [logs[at][1] * counts[at] for at in several]
        values, weights = np.concatenate(deviation), np.concatenate(weight)
        order = values.argsort()
        cumulated = np.cumsum(weights[order]) - weights[order] / 2
        within = max(float(values**2 @ weights / weights.sum()), MIN_VARIANCE)
        between = max(float(means.var() - within * (1 / counts).mean()), MIN_VARIANCE)
        shape = np.interp(SHARED_SHAPE, cumulated / weights.sum(), values[order])
        kinds = {kind: (float(np.mean(each)), len(each)) for kind, each in of_kind.items()}
        return cls(shape, float(means.mean()), kinds, between, within)

    def at(self, kind: str, group: Survival | None) -> Survival:
        """The run times of a group with this shape; None: of one that has no finished job yet."""
        mean, groups = self.kinds.get(kind, (0.0, 0))
        prior, count = (self.every + groups * mean) / (1 + groups), 0 if group is None else len(group.runs)
        own = 0.0 if group is None else float(np.log(np.maximum(group.runs, 1.0)) @ group.mass / group.mass.sum())
        precision = 1 / self.between + count / self.within
        shifts = (prior / self.between + own * count / self.within) / precision + NORMAL_FIFTHS / math.sqrt(precision)
        runs = np.sort(np.exp(shifts[:, None] + self.deviations[None, :]).ravel())
        return Survival(runs, np.full(len(runs), 1 / len(runs)), 0.0)


class RunTime(NamedTuple):
    """The run time of one job that has run `ran_s`, as a distribution: the values that it may have and their cumulated
    probability. A value that is a `tail` is a bound: the job runs longer than that."""

    ran_s: float
    values: Floats
    cumulated: Floats
    tail: Bools

    def at(self, share: float, beyond: float = 0.5) -> float:
        """The run time at a share of the probability; in a tail, at the share `beyond` of it. A job of age t that is older than
        all others runs for another t with probability 1/2, or 9 t with probability 1/10."""
        place = int(np.searchsorted(self.cumulated, share * self.cumulated[-1], side="right"))
        place = min(place, len(self.values) - 1)
        longer = 1.0 / max(1.0 - beyond, 1.0 / MAX_RATIO) if self.tail[place] else 1.0
        return float(self.values[place]) * longer

    @property
    def median_s(self) -> float:
        """The median run time."""
        return self.at(0.5)


class RunTimes:
    """How long jobs run, by groups: jobs of the same array, then of the same user and job type, of the same job type, and all.

    A run time is drawn from the smallest group, as far as its number of finished jobs carries; else from the next one, or with
    enough finished jobs from the shape that all groups share. A job that has run for t gets a run time above t:
    P(T > t + s | T > t) = S(t + s) / S(t)."""

    def __init__(self, state: State) -> None:
        times: dict[tuple[str, ...], tuple[list[float], list[bool]]] = {}
        self.ran_s: dict[int, float] = {}
        phases, held, started = (state.columns[name] for name in ("phase", "held", "run_started_s"))
        for number, job in state.job_of.items():
            over = bool(phases[number] == int(Phase.FINISHED))  # one that was cancelled or failed would have run longer
            ran_s = run_s(state, number) + (max(0.0, state.time - float(started[number])) if held[number] else 0.0)
            self.ran_s[number] = ran_s
            if ran_s > 0:
                for key in groups_of(job):
                    each = times.setdefault(key, ([], []))
                    each[0].append(ran_s)
                    each[1].append(over)
        self._groups = {key: RunGroup.of(*each) for key, each in times.items() if any(each[1][-MAX_RUNS:])}
        self.redraw(None)

    def redraw(self, draw: np.random.Generator | None) -> None:
        """Draw other distributions from the same run times, one for each group; None: as observed."""
        self._survival = {key: group.survival(draw) for key, group in self._groups.items()}
        self._known: dict[tuple[tuple[tuple[str, ...], ...], float], RunTime | None] = {}
        self._shared = SharedShape.of({key: one for key, one in self._survival.items() if key[0] == "kind" and len(key) == 3})

    def peers(self, job: Job) -> Floats:
        """The run times of the smallest group that has any."""
        found = next((self._survival[key] for key in groups_of(job) if key in self._survival), None)
        return np.zeros(0) if found is None else found.runs

    def of(self, job: Job, ran_s: float) -> RunTime | None:
        """The distribution of a job's run time; None if no job at all has ended."""
        keys = tuple(key for key in groups_of(job) if key in self._survival)
        if (keys, ran_s) not in self._known:
            groups, shrinkage = [self._survival[key] for key in keys], SHRINKAGE
            if groups and self._shared is not None:
                own = groups[0] if keys[0][0] == "array" or len(keys[0]) == 3 else None
                groups, shrinkage = [*([own] if own else []), self._shared.at(job.kind, own)], SHARED_SHRINKAGE
            self._known[keys, ran_s] = _conditional(groups, ran_s, shrinkage) if keys else None
        return self._known[keys, ran_s]


def _conditional(groups: Sequence[Survival], ran_s: float, shrinkage: float = SHRINKAGE) -> RunTime:
    """The mixture of groups, the smallest first, given that a job has run `ran_s`."""
    values: list[Floats] = []
    masses: list[Floats] = []
    tails: list[Bools] = []
    remaining = 1.0
    for place, (runs, mass, left) in enumerate(groups):
        last = place == len(groups) - 1
        if last:  # one more run than was seen may be longer than all of them
            left = max(left, 1.0 / (len(runs) + 1))
            mass = mass * ((1.0 - left) / mass.sum())
        weight = remaining * (1.0 if last else len(runs) / (len(runs) + shrinkage))
        remaining -= weight
        longer = runs > ran_s
        values += [runs[longer], np.array([max(ran_s, runs[-1])])]
        masses += [weight * mass[longer], np.array([weight * left])]
        tails += [np.zeros(int(longer.sum()), dtype=np.bool_), np.ones(1, dtype=np.bool_)]
    every = np.concatenate(values)
    order = np.argsort(every, kind="stable")
    return RunTime(ran_s, every[order], np.cumsum(np.concatenate(masses)[order]), np.concatenate(tails)[order])


def run_s(state: State, number: int) -> float:
    """The run time of a job since it last began from its first step: a finished job may have been requeued."""
    earlier = (run.run_s for run in state.ended_runs.get(number, ()) if run.phase == int(Phase.FINISHED))
    return float(state.columns["settled_run_s"][number]) - max(earlier, default=0.0)


def groups_of(job: Job) -> Iterator[tuple[str, ...]]:
    """The groups of jobs that should run about as long, the closest first."""
    if array := array_of(job):
        yield "array", array["id"]
    yield "kind", job.user, job.kind
    if job.kind != TIMED:
        yield "kind", job.kind
    yield ("all",)


@dataclass(frozen=True)
class ArrivalForecast:
    """The jobs that a forward simulation assumes to arrive: `none` (Blox §5.2), or as in the `recent` past.

    `recent`: for `window_s`, or the length of the past if that is shorter, there are as many submissions as before: jobs, or
    whole arrays. Each is a copy of one of that time, drawn by `seed`. Where the past has a whole day, each hour is copied from
    the same hour of a day in it. Where it is shorter than the window, its first submission does not count: it says only when
    the cluster began to be used."""

    arrivals: Literal["none", "recent"] = "none"
    window_s: float = 6 * 3600.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.arrivals in ("none", "recent"), "forecast", "none or recent", "arrivals", self.arrivals)
        require(0 < self.window_s < math.inf, "forecast", "seconds above 0", "window_s", self.window_s)

    def draw(self, now: float, past: Iterable[Job], within_s: float = math.inf, share: float = 1.0) -> tuple[Job, ...]:
        """The jobs that are assumed to arrive, only those of the next `within_s`; `past` are those that did, most recent
        first. With a `share` below 1, some of the same submissions are left out."""
        if self.arrivals == "none":
            return ()
        known = list(takewhile(lambda job: job.submitted_s >= now - self.window_s, past))[::-1]
        if not known:
            return ()
        draw, span_s = stream(self.seed, "forecast", round(now * 1000)), min(self.window_s, now)
        submissions = _submissions(known)[span_s == now :]
        if not submissions:
            return ()
        if span_s >= DAY_S:
            drawn = self._by_hour(draw, now, submissions, int(span_s // DAY_S))
        else:
            count = int(draw.poisson(len(submissions)))
            times = sorted((now + span_s * draw.random(count)).tolist())
            places = draw.integers(len(submissions), size=count).tolist()
            drawn = ((second, submissions[place]) for second, place in zip(times, places))
        some = stream(self.seed, "share", round(now * 1000))
        soon = (
            (second, job, comes)
            for second, jobs in takewhile(lambda one: one[0] <= now + within_s, drawn)
            for comes in (share >= 1 or some.random() < share,)
            for job in jobs
        )
        return tuple(
            replace(job, name=f"forecast-{place}", submitted_s=second, after=(), group="", command="")
            for place, (second, job, comes) in enumerate(islice(soon, MAX_ARRIVALS))
            if comes
        )

    @staticmethod
    def _by_hour(
        draw: np.random.Generator, now: float, submissions: Sequence[Sequence[Job]], days: int
    ) -> Iterator[tuple[float, Sequence[Job]]]:
        """Each future hour is the same hour of one of the past days. A submission of it comes once in the mean (Poisson)."""
        submitted = np.array([jobs[0].submitted_s for jobs in submissions])
        for hour in range(24 * days):
            back_s = DAY_S * (hour // 24 + 1 + int(draw.integers(days)))
            begin = now + HOUR_S * hour - back_s
            first, last = np.searchsorted(submitted, (begin, begin + HOUR_S)).tolist()
            for jobs, copies in zip(submissions[first:last], draw.poisson(1.0, last - first).tolist()):
                yield from [(jobs[0].submitted_s + back_s, jobs)] * copies


def _submissions(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs in the order of submission, those of an array together."""
    found: dict[object, list[Job]] = {}
    for place, job in enumerate(jobs):
        array = array_of(job)
        found.setdefault(array["id"] if array else place, []).append(job)
    return [*found.values()]


@dataclass(frozen=True)
class FaultHistory:
    """How often nodes were lost and for how long, as far as a state knows; nodes that are down, and since when."""

    nodes: int
    past_s: float
    outages_s: tuple[float, ...]  # lengths of those that are over
    down: Mapping[int, float]

    @classmethod
    def of(cls, state: State) -> FaultHistory:
        """The history that a state has kept."""
        lengths = tuple(back_s - lost_s for lost_s, back_s in state.outages)
        return cls(len(state.cluster.nodes), state.time, lengths, dict(state.lost_since))

    def draw(self, seed: int, now: float, span_s: float) -> Iterator[NodeLost | NodeRepaired]:
        """The faults of a scenario by time: every node is lost at the rate of the past, for as long as an outage took. A node
        that is down comes back likewise. Without an outage that is over there are none."""
        losses = len(self.outages_s) + len(self.down)
        if not self.outages_s:
            return iter(())
        draw, mean_up_s = stream(seed, "node-faults", round(now * 1000)), max(self.past_s, DAY_S) * self.nodes / losses
        events: list[NodeLost | NodeRepaired] = []
        for node in range(self.nodes):
            second = now
            if (since := self.down.get(node)) is not None:
                longer = [each for each in self.outages_s if each > now - since] or [2.0 * (now - since)]
                second += float(draw.choice(longer)) - (now - since)
                events.append(NodeRepaired(second, node))
            while (second := second + float(draw.exponential(mean_up_s))) < now + span_s and len(events) < MAX_FAULTS:
                events.append(NodeLost(second, node))
                second += float(draw.choice(self.outages_s))
                events.append(NodeRepaired(second, node))
        return iter(sorted(events, key=lambda event: event.time))
