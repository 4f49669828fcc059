"""What if: a fork of a cluster with changes, against the same fork without. Both are simulated on the same arrivals, in several
scenarios; the differences are paired. Their intervals are for what one future will show, not for the mean of all. A fork at a
past moment has the jobs that really came, with the work that they really had, and its scenarios differ in how long starts and
decisions take. How far it is from what happened says how far the model can be trusted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from fairlead.config.registry import Registry
from fairlead.config.schedulers import scheduler_of
from fairlead.core import events as ev
from fairlead.core.errors import JournalError, require
from fairlead.core.job import Phase
from fairlead.engine.apply import replay_events
from fairlead.engine.state import State
from fairlead.experiments.differences import PairedDifference
from fairlead.experiments.fork import Fork, ForkChanges, ForkedJob, ForkRun, run_fork
from fairlead.experiments.lookahead import HORIZON_S, StartingPoint
from fairlead.experiments.resimulate import exogenous_inputs
from fairlead.experiments.run_record import IntervalRecorder, RunRecord, outcomes, service_by_type
from fairlead.files import finite_or_none
from fairlead.simulator.faults import outage_events

METRICS = {
    "average_jct_s": "average JCT",
    "p90_jct_s": "p90 JCT",
    "average_wait_s": "average wait",
    "makespan_s": "makespan",
    "utilization": "utilization",
    "preemptions": "preemptions",
    "unfinished": "unfinished jobs",
}
"""What is compared, and its name in tables."""

CONTROL, CHANGED = "as it is", "changed"
OTHERS = "other users"  # in place of their names

MAX_TIMELINE_JOBS, MAX_TIMELINE_RUNS, MAX_TIMELINE_NODES = 500, 10_000, 16
"""Of one timeline in an answer, and of one run in it; further ones are counted."""

MIN_SCENARIOS = 3
"""For an interval: that of two is often wider than what is possible."""


@dataclass(frozen=True)
class WhatIfOptions:
    """How many scenarios, from how much of the past their arrivals are, and how far ahead to simulate."""

    scenarios: int = 5
    window_s: float = 6 * 3600.0
    horizon_s: float = HORIZON_S


@dataclass(frozen=True)
class GroupDifference:
    """How a user, an account or one job fares: mean JCT without and with the changes, and their paired difference."""

    name: str
    jobs: int
    control_s: float
    changed_s: float
    difference: PairedDifference
    number: int | None = None  # of one job
    user: str = ""  # the same


@dataclass(frozen=True)
class WhatIfResult:
    """The differences of a fork with changes to the one without, by metric, user and job; and one pair of runs, of the first
    scenario, for a picture: as records, or as timelines."""

    metrics: Mapping[str, tuple[float, float, PairedDifference]]
    users: Sequence[GroupDifference]
    jobs: Sequence[GroupDifference]
    starts: Mapping[str, tuple[float, float]]  # of jobs that wait: seconds until they start, without and with the changes
    scenarios: int
    guesses: tuple[str, ...]
    runs: tuple[RunRecord, RunRecord] | None = None
    timelines: Sequence[Mapping[str, Any]] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""

        def row(one: GroupDifference) -> dict[str, Any]:
            of = {} if one.number is None else {"number": one.number, "user": one.user}
            times = {"jobs": one.jobs, "control_s": one.control_s, "changed_s": one.changed_s}
            return {"name": one.name, **of, **times, **ends(one.difference)}

        metrics = {
            name: {"control": control, "changed": changed, **ends(difference, 1.0 if name == "utilization" else math.inf)}
            for name, (control, changed, difference) in self.metrics.items()
        }
        starts = {name: [finite_or_none(each) for each in both] for name, both in self.starts.items()}
        found = {"metrics": metrics, "users": [*map(row, self.users)], "jobs": [*map(row, self.jobs)], "starts_s": starts}
        shown = {"timelines": list(self.timelines)} if self.timelines else {}
        return found | {"scenarios": self.scenarios, "guesses": list(self.guesses)} | shown


def ends(one: PairedDifference, most: float = math.inf) -> dict[str, float | None]:
    """A difference and its interval, which is within ±`most`; None where too few scenarios give none."""
    half = one.half_width if one.pairs >= MIN_SCENARIOS else math.nan
    low, high = one.difference - half, one.difference + half
    both = (max(low, -most), min(high, most)) if math.isfinite(half) else (None, None)
    return {"difference": finite_or_none(one.difference), "low": both[0], "high": both[1]}


def what_if(
    fork: Fork,
    changes: ForkChanges,
    options: WhatIfOptions,
    *,
    registry: Registry | None = None,
    keep_records: bool = False,
    timelines: bool = False,
    visible_to: str | None = None,
    on_run: Callable[[int], None] = lambda done: None,
    on_result: Callable[[WhatIfResult], None] = lambda found: None,
    left_s: Callable[[], float] = lambda: math.inf,
) -> WhatIfResult:
    """Simulate a fork without and with changes, in each scenario.

    Args:
        keep_records: Keep the records of the first scenario, for a report.
        timelines: The same as plain data, of a bounded size.
        visible_to: The user that the result is for. Other users and their jobs have no names in it; None: an admin.
        on_result: Gets the result so far, after each scenario.
        left_s: Seconds that are left. If they do not suffice for one scenario, it is stopped, in both runs at the same second.
    """
    other, pairs = fork.changed(changes), list[tuple[ForkRun, ForkRun]]()
    seeds = range(options.scenarios) if fork.past or fork.start.costs.varies else range(1)  # else all are the same
    records, shown = list[RunRecord](), list[Mapping[str, Any]]()
    guesses = other.guesses
    for seed in seeds:
        runs = list[ForkRun]()
        for label, one in ((CONTROL, fork), (CHANGED, other)):
            end_s = 0.0 if seed else left_s() * (0.3 if runs else 0.55)
            scenario = one.with_arrivals(options.window_s, seed) if fork.past else one
            scenario = scenario.with_starts(2 * seed + len(runs))  # two real runs would differ in these
            keep = (keep_records or timelines) and seed == 0
            horizon_s = min((options.horizon_s, *(run.stopped_s for run in runs)))
            in_time = lambda simulated_s, end_s=end_s: left_s() >= end_s  # noqa: E731
            runs.append(run_fork(scenario, horizon_s=horizon_s, registry=registry, keep_events=keep, keep_running=in_time))
            if keep and keep_records:
                records.append(_record(scenario, runs[-1], label))
            if keep and timelines:
                shown.append(_timeline(scenario, runs[-1], label, visible_to))
            on_run(2 * seed + len(runs))
        far_s = min(run.stopped_s for run in runs)
        if far_s < math.inf and pairs:
            break
        if far_s < math.inf:
            guesses += (f"simulated only {far_s / 3600:.1f} h ahead: there was no time for more",)
        pairs.append((runs[0].until(far_s), runs[1].until(far_s)))
        found = replace(_compared(pairs, guesses, visible_to, {job.name for job in changes.submit}), timelines=shown)
        on_result(found)
    return replace(found, runs=(records[0], records[1])) if records else found


def _compared(
    pairs: Sequence[tuple[ForkRun, ForkRun]], guesses: tuple[str, ...], visible_to: str | None, submitted: Set[str]
) -> WhatIfResult:
    both = [tuple(_summary(run, {*first.jobs} & {*second.jobs}) for run in (first, second)) for first, second in pairs]
    metrics = {}
    for name in METRICS:
        values = [(one[name], other[name]) for one, other in both if math.isfinite(one[name] + other[name])]
        if values:
            means = fmean(one for one, _ in values), fmean(other for _, other in values)
            metrics[name] = (*means, PairedDifference.of([(other, one) for one, other in values], of_one=True))

    def sees(job: ForkedJob) -> bool:
        return visible_to in (None, job.user)

    users = _groups(pairs, lambda key, job: (job.user or "(no user)") if sees(job) else OTHERS)
    first, second = pairs[0]
    there = {key: first.jobs[key] for key in first.jobs if isinstance(key, int) and key in second.jobs}
    jobs = [
        replace(one, name=job.name if sees(job) else "", number=number, user=job.user if sees(job) else "")
        for number, one in _groups(pairs, lambda key, job: key if key in there else None)
        if (job := there[number])
    ]
    twice = Counter(job.name for job in there.values())
    starts = {
        job.name if twice[job.name] == 1 else f"{job.user}/{job.name}": (job.starts_s, second.jobs[key].starts_s)
        for key, job in there.items()
        if job.starts_s > 0 and sees(job)
    }
    new = (job for key, job in second.jobs.items() if key not in first.jobs and job.name in submitted)
    starts |= {job.name: (math.inf, job.starts_s) for job in new}
    return WhatIfResult(metrics, [one for _, one in users], jobs, starts, len(pairs), guesses)


def _summary(run: ForkRun, keys: Iterable[int | str]) -> dict[str, float]:
    """The metrics of a run over jobs that are in both; a job that does not end counts as unfinished only."""
    jobs = [run.jobs[key] for key in keys]
    jct = [job.jct_s for job in jobs if job.ends_s < math.inf]
    waits = [job.wait_s for job in jobs if job.starts_s < math.inf and not (job.starts_s == 0 and job.submitted_s < 0)]
    return {
        "average_jct_s": fmean(jct) if jct else math.nan,
        "p90_jct_s": float(np.percentile(jct, 90)) if jct else math.nan,
        "average_wait_s": fmean(waits) if waits else math.nan,
        "makespan_s": max((job.ends_s for job in jobs if job.ends_s < math.inf), default=math.nan),
        "utilization": run.used_gpu_s / (run.gpus * run.span_s) if run.gpus * run.span_s else math.nan,
        "preemptions": float(run.preemptions),
        "unfinished": float(sum(job.ends_s == math.inf for job in jobs)),
    }


def _groups(
    pairs: Sequence[tuple[ForkRun, ForkRun]], group_of: Callable[[int | str, ForkedJob], Any]
) -> list[tuple[Any, GroupDifference]]:
    """Mean JCT by group of the jobs that end in both runs of a scenario; those that lose most come last."""
    values: dict[Any, list[tuple[float, float]]] = {}
    counts: Counter[Any] = Counter()
    for first, second in pairs:
        found: dict[Any, list[tuple[float, float]]] = {}
        for key, job in first.jobs.items():
            other = second.jobs.get(key)
            if other is None or math.inf in (job.ends_s, other.ends_s) or (group := group_of(key, job)) is None:
                continue
            found.setdefault(group, []).append((job.jct_s, other.jct_s))
        for group, times in found.items():
            values.setdefault(group, []).append((fmean(one for one, _ in times), fmean(other for _, other in times)))
            counts[group] = max(counts[group], len(times))
    groups = [
        (
            group,
            GroupDifference(
                str(group),
                counts[group],
                fmean(one for one, _ in times),
                fmean(other for _, other in times),
                PairedDifference.of([(other, one) for one, other in times], of_one=True),
            ),
        )
        for group, times in values.items()
    ]
    return sorted(groups, key=lambda one: (one[1].difference.difference, one[0]))


def _recorder(fork: Fork, run: ForkRun) -> IntervalRecorder:
    """When jobs hold GPUs: from the fork on, with the jobs that ran then."""
    recorder, view = IntervalRecorder(), fork.start.view
    running = view.jobs.only(view.jobs.running)
    for number, began in zip(running.number.tolist(), running.run_started_s.tolist()):
        recorder.resume(number, began, view.device_map.of(number))
    for event in run.events:
        recorder.observe(event)
    return recorder


def _timeline(fork: Fork, run: ForkRun, label: str, visible_to: str | None) -> dict[str, Any]:
    """A run for a picture, in seconds from the fork. Jobs that arrive later have no number, jobs of other users no name."""
    view, state = fork.start.view, run.state
    chosen = sorted(state.job_of)[:MAX_TIMELINE_JOBS]  # those that are there come first
    runs: dict[int, list[dict[str, Any]]] = {number: [] for number in chosen}
    left_out, count = 0, 0
    last: dict[int, tuple[float, int, list[int]]] = {}
    for number, start, end, places in _recorder(fork, run).runs(state.time):
        if number not in runs:
            continue
        nodes = sorted({*state.cluster.node_of[places].tolist()})
        resumes = last.get(number) == (start, len(places), nodes)
        last[number] = end, len(places), nodes
        if resumes and runs[number]:
            runs[number][-1]["end_s"] = end - view.time
        elif count < MAX_TIMELINE_RUNS:
            count += 1
            names = [state.cluster.nodes[node].name for node in nodes[:MAX_TIMELINE_NODES]]
            about = {"start_s": start - view.time, "end_s": end - view.time, "gpus": len(places), "nodes": names}
            runs[number].append(about | {"more_nodes": max(0, len(nodes) - MAX_TIMELINE_NODES)})
        else:
            left_out += 1
    jobs = []
    for number in chosen:
        job = state.job_of[number]
        there, sees = number < view.next_number, visible_to in (None, job.user)
        of = {"name": job.name if sees or not there else "", "user": job.user if sees else ""}  # drawn jobs have no own name
        jobs.append({"number": number if there else None, **of, "runs": runs[number]})
    return {"label": label, "jobs": jobs, "left_out": {"jobs": len(state.job_of) - len(chosen), "runs": left_out}}


def _record(fork: Fork, run: ForkRun, label: str) -> RunRecord:
    """A run as reports show it."""
    state = run.state
    rows = {number: row for row, number in enumerate(sorted(state.job_of))}
    intervals = _recorder(fork, run).device_intervals(state.time, rows)
    facts = {"now_s": fork.start.view.time}
    return RunRecord(label, "fork", state.cluster, outcomes(state, None), intervals, service_by_type(state), facts)


def state_at(events: Sequence[ev.Event], second: float) -> State:
    """The state of a journal at a moment: after all events up to it."""
    require(events and isinstance(events[0], ev.JournalOpened), "journal", "a journal with all of its events")
    state = replay_events(event for event in events if event.time <= second)
    state.time = max(state.time, second)
    return state


@dataclass(frozen=True)
class PastFork:
    """A fork at a past moment, and what then happened: the JCT of the jobs that have ended since, by number."""

    fork: Fork
    recorded_jct_s: Mapping[int, float]

    def error(self, run: ForkRun) -> tuple[float, float, int]:
        """Mean JCT as recorded and as simulated, over the jobs that ended in both; and how many these are."""
        simulated = {self._number(key): job for key, job in run.jobs.items()}
        both = [n for n in self.recorded_jct_s if n in simulated and simulated[n].ends_s < math.inf]
        require(both, "what-if", "a time since which a job has ended", "past")
        return fmean(self.recorded_jct_s[n] for n in both), fmean(simulated[n].jct_s for n in both), len(both)

    def simulated(self, scenarios: int) -> list[tuple[float, float, int]]:
        """The same of several scenarios, or of one if they do not differ."""
        count = scenarios if self.fork.start.costs.varies else 1
        return [self.error(run_fork(self.fork.with_starts(seed))) for seed in range(count)]

    @staticmethod
    def _number(key: int | str) -> int:
        return key if isinstance(key, int) else int(key.rpartition("#")[2])


def past_fork(events: Sequence[ev.Event], second: float, name: str = "journal") -> PastFork:
    """A fork of a journal at a past moment, in hindsight: jobs have the work that they really did, and later jobs, outages and
    cancellations come when they came. Raises JournalError: the journal does not have that moment."""
    world, _ = exogenous_inputs(events, name)
    if not events[0].time <= second <= events[-1].time:
        raise JournalError(f"{name}: second {second:g} is outside the journal, which ends at {events[-1].time:g} s")
    state, whole = state_at(events, second), replay_events(events)
    numbers = sorted(whole.job_of)
    truth = dict(zip(numbers, world.trace.jobs))
    alive = (*state.live.tolist(), *state.queue.tolist())
    for number in alive:
        job = truth[number]
        state.job_of[number] = replace(state.job_of[number], kind=job.kind, time_limit_s=job.time_limit_s)
        state.assume(number, steps=max(job.steps, float(state.columns["base_steps"][number])), min_run_s=job.min_run_s)
    later = sorted((n for n in numbers if n not in state.job_of), key=lambda n: truth[n].submitted_s)
    coming = [replace(truth[n], name=f"{truth[n].name}#{n}", after=(), group="") for n in later]
    place = {number: state.next_number + index for index, number in enumerate(later)}  # their numbers in the fork
    faults = tuple(fault for fault in outage_events(world.outages) if fault.time > second)
    view = state.snapshot().detached()
    table = world.table.for_types(view.cluster.type_names)
    others = [event for event in (*world.others, *world.switches) if event.time > second]
    for index, event in enumerate(others):
        if isinstance(event, (ev.JobCancelled, ev.JobHeld, ev.JobReleased, ev.JobRequeued, ev.JobUpdated)):
            number = numbers[event.number]
            others[index] = replace(event, number=place.get(number, number))
    start = StartingPoint(view, scheduler_of(state.scheduler), state.memo, tuple(coming), world.costs, faults, tuple(others))
    ended, phase = whole.columns["ended_s"], whole.columns["phase"]
    recorded = {
        n: float(ended[n] - whole.columns["submitted_s"][n])
        for n in numbers
        if phase[n] == int(Phase.FINISHED) and ended[n] > second
    }
    return PastFork(Fork(start, table, guesses=world.guessed), recorded)
