"""Tiresias' placement: consolidate a gang only if one tensor is a large part of its model.

    skew(model) = parameters of the largest tensor / parameters of the model;  consolidated where skew > threshold

A large tensor is sent in one piece and holds the others up, so models with one suffer most from a network between their workers
(Tiresias §3.3, as Blox §4.3 has it). It knows models by name, and nothing of the cluster they run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.errors import InputError
from fairlead.core.job import model_of
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.selective import Wish, pack_selectively

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
class Tiresias:
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
