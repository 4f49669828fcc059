"""Columns of programs over classes: what members can do with their time (Gavel §3.1). They run alone on a type, on more nodes
than needed, or co-located with a member of some class. This module knows no objectives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import RATE_BITS, significant
from fairlead.core.errors import InputError
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.job_classes import JobClasses

NO_ROOM = 1e9
"""The part of a type's nodes that a gang takes together where no node has room for it."""


@dataclass(frozen=True, kw_only=True)
class SharingOptions:
    """What a policy considers besides a job alone on a type; a base class of policies.

    With `space_sharing`, two jobs may share accelerators where that pays. `placement_sensitive` considers gangs that find no
    room on as few nodes as possible."""

    space_sharing: bool = False  # two jobs with the same number of workers may share GPUs
    placement_sensitive: bool = False  # a gang on few nodes and a spread gang are two choices of the program

    @property
    def alone(self) -> bool:
        """Whether neither option is set."""
        return not (self.space_sharing or self.placement_sensitive)


def check_optimum(policy: str, optimum: str, sharing: SharingOptions) -> None:
    """Check that the analytic centre is asked for only where each job is alone on types at full speed."""
    if optimum == "centre" and not sharing.alone:
        wanted = "'most' together with space_sharing or placement_sensitive"
        raise InputError(f"policy {policy}", wanted, field="optimum", value=optimum)


NO_SHARING = SharingOptions()


PAYS = 1e-9
"""The least relative gain of co-location over time slicing."""


def worthwhile_pairs(colocated: Floats, alone: Floats, workers: Ints) -> Bools:
    """Classes × classes × types: whether two co-located jobs of one size reach in sum more than one job's speed alone."""
    part = np.divide(colocated, alone[:, None, :], out=np.zeros_like(colocated), where=alone[:, None, :] > 0)
    swapped = part.transpose(1, 0, 2)
    pays: Bools = (part > 0) & (swapped > 0) & (part + swapped > 1.0 + PAYS)
    pays &= (workers[:, None] == workers[None, :])[:, :, None]
    return pays


@dataclass(frozen=True)
class GangSpread:
    """The gain of gangs on more nodes than needed, and the part of a type's nodes that a consolidated member takes."""

    gain: Floats  # classes × types
    use: Floats  # classes × types


def colocated_gain(classes: JobClasses, view: Snapshot, gain: Floats) -> Floats:
    """Classes × classes × types: the gain of the first class co-located with the second, in the units of `gain`. It is 0 where
    a job would be slower than it tolerates, and for jobs that were separated (each in a class of its own)."""
    rates = view.rates
    alone = classes.rates
    unit = np.divide(gain, alone, out=np.zeros_like(gain), where=alone > 0)
    paired = significant(rates.paired[np.ix_(classes.row, classes.row)], RATE_BITS)
    if classes.limit is not None:
        least = significant(rates.least_paired[np.ix_(classes.row, classes.row)], RATE_BITS)
        slow = (alone / classes.limit[:, None])[:, None, :] > least * (1 + PAYS)
        paired = np.where(slow | slow.transpose(1, 0, 2), 0.0, paired)
    paired = paired * unit[:, None, :]
    if view.separated:
        code = dict(zip(view.jobs.number.tolist(), classes.class_of.tolist()))
        for one, two in view.separated:
            if min(g := code.get(one, -1), h := code.get(two, -1)) >= 0:
                paired[[g, h], [h, g]] = 0.0
    return paired * (alone[None, :, :] > 0)


def spread_gain(classes: JobClasses, view: Snapshot, gain: Floats) -> GangSpread:
    """The gain of gangs on more nodes than needed, and the part of a type's nodes that they take when consolidated."""
    alone, cluster = classes.rates, view.cluster
    slower = np.divide(significant(view.rates.spread[classes.row], RATE_BITS), alone, out=np.zeros_like(alone), where=alone > 0)
    gangs = classes.workers > 1
    size = np.bincount(cluster.node_of[view.up], minlength=len(cluster.nodes))  # accelerators that are up, by node
    type_of_node = np.array(cluster.kind_of_node)
    use = np.zeros(gain.shape)
    for index in gangs.nonzero()[0].tolist():
        workers = int(classes.workers[index])
        largest = cluster.largest_node_of_type
        for j in range(gain.shape[1]):
            if workers <= largest[j]:
                places = float((size[type_of_node == j] // workers).sum())
            else:
                places = float(size[type_of_node == j].sum() // (-(-workers // int(largest[j])) * int(largest[j])))
            use[index, j] = 1.0 / places if places else np.inf
    together = np.isfinite(use)
    return GangSpread(gain * np.minimum(slower, 1.0) * gangs[:, None], np.where(together, use, NO_ROOM))


@dataclass(frozen=True)
class ColumnSides:
    """The classes that a column moves on, fast to slow. `weight` is 2 where both co-located jobs are of the class."""

    owner: Ints
    col: Ints
    speed: Floats
    weight: Floats
    first: Ints  # by class, and one more: where its sides begin


@dataclass(frozen=True)
class ThroughputColumns:
    """Speeds by column are parts of `fastest`, the class's rate on its best column alone; `use` is columns × resources, as
    parts."""

    one: Ints
    two: Ints  # the co-located class, or -1
    types: Ints
    speed: Floats  # of one
    other: Floats  # of two
    workers: Ints
    use: Floats
    available: Bools  # by resource: whether its capacity is above 0
    fastest: Floats  # by class

    def __len__(self) -> int:
        return len(self.one)

    @cached_property
    def sides(self) -> ColumnSides:
        col = np.arange(len(self))
        apart_, same = (self.two >= 0) & (self.two != self.one), self.two == self.one
        owner = np.concatenate((self.one, self.two[apart_]))
        speed = np.concatenate((self.speed, self.other[apart_]))
        order = np.lexsort((-speed, owner))
        columns = (
            np.concatenate((col, col[apart_])),
            speed,
            np.concatenate((np.where(same, 2.0, 1.0), np.ones(np.count_nonzero(apart_)))),
        )
        col, speed, weight = (column[order] for column in columns)
        owner = owner[order]
        return ColumnSides(owner, col, speed, weight, owner.searchsorted(np.arange(len(self.fastest) + 1)))

    def progress(self, worth: Floats) -> Floats:
        """The value of a unit of time on each column, where `worth` is the value of a class's progress."""
        colocated = np.where(self.two >= 0, self.other * worth[self.two], 0.0)
        total: Floats = self.speed * worth[self.one] + colocated
        return total


def columns_of(classes: JobClasses, view: Snapshot, *, space_sharing: bool, placement_sensitive: bool) -> ThroughputColumns:
    """The columns that a view offers. Pairs that do no better than time slicing are left out, since it is never worse."""
    alone, capacity = classes.rates, view.capacity
    types = len(capacity)
    nodes = np.zeros(alone.shape)
    first, type_parts, speeds = [], [], []
    possible = alone > 0
    if placement_sensitive:
        scattered = spread_gain(classes, view, alone)
        nodes = scattered.use
        possible = possible & (nodes < NO_ROOM)
        g, j = (scattered.gain > 0).nonzero()
        first, type_parts, speeds = [g], [j], [scattered.gain[g, j]]
    gang = [np.zeros((len(one), 2 * types)) for one in first]  # time on each type, and on its nodes
    g, j = possible.nonzero()
    first, type_parts, speeds = [g, *first], [j, *type_parts], [alone[g, j], *speeds]
    gang = [_stands(nodes, g, j, types), *gang]
    second = [np.full(len(one), -1, dtype=np.int64) for one in first]
    others = [np.zeros(len(one)) for one in first]
    if space_sharing:
        colocated = colocated_gain(classes, view, alone)
        pays = worthwhile_pairs(colocated, alone, classes.workers) & possible[:, None, :] & possible[None, :, :]
        few = (classes.count < 2).nonzero()[0]
        pays[few, few] = False
        j, g, h = np.triu(pays.transpose(2, 0, 1)).nonzero()
        first, second, type_parts = [*first, g], [*second, h], [*type_parts, j]
        speeds, others = [*speeds, colocated[g, h, j]], [*others, colocated[h, g, j]]
        gang = [*gang, _stands(nodes, g, j, types)]
    one, two, type_of_column = np.concatenate(first), np.concatenate(second), np.concatenate(type_parts)
    use = np.concatenate(gang)
    use[np.arange(len(one)), type_of_column] = classes.workers[one] / np.maximum(capacity, 1)[type_of_column]
    speed, other = np.concatenate(speeds), np.concatenate(others)
    fastest = np.zeros(len(classes))
    single = two < 0
    np.maximum.at(fastest, one[single], speed[single])
    unit = np.where(fastest > 0, fastest, 1.0)
    available = np.tile(capacity > 0, 2)
    if not placement_sensitive:
        use, available = use[:, :types], available[:types]
    speed, other = speed / unit[one], other / unit[two]
    return ThroughputColumns(one, two, type_of_column, speed, other, classes.workers[one], use, available, fastest)


def _stands(nodes: Floats, g: Ints, j: Ints, types: int) -> Floats:
    """The part of their type's nodes that consolidated gangs take."""
    use = np.zeros((len(g), 2 * types))
    use[np.arange(len(g)), types + j] = nodes[g, j]
    return use
