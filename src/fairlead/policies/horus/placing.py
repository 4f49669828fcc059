"""From an order of newcomers to a selection: who runs stays, unless it was told to leave; everybody else gets the cheapest
place there is, in turn, or waits. All policies of this package end here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.horus.company import Judge, Look
from fairlead.policies.horus.floor import Floor, Group


def running_groups(view: Snapshot, looks: Mapping[int, Look]) -> list[Group]:
    """Who runs, by whom they share accelerators with, each in the order of their start."""
    jobs = view.jobs.runners
    owner, place = view.holdings.places(jobs.number)
    held: dict[int, list[int]] = {}
    for number, accelerator in zip(owner.tolist(), place.tolist()):
        held.setdefault(number, []).append(accelerator)
    began = dict(zip(jobs.number.tolist(), jobs.run_started_s.tolist()))
    kinds = dict(zip(jobs.number.tolist(), jobs.type.tolist()))
    together: dict[tuple[int, ...], list[int]] = {}
    for number in sorted(held, key=lambda one: (began[one], one)):
        together.setdefault(tuple(held[number]), []).append(number)
    return [
        Group(kinds[members[0]], places, members, tuple(looks[number] for number in members))
        for places, members in sorted(together.items())
    ]


def less(group: Group, gone: set[int]) -> Group | None:
    """A group without some; None where nobody is left."""
    if gone.isdisjoint(group.members):
        return group
    left = [(number, look) for number, look in zip(group.members, group.looks) if number not in gone]
    if not left:
        return None
    return replace(group, members=[number for number, _ in left], looks=tuple(look for _, look in left))


def stranded(view: Snapshot, groups: Iterable[Group]) -> set[int]:
    """Who runs where nobody may be any more: its node is to be left."""
    if not view.any_drained:
        return set()
    return {number for group in groups if not view.up[list(group.places)].all() for number in group.members}


def placed(floor: Floor, looks: Mapping[int, Look], newcomers: Iterable[int], *, starving: int = 0) -> list[int]:
    """Give newcomers, by number and in their order, the cheapest places; return who found one. The first of the `starving`
    who stand in front and finds none has accelerators kept for it."""
    hopeless: set[Look] = set()
    found: list[int] = []
    for at, number in enumerate(newcomers):
        look = looks[number]
        if look in hopeless:
            continue
        spot = floor.best(look)
        if spot is not None:
            floor.put(number, look, spot)
            found.append(number)
            continue
        hopeless.add(look)  # places only become fewer
        if at < starving and not floor.kept_for:
            floor.keep_for(look)
    return found


def matched(floor: Floor, looks: Mapping[int, Look], newcomers: Iterable[int], buffer: int) -> list[int]:
    """The same with a choice among the first `buffer` who wait, into which the next moves up whenever one has found a place:
    while there are idle accelerators, in turn; then always the one whose place is best compared with what company usually costs
    it, so that who gets on with anybody is left for who does not."""
    line, chosen, found, hopeless = iter(newcomers), list[int](), list[int](), set[Look]()
    while True:
        chosen = [number for number in chosen if looks[number] not in hopeless]
        chosen += islice((number for number in line if looks[number] not in hopeless), buffer - len(chosen))
        if not chosen:
            return found
        spots = {look: floor.best(look) for look in {looks[number] for number in chosen}}
        hopeless |= {look for look, spot in spots.items() if spot is None}
        ranked = [(floor.bargain(looks[n], spot), at, n, spot) for at, n in enumerate(chosen) if (spot := spots[looks[n]])]
        if ranked:
            _, at, number, spot = min(ranked, key=lambda one: one[:2])
            floor.put(number, looks[number], spot)
            found.append(chosen.pop(at))


def selected(floor: Floor, holds_until: float | None = math.inf) -> Selection:
    """The groups on the floor, as a selection: those that stand there first, as they are what others join."""
    groups = sorted(floor.groups, key=lambda group: group.new)
    jobs = [number for group in groups for number in group.members]
    size: Ints = np.array([len(group.members) for group in groups], dtype=np.int64)
    kinds: Ints = np.array([group.kind for group in groups], dtype=np.int64)
    workers: Ints = np.array([len(group.places) for group in groups], dtype=np.int64)
    pinned = {group.members[0]: np.array(group.places, dtype=np.int64) for group in groups if group.new}
    shared = bool((size > 1).any())
    return Selection(
        np.array(jobs, dtype=np.int64),
        kinds.repeat(size),
        workers.repeat(size),
        np.arange(len(groups)).repeat(size) if shared else None,
        pinned=pinned,
        holds_until=holds_until,
    )


def floor_of(view: Snapshot, judge: Judge, groups: Iterable[Group | None], local_from: int) -> Floor:
    floor = Floor(view, judge, local_from)
    for group in groups:
        if group is not None:
            floor.stand(group)
    return floor
