"""What is true in Horus' studies, and what its scheduler believes. Two who share an accelerator are as slow as they were
measured to be; the scheduler knows a model of that, and predictions of how busy jobs keep an accelerator."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fairlead.core.cluster import AcceleratorType
from fairlead.core.rng import stream
from fairlead.prediction.interference import Slowdown, fit
from fairlead.prediction.profiles import Profiles, profiles
from fairlead.study.reproduce.world import World
from fairlead.workloads.profiles import ThroughputTable
from fairlead.workloads.shared_table import Measured, shared_table

H200 = AcceleratorType("h200", 141.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
SHARING = "time-slicing"
OFF = 0.25
"""How far a prediction for a training that was not seen is off, as a standard deviation of its logarithm: what a predictor must
keep to where a family was left out."""


@dataclass(frozen=True)
class MeasuredPairs(World):
    """`device` is a measured set that ships. Every second of its configurations, by utilization, was seen by the predictor."""

    device: str = "h200"

    @property
    def table(self) -> ThroughputTable:
        return _table(self.device)

    @cached_property
    def mark(self) -> str:
        """Of what is true and of what is believed."""
        content = repr((self.trainings, self.uses, self.model)).encode() + self.table.paired.tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    @property
    def rates_are(self) -> str:
        many = len(self.trainings)
        pairs = f"all {many * (many + 1) // 2} pairs of them, {SHARING}"
        return f"rates: {many} trainings on {_profiles(self.device).device}, and {pairs}"

    @property
    def beliefs_are(self) -> str:
        return (
            f"utilization and memory of every second training as measured, of the others off by {100 * OFF:.0f} % (log-normal);"
            " slowdowns by a model that was fitted to the pairs of those"
        )

    @property
    def trainings(self) -> tuple[Measured, ...]:
        """In order of utilization."""
        return _trainings(self.device)

    @cached_property
    def seen(self) -> frozenset[str]:
        return frozenset(one.kind for one in self.trainings[::2])

    @cached_property
    def uses(self) -> dict[str, tuple[float, float]]:
        """Believed utilization in percent, and memory in GB, by kind."""
        believed = {}
        for one in self.trainings:
            busy, memory = one.utilization, one.memory_gb
            if one.kind not in self.seen:
                off = np.exp(OFF * stream(0, "horus", "prediction", one.kind).standard_normal(2))
                busy, memory = min(busy * off[0], 100.0), memory * off[1]
            believed[one.kind] = (round(float(busy), 3), round(float(memory), 3))
        return believed

    @cached_property
    def model(self) -> Slowdown:
        return fitted([one for one in self.trainings if one.kind in self.seen], _profiles(self.device))

    def believed(self) -> dict[str, Any]:
        """The estimation of a scheduler file."""
        uses = {kind: list(use) for kind, use in self.uses.items()}
        return {"name": "predicted", "uses": uses, "below": list(self.model.below), "above": list(self.model.above)}


def fitted(trainings: list[Measured], known: Profiles) -> Slowdown:
    """The model of all pairs of these."""
    pairs = [(a.utilization, b.utilization, known.slowdowns(a.kind, b.kind, SHARING)[0]) for a in trainings for b in trainings]
    return fit(*np.array(pairs).T)


@lru_cache(maxsize=2)
def _profiles(device: str) -> Profiles:
    return profiles(device)


@lru_cache(maxsize=2)
def _trainings(device: str) -> tuple[Measured, ...]:
    known = _profiles(device)
    found = [known.alone[name] for name in known.paired(SHARING)]
    return tuple(Measured(one.name, one.steps_per_s, one.utilization, one.memory_mb / 1024) for one in found)


@lru_cache(maxsize=2)
def _table(device: str) -> ThroughputTable:
    """What was faster beside another than alone was noise: nobody gains by company."""
    known = _profiles(device)
    return shared_table(
        H200.name, _trainings(device), lambda a, b: max(1.0, known.slowdowns(a, b, SHARING)[0]), SIZES, f"{device}, {SHARING}"
    )
