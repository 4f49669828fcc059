"""Forks of a cluster: its state at one moment, changed or not, simulated ahead. A change is made by events, as a user or an
operator would make it, so that a fork is a state that the cluster could have."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from fairlead.config.registry import Registry
from fairlead.config.schedulers import Part, SchedulerConfig, scheduler_of, simulated_with
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Floats, Node
from fairlead.core.errors import FairleadError, UnknownName
from fairlead.core.job import TIMED, Job, Phase
from fairlead.core.plan import RoundPlan
from fairlead.engine.apply import apply_event
from fairlead.engine.decide import decide
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop, Stalled
from fairlead.engine.state import State
from fairlead.experiments.live_inputs import (
    ASSUMED_RUN_S,
    measured_table,
    open_ended_jobs,
    rate_guesses,
    recent_jobs,
    run_time_priors,
    with_assumed_ends,
    with_colocated_rates,
)
from fairlead.experiments.lookahead import BEYOND_S, HORIZON_S, StartingPoint, forward_loop
from fairlead.experiments.scenarios import ArrivalForecast
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage, outage_events
from fairlead.workloads.catalogue import accelerator_type, catalogue
from fairlead.workloads.throughput_tables import ThroughputTable

QUOTAS = ("user-resource-quota", "user-job-quota")
"""Admission parts with limits by user."""


@dataclass(frozen=True)
class ForkChanges:
    """What differs in a fork. Jobs are given by number, nodes by name, times in seconds from the fork on."""

    scheduler: SchedulerConfig | None = None
    quotas: Mapping[str, int] = field(default_factory=dict)  # GPUs by user
    weights: Mapping[str, float] = field(default_factory=dict)  # of all jobs of a user
    add: tuple[Node, ...] = ()
    remove: tuple[str, ...] = ()
    restore: tuple[str, ...] = ()  # nodes that are lost, drained or in back-off
    without: tuple[int, ...] = ()
    submit: tuple[Job, ...] = ()
    updates: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # of jobs: priority, weight, …
    arrivals: float = 1.0  # how many jobs arrive, in proportion
    faults: tuple[tuple[str, float, float], ...] = ()  # node, beginning, length

    def __bool__(self) -> bool:
        return self != ForkChanges()


@dataclass(frozen=True)
class Fork:
    """A state to simulate from, with the jobs that may arrive. `unknown` are jobs whose end is not known: they keep running.
    `guesses` say in words what was assumed."""

    start: StartingPoint
    table: ThroughputTable
    past: tuple[Job, ...] = ()  # jobs that may arrive again, most recent first
    unknown: frozenset[int] = frozenset()
    guesses: tuple[str, ...] = ()
    more_arrivals: float = 1.0

    @classmethod
    def of(cls, state: State, rates: Mapping[str, Any], costs: Costs | None = None) -> Fork:
        """A fork of a cluster as it is, with the rates that it has measured. The state is consumed."""
        guessed = rate_guesses(rates, state)
        table = with_colocated_rates(measured_table(rates, state, BEYOND_S), state)
        open_ended = {*open_ended_jobs(state), *guessed.unmeasured}
        known = {number for number, prior in run_time_priors(state, open_ended).items() if prior.left_s < math.inf}
        limited = {number for number in open_ended - known if state.job_of[number].time_limit_s < math.inf}
        state = with_assumed_ends(state, table, {*open_ended_jobs(state), *known}, BEYOND_S)
        view = state.snapshot().detached()
        start = StartingPoint(view, scheduler_of(state.scheduler), state.memo, costs=costs or Costs())
        unknown = frozenset(open_ended - known - limited)
        count = len(unknown)
        words = [f"the end of {count} job{'s' * (count != 1)} is unknown, so they keep running"] if count else []
        return cls(start, table, tuple(recent_jobs(state, table)), unknown, tuple(words))

    def changed(self, changes: ForkChanges) -> Fork:
        """The same fork with changes. Raises FairleadError: the cluster cannot be changed like that."""
        state = self._state(changes)
        table, assumed = _with_types(_with_sizes(self.table, changes.submit), state.cluster)
        now = self.start.view.time
        jobs, assumed_jobs = _submitted(changes.submit, table, now)
        scheduler = _with_quotas(changes.scheduler or self.start.scheduler, changes.quotas)
        faults = tuple(outage_events(_outage(state.cluster, now, *fault) for fault in changes.faults))
        start = replace(
            self.start,
            view=state.snapshot().detached(),
            scheduler=scheduler,
            memo=state.memo if scheduler == self.start.scheduler else None,
            arrivals=(*self.start.arrivals, *jobs),
            faults=(*self.start.faults, *faults),
            others=tuple(one for one in self.start.others if not (changes.scheduler and isinstance(one, ev.SchedulerSwitched))),
        )
        past = tuple(replace(job, weight=changes.weights.get(job.user, job.weight)) for job in self.past)
        return replace(
            self,
            start=start,
            table=table,
            past=past if changes.weights else self.past,
            unknown=self.unknown.difference(changes.without),
            guesses=(*self.guesses, *assumed, *assumed_jobs),
            more_arrivals=self.more_arrivals * changes.arrivals,
        )

    def launched_next(self, changes: ForkChanges) -> frozenset[int | str]:
        """The jobs that a decision now would start, with some changes: by number, or by name where they are new."""
        state, now = self._state(changes), self.start.view.time
        table, _ = _with_types(_with_sizes(self.table, changes.submit), state.cluster)
        for job in (*self.start.arrivals, *_submitted(changes.submit, table, now)[0]):
            if job.submitted_s <= now:
                apply_event(state, ev.JobSubmitted(now, state.next_number, job))
        scheduler = _with_quotas(changes.scheduler or self.start.scheduler, changes.quotas)
        stages = simulated_with(self.start.costs, scheduler).build(table, Registry.installed())
        view = state.snapshot(
            run_to_completion=stages.run_to_completion, first_step_s=stages.first_step_s, round_s=stages.round_s
        )
        plan, _ = decide(view, state.memo if scheduler == self.start.scheduler else None, stages)
        first = self.start.view.next_number
        return frozenset(n if n < first else state.job_of[n].name for n in plan.launches.jobs.tolist())

    def start_of(self, job: Job, budget_s: float = math.inf) -> float:
        """In how many seconds a job would start if it were submitted now and no other job came; infinity: not within the
        simulation, for which there are `budget_s` of real time."""
        fork, deadline, begun = self.changed(ForkChanges(submit=(job,))), time.monotonic() + budget_s, list[float]()
        number = self.start.view.next_number

        def note(plan: RoundPlan) -> None:
            if number in plan.launches.jobs:
                begun.append(plan.time)

        loop = forward_loop(fork.start, fork.start.scheduler, fork.table, on_decision=note)
        with suppress(Stalled):
            loop.run(until=self.start.view.time + HORIZON_S, stop=lambda state: bool(begun) or time.monotonic() > deadline)
        return begun[0] - self.start.view.time if begun else math.inf

    def _state(self, changes: ForkChanges) -> State:
        state = State.from_snapshot(self.start.view, self.start.memo)
        for event in _events(state, changes):
            apply_event(state, event)
        return state

    def with_starts(self, seed: int) -> Fork:
        """The same fork, in which starts and decisions take as long as in one scenario."""
        costs = self.start.costs
        return replace(self, start=replace(self.start, costs=costs.drawn(seed))) if costs.varies else self

    def with_arrivals(self, window_s: float, seed: int) -> Fork:
        """The same fork with the arrivals of one scenario: as in the last `window_s`. Where more or fewer jobs arrive, those
        that arrive in both cases are the same."""
        now, more = self.start.view.time, self.more_arrivals
        drawn = ArrivalForecast("recent", window_s, seed).draw(now, self.past, share=more)
        if more > 1:
            extra = ArrivalForecast("recent", window_s, seed + 1_000_003).draw(now, self.past, share=more - 1)
            drawn += tuple(replace(job, name=f"{job.name}-more") for job in extra)
        return replace(self, start=replace(self.start, arrivals=(*self.start.arrivals, *drawn)))


def _events(state: State, changes: ForkChanges) -> Iterable[ev.Event]:
    """The events that make the changes, now."""
    now = state.time
    for name in changes.remove:
        node = _node(state.cluster, name)
        jobs = np.sort(state.device_map.on(state.cluster.node_of == node))
        if len(jobs):  # they save first, as when a node is drained
            a = state.columns
            steps = a["base_steps"][jobs] + a["rate"][jobs] * np.maximum(0.0, now - a["since_s"][jobs])
            yield ev.JobsInterrupted(now, jobs, np.minimum(steps, a["steps"][jobs]))
        yield ev.NodeRemoved(now, node)
    for spec in changes.add:
        number = state.cluster.number_for(spec)
        new = None if spec.type in state.cluster.type_code else accelerator_type(spec.type)
        yield ev.NodeAdded(now, number, spec, new)
        yield ev.NodeRepaired(now, number)
    for name in changes.restore:
        node = _node(state.cluster, name)
        yield ev.NodeRepaired(now, node)
        if state.drained[state.cluster.node_of == node].any():
            yield ev.NodeDrained(now, node, undo=True)
    for number in changes.without:
        yield ev.JobCancelled(now, number)
    updates = {number: dict(fields) for number, fields in changes.updates.items()}
    for number, job in state.job_of.items():
        if job.user in changes.weights and state.columns["phase"][number] <= int(Phase.RUNNING):
            updates.setdefault(number, {}).setdefault("weight", changes.weights[job.user])
    for number, fields in sorted(updates.items()):
        if number not in changes.without:
            yield ev.JobUpdated(now, number, fields)


def _node(cluster: Cluster, name: str) -> int:
    if name not in cluster.number_of_node:
        raise UnknownName("node", name, cluster.number_of_node)
    return cluster.number_of_node[name]


def _outage(cluster: Cluster, now: float, name: str, begins_s: float, length_s: float) -> Outage:
    return Outage(_node(cluster, name), now + begins_s, now + begins_s + length_s)


def _with_quotas(scheduler: SchedulerConfig, quotas: Mapping[str, int]) -> SchedulerConfig:
    """The scheduler with other quotas of GPUs, or of jobs where it has those. One without quotas by user gets some."""
    if not quotas:
        return scheduler
    links = scheduler.admission.links or (scheduler.admission,)
    places = [place for place, link in enumerate(links) if link.name in QUOTAS]
    if places:
        link = links[places[0]]
        limits = {**link.parameters.get("limits", {}), **quotas}
        new = replace(link, parameters={**link.parameters, "limits": limits})
        links = tuple(new if place == places[0] else one for place, one in enumerate(links))
    else:
        kept = tuple(link for link in links if link.name != "accept-all")
        links = (*kept, Part(QUOTAS[0], {"limits": dict(quotas)}))
    return replace(scheduler, admission=Part.chain(links), name="")


def _with_types(table: ThroughputTable, cluster: Cluster) -> tuple[ThroughputTable, list[str]]:
    """The table with a column for each GPU type of a cluster. The rates on a type that was never there are modelled: in
    proportion to a measured type, by the catalogue, where it has both; else the mean of the others."""
    missing = [name for name in cluster.type_names if name not in table.types]
    if not missing:
        return table.for_types(cluster.type_names), []
    modelled, notes = catalogue(), []
    for name in missing:
        known = [(column, other) for column, other in enumerate(table.types) if {name, other} <= {*modelled.types}]
        factors: Floats
        if known:
            column, other = max(known, key=lambda one: modelled.types.index(one[1]))  # the most similar generation
            to, of = (modelled.alone[1:, modelled.types.index(each)] for each in (name, other))
            usual = median((to[of > 0] / of[of > 0]).tolist())
            factors = np.array([_speedup(modelled, key, name, other, usual) for key in table.keys])
            notes.append(f"rates on {name} are modelled: the catalogue's ratio to {other}")
        else:
            column, factors = 0, np.ones(len(table.keys))
            notes.append(f"rates on {name} are unknown and assumed to be those on {table.types[0]}")
        alone, spread = (rates[:, column] * factors for rates in (table.alone, table.spread))
        paired = table.paired[:, :, column] * factors[:, None]
        table = replace(
            table,
            types=(*table.types, name),
            alone=np.column_stack((table.alone, alone)),
            spread=np.column_stack((table.spread, spread)),
            paired=np.concatenate((table.paired, paired[:, :, None]), axis=2),
        )
    return table.for_types(cluster.type_names), notes


def _with_sizes(table: ThroughputTable, jobs: Sequence[Job]) -> ThroughputTable:
    """The table with the gang sizes of jobs whose type it has: in proportion to the nearest size."""
    missing = dict.fromkeys((job.kind, job.workers) for job in jobs if job.kind in table.kinds)
    for kind, workers in [key for key in missing if key not in table.row_of]:
        size = min(table.workers_of(kind), key=lambda known: (abs(known - workers), known))
        row, count = table.row_of[kind, size], len(table.keys)
        alone, spread = (np.vstack((rates, rates[row] * workers / size)) for rates in (table.alone, table.spread))
        paired = np.zeros((count + 1, count + 1, len(table.types)))
        paired[:count, :count] = table.paired
        sources = (*table.sources, table.sources[row]) if table.sources else ()
        table = replace(table, keys=(*table.keys, (kind, workers)), alone=alone, spread=spread, paired=paired, sources=sources)
    return table


def _speedup(modelled: ThroughputTable, key: tuple[str, int], name: str, other: str, usual: float) -> float:
    if key[0] == TIMED:
        return 1.0
    row = modelled.row_of.get(key)
    if row is None:
        return usual
    of = float(modelled.alone[row, modelled.types.index(other)])
    return float(modelled.alone[row, modelled.types.index(name)]) / of if of else usual


def _submitted(jobs: Sequence[Job], table: ThroughputTable, now: float) -> tuple[list[Job], list[str]]:
    """Jobs as they would be submitted now. One whose run time cannot be known runs until its time limit, or an hour."""
    found, notes = [], []
    for job in jobs:
        job = replace(job, submitted_s=now)
        if job.kind != TIMED and ((job.kind, job.workers) not in table.row_of or job.steps == UNKNOWN_STEPS):
            run_s = job.time_limit_s if job.time_limit_s < math.inf else ASSUMED_RUN_S
            notes.append(f"job {job.name!r} is assumed to run for {run_s / 3600:g} h: its throughput or steps are not known")
            job = replace(job, kind=TIMED, steps=run_s)
        found.append(job)
    return found, notes


@dataclass(frozen=True)
class ForkedJob:
    """A job of a fork: seconds from the fork on until it starts (0: it runs) and until it has ended; infinity: not within the
    simulation. `jct_s` counts from its submission."""

    name: str
    user: str
    account: str
    workers: int
    submitted_s: float
    starts_s: float
    ends_s: float

    @property
    def jct_s(self) -> float:
        return self.ends_s - self.submitted_s

    @property
    def wait_s(self) -> float:
        """From the fork, or its later submission, until it starts."""
        return self.starts_s - max(0.0, self.submitted_s)


@dataclass(frozen=True)
class ForkRun:
    """One simulation of a fork. Jobs that were there are known by number, arrivals by name. `stopped_s`: how far it went, if it
    was stopped for lack of time."""

    jobs: Mapping[int | str, ForkedJob]
    preemptions: int
    used_gpu_s: float
    span_s: float
    gpus: int
    state: State
    events: Sequence[ev.Event] = ()
    stopped_s: float = math.inf

    def until(self, second: float) -> ForkRun:
        """The same, as if it had been stopped at a second: jobs that start or end later do not."""
        if second >= self.stopped_s:
            return self
        jobs = {
            key: replace(
                job,
                starts_s=job.starts_s if job.starts_s <= second else math.inf,
                ends_s=job.ends_s if job.ends_s <= second else math.inf,
            )
            for key, job in self.jobs.items()
        }
        return replace(self, jobs=jobs, stopped_s=second)


def run_fork(
    fork: Fork,
    *,
    horizon_s: float = HORIZON_S,
    registry: Registry | None = None,
    keep_events: bool = False,
    keep_running: Callable[[float], bool] = lambda simulated_s: True,
) -> ForkRun:
    """Simulate a fork until all its jobs have ended, but for those whose end is unknown."""
    start, view = fork.start, fork.start.view
    started = dict.fromkeys(view.jobs.number[view.jobs.running].tolist(), view.time)
    preemptions = 0

    def note(plan: RoundPlan) -> None:
        nonlocal preemptions
        launched = plan.launches.jobs.tolist()
        preemptions += len({*plan.suspended.tolist()}.difference(launched))
        for number in launched:
            started.setdefault(number, plan.time)

    loop = forward_loop(start, start.scheduler, fork.table, registry=registry, on_decision=note)
    if keep_events:
        loop.journal = MemoryJournal()
    ahead, stopped_s = len(start.arrivals), math.inf

    def stop(state: State) -> bool:
        nonlocal stopped_s
        if not keep_running(loop.backend.now - view.time):
            stopped_s = loop.backend.now - view.time
            return True
        if state.next_number < view.next_number + ahead:
            return False
        alive = {*state.live.tolist(), *state.queue.tolist()}
        return alive <= fork.unknown

    try:
        with suppress(Stalled):
            loop.run(until=view.time + horizon_s, stop=stop)
    except FairleadError:
        raise
    except Exception as problem:  # a faulty part
        raise FairleadError(f"cannot simulate ahead from this state: {type(problem).__name__}: {problem}") from problem
    found = _result(fork, loop, started, preemptions)
    if min(stopped_s, horizon_s) < math.inf and loop.backend.now >= view.time + min(stopped_s, horizon_s):
        found = replace(found, span_s=loop.backend.now - view.time, stopped_s=stopped_s)
    return found


def _result(fork: Fork, loop: Loop, started: Mapping[int, float], preemptions: int) -> ForkRun:
    view, state = fork.start.view, loop.state
    found: dict[int | str, ForkedJob] = {}
    ended, submitted = state.columns["ended_s"], state.columns["submitted_s"]
    for number, job in state.job_of.items():
        end = float(ended[number])
        whole = int(state.columns["phase"][number]) == int(Phase.FINISHED)
        times = (float(submitted[number]), started.get(number, math.inf), end if whole else math.inf)
        key = number if number < view.next_number else job.name
        found[key] = ForkedJob(job.name, job.user, job.account, job.workers, *(second - view.time for second in times))
    ends = [job.ends_s for job in found.values() if job.ends_s < math.inf]
    span_s = max(ends, default=0.0)
    used = sum(_used_s(state, number) for number in state.job_of) - sum(view.jobs.accelerator_s.tolist())
    gpus = int(view.capacity.sum())
    events = tuple(loop.journal) if isinstance(loop.journal, MemoryJournal) else ()
    return ForkRun(found, preemptions, max(0.0, used), span_s, gpus, state, events)


def _used_s(state: State, number: int) -> float:
    a = state.columns
    running = float(a["held"][number] * max(0.0, state.time - a["run_started_s"][number])) if a["held"][number] else 0.0
    return float(a["settled_accelerator_s"][number]) + running
