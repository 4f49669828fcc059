"""Synergy: accelerators by the selection, CPUs and host memory by what they are worth to each job (Mohan et al., OSDI'22; Blox
Table 7). Where profiles come from is not its business.

With `proportional`, every worker has the part of its node's CPUs and memory that goes with an accelerator. With `tune`, who
can use less gives the rest to who can use more, in the order of submission. With `optimal`, the division on each node is the
one with the greatest sum of speeds, relative to proportional ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import without
from fairlead.core.errors import InputError
from fairlead.core.job import model_of
from fairlead.core.plan import Launches, Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.models.sensitivity import EXPECTED, Curve, Sensitivity
from fairlead.placement.base import Room, pack
from fairlead.placement.basic import fullest_node_first, on_fewest_nodes

# What a host's CPUs and memory are to the jobs on it: how much each worker is entitled to, how much it can use, and three
# ways
# to divide what there is. It knows which workers stand on which node, and neither why nor for how long.
#
# Nobody is ever slower than with its *share*, the part of a node that goes with its accelerators: who can use less than that
# gets
# what it can use, and what it leaves is for those who can use more.

Way: TypeAlias = Literal["proportional", "tune", "optimal"]

CPUS, MEMORY = 0, 1
ROUNDING = 1e-9
_GRAIN_GB = 8.0
"""Beside the points of its curve, a division that is optimal tries memory in such steps; CPUs in ones."""


@dataclass(frozen=True)
class Tenant:
    """A job on its nodes. `share` and `wants` are amounts of CPUs and of memory for each worker."""

    number: int
    workers: Mapping[int, int]  # by node
    share: tuple[float, float]
    wants: tuple[float, float]
    sensitivity: Sensitivity

    @property
    def least(self) -> tuple[float, float]:
        """With so much it is as fast as with its share."""
        return (min(self.share[CPUS], self.wants[CPUS]), min(self.share[MEMORY], self.wants[MEMORY]))

    @property
    def tunable(self) -> bool:
        """Whether more than its share would make it faster, and can be had on one node."""
        more = self.wants[CPUS] > self.share[CPUS] or self.wants[MEMORY] > self.share[MEMORY]
        return more and len(self.workers) == 1


def allot(tenants: Sequence[Tenant], there: Floats, way: Way) -> dict[int, tuple[float, float]]:
    """CPUs and memory for each worker of each job, by number. `there` is what nodes have: resources × nodes."""
    if way == "proportional":
        return {tenant.number: tenant.share for tenant in tenants}
    given = {tenant.number: tenant.least for tenant in tenants}
    spare = there.tolist()
    for tenant in tenants:
        for node, workers in tenant.workers.items():
            for resource, amount in enumerate(given[tenant.number]):
                spare[resource][node] -= amount * workers
    by_node: dict[int, list[Tenant]] = {}
    for tenant in tenants:
        if tenant.tunable:
            by_node.setdefault(next(iter(tenant.workers)), []).append(tenant)
    for node, mine in by_node.items():
        left = (spare[CPUS][node], spare[MEMORY][node])
        given.update(_one_by_one(mine, left) if way == "tune" else _best(mine, left))
    return given


def _one_by_one(tenants: Sequence[Tenant], left: tuple[float, float]) -> dict[int, tuple[float, float]]:
    """Each in turn as much as it can use, or what is left (Synergy-Tune: who finds no more falls back to its share)."""
    spare, given = list(left), {}
    for tenant in tenants:
        (workers,) = tenant.workers.values()
        amounts = list(tenant.least)
        for resource in (CPUS, MEMORY):
            more = min(tenant.wants[resource] - amounts[resource], max(spare[resource], 0.0) / workers)
            amounts[resource] += max(more, 0.0)
            spare[resource] -= max(more, 0.0) * workers
        given[tenant.number] = (amounts[CPUS], amounts[MEMORY])
    return given


def _best(tenants: Sequence[Tenant], left: tuple[float, float]) -> dict[int, tuple[float, float]]:
    """The division with the greatest Σ workers · speed / (speed with its share), over whole CPUs and steps of memory."""
    looks = tuple((next(iter(t.workers.values())), t.least, t.share, t.wants, t.sensitivity) for t in tenants)
    return dict(zip((t.number for t in tenants), _best_of(looks, left)))


Look: TypeAlias = tuple[int, tuple[float, float], tuple[float, float], tuple[float, float], Sensitivity]


@lru_cache(maxsize=4096)
def _best_of(looks: tuple[Look, ...], left: tuple[float, float]) -> tuple[tuple[float, float], ...]:
    """By dynamic programming over what is used: of two partial divisions the one that uses no less and gains no more goes."""
    reached: list[tuple[float, float, float, tuple[tuple[float, float], ...]]] = [(0.0, 0.0, 0.0, ())]
    for workers, least, share, wants, sensitivity in looks:
        usual = sensitivity.speed(*share)
        options = [
            ((cpus - least[CPUS]) * workers, (memory - least[MEMORY]) * workers, cpus, memory)
            for cpus in _amounts(least[CPUS], wants[CPUS], sensitivity.cpus, 1.0)
            for memory in _amounts(least[MEMORY], wants[MEMORY], sensitivity.memory_gb, _GRAIN_GB)
        ]
        further = [
            (used + c, taken + m, gained + workers * (sensitivity.speed(cpus, memory) / usual - 1), (*chosen, (cpus, memory)))
            for used, taken, gained, chosen in reached
            for c, m, cpus, memory in options
            if used + c <= left[CPUS] + ROUNDING and taken + m <= left[MEMORY] + ROUNDING
        ]
        stays = [(used, taken, gained, (*chosen, least)) for used, taken, gained, chosen in reached]
        reached = _undominated(further or stays)
    return max(reached, key=lambda one: one[2])[3]


def _undominated(
    ways: list[tuple[float, float, float, tuple[tuple[float, float], ...]]],
) -> list[tuple[float, float, float, tuple[tuple[float, float], ...]]]:
    kept: list[tuple[float, float, float, tuple[tuple[float, float], ...]]] = []
    for way in sorted(ways, key=lambda one: (-one[2], one[0], one[1])):
        if not any(other[0] <= way[0] + ROUNDING and other[1] <= way[1] + ROUNDING for other in kept):
            kept.append(way)
    return kept


def _amounts(least: float, wants: float, curve: Curve | None, grain: float) -> list[float]:
    if curve is None or not wants > least:
        return [least]
    steps = np.arange(np.floor(least / grain) + 1, np.ceil(wants / grain)) * grain
    points = (amount for amount, _ in curve.points)
    return sorted({least, wants, *(a for a in (*steps.tolist(), *points) if least < a < wants)})


@dataclass(frozen=True)
class Synergy:
    """CPUs and host memory where they make jobs faster, and nobody slower than with its proportional share of a node.

    `cpus` and `memory_gb` are profiles, by model or kind: speeds with amounts for each worker, as in `3@1|9@2.4`. Who has
    none gets what it asks for, up to its share, or its share. A gang on several nodes, and who must not be stopped, gets no
    more than its share either. Who is given another amount than it has starts again where it is.
    """

    paper: ClassVar[str] = "Synergy (Mohan et al., OSDI'22); Blox Table 7"
    allotment: Way = "tune"
    cpus: Mapping[str, str] = field(default_factory=dict)
    memory_gb: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.allotment not in ("proportional", "tune", "optimal"):
            ways = "'proportional', 'tune' or 'optimal'"
            raise InputError("placement synergy", ways, field="allotment", value=self.allotment)
        for name in ("cpus", "memory_gb"):
            for text in getattr(self, name).values():
                try:
                    Curve.parse(text)
                except ValueError:
                    raise InputError("placement synergy", EXPECTED, field=name, value=text) from None

    @cached_property
    def profiles(self) -> dict[str, Sensitivity]:
        cpus, memory = ({name: Curve.parse(text) for name, text in part.items()} for part in (self.cpus, self.memory_gb))
        return {name: Sensitivity(cpus.get(name), memory.get(name)) for name in {*cpus, *memory}}

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        if self.allotment == "proportional":
            placed = pack(selection, view, partial(on_fewest_nodes, wait=False), fullest_node_first)
        else:
            placed = pack(selection, view, self._where_hosts_suffice, None)
        return self._allotted(placed, view)

    # Where.

    def _where_hosts_suffice(self, room: Room, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        """Each job on one node if it can be: of those with enough accelerators free, one on which all have the CPUs and memory
        that they can use, the fullest; or else the one with most to spare. Who uses little goes first to where others want
        more than there is."""
        nodes, cluster, found = room.by_node(), room.cluster, list[list[int]]()
        there = _there(room.view)
        spare = there.copy()
        for tenant in self._tenants(room.view, *room.view.device_map.places(room.kept)):
            for node, many in tenant.workers.items():
                spare[:, node] -= np.array(tenant.wants) * many
        share = _shares(room.view)
        homes = room.last_nodes(jobs, types)
        for job, home, kind, want in zip(jobs.tolist(), homes, types.tolist(), workers.tolist()):
            idle = np.array(nodes.counts)
            fits = ((cluster.node_type == kind) & (idle >= want)).nonzero()[0]
            if not len(fits):
                found.append(nodes.fewest(kind, want, len(cluster.nodes)))
                continue
            shares = [(cpus, memory) for cpus, memory in share[:, fits].T.tolist()]
            wants = {mine: self._wants(room.view, job, mine) for mine in set(shares)}  # most nodes are alike
            uses = np.array([wants[mine] for mine in shares]).T * want
            over = ((spare[:, fits] - uses) / np.maximum(share[:, fits], ROUNDING)).min(axis=0)  # in workers' shares
            modest = (uses <= share[:, fits] * want * (1 + ROUNDING)).all(axis=0)
            crowded = (spare[:, fits] < -ROUNDING * there[:, fits]).any(axis=0)
            badness = np.where(modest, np.where(crowded, -1.0, 0.0), np.maximum(-over, 0.0))
            best = np.lexsort((fits, fits != home, idle[fits], np.round(badness, 9)))[0]
            spare[:, fits[best]] -= uses[:, best]
            found.append(nodes.take(int(fits[best]), want))
        return found

    # How much.

    def _allotted(self, placed: Placed, view: Snapshot) -> Placed:
        """What placement found, with CPUs and memory for everybody; who has others now is launched anew where it stands."""
        launches = placed.launches
        owner, place = view.device_map.places(placed.kept)
        owner, place = np.append(owner, launches.jobs.repeat(launches.workers)), np.append(place, launches.accelerators)
        given = allot(self._tenants(view, owner, place), _there(view), self.allotment)
        jobs = view.jobs.of(placed.kept)
        has = np.array([jobs.cpus_given, jobs.memory_given_gb]).T
        gets = np.array([_said(given[number]) for number in placed.kept.tolist()]).reshape(-1, 2)
        anew = (np.abs(has - gets) > ROUNDING * np.maximum(has, 1.0)).any(axis=1)
        if view.protected is not None:  # who has not made its first step
            anew &= ~np.isin(placed.kept, view.jobs.number[view.protected])
        moving = anew.nonzero()[0]
        if not len(moving) and not len(launches):
            return placed
        again = placed.kept[moving]
        numbers = np.concatenate((launches.jobs, again))
        accelerators = [launches.accelerators, *(view.device_map.of(number) for number in again.tolist())]
        offsets: Ints = np.concatenate(([0], np.cumsum(np.concatenate((launches.workers, jobs.held[moving])))))
        amounts = np.array([_said(given[number]) for number in numbers.tolist()]).T.copy()
        sizes = np.concatenate((_or_zeros(launches.batch_sizes, len(launches)), jobs.batch_size[moving]))
        new = Launches(
            numbers,
            np.concatenate((launches.types, jobs.type[moving])),
            offsets.astype(np.int64),
            np.concatenate(accelerators).astype(np.int64),
            sizes if sizes.any() else None,
            amounts[CPUS],
            amounts[MEMORY],
        )
        kept = placed.kept if not len(again) else without(np.sort(placed.kept), np.sort(again))
        return Placed(kept, new, placed.free, placed.unplaced)

    def _tenants(self, view: Snapshot, owner: Ints, place: Ints) -> list[Tenant]:
        """Of jobs and the accelerators that they hold, in the order of submission. Who shares accelerators shares what goes
        with them."""
        node = view.cluster.node_of[place]
        share = _shares(view)[:, node] / np.bincount(place, minlength=view.cluster.size)[place]
        workers: dict[int, dict[int, int]] = {}
        entitled: dict[int, tuple[float, float]] = {}
        for number, at, cpus, memory in zip(owner.tolist(), node.tolist(), share[CPUS].tolist(), share[MEMORY].tolist()):
            mine = workers.setdefault(number, {})
            mine[at] = mine.get(at, 0) + 1
            least = entitled.get(number, (cpus, memory))
            entitled[number] = (min(least[CPUS], cpus), min(least[MEMORY], memory))
        return [
            Tenant(number, workers[number], own, self._wants(view, number, own), self._profile(view, number))
            for number, own in sorted(entitled.items())
        ]

    def _profile(self, view: Snapshot, number: int) -> Sensitivity:
        kind = view.job_of[number].kind
        return self.profiles.get(kind) or self.profiles.get(model_of(kind)) or _NO_PROFILE

    def _wants(self, view: Snapshot, number: int, share: tuple[float, float]) -> tuple[float, float]:
        """What each worker can use: by its profile; without one what it asks for, and no more than its share. Who must not be
        stopped cannot be told to make room later, and so has no more than that either."""
        job, profile = view.job_of[number], self._profile(view, number)
        bound = view.run_to_completion or job.min_run_s > 0
        wants = []
        for curve, asked, entitled in zip((profile.cpus, profile.memory_gb), (job.cpus, job.host_memory_gb), share):
            uses = (asked or entitled) if curve is None else curve.enough
            wants.append(min(uses, entitled) if bound or curve is None else uses)
        return (wants[CPUS], wants[MEMORY])


_NO_PROFILE = Sensitivity()
_NO_LIMIT = 1e12
"""What a host without a limit has: more than anybody uses."""


def _there(view: Snapshot) -> Floats:
    """Resources × nodes: what each has."""
    there: Floats = np.minimum(np.array([view.cluster.node_cpus, view.cluster.node_memory_gb]), _NO_LIMIT)
    return there


def _shares(view: Snapshot) -> Floats:
    """Resources × nodes: what goes with one accelerator."""
    shares: Floats = _there(view) / view.cluster.node_size
    return shares


def _said(amounts: tuple[float, float]) -> tuple[float, float]:
    """As a plan says it: where hosts have no limit, and a job no profile, there is nothing to say."""
    cpus, memory = (amount if amount < _NO_LIMIT / 1e4 else 0.0 for amount in amounts)
    return (cpus, memory)


def _or_zeros(column: Ints | None, size: int) -> Ints:
    return np.zeros(size, dtype=np.int64) if column is None else column
