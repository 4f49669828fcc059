"""Synergy: accelerators by the selection, CPUs and host memory by what they are worth to each job (Mohan et al., OSDI'22; Blox
Table 7). This module does not know where profiles come from.

Each worker has a share: the part of its node's CPUs and memory for one accelerator. With `proportional`, it gets that share.
With `tune`, jobs that can use less leave the rest to jobs that can use more, in the order of submission. With `optimal`, the
division on each node has the greatest sum of speeds, relative to proportional ones. No job is slower than with its share."""

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
from fairlead.placement.base import FreeDevices, place_jobs
from fairlead.placement.basic import fullest_node_first, on_fewest_nodes

Allotment: TypeAlias = Literal["proportional", "tune", "optimal"]

CPUS, MEMORY = 0, 1
ROUNDING = 1e-9
_GRAIN_GB = 8.0
"""An optimal division tries memory in such steps, CPUs in steps of one, and the points of the curve."""


@dataclass(frozen=True)
class HostedJob:
    """A job on its nodes. `share` and `wants` are (CPUs, memory) for each worker."""

    number: int
    workers: Mapping[int, int]  # by node
    share: tuple[float, float]
    wants: tuple[float, float]
    sensitivity: Sensitivity

    @property
    def least(self) -> tuple[float, float]:
        """The amounts with which the job is as fast as with its share."""
        return (min(self.share[CPUS], self.wants[CPUS]), min(self.share[MEMORY], self.wants[MEMORY]))

    @property
    def tunable(self) -> bool:
        """Whether more than its share makes the job faster, and the job is on one node."""
        more = self.wants[CPUS] > self.share[CPUS] or self.wants[MEMORY] > self.share[MEMORY]
        return more and len(self.workers) == 1


def allocate_hosts(hosted_jobs: Sequence[HostedJob], capacity: Floats, allotment: Allotment) -> dict[int, tuple[float, float]]:
    """CPUs and memory for each worker of each job, by number. `capacity` is resources × nodes."""
    if allotment == "proportional":
        return {hosted.number: hosted.share for hosted in hosted_jobs}
    given = {hosted.number: hosted.least for hosted in hosted_jobs}
    spare = capacity.tolist()
    for hosted in hosted_jobs:
        for node, workers in hosted.workers.items():
            for resource, amount in enumerate(given[hosted.number]):
                spare[resource][node] -= amount * workers
    by_node: dict[int, list[HostedJob]] = {}
    for hosted in hosted_jobs:
        if hosted.tunable:
            by_node.setdefault(next(iter(hosted.workers)), []).append(hosted)
    for node, mine in by_node.items():
        left = (spare[CPUS][node], spare[MEMORY][node])
        given.update(_one_by_one(mine, left) if allotment == "tune" else _best(mine, left))
    return given


def _one_by_one(hosted_jobs: Sequence[HostedJob], left: tuple[float, float]) -> dict[int, tuple[float, float]]:
    """Give each job in turn as much as it can use, or what is left (Synergy-Tune: else it keeps its share)."""
    spare, given = list(left), {}
    for hosted in hosted_jobs:
        (workers,) = hosted.workers.values()
        amounts = list(hosted.least)
        for resource in (CPUS, MEMORY):
            more = min(hosted.wants[resource] - amounts[resource], max(spare[resource], 0.0) / workers)
            amounts[resource] += max(more, 0.0)
            spare[resource] -= max(more, 0.0) * workers
        given[hosted.number] = (amounts[CPUS], amounts[MEMORY])
    return given


def _best(hosted_jobs: Sequence[HostedJob], left: tuple[float, float]) -> dict[int, tuple[float, float]]:
    """The division with the greatest Σ workers · speed / (speed with its share), over whole CPUs and steps of memory."""
    demands = tuple((next(iter(t.workers.values())), t.least, t.share, t.wants, t.sensitivity) for t in hosted_jobs)
    return dict(zip((t.number for t in hosted_jobs), _best_of(demands, left)))


_Demand: TypeAlias = tuple[int, tuple[float, float], tuple[float, float], tuple[float, float], Sensitivity]


@lru_cache(maxsize=4096)
def _best_of(demands: tuple[_Demand, ...], left: tuple[float, float]) -> tuple[tuple[float, float], ...]:
    """Dynamic programming over used amounts: a partial division that uses no less and gains no more is dropped."""
    reached: list[tuple[float, float, float, tuple[tuple[float, float], ...]]] = [(0.0, 0.0, 0.0, ())]  # used, gain, amounts
    for workers, least, share, wants, sensitivity in demands:
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
        reached = []
        for option in sorted(further or stays, key=lambda one: (-one[2], one[0], one[1])):
            if not any(other[0] <= option[0] + ROUNDING and other[1] <= option[1] + ROUNDING for other in reached):
                reached.append(option)
    return max(reached, key=lambda one: one[2])[3]


def _amounts(least: float, wants: float, curve: Curve | None, grain: float) -> list[float]:
    if curve is None or not wants > least:
        return [least]
    steps = np.arange(np.floor(least / grain) + 1, np.ceil(wants / grain)) * grain
    points = (amount for amount, _ in curve.points)
    return sorted({least, wants, *(a for a in (*steps.tolist(), *points) if least < a < wants)})


@dataclass(frozen=True)
class Synergy:
    """Give CPUs and host memory to the jobs that they make faster, and no job less than its proportional share of a node needs.

    `cpus` and `memory_gb` are profiles by model or job type: speeds with amounts for each worker, as in `3@1|9@2.4`. A job
    without a profile gets what it requests, up to its share, or its share. A gang on several nodes and a job that must not be
    stopped get at most their share. A job whose amounts change is restarted on its devices.
    """

    paper: ClassVar[str] = "Synergy (Mohan et al., OSDI'22); Blox Table 7"
    allotment: Allotment = "tune"  # how CPUs and host memory are divided among the jobs of a node
    cpus: Mapping[str, str] = field(default_factory=dict)  # speed by CPUs per worker, for each model: `3@1|9@2.4`
    memory_gb: Mapping[str, str] = field(default_factory=dict)  # speed by host memory per worker, for each model: `20@0.8|60@1`

    def __post_init__(self) -> None:
        if self.allotment not in ("proportional", "tune", "optimal"):
            expected = "'proportional', 'tune' or 'optimal'"
            raise InputError("placement synergy", expected, field="allotment", value=self.allotment)
        for name in ("cpus", "memory_gb"):
            for text in getattr(self, name).values():
                try:
                    Curve.parse(text)
                except ValueError:
                    raise InputError("placement synergy", EXPECTED, field=name, value=text) from None

    @cached_property
    def profiles(self) -> dict[str, Sensitivity]:
        """Profiles by model or job type."""
        cpus, memory = ({name: Curve.parse(text) for name, text in part.items()} for part in (self.cpus, self.memory_gb))
        return {name: Sensitivity(cpus.get(name), memory.get(name)) for name in {*cpus, *memory}}

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        if self.allotment == "proportional":
            placed = place_jobs(selection, view, partial(on_fewest_nodes, wait=False), fullest_node_first)
        else:
            placed = place_jobs(selection, view, self._where_hosts_suffice, None)
        return self._allotted(placed, view)

    def _where_hosts_suffice(self, devices: FreeDevices, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        """Place each job on the fullest node on which all jobs have the CPUs and memory that they can use, or else the one with
        most to spare. Jobs that use little prefer nodes on which others want more than there is."""
        nodes, cluster, found = devices.by_node(), devices.cluster, list[list[int]]()
        capacity = _node_resources(devices.view)
        spare = capacity.copy()
        for hosted in self._hosted_jobs(devices.view, *devices.view.device_map.places(devices.kept)):
            for node, many in hosted.workers.items():
                spare[:, node] -= np.array(hosted.wants) * many
        share = _shares_per_device(devices.view)
        homes = devices.last_nodes(jobs, types)
        for job, home, type_, want in zip(jobs.tolist(), homes, types.tolist(), workers.tolist()):
            idle = np.array(nodes.counts)
            fits = ((cluster.node_type == type_) & (idle >= want)).nonzero()[0]
            if not len(fits):
                found.append(nodes.fewest(type_, want, len(cluster.nodes)))
                continue
            shares = [(cpus, memory) for cpus, memory in share[:, fits].T.tolist()]
            wants = {mine: self._wants(devices.view, job, mine) for mine in set(shares)}  # most nodes are identical
            uses = np.array([wants[mine] for mine in shares]).T * want
            over = ((spare[:, fits] - uses) / np.maximum(share[:, fits], ROUNDING)).min(axis=0)  # in shares
            modest = (uses <= share[:, fits] * want * (1 + ROUNDING)).all(axis=0)
            crowded = (spare[:, fits] < -ROUNDING * capacity[:, fits]).any(axis=0)
            badness = np.where(modest, np.where(crowded, -1.0, 0.0), np.maximum(-over, 0.0))
            best = np.lexsort((fits, fits != home, idle[fits], np.round(badness, 9)))[0]
            spare[:, fits[best]] -= uses[:, best]
            found.append(nodes.take(int(fits[best]), want))
        return found

    def _allotted(self, placed: Placed, view: Snapshot) -> Placed:
        """The placement with CPUs and memory for each job; a job whose amounts change is launched again."""
        launches = placed.launches
        owner, place = view.device_map.places(placed.kept)
        owner, place = np.append(owner, launches.jobs.repeat(launches.workers)), np.append(place, launches.accelerators)
        given = allocate_hosts(self._hosted_jobs(view, owner, place), _node_resources(view), self.allotment)
        jobs = view.jobs.of(placed.kept)
        has = np.array([jobs.cpus_given, jobs.memory_given_gb]).T
        gets = np.array([_as_planned(given[number]) for number in placed.kept.tolist()]).reshape(-1, 2)
        changed = (np.abs(has - gets) > ROUNDING * np.maximum(has, 1.0)).any(axis=1)
        if view.protected is not None:
            changed &= ~np.isin(placed.kept, view.jobs.number[view.protected])
        moving = changed.nonzero()[0]
        if not len(moving) and not len(launches):
            return placed
        again = placed.kept[moving]
        numbers = np.concatenate((launches.jobs, again))
        accelerators = [launches.accelerators, *(view.device_map.of(number) for number in again.tolist())]
        offsets: Ints = np.concatenate(([0], np.cumsum(np.concatenate((launches.workers, jobs.held[moving])))))
        amounts = np.array([_as_planned(given[number]) for number in numbers.tolist()]).T.copy()
        before = np.zeros(len(launches), dtype=np.int64) if launches.batch_sizes is None else launches.batch_sizes
        sizes = np.concatenate((before, jobs.batch_size[moving]))
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

    def _hosted_jobs(self, view: Snapshot, owner: Ints, place: Ints) -> list[HostedJob]:
        """Jobs with accelerators, by submission. Co-located jobs divide the shares of their accelerators."""
        node = view.cluster.node_of[place]
        share = _shares_per_device(view)[:, node] / np.bincount(place, minlength=view.cluster.size)[place]
        workers: dict[int, dict[int, int]] = {}
        entitled: dict[int, tuple[float, float]] = {}
        for number, at, cpus, memory in zip(owner.tolist(), node.tolist(), share[CPUS].tolist(), share[MEMORY].tolist()):
            mine = workers.setdefault(number, {})
            mine[at] = mine.get(at, 0) + 1
            least = entitled.get(number, (cpus, memory))
            entitled[number] = (min(least[CPUS], cpus), min(least[MEMORY], memory))
        return [
            HostedJob(number, workers[number], own, self._wants(view, number, own), self._profile(view, number))
            for number, own in sorted(entitled.items())
        ]

    def _profile(self, view: Snapshot, number: int) -> Sensitivity:
        kind = view.job_of[number].kind
        return self.profiles.get(kind) or self.profiles.get(model_of(kind)) or _NO_PROFILE

    def _wants(self, view: Snapshot, number: int, share: tuple[float, float]) -> tuple[float, float]:
        """What each worker can use: by its profile, or what it requests; a job that must not be stopped: its share."""
        job, profile = view.job_of[number], self._profile(view, number)
        bound = view.run_to_completion or job.min_run_s > 0
        wants = []
        for curve, requested, entitled in zip((profile.cpus, profile.memory_gb), (job.cpus, job.host_memory_gb), share):
            uses = (requested or entitled) if curve is None else curve.enough
            wants.append(min(uses, entitled) if bound or curve is None else uses)
        return (wants[CPUS], wants[MEMORY])


_NO_PROFILE = Sensitivity()
_NO_LIMIT = 1e12
"""The CPUs or memory of a host without a limit: more than any job uses."""


def _node_resources(view: Snapshot) -> Floats:
    """Resources × nodes: what each node has."""
    capacity: Floats = np.minimum(np.array([view.cluster.node_cpus, view.cluster.node_memory_gb]), _NO_LIMIT)
    return capacity


def _shares_per_device(view: Snapshot) -> Floats:
    """Resources × nodes: the share of one accelerator."""
    shares: Floats = _node_resources(view) / view.cluster.node_size
    return shares


def _as_planned(amounts: tuple[float, float]) -> tuple[float, float]:
    """The amounts for a plan: 0 where hosts have no limit and the job has no profile."""
    cpus, memory = (amount if amount < _NO_LIMIT / 1e4 else 0.0 for amount in amounts)
    return (cpus, memory)
