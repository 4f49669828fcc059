"""Placements that consolidate only the gangs that gain from it: Tiresias by the model's tensors, Tiresias+ by measured rates.
They know models by name and rates by job type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, TypeAlias

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.errors import require
from fairlead.core.job import model_of
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.base import FreeDevices, place_jobs
from fairlead.placement.basic import fullest_node_first


class Consolidation(IntEnum):
    """Whether a gang needs few nodes."""

    NOT_NEEDED = 0  # it fills fragments
    PREFERRED = 1  # on as few nodes as possible
    REQUIRED = 2  # on as few nodes as it needs; else it waits


ConsolidationRule: TypeAlias = Callable[[Snapshot, Ints, Ints], list[Consolidation]]
"""(view, jobs, types) → the preference of each gang."""


def consolidate_selectively(selection: Selection, view: Snapshot, preferences: ConsolidationRule) -> Placed:
    """Place the gangs that gain from consolidation first; then let the others fill the fullest nodes."""

    def gangs(devices: FreeDevices, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        nodes, preferences_of = devices.by_node(), preferences(view, jobs, types)
        largest = devices.cluster.largest_node_of_type.tolist()
        entries = list(zip(preferences_of, devices.last_nodes(jobs, types), types.tolist(), workers.tolist()))
        found: list[list[int]] = [[] for _ in entries]
        for index in sorted(range(len(entries)), key=lambda index: preferences_of[index] is Consolidation.NOT_NEEDED):
            preference, last, type_, want = entries[index]
            if preference is Consolidation.NOT_NEEDED:
                found[index] = nodes.fragments(type_, want)
            else:
                max_nodes = -(-want // largest[type_]) if preference is Consolidation.REQUIRED else len(devices.cluster.nodes)
                found[index] = nodes.last_or_fewest(last, type_, want, max_nodes)
        return found

    return place_jobs(selection, view, gangs, fullest_node_first)


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
"""Skew by model, from architectures and not from measurements."""


@dataclass(frozen=True)
class TiresiasPlacement:
    """Consolidate where skew(model) = parameters of the largest tensor / parameters of the model > threshold.

    The other jobs fill fragments (Tiresias §3.3, Blox §4.3).

    A large tensor is sent in one piece and delays the others, so such models suffer most from a network between their workers.
    `skews` adds to the table or replaces its values; `otherwise` is the skew of a model in neither. With `wait`, a gang that is
    to be consolidated waits until it can be.
    """

    threshold: float = 0.3  # models with a larger skew are consolidated
    skews: Mapping[str, float] = field(default_factory=dict)  # skew of each model: the largest tensor's share of its parameters
    otherwise: float = 0.0  # skew of a model that is not listed
    wait: bool = False  # a gang that cannot be consolidated waits
    paper: ClassVar[str] = "Tiresias §3.3; Blox §4.3"

    def __post_init__(self) -> None:
        own = {"threshold": self.threshold, "otherwise": self.otherwise}
        for name, value in {**own, **{f"skews.{model}": skew for model, skew in self.skews.items()}}.items():
            require(0 <= value <= 1, "placement tiresias", "a number from 0 to 1", name, value)

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return consolidate_selectively(selection, view, self._wishes)

    def skew(self, kind: str) -> float:
        """The skew of a job type: from `skews` by its full name, or that of its model."""
        model = model_of(kind)
        return self.skews.get(kind, self.skews.get(model, SKEW.get(model, self.otherwise)))

    def _wishes(self, view: Snapshot, jobs: Ints, types: Ints) -> list[Consolidation]:
        together = Consolidation.REQUIRED if self.wait else Consolidation.PREFERRED
        kinds, of = np.unique(view.jobs.of(jobs).kind, return_inverse=True)
        preferred = [
            together if self.skew(view.names.kinds[kind]) > self.threshold else Consolidation.NOT_NEEDED
            for kind in kinds.tolist()
        ]
        return [preferred[at] for at in of.tolist()]


@dataclass(frozen=True)
class TiresiasPlusPlacement:
    """Consolidate where gain = rate on as few nodes as possible / rate on more nodes − 1 > threshold.

    The other jobs fill fragments (Blox §4.3, Figure 11).

    Rates are those of the estimator. A gang that would not run spread at all (rate 0) waits until it can be consolidated; with
    `wait`, so does every gang that is to be consolidated.
    """

    threshold: float = 0.1  # gangs that gain more than this by consolidation are consolidated
    wait: bool = False  # a gang that cannot be consolidated waits
    paper: ClassVar[str] = "Blox §4.3"

    def __post_init__(self) -> None:
        require(self.threshold >= 0, "placement tiresias-plus", "a number of at least 0", "threshold", self.threshold)

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return consolidate_selectively(selection, view, self._wishes)

    def _wishes(self, view: Snapshot, jobs: Ints, types: Ints) -> list[Consolidation]:
        rates = view.rates
        row = rates.row[view.jobs.position_of(jobs)]
        together, apart = rates.alone[row, types], rates.spread[row, types]
        gains = together > apart * (1 + self.threshold)
        preferences = np.where(
            gains, Consolidation.REQUIRED if self.wait else Consolidation.PREFERRED, Consolidation.NOT_NEEDED
        )
        preferences[gains & (apart <= 0)] = Consolidation.REQUIRED
        return [Consolidation(preference) for preference in preferences.tolist()]
