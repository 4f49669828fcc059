"""Which type, and how many of its accelerators, each session has from one decision to the next: elastic ones share what they
need together (`replicas.py`), the others have theirs to themselves. It knows no training and no routes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.inference import Session
from fairlead.policies.pooling import Pooled, Way, accelerators_for, headroom
from fairlead.policies.replicas import Wanted, seated


@dataclass(frozen=True)
class SessionJob:
    """A session's job, with what it would take on each type that it may run on."""

    number: int
    session: Session
    ways: Mapping[int, Way]
    now: int  # the type it runs on, or -1
    places: tuple[int, ...]  # where it runs, and may go on
    fixed: bool  # it must be left as it is
    workers: int  # that it always has; 0: as many as it needs
    most: float  # load that it may have where it must be left as it is, whatever it needs

    def due(self, kind: int) -> Way:
        """What there is to find accelerators for."""
        whole = self.ways[kind]
        part = min(1.0, self.most / whole.load) if whole.load else 1.0
        return Way(whole.batch, whole.load * part, whole.variance * part**2)


@dataclass(frozen=True)
class Seat:
    """A session's type and accelerators; those below 0 are new, whichever they will be."""

    job: SessionJob
    type: int
    places: frozenset[int]


@dataclass(frozen=True)
class Seating:
    """On types of these names, packed so closely, with so many accelerators more than enough before one is given back."""

    type_names: tuple[str, ...]
    packing: Pooled
    spare: int

    def seats(self, jobs: Sequence[SessionJob], room: Ints) -> list[Seat]:
        """A type for each session, and accelerators on it. Elastic sessions may be unable to give back what they could do
        without; for whom that leaves too few on a type, that type is none, and all are seated as if it had not asked there."""
        full: set[tuple[int, int]] = set()
        while True:
            typed: dict[int, list[SessionJob]] = {}
            for job in jobs:
                if (kind := self._type_of(job, typed, room, full)) >= 0:
                    typed.setdefault(kind, []).append(job)
            seats, new = list[Seat](), 0
            for kind, here in sorted(typed.items()):
                found = self._seated(here, kind, int(room[kind]), self.type_names[kind])
                seats += [replace(seat, places=frozenset(p if p >= 0 else p + new for p in seat.places)) for seat in found]
                new += min((place for seat in found for place in seat.places if place < 0), default=0)
                served = {seat.job.number for seat in found}
                full |= {(job.number, kind) for job in here if not job.fixed and job.number not in served}
            if not any((job.number, kind) in full for kind, here in typed.items() for job in here):
                return sorted(_beside(jobs, seats, room), key=lambda seat: seat.job.number)

    def _seated(self, jobs: Sequence[SessionJob], kind: int, room: int, type_name: str) -> list[Seat]:
        """On one type: elastic sessions beside what the others ask for, and the others on what is then left."""
        elastic, others = [job for job in jobs if not job.workers], [job for job in jobs if job.workers]
        wanted = [replace(wanted_by(job, kind, _present(job, kind)), way=job.due(kind)) for job in elastic]
        beside = max(room - sum(job.workers for job in others), 0)
        found = seated(wanted, type_name, beside, self.packing, self.spare)
        seats = [Seat(job, kind, frozenset(found[name])) for job in elastic if (name := str(job.number)) in found]
        shared = {place for seat in seats for place in seat.places}
        left, new = room - len(shared), min([0, *shared])
        for job in others:
            if not job.fixed and job.workers > left:
                continue
            seats.append(_seat_of_its_own(job, kind, new))
            left -= job.workers
            new = min(new, *seats[-1].places)
        return seats

    def _type_of(
        self, job: SessionJob, typed: Mapping[int, Sequence[SessionJob]], room: Ints, full: Collection[tuple[int, int]]
    ) -> int:
        """Where it is, if there is room for it beside those before it; else where its load is least of those with room, or
        where most is left."""
        if job.fixed:
            return job.now
        ways = [kind for kind in job.ways if (job.number, kind) not in full]
        ways.sort(key=lambda kind: (kind != job.now, job.ways[kind].load, kind))
        roomy = (kind for kind in ways if self._need([*typed.get(kind, ()), job], kind) <= room[kind])
        if (first := next(roomy, None)) is not None or job.workers:
            return -1 if first is None else first
        beside = {kind: room[kind] - sum(one.workers for one in typed.get(kind, ())) for kind in ways}
        ways = [kind for kind in ways if beside[kind] > 0]
        left = {kind: room[kind] - self._need(typed.get(kind, ()), kind) for kind in ways}
        return max(ways, key=lambda kind: (left[kind] / job.ways[kind].load, kind == job.now, -kind), default=-1)

    def _need(self, jobs: Sequence[SessionJob], kind: int) -> int:
        """So many accelerators they take on a type: elastic ones together, the others each for itself."""
        elastic = [job.due(kind) for job in jobs if not job.workers]
        load, scale = sum(one.load for one in elastic), 1 + headroom(elastic, self.packing)
        return sum(job.workers for job in jobs) + (accelerators_for(load, scale) if elastic else 0)


def _seat_of_its_own(job: SessionJob, kind: int, new: int) -> Seat:
    """Where it is, or on accelerators beyond those that are `new` so far."""
    stays = job.now == kind and len(job.places) == job.workers
    return Seat(job, kind, frozenset(job.places if stays else range(new - job.workers, new)))


def _beside(jobs: Sequence[SessionJob], seats: Sequence[Seat], room: Ints) -> list[Seat]:
    """Who always has so many and found no type beside what the others need finds one beside what they really get."""
    both = list(seats)
    for job in jobs:
        if job.workers and all(seat.job is not job for seat in seats):
            left, new = room - taken(both, len(room)), min([0, *(place for seat in both for place in seat.places)])
            kinds = [kind for kind in job.ways if job.workers <= left[kind]]
            if kinds:
                first = min(kinds, key=lambda kind: (kind != job.now, job.ways[kind].load, kind))
                both.append(_seat_of_its_own(job, first, new))
    return both


def wanted_by(job: SessionJob, kind: int, present: frozenset[int]) -> Wanted:
    """By number: nothing keeps people from submitting a session twice."""
    return Wanted(replace(job.session, name=str(job.number)), job.ways[kind], present, job.fixed)


def _present(job: SessionJob, kind: int) -> frozenset[int]:
    return frozenset(job.places) if job.now == kind else frozenset()


def taken(seats: Sequence[Seat], types: int) -> Ints:
    """How many accelerators they take of each of so many types."""
    places = {(seat.type, place) for seat in seats for place in seat.places}
    return np.bincount(np.array([kind for kind, _ in sorted(places)], dtype=np.int64), minlength=types)
