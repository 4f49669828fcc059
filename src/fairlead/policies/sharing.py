"""Policies that may put two jobs on one accelerator, or reckon with gangs that stand apart (Gavel §3.1): whatever they
maximise, it is a program over a supply, and its answer is dealt out to jobs and pairs of jobs.

Company inside a class may come out such that somebody would be beside itself. Then that job becomes a class of its own, and the
policy is asked again; with every job in its own class nobody can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats
from fairlead.core.reasons import Reason
from fairlead.core.snapshot import Snapshot
from fairlead.policies.classes import Classes
from fairlead.policies.dealing import Clash, dealt_out
from fairlead.policies.max_min import SLIGHT, nothing
from fairlead.policies.supply import Asked, Supply
from fairlead.policies.ways import ways_of


@dataclass(frozen=True)
class Sharing:
    """What a policy reckons with, besides a job alone on a type: policies that can are this."""

    space_sharing: bool = False
    placement_sensitive: bool = False

    @property
    def alone(self) -> bool:
        """Whether it is nothing else."""
        return not (self.space_sharing or self.placement_sensitive)


NO_SHARING = Sharing()


@dataclass(frozen=True)
class Answer:
    """The time on each way, what it was to be enough for, and what else a policy has to say."""

    time: Floats
    asked: Asked
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    memo: Mapping[str, Any] = field(default_factory=dict)


def shared(
    name: str, view: Snapshot, classes: Classes, sharing: Sharing, answer: Callable[[Supply], Answer]
) -> tuple[Allocation, Mapping[str, Any]]:
    """The allocation that a policy's answer comes to, and what it remembers."""
    while True:
        ways = ways_of(classes, view, space_sharing=sharing.space_sharing, placement_sensitive=sharing.placement_sensitive)
        if not len(ways):
            return nothing(view), {}
        supply = Supply(name, classes, ways)
        found = answer(supply)
        dealt = dealt_out(supply, view.jobs.number, found.time, found.asked, found.reasons)
        if not isinstance(dealt, Clash):
            return dealt, found.memo
        classes = classes.but_one(dealt.row)


def in_way_order(worth: Floats, supply: Supply) -> Floats:
    """The same worths of ways, a little less by a number that follows from what they are: no two optima are equally good."""
    ways, keys = supply.ways, [*supply.classes.keys, ()]
    whose = zip(ways.one.tolist(), ways.two.tolist(), ways.types.tolist(), ways.speed.tolist())
    place = np.array([hash((keys[one], keys[two], kind, speed)) % 9973 for one, two, kind, speed in whose]) / 9973
    ordered: Floats = worth * (1.0 - SLIGHT * place)
    return ordered
