"""Synergy: accelerators by the selection, CPUs and host memory by what they are worth to each job (Mohan et al., OSDI'22; Blox
Table 7). Where profiles come from is not its business.

With `proportional`, every worker has the part of its node's CPUs and memory that goes with an accelerator. With `tune`, who
can use less gives the rest to who can use more, in the order of submission. With `optimal`, the division on each node is the
one with the greatest sum of speeds, relative to proportional ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import without
from fairlead.core.errors import InputError
from fairlead.core.job import model_of
from fairlead.core.plan import Launches, Placed, Selection
from fairlead.core.sensitivity import EXPECTED, Curve, Sensitivity
from fairlead.core.snapshot import Snapshot
from fairlead.placement.allotments import CPUS, MEMORY, ROUNDING, Tenant, Way, allot
from fairlead.placement.consolidated import fullest_node_first, on_fewest_nodes
from fairlead.placement.packing import Room, pack


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
        for tenant in self._tenants(room.view, *room.view.holdings.places(room.kept)):
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
        owner, place = view.holdings.places(placed.kept)
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
        accelerators = [launches.accelerators, *(view.holdings.of(number) for number in again.tolist())]
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
