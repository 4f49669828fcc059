"""What is wanted, and how far a scheduler would get there: one candidate, simulated forward from a moment of any run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fairlead.config import Part, SchedulerConfig
from fairlead.config.registry import Registry
from fairlead.config.schedulers import simulated_with
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError, near_or_all
from fairlead.core.events import Memo
from fairlead.core.job import Job
from fairlead.core.snapshot import Snapshot
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.workloads.throughput_tables import ThroughputTable

METRICS = ("jct", "responsiveness")

LOOK_EVERY = 16
"""After so many steps of a forward simulation it is asked whether it can still win."""


@dataclass(frozen=True)
class Moment:
    """Where every candidate starts: a snapshot that lasts, what the running scheduler remembers, and who will come."""

    view: Snapshot
    running: SchedulerConfig
    memo: Memo = None
    arrivals: tuple[Job, ...] = ()
    costs: Costs = field(default_factory=Costs)

    def fate_of(self, candidate: SchedulerConfig) -> str:
        """The same for candidates that fare alike from here: where nobody stands at the door and nobody comes, admission has
        nothing to decide."""
        closed = not len(self.view.queued) and not self.arrivals
        return str(replace(candidate, name="", admission=Part("accept-all") if closed else candidate.admission))


@dataclass(frozen=True)
class CandidateForecast:
    """Under one candidate, from the moment on: how long jobs still take to end, and those that never ran to begin; means in
    seconds. Where it is not `complete`, it was given up because it could not win: the figures are what they are at least."""

    jct_s: float
    responsiveness_s: float
    complete: bool = True
    problem: str = ""  # why this candidate cannot be used at all

    def of(self, metric: str) -> float:
        return self.jct_s if metric == "jct" else self.responsiveness_s


@dataclass(frozen=True)
class Objective:
    """What a candidate is chosen by: time to completion, time to the first start, or both by weights. Each is taken relative to
    what the running combination would give, so that a weight of 1 and 1 means: as important as each other."""

    weights: Mapping[str, float] = field(default_factory=lambda: {"jct": 1.0})

    def __post_init__(self) -> None:
        for metric, weight in self.weights.items():
            if metric not in METRICS:
                raise InputError("synthesize", f"a metric ({near_or_all(metric, METRICS)})", field="metric", value=metric)
            if not 0 < weight < math.inf:
                raise InputError("synthesize", "a weight above 0", field=metric, value=weight)
        if not self.weights:
            raise InputError("synthesize", "at least one metric", field="metric")

    def score(self, outlook: CandidateForecast, running: CandidateForecast) -> float:
        """Lower is better; the running combination has 1."""
        if outlook.problem:
            return math.inf
        total = sum(self.weights.values())
        parts = (weight * (outlook.of(name) + 1.0) / (running.of(name) + 1.0) for name, weight in self.weights.items())
        return sum(parts) / total


@dataclass(frozen=True)
class Limit:
    """A candidate that scores above this against the running one's outlook cannot win."""

    wanted: Objective
    running: CandidateForecast
    score: float

    def beyond(self, outlook: CandidateForecast) -> bool:
        return self.wanted.score(outlook, self.running) > self.score


def look_ahead(
    moment: Moment,
    candidate: SchedulerConfig,
    table: ThroughputTable,
    limit: Limit | None = None,
    registry: Registry | None = None,
) -> CandidateForecast:
    """Simulate a candidate from the moment until everybody has ended, or until it cannot win any more."""
    view, registry = moment.view, registry or Registry.installed()
    memo = moment.memo if candidate == moment.running else None  # a switch forgets, as it does in earnest
    try:
        state = State.from_snapshot(view, memo)
        backend = SimulatedBackend.from_snapshot(view, table, moment.arrivals, costs=moment.costs)
        loop = Loop(state, backend, simulated_with(moment.costs, candidate).build(table, registry))
        watch = _Watch(moment, state, limit, table)
        loop.run(stop=watch.given_up)
    except Exception as problem:  # whatever a part does wrong, or jobs that would never end: not to be chosen
        return CandidateForecast(math.inf, math.inf, problem=f"{type(problem).__name__}: {problem}")
    return watch.outlook(complete=not watch.lost)


class _Watch:
    """How the jobs of one forward simulation fare so far."""

    def __init__(self, moment: Moment, state: State, limit: Limit | None, table: ThroughputTable) -> None:
        self.state, self.limit, self.lost = state, limit, False
        self._calls = 0
        view = moment.view
        jobs = [*(view.job_of[n] for part in (view.jobs, view.queued) for n in part.number.tolist()), *moment.arrivals]
        best = np.array([table.alone[table.row(job.kind, job.workers)].max() for job in jobs])
        self._step_s = np.where(best > 0, 1.0 / np.maximum(best, 1e-300), 0.0)  # of one step, at the very least
        coming = np.arange(view.next_number, view.next_number + len(moment.arrivals), dtype=np.int64)
        self._who: Ints = np.concatenate((view.jobs.number, view.queued.number, coming))
        present = len(self._who) - len(coming)
        self._from: Floats = np.full(len(self._who), view.time)
        self._from[present:] = [job.submitted_s for job in moment.arrivals]
        fresh = np.concatenate((view.jobs.starts, view.queued.starts)) == 0
        self._fresh = np.concatenate((fresh, np.ones(len(coming), dtype=np.bool_)))

    def given_up(self, state: State) -> bool:
        self._calls += 1
        if self.limit is None or self._calls % LOOK_EVERY:
            return False
        self.lost = self.limit.beyond(self.outlook(complete=False))
        return self.lost

    def outlook(self, *, complete: bool) -> CandidateForecast:
        """What came of everybody; of who has not ended, what will come at the very least."""
        now, arrays = self.state.time, self.state.store.arrays
        known = self._who < self.state.next_number  # the others have not come yet
        who, since, fresh = self._who[known], self._from[known], self._fresh[known]
        ended = arrays["ended_s"][who]
        done = arrays["base_steps"][who] + arrays["rate"][who] * np.maximum(now - arrays["since_s"][who], 0.0)
        still = np.maximum(arrays["steps"][who] - done, 0.0) * self._step_s[known]
        took = np.where(np.isnan(ended), now + still, ended) - since
        begun = np.fmin(np.fmin(arrays["first_started_s"][who], ended), now) - since
        everybody = max(len(self._who), 1)
        newcomers = max(int(np.count_nonzero(self._fresh)), 1)
        return CandidateForecast(float(took.sum()) / everybody, float(begun[fresh].sum()) / newcomers, complete)
