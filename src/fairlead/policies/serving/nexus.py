"""Inference beside training (Nexus, Shen et al., SOSP'19; Blox, appendix B): sessions first, on as few accelerators as their
requests need, and training on what is left.

    sessions:  a_s = R_s·l(b) / b accelerators, b the batch that can be gathered and run within SLO_s; all of them together on
               a_1 + … + a_n accelerators of a type and some headroom (`pooling.py`), kept as they are while these are enough
               (`seats.py`, `replicas.py`). A session is on the type where a_s is least, or where there is room
    training:  who gives way is who comes last in the order of `training`

A session is a job without an end: somebody cancels it. Where it is elastic it has as many workers as there are accelerators
that serve it, however many it was submitted with, each a replica; otherwise always those, on accelerators of its own. R_s is
what the job reported last as `request_rate`, or what `sessions` says. What routers have to know is the route of each session,
which goes with the plan (`core/inference.py`); where only that changes, nobody is started again."""

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
from fairlead.core.reasons import Reason, Unplaced
from fairlead.core.routes import MOST_IN_A_BATCH, MOST_REQUESTS_PER_S, REPORTED, Route, Session, latencies, rate_told
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Policy
from fairlead.policies.ranking.fifo import Fifo
from fairlead.policies.ranking.job_size import ShortestRemainingTimeFirst
from fairlead.policies.ranking.las import LeastAttainedService
from fairlead.policies.serving.packing.pooled import PLAIN, Pooled, Way, headroom, way
from fairlead.policies.serving.packing.replicas import Seat, Seating, SessionJob, divided, taken, wanted_by

_LEAST_REQUESTS_PER_S = 0.01

_TRAINING: Mapping[str, Policy] = {  # policies without a memory
    "fifo": Fifo(preempt=True),
    "las": LeastAttainedService(),
    "srtf": ShortestRemainingTimeFirst(),
}


@dataclass(frozen=True)
class Asked:
    """What is known of a session before it reports: as in a file of sessions, with its model written out."""

    slo_ms: float
    batches: tuple[int, ...]
    latency_ms: Mapping[str, tuple[float, ...]]
    rate: float


@dataclass(frozen=True)
class Nexus:
    """Inference sessions have the accelerators they need, training jobs what is left, in the order of `training`.

    `sessions` says, by the job's name, what a session is: `slo_ms`, `rate`, and of its model `batches` and, by type,
    `latency_ms`. Sessions share accelerators, as `wait`, `headroom` and `neighbours` say; they are left as they are while those
    are enough, and at most `spare` more than enough.
    """

    paper: ClassVar[str] = "Nexus (Shen et al., SOSP'19); Blox appendix B"
    sessions: Mapping[str, Asked] = field(default_factory=dict)
    training: Literal["fifo", "las", "srtf"] = "fifo"
    wait: float = PLAIN.wait
    headroom: float = PLAIN.headroom
    neighbours: int = PLAIN.neighbours
    spare: int = 1

    def __post_init__(self) -> None:
        for name, asked in self.sessions.items():
            _check(name, asked)
        Pooled(self.wait, self.headroom, self.neighbours)  # which looks at them
        if not isinstance(self.spare, int) or self.spare < 0:
            raise InputError("policy nexus", "a whole number from 0 on", field="spare", value=self.spare)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        ours = self._ours(view)
        trained = view.but(jobs=view.jobs.only(~ours))
        policy = _TRAINING[self.training]
        if not ours.any():
            return policy.select(trained, None)[0], memo
        room = view.capacity.copy()
        if (protected := trained.protected) is not None:  # they stay, whatever sessions need
            np.subtract.at(room, trained.jobs.type[protected], trained.jobs.held[protected])
        jobs = self._jobs(view, ours)
        seats = Seating(view.cluster.type_names, self._packing, self.spare).seats(jobs, np.maximum(room, 0))
        rest, _ = policy.select(trained.but(capacity=view.capacity - taken(seats, len(room))), None)
        seats = _settled(seats, rest, trained)
        selection = _both(view, seats, _reasons(jobs, seats, room - taken(seats, len(room))), self._routes(seats), rest)
        if any(job.fixed for job in jobs):
            selection = selection.until(view.protection_ends)
        if (view.any_min_run or view.first_step_s) and _starts(selection, view):
            selection = selection.until(view.time)  # who starts now must be left alone next time, and others go by that
        return selection, memo

    def _ours(self, view: Snapshot) -> Bools:
        if not self.sessions:
            return np.zeros(len(view.jobs), dtype=np.bool_)
        return np.array([view.job_of[number].name in self.sessions for number in view.jobs.number.tolist()], dtype=np.bool_)

    def _jobs(self, view: Snapshot, ours: Bools) -> list[SessionJob]:
        """Who must be left alone first, then who runs, then by submission."""
        jobs, protected, elastic = view.jobs.only(ours), view.protected, view.elastic[ours]
        fixed = np.zeros(len(jobs), dtype=np.bool_) if protected is None else protected[ours]
        usable = view.up & ~view.holdings.held_by(view.jobs.number[~ours])
        sharing = Counter(view.holdings.places(jobs.number[elastic])[1].tolist())
        columns = (jobs.number, jobs.metric(REPORTED), jobs.fits, jobs.running, jobs.type, jobs.workers, fixed, elastic)
        found = []
        for number, reported, fits, runs, kind, workers, stays, resized in zip(*(column.tolist() for column in columns)):
            name = view.job_of[number].name
            session = self.session(name, rate_told(reported, self.sessions[name].rate))
            places = view.holdings.of(number) if runs else NONE
            whole = stays or bool(usable[places].all()) or resized
            here = tuple(places.tolist() if stays else places[usable[places]].tolist()) if whole else ()
            ways = self._ways(session, view.cluster.type_names, fits)
            if stays and kind not in ways:  # somebody else's decision, which it has to live with for a while
                ways = {kind: Way(1, float(len(here)), 0.0)}
            most = math.inf
            if stays and resized:
                most = sum(1 / sharing[place] for place in here) / (1 + headroom([ways[kind]], self._packing))
            found.append(SessionJob(number, session, ways, kind if here else -1, here, stays, 0 if resized else workers, most))
        return sorted(found, key=lambda job: (not job.fixed, job.now < 0, job.number))

    @property
    def _packing(self) -> Pooled:
        return Pooled(self.wait, self.headroom, self.neighbours)

    def _routes(self, seats: Sequence[Seat]) -> dict[int, Route]:
        """How requests are divided, as evenly as can be: by who is where alone, so that the same is said the same again. Who
        has accelerators of its own divides them among these, however full the others are."""
        meant: dict[str, Mapping[int, float]] = {}
        for kind in sorted({seat.type for seat in seats}):
            wanted = [wanted_by(seat.job, kind, seat.places) for seat in seats if seat.type == kind and not seat.job.workers]
            meant.update(divided(wanted, {one.session.name: set(one.present) for one in wanted})[0])
        routes: dict[int, Route] = {}
        for seat in seats:
            places = tuple(sorted(seat.places))
            loads = meant.get(str(seat.job.number)) or dict.fromkeys(places, 1.0)
            total = sum(loads.values()) or 1.0
            parts = tuple(round(loads[place] / total, 4) for place in places)
            routes[seat.job.number] = Route(places, parts, seat.job.ways[seat.type].batch, seat.job.session.rate)
        return routes

    def session(self, name: str, rate: float | None = None) -> Session:
        """The session of a name, at another rate than was said where one is given."""
        asked = self.sessions[name]
        latency = {kind: latencies(asked.batches, [ms / 1000 for ms in column]) for kind, column in asked.latency_ms.items()}
        known = min(max(asked.rate if rate is None else rate, _LEAST_REQUESTS_PER_S), MOST_REQUESTS_PER_S)
        return Session(name, float(known), asked.slo_ms / 1000, latency)

    def _ways(self, session: Session, types: Sequence[str], fits: int) -> dict[int, Way]:
        known = ((code, way(session, name, self.wait)) for code, name in enumerate(types) if fits >> code & 1)
        return {code: one for code, one in known if one is not None}


def _settled(seats: Sequence[Seat], rest: Selection, trained: Snapshot) -> list[Seat]:
    """New accelerators are those that training leaves, beginning with nodes of which it leaves least: who goes on training
    stays where it is."""
    free = trained.up.copy()
    free[[place for seat in seats for place in seat.places if place >= 0]] = False
    free[trained.holdings.held_by(_staying(rest, trained))] = False
    per_node = np.bincount(trained.cluster.node_of[free], minlength=len(trained.cluster.nodes))
    given: dict[int, int] = {}
    for kind in sorted({seat.type for seat in seats}):
        there = np.flatnonzero(free & (trained.cluster.type_of == kind))
        order = there[per_node[trained.cluster.node_of[there]].argsort(kind="stable")].tolist()
        wanted = sorted({place for seat in seats if seat.type == kind for place in seat.places if place < 0}, reverse=True)
        given.update(zip(wanted, order))
    found = (replace(seat, places=frozenset(given.get(p, p) for p in seat.places if p >= 0 or p in given)) for seat in seats)
    return [seat for seat in found if seat.places and len(seat.places) >= seat.job.workers]


def _starts(selection: Selection, view: Snapshot) -> bool:
    """Whether anybody does, or goes on elsewhere."""
    jobs = view.jobs.of(selection.jobs)
    if not ((jobs.held == selection.workers) & (jobs.type == selection.types)).all():
        return True
    there = ((route.accelerators, view.holdings.of(number)) for number, route in selection.routes.items())
    return any(list(new) != old.tolist() for new, old in there)


def _staying(rest: Selection, trained: Snapshot) -> Ints:
    """Who of training goes on as it is."""
    jobs = trained.jobs.of(rest.jobs)
    stays = rest.jobs[(jobs.held == rest.workers) & (jobs.type == rest.types) & jobs.running]
    protected = trained.protected
    return stays if protected is None else np.union1d(stays, trained.jobs.number[protected])


def _reasons(jobs: Sequence[SessionJob], seats: Sequence[Seat], left: Ints) -> dict[int, Reason]:
    """Of who is not served, where sessions leave so many accelerators of each type."""
    served = {seat.job.number for seat in seats}
    return {job.number: _reason(job, left) for job in jobs if job.number not in served}


def _reason(job: SessionJob, left: Ints) -> Reason:
    if not job.ways:
        known = ", ".join(job.session.latency_s)
        return Unplaced.unsuitable(f"no type answers a single request within its SLO; it has latencies on {known}")
    free = max(0, *(int(left[kind]) for kind in job.ways))
    return Unplaced.outranked(job.workers or 1, free=free)


def _both(
    view: Snapshot, seats: Sequence[Seat], reasons: Mapping[int, Reason], routes: Mapping[int, Route], rest: Selection
) -> Selection:
    jobs = np.array([seat.job.number for seat in seats], dtype=np.int64)
    types = np.array([seat.type for seat in seats], dtype=np.int64)
    workers = np.array([len(seat.places) for seat in seats], dtype=np.int64)
    at = view.jobs.position_of(jobs)
    stays = [set(seat.places) == set(view.holdings.of(seat.job.number).tolist()) for seat in seats]
    batches = np.array([0 if seat.job.workers else routes[seat.job.number].batch for seat in seats], dtype=np.int64)
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


def _check(name: str, asked: Asked) -> None:
    def wrong(parameter: str, expected: str, value: object) -> InputError:
        return InputError("policy nexus", expected, field=f"sessions.{name}.{parameter}", value=value)

    for parameter in ("slo_ms", "rate"):
        value = getattr(asked, parameter)
        if not 0 < value < math.inf:
            raise wrong(parameter, "a number above 0", value)
    if asked.rate > MOST_REQUESTS_PER_S:
        raise wrong("rate", f"at most {MOST_REQUESTS_PER_S:,.0f} requests per second", asked.rate)
    sizes = list(asked.batches)
    if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] > MOST_IN_A_BATCH:
        raise wrong("batches", f"batch sizes from 1 to {MOST_IN_A_BATCH} in ascending order", sizes)
    for kind, column in asked.latency_ms.items():
        if len(column) != len(sizes) or not all(0 < one < math.inf for one in column):
            raise wrong(f"latency_ms.{kind}", f"{len(sizes)} numbers above 0, one for each of the batches", list(column))
