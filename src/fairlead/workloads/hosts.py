"""Jobs that wait for their host: their speed depends on the CPUs and the memory that each of their workers is given. It knows
how a file says so of models, and no scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.core.job import model_of
from fairlead.core.sensitivity import Sensitivity
from fairlead.workloads.nature import Nature, Speed, Standing
from fairlead.workloads.trace import Trace


@dataclass(frozen=True)
class HostBound(Nature):
    """As fast as the table says, times what its host makes of that."""

    sensitivity: Sensitivity

    def speed(self, standing: Standing) -> Speed:
        return Speed(standing.rate * self.sensitivity.speed(standing.cpus, standing.host_memory_gb))


def bound_to_hosts(trace: Trace, known: Mapping[str, Sensitivity]) -> Trace:
    """The same trace, in which jobs of some kinds, or of some models at any batch size, depend on their hosts. Who has another
    nature keeps it."""
    natures = dict(trace.natures)
    for job in trace.jobs:
        sensitivity = known.get(job.kind) or known.get(model_of(job.kind))
        if sensitivity is not None:
            natures.setdefault(job.name, HostBound(sensitivity))
    return replace(trace, natures=natures)
