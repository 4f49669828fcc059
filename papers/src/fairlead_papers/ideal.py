"""An allocation policy without rounds: every job progresses exactly as its shares say, Σ over types of share × rate, as if
accelerators could be divided like time (the ideal baseline of Gavel §7.5). Shares are computed anew whenever a job comes or
goes.

It is the real state and the real policy; what is left out is the mechanism, the placement and the backend."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from fairlead.config.registry import Registry
from fairlead.core import events as ev
from fairlead.core.errors import FairleadError
from fairlead.core.plan import RoundPlan
from fairlead.core.stages import Allocated
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.experiments.inputs import table_for, used_rates
from fairlead.experiments.run_record import RunRecord, record_of
from fairlead.experiments.simulate import Simulation, peak_rss_mb


def ideal(
    given: Simulation, *, registry: Registry | None = None, on_progress: Callable[[float], None] | None = None
) -> RunRecord:
    """Run a trace under an allocation policy's exact shares. Costs, faults and rounds do not occur."""
    table = table_for(given.trace, given.cluster, given.table, fill=given.fill_workers)
    stages = given.scheduler.build(table, registry or Registry.installed())
    if not isinstance(stages.policy, Allocated):
        raise FairleadError(f"policy '{given.scheduler.policy.name}' computes no time fractions, so it has no ideal run")
    if given.trace.dynamics:
        raise FairleadError("some jobs have dynamics, such as regimes; an ideal run needs the speeds of a table")
    allocator = stages.policy.allocator
    rates = used_rates(given.trace.jobs, table)
    state = State(given.cluster)
    apply_event(state, ev.JournalOpened(0.0, given.cluster, given.scheduler.to_data(), given.trace.name, rates))
    coming = sorted(given.trace.jobs, key=lambda job: job.submitted_s)
    first, last = given.measure or (0, len(coming))
    next_job, memo, now = 0, None, 0.0
    began = time.perf_counter()
    while True:
        # 1. Everybody who is here by now comes in.
        entered = []
        while next_job < len(coming) and coming[next_job].submitted_s <= now:
            apply_event(state, ev.JobSubmitted(coming[next_job].submitted_s, next_job, coming[next_job]))
            entered.append(next_job)
            next_job += 1
        if entered:
            apply_event(state, ev.RoundPlanned(RoundPlan(now, admitted=np.array(entered, dtype=np.int64))))
        # 2. Shares, and the speed they give.
        view = state.snapshot(now).with_changes(estimate=stages.estimator.rates)
        numbers, left = view.jobs.number, view.jobs.steps_left
        speed = np.zeros(len(numbers))
        if len(numbers):
            allocation, memo = allocator.allocate(view, memo)
            speed = allocation.throughputs(view.jobs, view.rates)
        # 3. On to the next end or arrival.
        until_end = np.divide(left, speed, out=np.full(len(left), np.inf), where=speed > 0)
        arrival = coming[next_job].submitted_s if next_job < len(coming) else math.inf
        passing = min(float(until_end.min(initial=math.inf)), arrival - now)
        if passing == math.inf or _measured(state, first, last, next_job):
            break
        then = now + passing
        done = view.jobs.steps_done + speed * passing
        ended = until_end <= passing + 1e-6  # whoever ends together but for a rounding
        still = np.zeros(len(numbers))
        apply_event(state, ev.ProgressReported(then, numbers, done, still, np.full(len(numbers), then)))
        if ended.any():
            apply_event(state, ev.JobsFinished(then, numbers[ended], np.full(np.count_nonzero(ended), then)))
            if on_progress is not None:
                on_progress((state.next_number - len(state.live)) / len(coming))
        now = then
    facts = {"rounds": 0, "decisions": 0, "decide_s": 0.0, "wall_s": time.perf_counter() - began, "peak_rss_mb": peak_rss_mb()}
    return record_of(state, f"{given.scheduler.label} (ideal)", given.trace.name, rates, facts, None)


def _measured(state: State, first: int, last: int, seen: int) -> bool:
    """Whether all jobs that are measured have ended."""
    return seen >= last and not np.count_nonzero((state.live >= first) & (state.live < last))
