"""Jobs that serve requests: they are there for so many seconds, and more replicas get nothing done sooner. It knows no
scheduler and no requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.errors import InputError, near_or_all
from fairlead.core.events import MetricsReported
from fairlead.core.inference import REPORTED
from fairlead.core.job import TIMED
from fairlead.workloads.nature import Nature, Speed, Standing
from fairlead.workloads.trace import Trace


@dataclass(frozen=True)
class Serves(Nature):
    """A second is a second, with any number of replicas. A session of a kind that the table knows goes on as its kind does,
    whatever batch its requests come in."""

    timed: bool = True

    def speed(self, standing: Standing) -> Speed:
        return Speed(1.0 if self.timed else standing.rate)


def with_sessions(trace: Trace, names: Collection[str]) -> Trace:
    """The same trace, in which the jobs of these names serve."""
    natures = {job.name: Serves(job.kind == TIMED) for job in trace.jobs if job.name in names}
    return replace(trace, natures={**natures, **trace.natures}) if natures else trace


def told_rates(trace: Trace, rates: Mapping[str, Sequence[tuple[float, float]]], source: object) -> list[MetricsReported]:
    """What sessions report of their requests: from which second on, how many a second. Before a job is there it reports
    nothing, and when it comes what is so then."""
    found = []
    number_of = {job.name: number for number, job in enumerate(trace.jobs)}
    for name, parts in rates.items():
        if name not in number_of:
            raise InputError(source, f"the name of a job of the trace ({near_or_all(name, number_of)})", field=name)
        number = number_of[name]
        begin = trace.jobs[number].submitted_s
        first = [(begin, rate) for second, rate in parts if second <= begin][-1:]
        for second, rate in [*first, *(part for part in parts if part[0] > begin)]:
            found.append(MetricsReported(second, REPORTED, np.array([number]), np.array([rate])))
    return sorted(found, key=lambda event: event.time)
