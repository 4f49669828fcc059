"""The jobs of Horus' studies. The paper's are not published; these are fixed by shares of four classes, short or long and light
or heavy, and by a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fairlead.core.job import Job
from fairlead.core.rng import stream
from fairlead.workloads.throughput_tables import MeasuredTraining
from fairlead.workloads.trace import Trace

MINUTE = 60.0
SHORT_S, LONG_S = (3 * MINUTE, 13 * MINUTE), (13 * MINUTE, 120 * MINUTE)
LIGHT = 60.0
"""Percent of utilization below which a job is light."""

SHARES = {"W-Large": (0.30, 0.15, 0.35, 0.20), "W-Small": (0.55, 0.20, 0.20, 0.05)}
"""Of short and light, short and heavy, long and light, long and heavy."""

MONTH = "month"
MEDIAN_S, MEAN_S = 300 * MINUTE, 500 * MINUTE
LONGEST_S = 4 * MEAN_S
GANGS = {1: 0.50, 2: 0.06, 4: 0.08, 8: 0.12, 16: 0.10, 32: 0.08, 64: 0.06}
"""With these, and 398 jobs on 1,024 accelerators, FIFO's mean wait is 467 minutes; the paper's is 466.2 of its steps."""


def trace(name: str, count: int, trainings: Sequence[MeasuredTraining], seed: int) -> Trace:
    """So many jobs of W-Large, W-Small or the month, all there at second 0. Each class has its exact part, to a whole job."""
    return _month(count, trainings, seed) if name == MONTH else _classes(name, count, trainings, seed)


def longest_first(jobs: Trace, trainings: Sequence[MeasuredTraining]) -> Trace:
    """The same jobs, submitted by their run time alone."""
    speed = {one.kind: one.steps_per_s for one in trainings}
    ordered = sorted(jobs.jobs, key=lambda job: -job.steps / (speed[job.kind] * job.workers))
    return Trace.of(ordered, f"{jobs.name}, longest first")


def _classes(name: str, count: int, trainings: Sequence[MeasuredTraining], seed: int) -> Trace:
    drawn = stream(seed, "horus", name)
    classes = drawn.permutation(np.repeat(np.arange(4), _parts(SHARES[name], count)))
    light = [one for one in trainings if one.utilization < LIGHT]
    heavy = [one for one in trainings if one.utilization >= LIGHT]
    jobs = []
    for number, kind in enumerate(classes.tolist()):
        low, high = SHORT_S if kind < 2 else LONG_S
        seconds = math.exp(drawn.uniform(math.log(low), math.log(high)))
        among = light if kind % 2 == 0 else heavy
        one = among[int(drawn.integers(len(among)))]
        jobs.append(Job(f"job-{number}", steps=seconds * one.steps_per_s, kind=one.kind))
    return Trace.of(jobs, f"{name}, seed {seed}")


def _month(count: int, trainings: Sequence[MeasuredTraining], seed: int) -> Trace:
    """Durations are log-normal, cut off where they are four times the mean; half of the jobs are light."""
    drawn = stream(seed, "horus", MONTH)
    sizes = drawn.permutation(np.repeat(list(GANGS), _parts(tuple(GANGS.values()), count)))
    sigma = math.sqrt(2 * math.log(MEAN_S / MEDIAN_S))
    light = [one for one in trainings if one.utilization < LIGHT]
    heavy = [one for one in trainings if one.utilization >= LIGHT]
    jobs = []
    for number, size in enumerate(sizes.tolist()):
        seconds = min(MEDIAN_S * math.exp(sigma * drawn.standard_normal()), LONGEST_S)
        among = light if drawn.random() < 0.5 else heavy
        one = among[int(drawn.integers(len(among)))]
        jobs.append(Job(f"job-{number}", steps=seconds * one.steps_per_s * size, kind=one.kind, workers=size))
    return Trace.of(jobs, f"{MONTH}, seed {seed}")


def _parts(shares: Sequence[float], count: int) -> list[int]:
    """Whole numbers that add up, by largest remainders."""
    exact = [share * count for share in shares]
    whole = [int(part + 1e-9) for part in exact]
    rest = sorted(range(len(shares)), key=lambda at: (whole[at] - exact[at], at))
    for at in rest[: count - sum(whole)]:
        whole[at] += 1
    return whole
