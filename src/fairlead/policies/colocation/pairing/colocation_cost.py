"""Which jobs may share accelerators, and the cost of co-location (Horus §4.2.1, Equations 7 to 10):

    cost = ω₁ · (memory used and requested) / (device memory)  +  ω₂ · (predicted slowdown)

with the mean over the jobs that share. A slowdown is the estimator's exclusive rate over its co-located rate; an observed
slowdown of two kinds replaces it. Limits hold with the margin of an uncertain prediction (`DeviceUsage.slowdown_margin`). The
slowdown model is in `models/interference.py`. No accelerator is known by number here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.core.observed_slowdowns import MAX_UNCERTAINTY, ROUNDING
from fairlead.core.snapshot import Snapshot
from fairlead.prediction.step_prediction import job_prediction

PairSlowdowns: TypeAlias = Mapping[tuple[str, str, int], float]
"""Observed slowdown of a kind that is co-located with another, on a type."""


@dataclass(frozen=True)
class ColocationLimits:
    """How far accelerators are over-committed. `slo` is the slowdown limit of jobs without one of their own."""

    jobs: int = 2
    utilization: float = math.inf  # predicted, of all jobs together; 1 is a whole accelerator
    memory: float = 1.0  # fraction of the device memory
    slo: float = math.inf


@dataclass(frozen=True)
class JobSignature:
    """All properties of a job that matter for co-location."""

    row: int  # class of its rates
    kind: str
    workers: int
    fits: int
    min_memory_gb: float  # lower bound of any prediction
    max_slowdown: float
    cpus: float
    host_memory_gb: float


def job_signatures(view: Snapshot, min_memory_gb: Mapping[str, float]) -> dict[int, JobSignature]:
    """Signatures by number; equal ones are one object. `min_memory_gb` raises memory, by number as text."""
    jobs, kinds, signatures, unique = view.jobs, view.names.kinds, dict[int, JobSignature](), dict[Any, JobSignature]()
    columns = (jobs.number, view.rates.row, jobs.kind, jobs.workers, jobs.fits, jobs.memory_gb, jobs.cpus, jobs.host_memory_gb)
    for number, row, kind, workers, fits, memory, cpus, host_memory in zip(*(column.tolist() for column in columns)):
        job = view.job_of[number]
        if job.prediction and view.rates.usage is not None and memory == job_prediction(job.prediction).memory_gb:
            memory = 0.0  # not requested, but predicted: the estimator has it, or what was measured
        memory = max(memory, min_memory_gb.get(str(number), 0.0)) if min_memory_gb else memory
        key = (row, kinds[kind], workers, fits, memory, job.max_slowdown, cpus, host_memory)
        if (signature := unique.get(key)) is None:
            signature = unique[key] = JobSignature(*key)
        signatures[number] = signature
    return signatures


@dataclass(frozen=True)
class ColocationCost:
    """Feasibility and cost of co-location at one moment. Costs are cached, as many jobs have the same signature."""

    view: Snapshot
    limits: ColocationLimits
    memory_weight: float
    slowdown_weight: float
    observed: PairSlowdowns
    _cache: dict[tuple[int, tuple[JobSignature, ...]], float | None] = field(default_factory=dict)

    @cached_property
    def device_memory_gb(self) -> list[float]:
        return [type_.memory_gb for type_ in self.view.cluster.types]

    @cached_property
    def _best(self) -> Floats:
        rates = self.view.rates
        return rates.best if rates.best is not None else rates.alone.max(axis=1)

    @cached_property
    def _least_paired(self) -> Floats:
        return self.view.rates.least_paired

    def memory_gb(self, job: JobSignature, type_: int) -> float:
        """The larger of predicted and requested memory, or the request; with neither, a whole device."""
        usage = self.view.rates.usage
        predicted = 0.0 if usage is None else float(usage.memory_gb[job.row, type_])
        if math.isinf(predicted) and job.min_memory_gb > 0:
            return job.min_memory_gb
        return max(predicted, job.min_memory_gb)

    def fits(self, jobs: tuple[JobSignature, ...], type_: int) -> bool:
        """Whether jobs may share an accelerator of a type, slowdowns aside."""
        if len(jobs) == 1:
            return True
        if len(jobs) > self.limits.jobs or any(self.runs_alone(job) for job in jobs):
            return False
        if (usage := self.view.rates.usage) is not None:
            utilization = sum(float(usage.utilization[job.row, type_]) for job in jobs)
            if utilization > self.limits.utilization + ROUNDING:
                return False
        memory = sum(self.memory_gb(job, type_) for job in jobs)
        if math.isinf(memory) or memory > self.limits.memory * self.device_memory_gb[type_] * (1 + ROUNDING):
            return False  # a job that needs a whole device is not co-located, also where its memory is unknown
        paired = self.view.rates.paired
        pairs = ((one.row, two.row) for at, one in enumerate(jobs) for two in jobs[at + 1 :])
        return all(paired[a, b, type_] > 0 and paired[b, a, type_] > 0 for a, b in pairs)

    def runs_alone(self, job: JobSignature) -> bool:
        """Whether a job tolerates no slowdown."""
        return self.slowdown_limit(job) <= 1.0

    def slowdown_limit(self, job: JobSignature) -> float:
        """The largest slowdown that a job tolerates: its own limit, or else the scheduler's."""
        return job.max_slowdown if job.max_slowdown < math.inf else self.limits.slo

    def rate_known(self, job: JobSignature, type_: int) -> bool:
        """Whether the exclusive rate is known, so that a slowdown can be observed."""
        uncertainty = self.view.rates.uncertainty
        return uncertainty is None or float(uncertainty[job.row, type_]) < MAX_UNCERTAINTY

    def slowdowns(self, jobs: tuple[JobSignature, ...], type_: int, *, upper: bool = False) -> list[float]:
        """The slowdown of each job: the product over its neighbours, observed or else predicted (`upper`: with its margin)."""
        return [
            math.prod(self._slowdown(one, two, type_, upper) for other, two in enumerate(jobs) if other != at)
            for at, one in enumerate(jobs)
        ]

    def _slowdown(self, one: JobSignature, two: JobSignature, type_: int, upper: bool) -> float:
        observed = self.observed.get((one.kind, two.kind, type_))
        if observed is not None:
            return observed
        paired = self._least_paired if upper else self.view.rates.paired
        return float(self.view.rates.alone[one.row, type_] / paired[one.row, two.row, type_])

    def cost(self, jobs: tuple[JobSignature, ...], type_: int) -> float | None:
        """The cost per accelerator of this type if the last job joins the others; None where that is not allowed."""
        if (type_, jobs) not in self._cache:
            self._cache[type_, jobs] = self._cost(jobs, type_)
        return self._cache[type_, jobs]

    def _cost(self, jobs: tuple[JobSignature, ...], type_: int) -> float | None:
        if not self.fits(jobs, type_):
            return None
        slowdowns = self.slowdowns(jobs, type_)
        if len(jobs) > 1:
            limits = [self.slowdown_limit(job) for job in jobs]
            # A job with a limit runs alone until its exclusive rate is known: a violation could not be observed.
            if any(limit < math.inf and not self.rate_known(job, type_) for limit, job in zip(limits, jobs)):
                return None
            upper = self.slowdowns(jobs, type_, upper=True)
            if any(slowdown > limit * (1 + ROUNDING) for slowdown, limit in zip(upper, limits)):
                return None
        memory, device = sum(self.memory_gb(job, type_) for job in jobs), self.device_memory_gb[type_]
        fraction = 0.0 if math.isinf(device) else min(memory / device, 1.0)
        return self.memory_weight * fraction + self.slowdown_weight * (sum(slowdowns) / len(slowdowns) - 1)

    @cached_property
    def typical(self) -> tuple[Floats, Bools]:
        """Classes × types: the mean slowdown over all possible pairs of a class, and whether there is any."""
        rates = self.view.rates
        rows, count = np.unique(rates.row, return_counts=True)
        alone, paired = rates.alone[rows], rates.paired[np.ix_(rows, rows)]
        with np.errstate(divide="ignore", invalid="ignore"):
            slowdown = alone[:, None, :] / paired
        both = (slowdown + slowdown.transpose(1, 0, 2)) / 2 - 1
        partners = np.isfinite(both) * count[None, :, None]
        mean, has_partner = np.zeros_like(rates.alone), np.zeros(rates.alone.shape, dtype=np.bool_)
        total = np.where(partners > 0, both, 0.0) * partners
        mean[rows] = 1 + total.sum(axis=1) / np.maximum(partners.sum(axis=1), 1)
        has_partner[rows] = partners.sum(axis=1) > 0
        return mean, has_partner

    def type_cost(self, job: JobSignature, type_: int, spread: bool) -> float | None:
        """The exclusive slowdown of a job on a type, and on more nodes than it needs, as a cost; None: it cannot run so."""
        rates = self.view.rates
        rate = float((rates.spread if spread else rates.alone)[job.row, type_])
        return None if rate <= 0 else self.slowdown_weight * (float(self._best[job.row]) / rate - 1)
