"""Tiresias' placement: consolidate a gang only if one tensor is a large part of its model.

    skew(model) = parameters of the largest tensor / parameters of the model;  consolidated where skew > threshold

A large tensor is sent in one piece and holds the others up, so models with one suffer most from a network between their workers
(Tiresias §3.3, as Blox §4.3 has it). It knows models by name, and nothing of the cluster they run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, TypeAlias

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.errors import InputError
from fairlead.core.job import model_of
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.base import FreeByNode, Room, pack
from fairlead.placement.basic import fullest_node_first

# Some gangs on as few nodes as possible, the others where there are fragments: what Tiresias' placement and its kin share.
# They differ in how they know a gang that gains by standing together, which is not known here.


class Wish(IntEnum):
    """What a gang gains by."""

    ANYWHERE = 0  # it may stand in fragments
    TOGETHER = 1  # on as few nodes as can be
    TOGETHER_OR_LATER = 2  # on as few nodes as it needs, and otherwise it waits


Wishes: TypeAlias = Callable[[Snapshot, Ints, Ints], list[Wish]]
"""(view, jobs, types) → a wish for each gang."""


def pack_selectively(selection: Selection, view: Snapshot, wishes: Wishes) -> Placed:
    """Who gains by standing together goes first, and back to its last node if that has room; then the others fill the nodes
    that have the fewest accelerators left."""

    def gangs(room: Room, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        nodes, wished = room.by_node(), wishes(view, jobs, types)
        largest = room.cluster.largest_node_of_type.tolist()
        entries = list(zip(wished, room.last_nodes(jobs, types), types.tolist(), workers.tolist()))
        found: list[list[int]] = [[] for _ in entries]
        for index in sorted(range(len(entries)), key=lambda index: wished[index] is Wish.ANYWHERE):
            wish, home, kind, want = entries[index]
            if wish is Wish.ANYWHERE:
                found[index] = nodes.fragments(kind, want)
            else:
                most = -(-want // largest[kind]) if wish is Wish.TOGETHER_OR_LATER else len(room.cluster.nodes)
                found[index] = _together(nodes, home, kind, want, most)
        return found

    return pack(selection, view, gangs, fullest_node_first)


def _together(nodes: FreeByNode, home: int, kind: int, want: int, most_nodes: int) -> list[int]:
    if home >= 0 and nodes.counts[home] >= want:
        return nodes.take(home, want)
    return nodes.fewest(kind, want, most_nodes)


SKEW: Mapping[str, float] = {
    # The catalogue's models: counted from the architectures, in millions of parameters.
    "ResNet-18": 0.21,  # 2.36 (512 × 512 × 3 × 3) of 11.2
    "ResNet-50": 0.09,  # 2.36 of 25.6
    "Transformer": 0.10,  # 4.9 (9,500 words × 512) of 49
    "LM": 0.48,  # 6.66 (33,278 words × 200) of 14.0
    "Recommendation": 0.50,  # 12.1 (20,108 items × 600), and as many on the way out, of 24.1
    "CycleGAN": 0.07,  # 2.10 (256 × 512 × 4 × 4, in a discriminator) of 28.3
    "A3C": 0.50,  # assumed: the recurrent layer's matrices are nearly all of it. It has one worker
    # Models that Tiresias and Blox name.
    "VGG-16": 0.74,  # 102.8 (25,088 × 4,096) of 138.4
    "VGG-19": 0.72,  # of 143.7
    "AlexNet": 0.62,  # 37.7 (9,216 × 4,096) of 61.1
    "ResNet-152": 0.04,  # 2.36 of 60.2
    "Inception-v3": 0.09,  # 2.05 (2,048 × 1,000) of 23.8
    "GoogLeNet": 0.15,  # 1.02 (1,024 × 1,000) of 6.6
    "BERT": 0.21,  # 23.4 (30,522 words × 768) of 110
}
"""By model. Data of architectures, not of measurements."""


@dataclass(frozen=True)
class TiresiasPlacement:
    """Consolidate gangs of models with a skew above a threshold; the others fill fragments (Tiresias §3.3, Blox §4.3).

    `skews` adds to the table, or takes the place of values in it; `otherwise` is the skew of a model in neither. With `wait`, a
    gang that is to be consolidated waits until it can be.
    """

    threshold: float = 0.3
    skews: Mapping[str, float] = field(default_factory=dict)
    otherwise: float = 0.0
    wait: bool = False
    paper: ClassVar[str] = "Tiresias §3.3; Blox §4.3"

    def __post_init__(self) -> None:
        own = {"threshold": self.threshold, "otherwise": self.otherwise}
        for name, value in {**own, **{f"skews.{model}": skew for model, skew in self.skews.items()}}.items():
            if not 0 <= value <= 1:
                raise InputError("placement tiresias", "a number from 0 to 1", field=name, value=value)

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack_selectively(selection, view, self._wishes)

    def skew(self, kind: str) -> float:
        """Of a kind of job: its own, where `skews` has it under its full name, or its model's."""
        model = model_of(kind)
        return self.skews.get(kind, self.skews.get(model, SKEW.get(model, self.otherwise)))

    def _wishes(self, view: Snapshot, jobs: Ints, types: Ints) -> list[Wish]:
        together = Wish.TOGETHER_OR_LATER if self.wait else Wish.TOGETHER
        kinds, of = np.unique(view.jobs.of(jobs).kind, return_inverse=True)
        known = [together if self.skew(view.names.kinds[kind]) > self.threshold else Wish.ANYWHERE for kind in kinds.tolist()]
        return [known[at] for at in of.tolist()]


# Tiresias+: consolidate a gang if it is known to run faster so.
#
# gain(job, type) = rate on as few nodes as possible / rate on more nodes − 1;  consolidated where gain > threshold
#
# It asks the estimation, so it is as right as the profiles are (Blox §4.3, Figure 11), on whatever cluster and for whatever
# models.


@dataclass(frozen=True)
class TiresiasPlusPlacement:
    """Consolidate gangs that run faster so by more than a threshold; the others fill fragments (Blox §4.3).

    A gang that would not run spread at all (rate 0) waits until it can be consolidated; with `wait`, so does every gang that is
    to be.
    """

    threshold: float = 0.1
    wait: bool = False
    paper: ClassVar[str] = "Blox §4.3"

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise InputError("placement tiresias-plus", "a number from 0 on", field="threshold", value=self.threshold)

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack_selectively(selection, view, self._wishes)

    def _wishes(self, view: Snapshot, jobs: Ints, types: Ints) -> list[Wish]:
        rates = view.rates
        row = rates.row[view.jobs.position_of(jobs)]
        together, apart = rates.alone[row, types], rates.spread[row, types]
        gains = together > apart * (1 + self.threshold)
        wishes = np.where(gains, Wish.TOGETHER_OR_LATER if self.wait else Wish.TOGETHER, Wish.ANYWHERE)
        wishes[gains & (apart <= 0)] = Wish.TOGETHER_OR_LATER
        return [Wish(wish) for wish in wishes.tolist()]
