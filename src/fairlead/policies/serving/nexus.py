"""The policy `nexus`: inference sessions first, on as few accelerators as their requests need, and training on the rest (Nexus,
Shen et al., SOSP'19; Blox, appendix B).

    sessions:  a_s = R_s·l(b) / b accelerators, b the batch that can be collected and run within SLO_s; all sessions together on
               a_1 + … + a_n accelerators of a type plus headroom (`packing/pooled.py`), unchanged while these are enough
               (`packing/replicas.py`). A session is on the type where a_s is least, or where there is room
    training:  jobs that are last in the order of `training` are preempted first

A session is a job that runs until it is cancelled. An elastic session has as many workers (replicas) as accelerators that serve
it; any other has its fixed number, on accelerators of its own. R_s is the last `request_rate` that the job reported, or the
rate in `sessions`. The plan carries the route of each session (`core/routes.py`); a new route alone restarts no job."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.device_map import NONE
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.reasons import Reason, Reasons
from fairlead.core.routes import MAX_BATCH_SIZE, MAX_REQUESTS_PER_S, REPORTED, Route, Session, latencies, reported_rate
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Policy
from fairlead.policies.ranking.fifo import Fifo
from fairlead.policies.ranking.job_size import ShortestRemainingTimeFirst
from fairlead.policies.ranking.las import LeastAttainedService
from fairlead.policies.serving.packing.pooled import (
    DEFAULT_POOLING,
    PoolingOptions,
    SessionLoad,
    headroom_fraction,
    session_load,
)
from fairlead.policies.serving.packing.replicas import (
    ReplicaAssigner,
    Replicas,
    SessionJob,
    assigned_by_type,
    divide_load,
)

_MIN_REQUESTS_PER_S = 0.01

_TRAINING: Mapping[str, Policy] = {  # policies without a memo
    "fifo": Fifo(preempt=True),
    "las": LeastAttainedService(),
    "srtf": ShortestRemainingTimeFirst(),
}


@dataclass(frozen=True)
class SessionSpec:
    """A session as a scheduler file describes it: its SLO, its rate before it reports one, and the latencies of its model."""

    slo_ms: float
    batches: tuple[int, ...]
    latency_ms: Mapping[str, tuple[float, ...]]
    rate: float


@dataclass(frozen=True)
class Nexus:
    """Inference sessions get the GPUs that they need, training jobs the rest, in the order of `training`.

    `sessions` describes a session by the job's name: `slo_ms`, `rate`, and for its model `batches` and, by type, `latency_ms`.
    Sessions share accelerators by `wait`, `headroom` and `neighbours`; these change only where they are not enough, or more
    than `spare` beyond that.
    """

    paper: ClassVar[str] = "Nexus (Shen et al., SOSP'19); Blox appendix B"
    sessions: Mapping[str, SessionSpec] = field(default_factory=dict)
    """Inference sessions by job name: `slo_ms`, `rate`, `batches`, and `latency_ms` by GPU type."""
    training: Literal["fifo", "las", "srtf"] = "fifo"  # order of training jobs on the remaining GPUs
    wait: float = DEFAULT_POOLING.wait  # part of a batch's run time for which the next batch may wait
    headroom: float = DEFAULT_POOLING.headroom  # standard deviations of arrivals for which GPUs are reserved
    neighbours: int = DEFAULT_POOLING.neighbours  # GPUs next to its own that may serve a session's requests
    spare: int = 1  # GPUs beyond the need that stay with the sessions, to avoid restarts

    def __post_init__(self) -> None:
        for name, spec in self.sessions.items():
            _check(name, spec)
        PoolingOptions(self.wait, self.headroom, self.neighbours)  # validates them
        if not isinstance(self.spare, int) or self.spare < 0:
            raise InputError("policy nexus", "a whole number of at least 0", field="spare", value=self.spare)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        serving = self._serving(view)
        training = view.with_changes(jobs=view.jobs.only(~serving))
        policy = _TRAINING[self.training]
        if not serving.any():
            return policy.select(training, None)[0], memo
        room = view.capacity.copy()
        if (protected := training.protected) is not None:  # these jobs keep their accelerators
            np.subtract.at(room, training.jobs.type[protected], training.jobs.held[protected])
        jobs = self._session_jobs(view, serving)
        assigner = ReplicaAssigner(view.cluster.type_names, self._options, self.spare)
        replicas = assigner.assign(jobs, np.maximum(room, 0))
        rest, _ = policy.select(training.with_changes(capacity=view.capacity - assigned_by_type(replicas, len(room))), None)
        replicas = _with_new_accelerators(replicas, rest, training)
        reasons = _reasons(jobs, replicas, room - assigned_by_type(replicas, len(room)))
        selection = _combined(view, replicas, reasons, self._routes(replicas), rest)
        if any(job.fixed for job in jobs):
            selection = selection.until(view.protection_ends)
        if view.any_min_run or view.first_step_s:
            now, held = view.jobs.of(selection.jobs), view.device_map
            same = ((now.held == selection.workers) & (now.type == selection.types)).all()
            if not same or any(list(new.accelerators) != held.of(job).tolist() for job, new in selection.routes.items()):
                selection = selection.until(view.time)  # the jobs that start now are protected at the next decision
        return selection, memo

    def _serving(self, view: Snapshot) -> Bools:
        if not self.sessions:
            return np.zeros(len(view.jobs), dtype=np.bool_)
        return np.array([view.job_of[number].name in self.sessions for number in view.jobs.number.tolist()], dtype=np.bool_)

    def _session_jobs(self, view: Snapshot, serving: Bools) -> list[SessionJob]:
        """Protected jobs first, then running jobs, then by submission."""
        jobs, protected, elastic = view.jobs.only(serving), view.protected, view.elastic[serving]
        fixed = np.zeros(len(jobs), dtype=np.bool_) if protected is None else protected[serving]
        usable = view.up & ~view.device_map.held_by(view.jobs.number[~serving])
        sharing = Counter(view.device_map.places(jobs.number[elastic])[1].tolist())
        columns = (jobs.number, jobs.metric(REPORTED), jobs.fits, jobs.running, jobs.type, jobs.workers, fixed, elastic)
        found = []
        for number, reported, fits, runs, type_, workers, stays, resized in zip(*(column.tolist() for column in columns)):
            name = view.job_of[number].name
            session = self.session(name, reported_rate(reported, self.sessions[name].rate))
            held = view.device_map.of(number) if runs else NONE
            keeps = stays or bool(usable[held].all()) or resized
            places = tuple(held.tolist() if stays else held[usable[held]].tolist()) if keeps else ()
            loads = self._loads(session, view.cluster.type_names, fits)
            if stays and type_ not in loads:  # placed there by another policy, and protected
                loads = {type_: SessionLoad(1, float(len(places)), 0.0)}
            max_load = math.inf
            if stays and resized:
                max_load = sum(1 / sharing[place] for place in places) / (1 + headroom_fraction([loads[type_]], self._options))
            now, workers = type_ if places else -1, 0 if resized else workers
            found.append(SessionJob(number, session, loads, now, places, stays, workers, max_load))
        return sorted(found, key=lambda job: (not job.fixed, job.now < 0, job.number))

    @property
    def _options(self) -> PoolingOptions:
        return PoolingOptions(self.wait, self.headroom, self.neighbours)

    def _routes(self, replicas: Sequence[Replicas]) -> dict[int, Route]:
        """Divide requests as evenly as possible; the same assignment always has the same routes."""
        divided: dict[str, Mapping[int, float]] = {}
        for type_ in sorted({one.type for one in replicas}):
            demands = [one.job.demand_on(type_, one.places) for one in replicas if one.type == type_ and not one.job.workers]
            divided.update(divide_load(demands, {one.session.name: set(one.present) for one in demands})[0])
        routes: dict[int, Route] = {}
        for one in replicas:
            places = tuple(sorted(one.places))
            loads = divided.get(str(one.job.number)) or dict.fromkeys(places, 1.0)
            total = sum(loads.values()) or 1.0
            parts = tuple(round(loads[place] / total, 4) for place in places)
            routes[one.job.number] = Route(places, parts, one.job.loads[one.type].batch, one.job.session.rate)
        return routes

    def session(self, name: str, rate: float | None = None) -> Session:
        """The session of a name, at its specified rate or at the given one."""
        spec = self.sessions[name]
        latency = {type_: latencies(spec.batches, [ms / 1000 for ms in column]) for type_, column in spec.latency_ms.items()}
        known = min(max(spec.rate if rate is None else rate, _MIN_REQUESTS_PER_S), MAX_REQUESTS_PER_S)
        return Session(name, float(known), spec.slo_ms / 1000, latency)

    def _loads(self, session: Session, types: Sequence[str], fits: int) -> dict[int, SessionLoad]:
        known = ((code, session_load(session, name, self.wait)) for code, name in enumerate(types) if fits >> code & 1)
        return {code: one for code, one in known if one is not None}


def _with_new_accelerators(replicas: Sequence[Replicas], rest: Selection, training: Snapshot) -> list[Replicas]:
    """Choose new accelerators among those that training leaves, fullest nodes first: running training jobs are not moved."""
    free = training.up.copy()
    free[[place for one in replicas for place in one.places if place >= 0]] = False
    free[training.device_map.held_by(_unchanged(rest, training))] = False
    per_node = np.bincount(training.cluster.node_of[free], minlength=len(training.cluster.nodes))
    given: dict[int, int] = {}
    for type_ in sorted({one.type for one in replicas}):
        there = np.flatnonzero(free & (training.cluster.type_of == type_))
        order = there[per_node[training.cluster.node_of[there]].argsort(kind="stable")].tolist()
        new = sorted({place for one in replicas if one.type == type_ for place in one.places if place < 0}, reverse=True)
        given.update(zip(new, order))
    found = (replace(one, places=frozenset(given.get(p, p) for p in one.places if p >= 0 or p in given)) for one in replicas)
    return [one for one in found if one.places and len(one.places) >= one.job.workers]


def _unchanged(rest: Selection, training: Snapshot) -> Ints:
    """The training jobs that keep running as they are."""
    jobs = training.jobs.of(rest.jobs)
    stays = rest.jobs[(jobs.held == rest.workers) & (jobs.type == rest.types) & jobs.running]
    protected = training.protected
    return stays if protected is None else np.union1d(stays, training.jobs.number[protected])


def _reasons(jobs: Sequence[SessionJob], replicas: Sequence[Replicas], left: Ints) -> dict[int, Reason]:
    """Why sessions are not served; `left` accelerators of each type are not used by sessions."""
    served = {one.job.number for one in replicas}
    reasons: dict[int, Reason] = {}
    for job in jobs:
        if job.number in served:
            continue
        if job.loads:
            free = max(0, *(int(left[type_]) for type_ in job.loads))
            reasons[job.number] = Reasons.waiting(job.workers or 1, free=free)
        else:
            known = ", ".join(job.session.latency_s)
            why = f"no type answers a single request within its SLO; it has latencies on {known}"
            reasons[job.number] = Reasons.unsuitable(why)
    return reasons


def _combined(
    view: Snapshot,
    replicas: Sequence[Replicas],
    reasons: Mapping[int, Reason],
    routes: Mapping[int, Route],
    rest: Selection,
) -> Selection:
    jobs = np.array([one.job.number for one in replicas], dtype=np.int64)
    types = np.array([one.type for one in replicas], dtype=np.int64)
    workers = np.array([len(one.places) for one in replicas], dtype=np.int64)
    at = view.jobs.position_of(jobs)
    stays = [set(one.places) == set(view.device_map.of(one.job.number).tolist()) for one in replicas]
    batches = np.array([0 if one.job.workers else routes[one.job.number].batch for one in replicas], dtype=np.int64)
    batches = np.where(stays, view.jobs.batch_size[at], batches)
    return replace(
        rest,
        jobs=np.concatenate((jobs, rest.jobs)),
        types=np.concatenate((types, rest.types)),
        workers=np.concatenate((workers, rest.workers)),
        batch_sizes=np.concatenate((batches, np.zeros(len(rest), dtype=np.int64))),
        routes=routes,
        reasons={**rest.reasons, **reasons},
    )


def _check(name: str, spec: SessionSpec) -> None:
    def wrong(parameter: str, expected: str, value: object) -> InputError:
        return InputError("policy nexus", expected, field=f"sessions.{name}.{parameter}", value=value)

    for parameter in ("slo_ms", "rate"):
        value = getattr(spec, parameter)
        if not 0 < value < math.inf:
            raise wrong(parameter, "a number above 0", value)
    if spec.rate > MAX_REQUESTS_PER_S:
        raise wrong("rate", f"at most {MAX_REQUESTS_PER_S:,.0f} requests per second", spec.rate)
    sizes = list(spec.batches)
    if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] > MAX_BATCH_SIZE:
        raise wrong("batches", f"batch sizes from 1 to {MAX_BATCH_SIZE} in ascending order", sizes)
    for type_, column in spec.latency_ms.items():
        if len(column) != len(sizes) or not all(0 < one < math.inf for one in column):
            raise wrong(f"latency_ms.{type_}", f"{len(sizes)} numbers above 0, one for each of the batches", list(column))
