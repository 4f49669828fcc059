"""The accelerators while one decision is made: who stands together on which, what is idle, what hosts have left. Places for a
newcomer are looked for here, the cheapest first. It decides neither who comes next nor who must leave.

Jobs share all of their accelerators or none: only gangs of one size meet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.colocation.pairing.compatibility import ROUNDING, Judge, Look


@dataclass
class Group:
    """Who shares some accelerators, in the order of their coming; by number."""

    kind: int
    places: tuple[int, ...]
    members: list[int]
    looks: tuple[Look, ...]
    new: bool = False  # nobody of it runs there yet


class Spot(NamedTuple):
    """Where a newcomer could go; the least one is the best."""

    far: int  # nodes too many, where that counts first
    cost: float
    joins: bool
    first: int  # accelerator, to tell equals apart
    places: tuple[int, ...]
    kind: int
    group: Group | None


@dataclass
class Floor:
    view: Snapshot
    judge: Judge
    local_from: int  # gangs of so many stand on few nodes before all else
    groups: list[Group] = field(default_factory=list)
    _open: dict[tuple[int, int, tuple[Look, ...]], list[Group]] = field(default_factory=dict)  # with room for one more

    def __post_init__(self) -> None:
        cluster = self.view.cluster
        self.idle: Bools = self.view.up.copy()
        self._spare = [cluster.node_cpus.tolist(), cluster.node_memory_gb.tolist()]
        self._node_of = cluster.node_of_accelerator
        self._largest = cluster.largest_node_of_type.tolist()
        self.kept_for: set[int] = set()  # nobody new may come to these
        self._resting: set[int] = set()  # likewise, but where they are idle
        self.company = True  # whether newcomers may join others
        self.enemies: frozenset[tuple[int, int]] = frozenset()  # by number, the lower one first: they do not meet

    def stand(self, group: Group) -> None:
        """A group that is there already."""
        self.groups.append(group)
        self.idle[list(group.places)] = False
        for look in group.looks:
            self._use_host(look, group.places)
        self._offer(group)

    def rest(self, places: Iterable[int]) -> None:
        """Nobody joins who is there, for now."""
        self._resting.update(places)

    def best(self, look: Look, number: int = -1) -> Spot | None:
        """The cheapest place that there is for a newcomer of this look; its number matters where it has enemies."""
        spots = [*self._beside(look, number), *self._alone(look)]
        return min(spots, key=lambda spot: spot[:4], default=None)

    def bargain(self, look: Look, spot: Spot) -> float:
        """By how much more company slows down at a place than it usually does who would take it; idle ones are best."""
        if spot.group is None:
            return -math.inf
        return self.judge.mean_slowdown((*spot.group.looks, look), spot.kind) - self.judge.usual(look, spot.kind)

    def put(self, number: int, look: Look, spot: Spot) -> None:
        self._use_host(look, spot.places)
        if spot.group is None:
            self.idle[list(spot.places)] = False
            group = Group(spot.kind, spot.places, [number], (look,), new=True)
            self.groups.append(group)
        else:
            group = spot.group
            self._open[self._key(group)].remove(group)
            group.members.append(number)
            group.looks = (*group.looks, look)
        self._offer(group)

    def keep_for(self, look: Look) -> None:
        """Let nobody else come to as many accelerators as this job needs, so that it will find room: on one node if one is
        large enough, and where the fewest are in use, by those too who were put there in this very decision."""
        cluster, residents = self.view.cluster, self._residents()
        choices = list[list[int]]()
        for kind in self.types_of(look):
            there = cluster.accelerators_of_type[kind]
            there = there[self.view.up[there]]
            ranked = there[np.lexsort((there, residents[there]))].tolist()
            by_node: dict[int, list[int]] = {}
            for place in ranked:
                by_node.setdefault(self._node_of[place], []).append(place)
            choices += [places for places in by_node.values() if len(places) >= look.workers]
            if look.workers > self._largest[kind] and len(ranked) >= look.workers:
                choices.append(ranked)
        there_now = residents.tolist()
        kept = [(sum(there_now[place] for place in places[: look.workers]), places[: look.workers]) for places in choices]
        self.kept_for = set(min(kept, default=(0, []))[1])

    def types_of(self, look: Look) -> Iterable[int]:
        mask = look.fits & int(self.view.rates.runs_on[look.row])
        return (kind for kind in range(len(self.view.capacity)) if mask >> kind & 1)

    def idle_on(self, kind: int) -> int:
        return int(np.count_nonzero(self.idle[self.view.cluster.accelerators_of_type[kind]]))

    def open_to(self, look: Look) -> Iterable[tuple[int, tuple[Look, ...], list[Group]]]:
        """Whom a newcomer could join by numbers alone: on which type, what they look like, and all who look so."""
        allowed = set(self.types_of(look))
        for (kind, workers, looks), groups in self._open.items():
            if workers == look.workers and kind in allowed and groups:
                yield kind, looks, groups

    # What the above are made of.

    def _residents(self) -> Ints:
        """How many stand on each accelerator."""
        count: Ints = np.zeros(self.view.cluster.size, dtype=np.int64)
        for group in self.groups:
            count[list(group.places)] += len(group.members)
        return count

    def _beside(self, look: Look, number: int) -> Iterable[Spot]:
        if not self.company or self.judge.refuses(look):
            return
        for kind, looks, groups in self.open_to(look):
            cost = self.judge.cost((*looks, look), kind)
            if cost is None:
                continue
            for group in groups:
                if self._may_join(look, number, group):
                    spot = self._spot(look, cost, group.places, kind, group)
                    if spot is not None:
                        yield spot
                        if not self._far(look, group.places, kind):
                            break  # others of its look are no better

    def _may_join(self, look: Look, number: int, group: Group) -> bool:
        if not self.kept_for.isdisjoint(group.places) or not self._resting.isdisjoint(group.places):
            return False
        if not self._hosts(look, group.places):
            return False
        return not any((min(number, other), max(number, other)) in self.enemies for other in group.members)

    def _alone(self, look: Look) -> Iterable[Spot]:
        for kind in self.types_of(look):
            cost = self.judge.cost((look,), kind)
            places = self._idle_of(kind, look)
            if cost is not None and places:
                spot = self._spot(look, cost, places, kind, None)
                if spot is not None:
                    yield spot

    def _spot(self, look: Look, cost: float, places: tuple[int, ...], kind: int, group: Group | None) -> Spot | None:
        far = self._far(look, places, kind)
        lost = self.judge.elsewhere(look, kind, spread=far > 0)
        if lost is None:
            return None
        first = far if look.workers >= self.local_from else 0
        return Spot(first, cost + lost, group is not None, places[0], places, kind, group)

    def _far(self, look: Look, places: tuple[int, ...], kind: int) -> int:
        """On how many nodes too many these are."""
        least: int = -(-look.workers // self._largest[kind])
        return len({self._node_of[place] for place in places}) - least

    def _idle_of(self, kind: int, look: Look) -> tuple[int, ...]:
        """Idle accelerators on as few nodes as can be: of the fullest node that holds all, or of the emptiest ones."""
        mine = self.view.cluster.accelerators_of_type[kind]
        free = [place for place in mine[self.idle[mine]].tolist() if place not in self.kept_for]
        if len(free) < look.workers:
            return ()
        by_node: dict[int, list[int]] = {}
        for place in free:
            by_node.setdefault(self._node_of[place], []).append(place)
        for node, places in by_node.items():
            by_node[node] = places[: self._workers_hosted(look, node, len(places))]
        found: list[int] = []
        while len(found) < look.workers:
            want = look.workers - len(found)
            enough = [node for node, places in by_node.items() if len(places) >= want]
            if enough:
                node = min(enough, key=lambda node: (len(by_node[node]), node))
                return tuple(sorted(found + by_node[node][:want]))
            node = max(by_node, key=lambda node: (len(by_node[node]), -node))
            if not by_node[node]:
                return ()
            found += by_node.pop(node)
            if not by_node and len(found) < look.workers:
                return ()
        return tuple(sorted(found))

    def _workers_hosted(self, look: Look, node: int, most: int) -> int:
        for need, spare in zip((look.cpus, look.host_memory_gb), self._spare):
            if need > 0:
                most = int(min(most, max(spare[node], 0.0) / need + ROUNDING))  # of what nobody counted there is no end
        return most

    def _hosts(self, look: Look, places: tuple[int, ...]) -> bool:
        if not (look.cpus or look.host_memory_gb):
            return True
        nodes, count = np.unique([self._node_of[place] for place in places], return_counts=True)
        return all(self._workers_hosted(look, node, many) >= many for node, many in zip(nodes.tolist(), count.tolist()))

    def _use_host(self, look: Look, places: tuple[int, ...]) -> None:
        for need, spare in zip((look.cpus, look.host_memory_gb), self._spare):
            if need > 0:
                for place in places:
                    spare[self._node_of[place]] -= need

    def _key(self, group: Group) -> tuple[int, int, tuple[Look, ...]]:
        return group.kind, len(group.places), group.looks

    def _offer(self, group: Group) -> None:
        if len(group.members) < self.judge.limits.jobs and not any(map(self.judge.refuses, group.looks)):
            same = self._open.setdefault(self._key(group), [])
            same.append(group)
            same.sort(key=lambda one: one.places)


# From an order of newcomers to a selection: who runs stays, unless it was told to leave; everybody else gets the cheapest
# place there is, in turn, or waits. All policies of this package end here.


def running_groups(view: Snapshot, looks: Mapping[int, Look]) -> list[Group]:
    """Who runs, by whom they share accelerators with, each in the order of their start."""
    jobs = view.jobs.runners
    owner, place = view.device_map.places(jobs.number)
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


def selected(floor: Floor, valid_until: float | None = math.inf) -> Selection:
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
        valid_until=valid_until,
    )


def floor_of(view: Snapshot, judge: Judge, groups: Iterable[Group | None], local_from: int) -> Floor:
    floor = Floor(view, judge, local_from)
    for group in groups:
        if group is not None:
            floor.stand(group)
    return floor
