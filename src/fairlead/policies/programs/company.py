"""Two jobs on one accelerator, and gangs that stand apart, in a program over classes (Gavel §3.1): what they gain there, and
how the time of a pair of classes is dealt out to pairs of jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.allocation import NEGLIGIBLE, Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.snapshot import Snapshot
from fairlead.policies.programs.classes import Classes
from fairlead.policies.programs.fair_shares import Filled, Spread

NO_PLACE = 1e9
"""The part of a type's nodes that a gang takes together where no node has room for it."""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What a policy reckons with, besides a job alone on a type; policies that can are this.

    With `space_sharing`, two jobs may share accelerators where that pays; `placement_sensitive` reckons with gangs that find no
    room together.
    """

    space_sharing: bool = False
    placement_sensitive: bool = False

    @property
    def alone(self) -> bool:
        """Whether it is nothing else."""
        return not (self.space_sharing or self.placement_sensitive)


def check_among(policy: str, among: str, sharing: Sharing) -> None:
    """The middle of the optima is known only where everybody is alone on types at full speed."""
    if among == "centre" and not sharing.alone:
        wanted = "'most' together with space_sharing or placement_sensitive"
        raise InputError(f"policy {policy}", wanted, field="among", value=among)


NO_SHARING = Sharing()


def company(classes: Classes, view: Snapshot, gain: Floats) -> Floats:
    """Classes × classes × types: the gain of the first beside the second, in the units of `gain`."""
    rates = view.rates
    alone = classes.rates
    unit = np.divide(gain, alone, out=np.zeros_like(gain), where=alone > 0)
    paired: Floats = rates.paired[np.ix_(classes.row, classes.row)] * unit[:, None, :]
    return paired * (alone[None, :, :] > 0)


def apart(classes: Classes, view: Snapshot, gain: Floats) -> Spread:
    """What gangs gain on more nodes than they need, and what part of a type's nodes they take where they stand together."""
    alone, cluster = classes.rates, view.cluster
    slower = np.divide(view.rates.spread[classes.row], alone, out=np.zeros_like(alone), where=alone > 0)
    gangs = classes.workers > 1
    size = np.bincount(cluster.node_of[view.up], minlength=len(cluster.nodes))  # accelerators that are up, by node
    kind = np.array(cluster.kind_of_node)
    use = np.zeros(gain.shape)
    for index in gangs.nonzero()[0].tolist():
        workers = int(classes.workers[index])
        largest = cluster.largest_node_of_type
        for j in range(gain.shape[1]):
            if workers <= largest[j]:
                places = float((size[kind == j] // workers).sum())
            else:
                places = float(size[kind == j].sum() // (-(-workers // int(largest[j])) * int(largest[j])))
            use[index, j] = 1.0 / places if places else np.inf
    together = np.isfinite(use)
    return Spread(gain * np.minimum(slower, 1.0) * gangs[:, None], np.where(together, use, NO_PLACE))


def dealt(classes: Classes, view: Snapshot, filled: Filled) -> Allocation:
    """Time of classes and of pairs of classes, in equal parts to the members; as few pairs of jobs as that takes."""
    alone = classes.dealt(view, filled.totals)
    if not len(filled.pair_time):
        return alone
    members = _members(classes, view.jobs.number)
    first, second, types, share = [alone.first], [alone.second], [alone.types], [alone.share]
    columns = zip(filled.pair_classes.tolist(), filled.pair_types.tolist(), filled.pair_time.tolist())
    for (g, h), kind, time in columns:
        one, two, part = _circle(members[g], time) if g == h else _met(members[g], members[h], time)
        first.append(np.minimum(one, two))
        second.append(np.maximum(one, two))
        types.append(np.full(len(one), kind, dtype=np.int64))
        share.append(part)
    shares = Allocation.tidy(np.concatenate(share))
    one, two, kinds = np.concatenate(first), np.concatenate(second), np.concatenate(types)
    order = np.lexsort((kinds, two, one))
    order = order[shares[order] > NEGLIGIBLE]
    return Allocation(one[order], two[order], kinds[order], shares[order])


def _members(classes: Classes, numbers: Ints) -> list[Ints]:
    order = classes.of.argsort(kind="stable")
    order = order[np.count_nonzero(classes.of < 0) :]
    return np.split(numbers[order], np.cumsum(classes.count)[:-1])


def _circle(members: Ints, time: float) -> tuple[Ints, Ints, Floats]:
    """Pairs inside a class: everybody with the next one, and the last with the first."""
    count = len(members)
    if count == 2:
        return members[:1], members[1:], np.array([time])
    return members, np.roll(members, -1), np.full(count, time / count)


def _met(one: Ints, two: Ints, time: float) -> tuple[Ints, Ints, Floats]:
    """Everybody of one class gets the same time, everybody of the other does, with as few pairs as that takes: both are laid
    out along the same stretch of time, and whoever lies beside one another is a pair."""
    cuts = np.union1d(np.arange(1, len(one) + 1) / len(one), np.arange(1, len(two) + 1) / len(two))
    cuts = cuts[np.concatenate((np.diff(cuts) > 1e-12, [True]))]
    begins = np.concatenate(([0.0], cuts[:-1]))
    middle = (begins + cuts) / 2
    left = np.minimum((middle * len(one)).astype(np.int64), len(one) - 1)
    right = np.minimum((middle * len(two)).astype(np.int64), len(two) - 1)
    return one[left], two[right], (cuts - begins) * time
