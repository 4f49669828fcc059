"""What is true in Horus' studies, and what its scheduler believes. Two who share an accelerator are as slow as they were
measured to be; the scheduler knows a model of that, and predictions of how busy jobs keep an accelerator."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fairlead.core.cluster import AcceleratorType
from fairlead.core.rng import stream
from fairlead.prediction.interference import PLAIN, Slowdown, terms
from fairlead.prediction.profiles import Profiles, profiles
from fairlead.profiling.results import measured
from fairlead.profiling.spanning import MANY, spanning
from fairlead.study.reproduce.world import World
from fairlead.workloads.profiles import ThroughputTable
from fairlead.workloads.shared_table import Measured, shared_table

H200 = AcceleratorType("h200", 141.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
SHARING = "time-slicing"
OFF = 0.25
"""How far a prediction for a training that was not seen is off, as a standard deviation of its logarithm: what a predictor must
keep to where a family was left out."""
MODELLED_OFF = 0.1
"""Likewise, how far modelled pairs are off the model."""


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
        count = f"{len(self.trainings)} trainings measured alone on {_profiles(self.device).device}"
        if self.pairs_are_measured:
            return f"rates: {count}, and all {len(self.trainings) * (len(self.trainings) + 1) // 2} pairs of them ({SHARING})"
        return (
            f"rates: {count}; pairs have not been measured yet and are modelled: a polynomial of both utilizations, each pair"
            f" off by {100 * MODELLED_OFF:.0f} %"
        )

    @property
    def beliefs_are(self) -> str:
        fitted = "fitted to the pairs of trainings that were seen" if self.pairs_are_measured else "the same polynomial"
        return (
            f"utilization and memory of every second training as measured, of the others off by {100 * OFF:.0f} % (log-normal);"
            f" slowdowns by a model, {fitted}"
        )

    @property
    def trainings(self) -> tuple[Measured, ...]:
        """In order of utilization."""
        return _trainings(self.device)

    @property
    def pairs_are_measured(self) -> bool:
        return _all_measured(self.device)

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
        if not self.pairs_are_measured:
            return PLAIN
        return fitted([one for one in self.trainings if one.kind in self.seen], _profiles(self.device))

    def believed(self) -> dict[str, Any]:
        """The estimation of a scheduler file."""
        uses = {kind: list(use) for kind, use in self.uses.items()}
        return {"name": "predicted", "uses": uses, "below": list(self.model.below), "above": list(self.model.above)}


def fitted(trainings: list[Measured], known: Profiles) -> Slowdown:
    """Least squares over all pairs of these, below and above full utilization."""
    own, other, slower = (
        np.array(column)
        for column in zip(
            *((a.utilization, b.utilization, known.slowdowns(a.kind, b.kind, SHARING)[0]) for a in trainings for b in trainings)
        )
    )
    over = own + other > 100.0
    parts: list[tuple[float, ...]] = []
    for degree, there, plain in ((1, ~over, PLAIN.below), (2, over, PLAIN.above)):
        looks = terms(own[there], other[there], degree)
        enough = len(looks) > looks.shape[1]
        parts.append(tuple(np.linalg.lstsq(looks, slower[there], rcond=None)[0].tolist()) if enough else plain)
    return Slowdown(*parts)


@lru_cache(maxsize=2)
def _profiles(device: str) -> Profiles:
    return profiles(device)


@lru_cache(maxsize=2)
def _trainings(device: str) -> tuple[Measured, ...]:
    known = _profiles(device)
    names = known.paired(SHARING) if _all_measured(device) else spanning(measured(device)[1])
    found = [known.alone[name] for name in names]
    made = [Measured(one.name, one.steps_per_s, one.utilization, one.memory_mb / 1024) for one in found]
    return tuple(sorted(made, key=lambda one: (one.utilization, one.kind)))


@lru_cache(maxsize=2)
def _all_measured(device: str) -> bool:
    """Whether every two of enough configurations met."""
    known = _profiles(device)
    names = known.paired(SHARING)
    pairs: Mapping[tuple[str, str], tuple[float, float]] = known.pairs.get(SHARING, {})
    return len(names) >= MANY and all((one, other) in pairs for one in names for other in names)


@lru_cache(maxsize=2)
def _table(device: str) -> ThroughputTable:
    trainings = _trainings(device)
    if _all_measured(device):
        known = _profiles(device)
        # What was faster beside another than alone was noise: nobody gains by company.
        return shared_table(H200.name, trainings, lambda a, b: max(1.0, known.slowdowns(a, b, SHARING)[0]), SIZES, device)
    busy = {one.kind: one.utilization for one in trainings}

    def modelled(one: str, other: str) -> float:
        off = np.exp(MODELLED_OFF * stream(0, "horus", "pair", one, other).standard_normal())
        return max(1.0, float(PLAIN.slowdowns(np.array([busy[one], busy[other]]))[0] * off))

    return replace(shared_table(H200.name, trainings, modelled, SIZES), source=f"{device}, pairs modelled")
