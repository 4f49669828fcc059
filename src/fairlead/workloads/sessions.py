"""What a trace's sessions report of their requests. It knows no scheduler and serves nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fairlead.core.events import MetricsReported
from fairlead.core.inference import REPORTED
from fairlead.workloads.trace import Trace


def told_rates(trace: Trace, rates: Mapping[str, Sequence[tuple[float, float]]]) -> list[MetricsReported]:
    """What sessions report of their requests: from which second on, how many a second. Before a job is there it reports
    nothing, and when it comes what is so then."""
    found = []
    number_of = {job.name: number for number, job in enumerate(trace.jobs)}
    for name, parts in rates.items():
        number = number_of[name]
        begin = trace.jobs[number].submitted_s
        first = [(begin, rate) for second, rate in parts if second <= begin][-1:]
        for second, rate in [*first, *(part for part in parts if part[0] > begin)]:
            found.append(MetricsReported(second, REPORTED, np.array([number]), np.array([rate])))
    return sorted(found, key=lambda event: event.time)
