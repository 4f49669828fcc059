"""How good forecasts of start and end times are, in simulated weeks of jobs that declare no steps.

    python benchmarks/forecasts.py [--policy fifo] [--seed 1] [--scenarios 19] [--shape 2981 1.2 0.7]

Twelve users submit jobs of 16 job types to 32 GPUs for three weeks, at three loads. Run times are lognormal: each user and job
type has its own median (sigma 1.2 around 50 minutes), and its jobs differ by sigma 0.7 (`--shape`); none is above a week.
Arrivals follow the hour of day. In the second and third week, at random moments, a forecast sees the state without run times,
and covers up to 12 pending jobs. These forecasts are recorded, so that later ones learn from them. It prints how many starts
and ends were within the 80 % intervals (in brackets: without what was learned), and the median absolute error of the start.

The naive estimate is (pending jobs up to this one, in order of submission) x (mean run time of ended jobs) / (running jobs).
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.events import ForecastsRecorded, JournalOpened
from fairlead.core.job import Job, Phase
from fairlead.core.rng import stream
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.experiments.lookahead import ForecastOptions, forecast
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.simulator.backend import SimulatedBackend
from fairlead.testing import cluster
from fairlead.workloads.throughput_tables import MeasuredRate, ThroughputTable, draft_table

WEEK_S, GPUS, SIZES = 7 * 86400.0, 32, (1, 2, 4, 8)
LOADS = (0.6, 0.8, 0.95)
LONGEST_S = 7 * 86400.0


class Shape(NamedTuple):
    """Run times: the median in seconds, and sigma between users and job types and within them."""

    median_s: float = math.exp(8.0)
    between: float = 1.2
    within: float = 0.7


class Outcome(NamedTuple):
    """A forecast in seconds from its moment, and what happened."""

    starts: tuple[float, float, float]
    ends: tuple[float, float, float]
    naive: float
    started: float
    ended: float
    factors: tuple[float, float]

    @property
    def covered(self) -> tuple[bool, bool, bool, bool]:
        """Whether start and end were within the intervals, and within those that nothing has widened."""
        return (
            _within(self.started, self.starts),
            _within(self.ended, self.ends),
            _within(self.started, self.starts, self.factors[0]),
            _within(self.ended, self.ends, self.factors[1]),
        )


def _within(second: float, bounds: tuple[float, float, float], factor: float = 1.0) -> bool:
    low, median, high = bounds
    return median - (median - low) / factor <= second <= median + (high - median) / factor


def workload(load: float, shape: Shape, seed: int) -> list[Job]:
    """Jobs of three weeks, in the mean so many that they need this part of the cluster."""
    draw = stream(seed, "forecast-benchmark", round(100 * load))
    groups = [
        (f"user-{user}", f"type-{kind}", median_s, int(draw.choice(SIZES, p=(0.5, 0.2, 0.2, 0.1))))
        for user in range(12)
        for kind in draw.choice(16, 3, replace=False).tolist()
        for median_s in [float(np.exp(draw.normal(math.log(shape.median_s), shape.between)))]
    ]
    run_s = {group: np.minimum(group[2] * np.exp(draw.normal(0.0, shape.within, 2000)), LONGEST_S) for group in groups}
    rate = load * GPUS / float(np.mean([run_s[group].mean() * group[3] for group in groups]))
    jobs, second = [], 0.0
    while (second := second + float(draw.exponential(1 / (2 * rate)))) < 3 * WEEK_S:
        if draw.random() < 0.5 * (1 + 0.8 * math.sin(2 * math.pi * second / 86400)):
            group = groups[int(draw.integers(len(groups)))]
            user, kind, _, size = group
            jobs.append(Job(f"job-{len(jobs)}", second, float(draw.choice(run_s[group])), kind, size, user=user))
    return jobs


def table_of(jobs: list[Job]) -> ThroughputTable:
    keys = sorted({(job.kind, job.workers) for job in jobs})
    return draft_table([MeasuredRate(*key, "v100", False, 1.0) for key in keys], ("v100",), Path("rates")).finish()


def hidden(state: State) -> State:
    """A copy in which no live job has declared steps."""
    copy = load(save(state))
    for number in (*copy.live.tolist(), *copy.queue.tolist()):
        copy.assume(number, steps=UNKNOWN_STEPS, min_run_s=copy.job_of[number].min_run_s)
    return copy


def outcomes(
    policy: str, load_level: float, shape: Shape, moments: int, options: ForecastOptions, seed: int
) -> Iterator[Outcome]:
    jobs = workload(load_level, shape, seed)
    table, on, scheduler = table_of(jobs), cluster(f"{GPUS}xv100:8"), SchedulerConfig(Part(policy), round_s=60.0)
    loop = Loop(State(on), SimulatedBackend(on, table, jobs), scheduler.build(table))
    loop.record(JournalOpened(0.0, on, scheduler.to_data()))
    draw, state = stream(seed, "moments", round(100 * load_level)), loop.state
    found: list[tuple[int, float, Outcome]] = []
    for moment in sorted(draw.uniform(WEEK_S, 3 * WEEK_S, moments).tolist()):
        loop.run(until=moment)
        state.time = max(state.time, loop.backend.now)
        now, a = state.time, state.columns
        pending = [n for n in sorted((*state.live.tolist(), *state.queue.tolist())) if math.isnan(a["first_started_s"][n])]
        chosen = frozenset(draw.choice(pending, min(12, len(pending)), replace=False).tolist()) if pending else frozenset()
        if not chosen:
            continue
        over = a["phase"][: state.next_number] == int(Phase.FINISHED)
        mean_s, running = float(a["settled_run_s"][: state.next_number][over].mean()), max(1, len(state.running))
        asked = ForecastOptions(options.simulations, options.window_s, math.inf, jobs=chosen)
        ahead = forecast(hidden(state), table, asked)
        bounds = [(one.range(lambda times: times.starts_s), one.range(lambda times: times.ends_s)) for one in ahead.jobs]
        columns = np.array(bounds).reshape(len(bounds), 6).T + now
        loop.record(ForecastsRecorded(now, np.array([one.number for one in ahead.jobs]), *columns, *ahead.widened))
        for one, (starts, ends) in zip(ahead.jobs, bounds):
            naive = (pending.index(one.number) + 1) * mean_s / running
            found.append((one.number, now, Outcome(starts, ends, naive, 0.0, 0.0, ahead.widened)))
    loop.run()
    for number, now, one in found:
        started, ended = (float(state.columns[name][number]) - now for name in ("first_started_s", "ended_s"))
        yield one._replace(started=started, ended=ended)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenarios", type=int, default=19)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--shape", type=float, nargs="*", default=Shape())
    parser.add_argument("--load", type=float, nargs="*", default=LOADS)
    given = parser.parse_args()
    options, every = ForecastOptions(given.scenarios), []
    print(f"{'load':>5} {'forecasts':>9} {'start in':>15} {'end in':>15} {'error':>8} {'naive':>8} {'ratio':>6} {'CPU s':>6}")
    for level in (*given.load, None):
        began = time.process_time()
        found = (
            every
            if level is None
            else [*outcomes(given.policy, level, Shape(*given.shape), given.moments, options, given.seed)]
        )
        every = every if level is None else [*every, *found]
        start, end, start_as_drawn, end_as_drawn = np.mean([one.covered for one in found], axis=0).tolist()
        error = float(np.median([abs(one.starts[1] - one.started) for one in found]))
        naive = float(np.median([abs(one.naive - one.started) for one in found]))
        print(
            f"{'all' if level is None else level:>5} {len(found):>9,} {start:>6.1%} ({start_as_drawn:>5.1%}) "
            f"{end:>6.1%} ({end_as_drawn:>5.1%}) {error:>7.0f}s {naive:>7.0f}s {error / naive:>6.2f} "
            f"{time.process_time() - began:>6.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
