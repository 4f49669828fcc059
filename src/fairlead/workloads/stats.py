"""A trace in numbers: how many jobs, how large, how long, how much load. It knows no cluster but its size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairlead.core.errors import InputError
from fairlead.core.job import TIMED
from fairlead.workloads.trace import Trace

QUANTILES = {"min": 0, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p99": 99, "max": 100}


@dataclass(frozen=True)
class TraceStats:
    """What cannot be known from the trace is None. Run times are those of jobs whose work is given in seconds; how long the
    others take depends on where they run."""

    name: str
    origin: str | None
    jobs: int
    skipped: int
    users: int
    entities: int
    kinds: Mapping[str, int]  # jobs of each kind, the most frequent first; TIMED ones are not among them
    timed_jobs: int
    span_s: float  # from the first submission to the last
    jobs_per_hour: float | None
    workers: Mapping[int, int]  # jobs of each gang size
    duration_s: Mapping[str, float] | None
    steps: Mapping[str, float] | None
    accelerator_hours: float | None  # None unless all jobs are timed
    accelerators: int | None
    offered_load: float | None  # accelerator time asked for, over what the accelerators have during the span

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with text for keys, as JSON wants them."""
        plain = asdict(self)
        plain["workers"] = {str(size): count for size, count in self.workers.items()}
        return plain


def trace_stats(trace: Trace, accelerators: int | None = None) -> TraceStats:
    if accelerators is not None and accelerators < 1:
        raise InputError("trace stats", "a whole number of at least 1", field="accelerators", value=accelerators)
    jobs, span_s = trace.jobs, trace.span_s
    timed = [job for job in jobs if job.kind == TIMED]
    all_timed = len(timed) == len(jobs)
    accelerator_s = sum(job.steps * job.workers for job in timed)
    has_load = all_timed and accelerators is not None and span_s > 0
    return TraceStats(
        name=trace.name,
        origin=trace.origin,
        jobs=len(jobs),
        skipped=len(trace.skipped),
        users=len({job.user for job in jobs} - {""}),
        entities=len({job.entity for job in jobs} - {""}),
        kinds=dict(Counter(job.kind for job in jobs if job.kind != TIMED).most_common()),
        timed_jobs=len(timed),
        span_s=span_s,
        jobs_per_hour=(len(jobs) - 1) / span_s * 3600 if span_s > 0 else None,
        workers=dict(sorted(Counter(job.workers for job in jobs).items())),
        duration_s=_quantiles([job.steps for job in timed]),
        steps=_quantiles([job.steps for job in jobs if job.kind != TIMED]),
        accelerator_hours=accelerator_s / 3600 if all_timed else None,
        accelerators=accelerators,
        offered_load=accelerator_s / (accelerators * span_s) if has_load and accelerators is not None else None,
    )


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.percentile(np.asarray(values, dtype=np.float64), list(QUANTILES.values()))
    return {"mean": float(np.mean(values)), **dict(zip(QUANTILES, found.tolist()))}
