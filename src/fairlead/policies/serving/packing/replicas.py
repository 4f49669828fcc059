"""Replica assignment: the accelerators of a type that serve each session, from one decision to the next. A session whose
accelerators change is restarted, so accelerators change only where they must:

    enough:   the present accelerators are enough where loads a_s can be divided among them such that none exceeds `level`,
              1 / (1 + h), or the level of a new packing (`pooled.py`): min L with Σ_k x_sk = a_s and Σ_s x_sk ≤ L over the
              accelerators k of s
    grow:     a new session, or one with unserved load under max Σ x_sk at that level, joins the emptiest accelerators, as
              long as one takes a quarter of a level or all that is left, and gets new ones for the rest. It then backs up
              the 2·`neighbours` emptiest. A session that still has none joins the emptiest, however full; where a new packing
              would not fit either, only where some capacity is free
    shrink:   while there are more than `spare` accelerators beyond those of a new packing, or more than there is room for,
              one is released without which the others are enough

Where no session has an accelerator yet, `pooled.py` packs all first. Growing repeats until a fixed point, so that the same
input gives the same result. This module knows nothing of training jobs and routes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.routes import Session
from fairlead.policies.allocation.lp.program import Model, Program
from fairlead.policies.serving.packing.pooled import (
    PoolingOptions,
    SessionLoad,
    headroom_fraction,
    pack_pooled,
    required_accelerators,
)

_EPSILON = 1e-6
_MIN_PART = 0.25  # of a level, for which one more replica is worth its memory


@dataclass(frozen=True)
class SessionDemand:
    """A session on one type: its load, and the accelerators that serve it now. `fixed` where these must not change."""

    session: Session
    need: SessionLoad
    present: frozenset[int] = frozenset()
    fixed: bool = False

    @property
    def load(self) -> float:
        return self.need.load


ReplicaMap = dict[str, set[int]]
"""The accelerators of each session, by name; negative numbers are new accelerators that are not chosen yet."""


def assign_replicas(
    demands: Sequence[SessionDemand], type_name: str, room: int, options: PoolingOptions, spare: int
) -> ReplicaMap:
    """Assign sessions to at most `room` accelerators; a session that finds none is not in the result."""
    if not demands:
        return {}
    load = float(np.array([one.load for one in demands]).sum())
    scale = 1 + headroom_fraction([one.need for one in demands], options)
    enough = required_accelerators(load, scale)
    level = max(1 / scale, load / enough) if enough <= room else 1 / scale
    replicas: ReplicaMap = {one.session.name: set(one.present) for one in demands}
    if not any(replicas.values()):
        unrounded = load * scale if enough <= room else 0.0  # may exceed `enough`, which is rounded
        plan = pack_pooled([one.session for one in demands], {type_name: max(float(room), unrounded)}, options)
        for at, server in enumerate(plan.servers[:room]):
            for resident in server.residents:
                replicas[resident.session].add(-1 - at)
    before = {name: set(mine) for name, mine in replicas.items()}
    while _grow(demands, replicas, before, level, room, options, all_fit=enough <= room):
        pass
    _shrink(demands, replicas, level, min(enough + spare, room))
    return {name: places for name, places in replicas.items() if places}


def divide_load(demands: Sequence[SessionDemand], replicas: ReplicaMap) -> tuple[Mapping[str, Mapping[int, float]], float]:
    """The load by session and accelerator such that the fullest accelerator has the least, and the load of that one."""
    rows, places, at = _pairs(demands, replicas)
    if not len(rows):
        return {}, 0.0
    load, pairs = np.array([one.load for one in demands]), len(rows)
    present = np.unique(rows)
    program = Program(
        "GPUs that answer requests",
        Model(
            cost=np.append(np.zeros(pairs), -1.0),
            lower=np.zeros(pairs + 1),
            upper=np.full(pairs + 1, math.inf),
            row_lower=np.concatenate((load[present], np.full(len(places), -math.inf))),
            row_upper=np.concatenate((load[present], np.zeros(len(places)))),
            entries=(
                np.concatenate((np.searchsorted(present, rows), len(present) + at, len(present) + np.arange(len(places)))),
                np.concatenate((np.arange(pairs), np.arange(pairs), np.full(len(places), pairs))),
                np.concatenate((np.ones(2 * pairs), np.full(len(places), -1.0))),
            ),
        ),
    )
    values = program.solve().values
    found: dict[str, dict[int, float]] = {}
    for row, k, part in zip(rows.tolist(), at.tolist(), values[:-1].clip(0).tolist()):
        found.setdefault(demands[row].session.name, {})[places[k]] = part
    return found, float(values[-1])


def _grow(
    demands: Sequence[SessionDemand],
    replicas: ReplicaMap,
    before: ReplicaMap,
    level: float,
    room: int,
    options: PoolingOptions,
    *,
    all_fit: bool,
) -> bool:
    """Add accelerators where load is unserved; return whether any. More than `before`: it has its backups."""
    if divide_load(demands, replicas)[1] <= level + _EPSILON and all(replicas.values()):
        return False
    missing, used = _unserved(demands, replicas, level)
    new, grown = min([0, *used]), False
    for row in sorted(range(len(demands)), key=lambda row: (-missing[row], demands[row].session.name)):
        one, left = demands[row], float(missing[row])
        mine = replicas[one.session.name]
        if one.fixed or (mine and left <= _EPSILON * max(1.0, one.load)):
            continue
        had = set(mine)
        for place in _emptiest(used):
            free = level - used[place]
            if left <= _EPSILON or free < min(left, _MIN_PART * level):
                break
            if place not in mine:
                taken = min(left, free)
                used[place] += taken
                left -= taken
                mine.add(place)
        while left > _EPSILON and len(used) < room:
            new -= 1
            taken = min(left, level)
            used[new] = taken
            left -= taken
            mine.add(new)
        if not mine and (used or room):
            if not used:
                new -= 1
                used[new] = 0.0
            place = _emptiest(used)[0]
            if all_fit or left <= _EPSILON or level - used[place] > _EPSILON:
                used[place] += left
                mine.add(place)
        if mine != had:
            grown = True
            if had == before[one.session.name]:
                mine.update([place for place in _emptiest(used) if place not in mine][: 2 * options.neighbours])
    return grown


def _emptiest(used: Mapping[int, float]) -> list[int]:
    return sorted(used, key=lambda place: (used[place], -place))


def _shrink(demands: Sequence[SessionDemand], replicas: ReplicaMap, level: float, limit: int) -> None:
    while True:
        places = sorted({place for mine in replicas.values() for place in mine})
        if len(places) <= limit:
            return
        fixed = {place for one in demands if one.fixed for place in replicas[one.session.name]}
        for place in sorted(places, key=lambda place: (sum(place in mine for mine in replicas.values()), place)):
            without = {name: mine - {place} for name, mine in replicas.items()}
            if place in fixed or any(replicas[name] and not without[name] for name in replicas):
                continue
            if divide_load(demands, without)[1] <= level + _EPSILON:
                replicas.update(without)
                break
        else:
            return


def _unserved(demands: Sequence[SessionDemand], replicas: ReplicaMap, level: float) -> tuple[Floats, dict[int, float]]:
    """The load of each session beyond `level`, large sessions first, and how full each accelerator is then."""
    load = np.array([one.load for one in demands])
    smallness = 1 - load.argsort(kind="stable").argsort() / len(load)
    rows, places, at = _pairs(demands, replicas)
    if not len(rows):
        return load, {}
    pairs = np.arange(len(rows))
    program = Program(
        "requests that GPUs can answer",
        Model(
            cost=1 + 0.1 * smallness[rows],
            lower=np.zeros(len(rows)),
            upper=load[rows],
            row_lower=np.full(len(load) + len(places), -math.inf),
            row_upper=np.concatenate((load, np.full(len(places), level))),
            entries=(np.concatenate((rows, len(load) + at)), np.concatenate((pairs, pairs)), np.ones(2 * len(rows))),
        ),
    )
    values = program.solve().values.clip(0)
    used = np.bincount(at, values, len(places))
    return load - np.bincount(rows, values, len(load)), dict(zip(places, used.tolist()))


def _pairs(demands: Sequence[SessionDemand], replicas: ReplicaMap) -> tuple[Ints, list[int], Ints]:
    """Sessions and their accelerators, as rows of `demands` and positions among the accelerators; and the accelerators."""
    places = sorted({place for one in demands for place in replicas[one.session.name]})
    position = {place: at for at, place in enumerate(places)}
    found = [(row, position[place]) for row, one in enumerate(demands) for place in sorted(replicas[one.session.name])]
    rows, at = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return rows, places, at


@dataclass(frozen=True)
class SessionJob:
    """The job of a session, with its load on each type that it may run on."""

    number: int
    session: Session
    loads: Mapping[int, SessionLoad]
    now: int  # the type it runs on, or -1
    places: tuple[int, ...]  # accelerators that it runs on and may keep
    fixed: bool  # its accelerators must not change
    workers: int  # fixed number of workers; 0: as many as it needs
    max_load: float  # load that it may have where its accelerators must not change

    def demand_on(self, type_: int, present: frozenset[int]) -> SessionDemand:
        """Its demand on a type. The number stands for the name, as a session may be submitted twice."""
        return SessionDemand(replace(self.session, name=str(self.number)), self.loads[type_], present, self.fixed)

    def capped_load(self, type_: int) -> SessionLoad:
        """Its load on a type, at most `max_load`."""
        full = self.loads[type_]
        part = min(1.0, self.max_load / full.load) if full.load else 1.0
        return SessionLoad(full.batch, full.load * part, full.variance * part**2)


@dataclass(frozen=True)
class Replicas:
    """The type and accelerators of a session's job; negative numbers are new accelerators that are not chosen yet."""

    job: SessionJob
    type: int
    places: frozenset[int]


@dataclass(frozen=True)
class ReplicaAssigner:
    """Chooses types and accelerators for session jobs: elastic ones share accelerators, others have their own."""

    type_names: tuple[str, ...]
    options: PoolingOptions
    spare: int

    def assign(self, jobs: Sequence[SessionJob], room: Ints) -> list[Replicas]:
        """Assign each session a type and accelerators of it. Elastic sessions may be unable to release accelerators; where this
        leaves too few for a job on a type, that type is excluded for the job and all are assigned again."""
        excluded: set[tuple[int, int]] = set()
        while True:
            by_type: dict[int, list[SessionJob]] = {}
            for job in jobs:
                if (type_ := self._type_of(job, by_type, room, excluded)) >= 0:
                    by_type.setdefault(type_, []).append(job)
            assignments, new = list[Replicas](), 0
            for type_, here in sorted(by_type.items()):
                found = self._assign_on(here, type_, int(room[type_]))
                assignments += [replace(one, places=frozenset(p if p >= 0 else p + new for p in one.places)) for one in found]
                new += min((place for one in found for place in one.places if place < 0), default=0)
                served = {one.job.number for one in found}
                excluded |= {(job.number, type_) for job in here if not job.fixed and job.number not in served}
            if not any((job.number, type_) in excluded for type_, here in by_type.items() for job in here):
                return sorted(_with_leftovers(jobs, assignments, room), key=lambda one: one.job.number)

    def _assign_on(self, jobs: Sequence[SessionJob], type_: int, room: int) -> list[Replicas]:
        """On one type: elastic sessions share what the others do not request; the others get what is then left."""
        elastic, others = [job for job in jobs if not job.workers], [job for job in jobs if job.workers]
        demands = [
            replace(job.demand_on(type_, frozenset(job.places if job.now == type_ else ())), need=job.capped_load(type_))
            for job in elastic
        ]
        shared_room = max(room - sum(job.workers for job in others), 0)
        found = assign_replicas(demands, self.type_names[type_], shared_room, self.options, self.spare)
        assignments = [Replicas(job, type_, frozenset(found[name])) for job in elastic if (name := str(job.number)) in found]
        shared = {place for one in assignments for place in one.places}
        left, new = room - len(shared), min([0, *shared])
        for job in others:
            if not job.fixed and job.workers > left:
                continue
            assignments.append(_exclusive(job, type_, new))
            left -= job.workers
            new = min(new, *assignments[-1].places)
        return assignments

    def _type_of(
        self, job: SessionJob, by_type: Mapping[int, Sequence[SessionJob]], room: Ints, excluded: Collection[tuple[int, int]]
    ) -> int:
        """Its present type if it fits there; else the type of least load with room, or of the most room; -1: none."""
        if job.fixed:
            return job.now
        candidates = [type_ for type_ in job.loads if (job.number, type_) not in excluded]
        candidates.sort(key=lambda type_: (type_ != job.now, job.loads[type_].load, type_))
        roomy = (type_ for type_ in candidates if self._needed([*by_type.get(type_, ()), job], type_) <= room[type_])
        if (first := next(roomy, None)) is not None or job.workers:
            return -1 if first is None else first
        candidates = [type_ for type_ in candidates if room[type_] > sum(one.workers for one in by_type.get(type_, ()))]
        left = {type_: room[type_] - self._needed(by_type.get(type_, ()), type_) for type_ in candidates}
        return max(candidates, key=lambda type_: (left[type_] / job.loads[type_].load, type_ == job.now, -type_), default=-1)

    def _needed(self, jobs: Sequence[SessionJob], type_: int) -> int:
        """The accelerators that jobs need on a type: elastic ones together, the others each for itself."""
        elastic = [job.capped_load(type_) for job in jobs if not job.workers]
        load, scale = sum(one.load for one in elastic), 1 + headroom_fraction(elastic, self.options)
        return sum(job.workers for job in jobs) + (required_accelerators(load, scale) if elastic else 0)


def _exclusive(job: SessionJob, type_: int, new: int) -> Replicas:
    """Its present accelerators, or new ones below the number `new`."""
    stays = job.now == type_ and len(job.places) == job.workers
    return Replicas(job, type_, frozenset(job.places if stays else range(new - job.workers, new)))


def _with_leftovers(jobs: Sequence[SessionJob], assignments: Sequence[Replicas], room: Ints) -> list[Replicas]:
    """Assign jobs of fixed size that found no type to what the others really leave."""
    both = list(assignments)
    for job in jobs:
        if job.workers and all(one.job is not job for one in assignments):
            left, new = room - assigned_by_type(both, len(room)), min([0, *(place for one in both for place in one.places)])
            candidates = [type_ for type_ in job.loads if job.workers <= left[type_]]
            if candidates:
                first = min(candidates, key=lambda type_: (type_ != job.now, job.loads[type_].load, type_))
                both.append(_exclusive(job, first, new))
    return both


def assigned_by_type(assignments: Sequence[Replicas], types: int) -> Ints:
    """The number of assigned accelerators of each type."""
    places = {(one.type, place) for one in assignments for place in one.places}
    return np.bincount(np.array([type_ for type_, _ in sorted(places)], dtype=np.int64), minlength=types)
