"""Who may share accelerators with whom, and what that costs (Horus §4.2.1, Equations 7 to 10):

    cost = ω₁ · (memory used and asked for) / (memory there)  +  ω₂ · (predicted slowdown)

with the mean over those who would share. Slowdowns are the estimation's rates alone over its rates in company, so that whoever
predicts them is not this module's business; what was seen of two kinds takes their place. It knows no accelerator by number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.core.snapshot import Snapshot

ROUNDING = 1e-9
SURE = 0.5
"""The relative uncertainty of a rate alone from which on nobody can tell how much slower somebody is."""


@dataclass(frozen=True)
class Limits:
    """How far accelerators are over-committed. `slo` is for jobs that say nothing themselves."""

    jobs: int = 2
    utilization: float = math.inf  # predicted, together; 1 is all of the accelerator
    memory: float = 1.0  # part of what there is
    slo: float = math.inf


@dataclass(frozen=True)
class Look:
    """All that tells one job from another while places are looked for."""

    row: int  # class of its rates
    kind: str
    workers: int
    fits: int
    least_memory_gb: float  # whatever is predicted, it needs so much
    max_slowdown: float
    cpus: float
    host_memory_gb: float


def looks_of(view: Snapshot, least_gb: Mapping[str, float]) -> dict[int, Look]:
    """By number, those who look alike the very same. `least_gb` raises what some need, by their number as text."""
    jobs, names, looks, known = view.jobs, view.names.kinds, dict[int, Look](), dict[tuple[Any, ...], Look]()
    columns = (jobs.number, view.rates.row, jobs.kind, jobs.workers, jobs.fits, jobs.memory_gb, jobs.cpus, jobs.host_memory_gb)
    for number, row, kind, workers, fits, memory, cpus, of_host in zip(*(column.tolist() for column in columns)):
        memory = max(memory, least_gb.get(str(number), 0.0)) if least_gb else memory
        most = view.job_of[number].max_slowdown
        told = (row, names[kind], workers, fits, memory, most, cpus, of_host)
        if (look := known.get(told)) is None:
            look = known[told] = Look(*told)
        looks[number] = look
    return looks


@dataclass(frozen=True)
class Judge:
    """What company is allowed and what it costs, at one moment; answers are kept, as many jobs look alike."""

    view: Snapshot
    limits: Limits
    memory_weight: float
    slowdown_weight: float
    seen: Mapping[tuple[str, str, int], float]  # how many times slower a kind was beside another, on a type
    _known: dict[tuple[int, tuple[Look, ...]], float | None] = field(default_factory=dict)

    @cached_property
    def there_gb(self) -> list[float]:
        return [kind.memory_gb for kind in self.view.cluster.types]

    @cached_property
    def _best(self) -> Floats:
        rates = self.view.rates
        return rates.best if rates.best is not None else rates.alone.max(axis=1)

    def need_gb(self, look: Look, kind: int) -> float:
        """The larger of what is predicted and what it says itself. Who has no prediction is taken at its word, and needs
        everything where it gives none; without any predictions its word is all there is."""
        usage = self.view.rates.usage
        predicted = 0.0 if usage is None else float(usage.memory_gb[look.row, kind])
        if math.isinf(predicted) and look.least_memory_gb > 0:
            return look.least_memory_gb
        return max(predicted, look.least_memory_gb)

    def utilization(self, look: Look, kind: int) -> float:
        usage = self.view.rates.usage
        return 1.0 if usage is None else float(usage.utilization[look.row, kind])

    def fit(self, looks: tuple[Look, ...], kind: int) -> bool:
        """Whether these may share an accelerator of a type, whatever that does to their speed."""
        if len(looks) == 1:
            return True
        if len(looks) > self.limits.jobs or any(self.refuses(look) for look in looks):
            return False
        if self.view.rates.usage is not None:
            busy = sum(self.utilization(look, kind) for look in looks)
            if busy > self.limits.utilization + ROUNDING:
                return False
        needs = sum(self.need_gb(look, kind) for look in looks)
        if math.isinf(needs) or needs > self.limits.memory * self.there_gb[kind] * (1 + ROUNDING):
            return False  # who needs everything has no company, also where nobody knows how much that is
        paired = self.view.rates.paired
        for at, one in enumerate(looks):
            for two in looks[at + 1 :]:
                if not (paired[one.row, two.row, kind] > 0 and paired[two.row, one.row, kind] > 0):
                    return False
        return True

    def refuses(self, look: Look) -> bool:
        return self.limit(look) <= 1.0

    def limit(self, look: Look) -> float:
        """How many times slower than alone it may be: its own word, or else the scheduler's."""
        return look.max_slowdown if look.max_slowdown < math.inf else self.limits.slo

    def can_tell(self, look: Look, kind: int) -> bool:
        """Whether it is known how fast it is alone, so that being slower shows."""
        off = self.view.rates.uncertainty
        return off is None or float(off[look.row, kind]) < SURE

    def slowdowns(self, looks: tuple[Look, ...], kind: int) -> list[float]:
        """Of each: every neighbour slows it in turn, as it was seen to, or else as it is predicted to."""
        return [
            math.prod(self._slowdown(one, two, kind) for place, two in enumerate(looks) if place != at)
            for at, one in enumerate(looks)
        ]

    def _slowdown(self, one: Look, two: Look, kind: int) -> float:
        known = self.seen.get((one.kind, two.kind, kind))
        if known is not None:
            return known
        rates = self.view.rates
        return float(rates.alone[one.row, kind] / rates.paired[one.row, two.row, kind])

    def cost(self, looks: tuple[Look, ...], kind: int) -> float | None:
        """Of the last one's coming to the others, for each accelerator of this type; None where that is not allowed."""
        if (kind, looks) not in self._known:
            self._known[kind, looks] = self._cost(looks, kind)
        return self._known[kind, looks]

    def _cost(self, looks: tuple[Look, ...], kind: int) -> float | None:
        if not self.fit(looks, kind):
            return None
        if len(looks) > 1 and any(self.limit(look) < math.inf and not self.can_tell(look, kind) for look in looks):
            return None  # a limit that nobody could see broken is kept by being alone, and so its speed is learned
        slower = self.slowdowns(looks, kind)
        if any(one > self.limit(look) * (1 + ROUNDING) for one, look in zip(slower, looks) if len(looks) > 1):
            return None
        needs, there = sum(self.need_gb(look, kind) for look in looks), self.there_gb[kind]
        memory = 0.0 if math.isinf(there) else min(needs / there, 1.0)
        return self.memory_weight * memory + self.slowdown_weight * (sum(slower) / len(slower) - 1)

    def mean_slowdown(self, looks: tuple[Look, ...], kind: int) -> float:
        return sum(self.slowdowns(looks, kind)) / len(looks)

    @cached_property
    def _costs(self) -> tuple[Floats, Bools]:
        """Classes × types: how slow company is, both together, in the mean over all who are here and could share with it; and
        whether anybody could."""
        rates = self.view.rates
        rows, count = np.unique(rates.row, return_counts=True)
        alone, paired = rates.alone[rows], rates.paired[np.ix_(rows, rows)]
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = alone[:, None, :] / paired
        both = (kept + kept.transpose(1, 0, 2)) / 2 - 1
        there = np.isfinite(both) * count[None, :, None]
        usual, company = np.zeros_like(rates.alone), np.zeros(rates.alone.shape, dtype=np.bool_)
        mean = np.where(there > 0, both, 0.0) * there
        usual[rows] = 1 + mean.sum(axis=1) / np.maximum(there.sum(axis=1), 1)
        company[rows] = there.sum(axis=1) > 0
        return usual, company

    @property
    def usually(self) -> Floats:
        return self._costs[0]

    @property
    def has_company(self) -> Bools:
        return self._costs[1]

    def usual(self, look: Look, kind: int) -> float:
        return float(self.usually[look.row, kind])

    def elsewhere(self, look: Look, kind: int, spread: bool) -> float | None:
        """What the newcomer loses, alone, to being on this type and, where it is a gang, on so many nodes; None: all."""
        rates = self.view.rates
        rate = float((rates.spread if spread else rates.alone)[look.row, kind])
        return None if rate <= 0 else self.slowdown_weight * (float(self._best[look.row]) / rate - 1)
