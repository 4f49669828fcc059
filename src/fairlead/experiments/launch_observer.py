"""What the launches of a recorded run show: measured rates, the work of each job, start costs, and how long a job waited for
its first report. Events in, values out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Ints
from fairlead.core.job import TIMED, kind_of, model_of
from fairlead.core.plan import boundary_at
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.estimators.base import spread_gangs
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.simulator.costs import Costs
from fairlead.workloads.throughput_tables import MeasuredRate, ThroughputTable

PlacementKey: TypeAlias = tuple[str, int, str, bool]
"""Job type, workers, GPU type, and whether it is spread over more nodes than needed: what a rate depends on."""

MAX_STEP_ERROR = 0.25
"""Declared steps count as wrong where the observed steps differ by more than this share; a rate that does is not constant."""


MAX_OBSERVED = 1000
"""The most recent starts, and decisions, whose times are kept one by one."""


@dataclass(frozen=True)
class ObservedLaunch:
    """From the plan that began it to the plan or report that ended it, with the waits for its GPUs and for the job to stop."""

    kind: str
    workers: int
    type: str
    spread: bool
    first: bool
    seconds: float
    steps: float
    job: int  # by number


@dataclass
class LaunchObserver:
    """Applies all events of a run, in order, and collects launches and rates."""

    state: State
    launches: list[ObservedLaunch] = field(default_factory=list)
    work: dict[int, float] = field(default_factory=dict)  # steps of finished jobs; NaN where unknown
    failure_reasons: dict[int, str] = field(default_factory=dict)
    repeated_steps: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # steps lost by a job's own failures
    _rates: dict[PlacementKey, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))  # with seconds
    _rate_now: dict[int, tuple[PlacementKey, float, float]] = field(default_factory=dict)  # rate, and since when
    _decision_delays: list[float] = field(default_factory=list)
    _placements: dict[int, PlacementKey] = field(default_factory=dict)
    _began: dict[int, tuple[float, float]] = field(default_factory=dict)  # second and steps
    _leaving: dict[int, tuple[ObservedLaunch, float]] = field(default_factory=dict)  # suspended, and its steps at the beginning
    _unreported: dict[int, float] = field(default_factory=dict)  # launches without a report so far, and their seconds
    _report_delays: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # by job

    def rates(self) -> dict[PlacementKey, MeasuredRate]:
        """The median of the reported rates; where they differ much, the mean over time: their jobs changed their batch size."""
        for number in tuple(self._rate_now):
            self._close_rate(number, self.state.time)
        return {key: MeasuredRate(*key, _typical_rate(*zip(*reports))) for key, reports in self._rates.items()}

    def costs(self, table: ThroughputTable, types: Sequence[str]) -> Costs:
        """What starts and decisions took, in the mean and each."""
        launches = [*self.launches, *self._running_launches()]
        costs = startup_costs(launches, table, types)
        if not any(self._decision_delays):  # a simulation
            return replace(costs, starts_vary_s=())
        delays, unseen = tuple(self._decision_delays[-MAX_OBSERVED:]), all(one.first for one in launches)
        decision_s = round(float(np.median(delays)), 6)
        return replace(costs, decision_s=decision_s, decisions_vary_s=delays, unseen_s=unseen * costs.launch_s / 2)

    def first_reports(self, otherwise: float) -> dict[int, float]:
        """Seconds from a launch to the first report of a rate, by job: the median of its launches, else that of its job type.
        A cluster does not preempt a job before that report. A job type that never reported gets `otherwise`."""
        kind_of_job = {number: job.kind for number, job in self.state.job_of.items()}
        of_kind: dict[str, list[float]] = defaultdict(list)
        for number, delays in self._report_delays.items():
            of_kind[kind_of_job[number]] += delays
        typical = {kind: float(np.median(delays)) for kind, delays in of_kind.items()}
        return {
            number: min(
                otherwise, float(np.median(own)) if (own := self._report_delays.get(number)) else typical.get(kind, otherwise)
            )
            for number, kind in kind_of_job.items()
        }

    def _running_launches(self) -> Iterator[ObservedLaunch]:
        """The present launches, up to their last reports."""
        a = self.state.columns
        for number in self.state.running.tolist() if any(self._decision_delays) else ():
            launch = self._launch(number, float(a["since_s"][number]), float(a["base_steps"][number]))
            if launch is not None and a["rate"][number] > 0:
                yield launch

    def observe(self, event: ev.Event) -> None:
        if isinstance(event, ev.RoundPlanned):
            if isinstance(round_s := self.state.scheduler.get("rounds"), (int, float)):
                left_s = boundary_at(event.time, round_s) - event.time
                self._decision_delays.append(round_s - left_s if left_s else 0.0)
            for number in event.plan.suspended.tolist():
                self._left(number, event.time)
            for number in event.plan.ended.tolist():
                self._ended(number, event.time)
        elif isinstance(event, ev.JobsFinished):
            for number, second in zip(event.jobs.tolist(), event.at.tolist()):
                self._ended(number, second)
        elif isinstance(event, ev.JobsFailed):
            self.failure_reasons.update(dict.fromkeys(event.jobs.tolist(), event.why))
        elif isinstance(event, ev.JobsInterrupted) and event.own_fault:
            for number, kept in zip(event.jobs.tolist(), event.steps.tolist()):
                self.repeated_steps[number] += max(0.0, self._steps(number, event.time) - kept)
        elif isinstance(event, ev.JobRequeued) and self.state.columns["held"][event.number]:
            self._left(event.number, event.time)
        elif isinstance(event, ev.ProgressReported):
            self._progressed(event)
        for number in _stopped(event):
            self._close_rate(number, event.time)
        apply_event(self.state, event)
        if isinstance(event, ev.RoundPlanned):
            self._note_placements(np.sort(event.plan.launches.jobs))
            for number in event.plan.launches.jobs.tolist():
                self._began[number] = event.time, self._steps(number, event.time)
                self._unreported[number] = event.time
        elif isinstance(event, ev.ProgressReported):
            self._rated(event)

    def _steps(self, number: int, second: float) -> float:
        a = self.state.columns
        return float(a["base_steps"][number] + a["rate"][number] * max(0.0, second - a["since_s"][number]))

    def _launch(self, number: int, second: float, steps: float) -> ObservedLaunch | None:
        """The present launch up to this second and these steps; None if it shares its GPUs."""
        place = self.place(number)
        if place is None or number not in self._began:
            return None
        began, base = self._began[number]
        first = int(self.state.columns["starts"][number]) == 1
        return ObservedLaunch(*place, first, second - began, steps - base, number)

    def _left(self, number: int, second: float) -> None:
        self._settle(number)
        launch = self._launch(number, second, self._steps(number, second))
        if launch is not None:
            self._leaving[number] = launch, self._began[number][1]

    def _progressed(self, event: ev.ProgressReported) -> None:
        """A suspended job reports its last steps."""
        for number, steps, rate in zip(event.jobs.tolist(), event.steps.tolist(), event.rates.tolist()):
            if rate == 0 and number in self._leaving:
                launch, base = self._leaving[number]
                self._leaving[number] = replace(launch, steps=steps - base), base
                if self.state.columns["held"][number]:  # it is about to resume elsewhere, from there
                    self._began[number] = self._began[number][0], steps
                self._settle(number)

    def _ended(self, number: int, second: float) -> None:
        self._settle(number)
        a = self.state.columns
        declared, observed = float(a["steps"][number]), self._steps(number, second)
        if a["rate"][number] <= 0:  # it may have made steps since its last report
            observed = max(observed, declared)
        known = declared if abs(observed - declared) <= MAX_STEP_ERROR * declared else observed
        self.work[number] = math.nan if known == UNKNOWN_STEPS else known
        self._close_rate(number, second)
        launch = self._launch(number, second, self.work[number])
        if launch is not None:
            self.launches.append(launch)

    def _settle(self, number: int) -> None:
        if number in self._leaving:
            self.launches.append(self._leaving.pop(number)[0])

    def _rated(self, event: ev.ProgressReported) -> None:
        for number, rate in zip(event.jobs.tolist(), event.rates.tolist()):
            self._close_rate(number, event.time)
            if rate > 0 and number in self._unreported:
                self._report_delays[number].append(event.time - self._unreported.pop(number))
            if rate > 0 and (place := self.place(number)) is not None and place[0] != TIMED:
                self._rate_now[number] = place, rate, event.time

    def _close_rate(self, number: int, second: float) -> None:
        if number in self._rate_now:
            place, rate, since = self._rate_now.pop(number)
            self._rates[place].append((rate, max(0.0, second - since)))

    def place(self, number: int) -> PlacementKey | None:
        """Where a job runs, if it runs and shares no GPU."""
        device_map = self.state.device_map
        if not self.state.columns["held"][number]:
            return None
        if device_map.shared and (device_map.occupancy[device_map.of(number)] > 1).any():
            return None
        return self._placements.get(number)

    def _note_placements(self, jobs: Ints) -> None:
        """Note where the jobs that were just launched run; sorted by number, as columns are."""
        state, a, names = self.state, self.state.columns, self.state.cluster.type_names
        view = state.snapshot()
        spread = spread_gangs(view.jobs.with_rows(jobs), view)
        columns = (jobs, a["held"][jobs], a["type"][jobs], a["batch_size"][jobs], spread)
        for number, held, type_, size, wide in zip(*(column.tolist() for column in columns)):
            kind = state.job_of[number].kind
            self._placements[number] = kind_of(model_of(kind), size) if size > 0 else kind, held, names[type_], wide


def _stopped(event: ev.Event) -> list[int]:
    """The jobs that an event stops, other than by their end."""
    if isinstance(event, ev.RoundPlanned):
        return list(event.plan.suspended.tolist())
    if isinstance(event, (ev.JobsFailed, ev.JobsInterrupted)):
        return list(event.jobs.tolist())
    return [event.number] if isinstance(event, (ev.JobCancelled, ev.JobRequeued)) else []


def _typical_rate(rates: Sequence[float], seconds: Sequence[float]) -> float:
    constant = max(rates) <= (1 + MAX_STEP_ERROR) * min(rates) or not any(seconds)
    return float(np.median(rates) if constant else np.average(rates, weights=seconds))


def startup_costs(launches: Iterable[ObservedLaunch], table: ThroughputTable, types: Sequence[str]) -> Costs:
    """Seconds that launches did not spend on steps, by job type; without observations, the mean of all types."""
    spent: dict[str, dict[bool, list[float]]] = {}
    overall: dict[bool, list[float]] = {True: [], False: []}
    in_order: list[tuple[float, str, bool]] = []
    for one in launches:
        known = one.kind == TIMED or (one.kind, one.workers) in table.row_of
        if known and one.steps > 0:  # without a step it was perhaps still starting
            rates = table.spread if one.spread else table.alone
            cost = one.seconds - one.steps / float(rates[table.row(one.kind, one.workers), types.index(one.type)])
            spent.setdefault(one.kind, {True: [], False: []})[one.first].append(cost)
            overall[one.first].append(cost)
            in_order.append((cost, one.kind, one.first))
    first, later = _mean(overall[True], 0.0), _mean(overall[False], _mean(overall[True], 0.0))
    by_kind = {kind: Costs(_mean(costs[True], first), _mean(costs[False], later)) for kind, costs in spent.items()}
    groups = {(kind, first_one): costs for kind, of in spent.items() for first_one, costs in of.items() if len(costs) > 1}
    means = {group: (float(np.mean(costs)), math.sqrt(len(costs) / (len(costs) - 1))) for group, costs in groups.items()}
    # Of each start from the mean of its group, which is itself of those starts.
    varies = [(cost - means[group][0]) * means[group][1] for cost, *which in in_order if (group := tuple(which)) in means]
    return Costs(first, later, by_kind=by_kind, starts_vary_s=tuple(varies[-MAX_OBSERVED:]))


def _mean(costs: Sequence[float], otherwise: float) -> float:
    """To the microsecond: a job that ends at a round's very end must not end behind it by a rounding."""
    return max(0.0, round(float(np.mean(costs)), 6)) if costs else otherwise
