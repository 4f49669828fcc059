"""Which accelerators of a type serve which sessions, from one decision to the next. A session whose accelerators change is
started again, so nobody's change unless they have to:

    enough:   the present accelerators are, where loads a_s can be divided among them such that none has more than `level`,
              1 / (1 + h), or what packing everybody anew would fill them to (`pooling.py`): min L with Σ_k x_sk = a_s and
              Σ_s x_sk ≤ L over the accelerators k that s is on
    grow:     who is left with something by max Σ x_sk at that level, or is new, joins the accelerators that are emptiest, as
              long as one takes a quarter of a level or all that is left; for the rest it gets new ones. Then it stands in
              on the 2·`neighbours` emptiest besides. Who has none by all that joins the emptiest, however little is free
              there; where packing anew would not find room for all, only where something is
    shrink:   while there are more than `spare` accelerators beyond what packing anew would take, or more than there is room
              for, one goes without which the others are enough

Where nobody has an accelerator yet, all are packed as `pooling.py` does it, before anybody grows. Growing goes on until nobody
does, so that the same question has the same answer. It knows no jobs and no training."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.routes import Session
from fairlead.policies.allocation.lp.program import Model, Program
from fairlead.policies.serving.packing.pooled import Pooled, Way, accelerators_for, headroom, pooled

_NEARLY = 1e-6
_LEAST_PART = 0.25  # of a level, for which it is worth to have a model on one more accelerator


@dataclass(frozen=True)
class Wanted:
    """A session on one type: what it takes of it, and the accelerators that serve it now. `fixed` where that must stay so."""

    session: Session
    way: Way
    present: frozenset[int] = frozenset()
    fixed: bool = False

    @property
    def load(self) -> float:
        return self.way.load


Seats = dict[str, set[int]]
"""By session, the accelerators that serve it; those below 0 are new, whichever they will be."""


def seated(wanted: Sequence[Wanted], type_name: str, room: int, how: Pooled, spare: int) -> Seats:
    """On at most `room` accelerators. Whoever finds nothing is not there."""
    if not wanted:
        return {}
    load = np.array([one.load for one in wanted])
    scale = 1 + headroom([one.way for one in wanted], how)
    enough = accelerators_for(float(load.sum()), scale)
    level = max(1 / scale, float(load.sum()) / enough) if enough <= room else 1 / scale
    seats: Seats = {one.session.name: set(one.present) for one in wanted}
    if not any(seats.values()):
        whole = float(load.sum()) * scale if enough <= room else 0.0  # may be more than `enough`, which is rounded
        plan = pooled([one.session for one in wanted], {type_name: max(float(room), whole)}, how)
        for at, server in enumerate(plan.servers[:room]):
            for resident in server.residents:
                seats[resident.session].add(-1 - at)
    began = {name: set(mine) for name, mine in seats.items()}
    while _grow(wanted, seats, began, level, room, how, all_fit=enough <= room):
        pass
    _shrink(wanted, seats, level, min(enough + spare, room))
    return {name: places for name, places in seats.items() if places}


def divided(wanted: Sequence[Wanted], seats: Seats) -> tuple[Mapping[str, Mapping[int, float]], float]:
    """By session and accelerator, the load that is meant for it; and the load of the fullest, which is as low as can be."""
    rows, places, at = _pairs(wanted, seats)
    if not len(rows):
        return {}, 0.0
    load, pairs = np.array([one.load for one in wanted]), len(rows)
    seen = np.unique(rows)
    program = Program(
        "which accelerators answer which requests",
        Model(
            cost=np.append(np.zeros(pairs), -1.0),
            lower=np.zeros(pairs + 1),
            upper=np.full(pairs + 1, math.inf),
            row_lower=np.concatenate((load[seen], np.full(len(places), -math.inf))),
            row_upper=np.concatenate((load[seen], np.zeros(len(places)))),
            entries=(
                np.concatenate((np.searchsorted(seen, rows), len(seen) + at, len(seen) + np.arange(len(places)))),
                np.concatenate((np.arange(pairs), np.arange(pairs), np.full(len(places), pairs))),
                np.concatenate((np.ones(2 * pairs), np.full(len(places), -1.0))),
            ),
        ),
    )
    values = program.solve().values
    found: dict[str, dict[int, float]] = {}
    for row, k, part in zip(rows.tolist(), at.tolist(), values[:-1].clip(0).tolist()):
        found.setdefault(wanted[row].session.name, {})[places[k]] = part
    return found, float(values[-1])


def _grow(wanted: Sequence[Wanted], seats: Seats, began: Seats, level: float, room: int, how: Pooled, *, all_fit: bool) -> bool:
    """Whether anybody has more than before. Who has more than it began with has somebody to stand in for it already."""
    if divided(wanted, seats)[1] <= level + _NEARLY and all(seats.values()):
        return False
    missing, used = _most(wanted, seats, level)
    new, grown = min([0, *used]), False
    for row in sorted(range(len(wanted)), key=lambda row: (-missing[row], wanted[row].session.name)):
        one, left = wanted[row], float(missing[row])
        mine = seats[one.session.name]
        if one.fixed or (mine and left <= _NEARLY * max(1.0, one.load)):
            continue
        before = set(mine)
        for place in _emptiest(used):
            free = level - used[place]
            if left <= _NEARLY or free < min(left, _LEAST_PART * level):
                break
            if place not in mine:
                taken = min(left, free)
                used[place] += taken
                left -= taken
                mine.add(place)
        while left > _NEARLY and len(used) < room:
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
            if all_fit or left <= _NEARLY or level - used[place] > _NEARLY:
                used[place] += left
                mine.add(place)
        if mine != before:
            grown = True
            if before == began[one.session.name]:
                mine.update([place for place in _emptiest(used) if place not in mine][: 2 * how.neighbours])
    return grown


def _emptiest(used: Mapping[int, float]) -> list[int]:
    return sorted(used, key=lambda place: (used[place], -place))


def _shrink(wanted: Sequence[Wanted], seats: Seats, level: float, most: int) -> None:
    while True:
        places = sorted({place for mine in seats.values() for place in mine})
        if len(places) <= most:
            return
        bound = {place for one in wanted if one.fixed for place in seats[one.session.name]}
        for place in sorted(places, key=lambda place: (sum(place in mine for mine in seats.values()), place)):
            without = {name: mine - {place} for name, mine in seats.items()}
            if place in bound or any(seats[name] and not without[name] for name in seats):
                continue
            if divided(wanted, without)[1] <= level + _NEARLY:
                seats.update(without)
                break
        else:
            return


def _most(wanted: Sequence[Wanted], seats: Seats, level: float) -> tuple[Floats, dict[int, float]]:
    """What is left over of each session where accelerators are filled to a level and no further, and how full each is then.
    Rather something of one large session than of several small ones: each that lacks something is started again."""
    load = np.array([one.load for one in wanted])
    smallness = 1 - load.argsort(kind="stable").argsort() / len(load)
    rows, places, at = _pairs(wanted, seats)
    if not len(rows):
        return load, {}
    pairs = np.arange(len(rows))
    program = Program(
        "how much of the requests accelerators can answer",
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


def _pairs(wanted: Sequence[Wanted], seats: Seats) -> tuple[Ints, list[int], Ints]:
    """Who is where, as rows of `wanted` and positions among the accelerators; and these."""
    places = sorted({place for one in wanted for place in seats[one.session.name]})
    position = {place: at for at, place in enumerate(places)}
    found = [(row, position[place]) for row, one in enumerate(wanted) for place in sorted(seats[one.session.name])]
    rows, at = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return rows, places, at


# Which type, and how many of its accelerators, each session has from one decision to the next: elastic ones share what they
# need together (`replicas.py`), the others have theirs to themselves. It knows no training and no routes.


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
