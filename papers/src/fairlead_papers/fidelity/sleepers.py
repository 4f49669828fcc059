"""Jobs as processes that sleep in the place of computing: a step ends at the moment at which an accelerator would be done with
it, however busy the processors are. Batch sizes change as a job's regimes say, and are announced as they change. It knows no
cluster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.core.job import Job, batch_size_of, kind_of, model_of
from fairlead.workloads.dynamics import JobDynamics, Regimes
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace

SCRIPT = """
import json, os, sys, time
import fairlead

parts = json.loads(sys.argv[1])
on = next(name for name in parts[0]["step_s"] if f"/{name}-" in os.environ["FAIRLEAD_REPORTS"])  # the path names the node
lease = fairlead.lease([part for part in parts for _ in range(part["steps"])], save=lambda folder: None)
done = None
for part in lease:
    if part["batch_size"]:
        lease.batch_size = part["batch_size"]
    done = (time.monotonic() if done is None else done) + part["step_s"][on]
    time.sleep(max(0.0, done - time.monotonic()))
"""


@dataclass(frozen=True)
class Part:
    """A stretch of a job: steps of one batch size (0: of none that is announced), and how long each takes by type."""

    batch_size: int
    steps: int
    step_s: Mapping[str, float]


def parts_of(job: Job, job_dynamics: JobDynamics | None, table: ThroughputTable) -> tuple[Part, ...]:
    """What its process does, at a table's rates. There is a step at least of every batch size."""
    if not isinstance(job_dynamics, Regimes):
        return (Part(0, max(1, round(job.steps)), _step_s(table, job.kind, job.workers)),)
    made = []
    for size, share in job_dynamics.parts:
        steps = max(1, round(share * job.steps * job_dynamics.declared_size / size))
        made.append(Part(size, steps, _step_s(table, kind_of(model_of(job.kind), size), job.workers)))
    return tuple(made)


def in_whole_steps(trace: Trace, table: ThroughputTable) -> Trace:
    """The same jobs with the work that processes will do: at every batch size, a whole number of steps."""
    jobs, dynamics = [], dict[str, JobDynamics]()
    for job in trace.jobs:
        parts, size = parts_of(job, trace.dynamics.get(job.name), table), batch_size_of(job.kind) or 1
        steps = [part.steps * (part.batch_size or size) / size for part in parts]
        jobs.append(replace(job, steps=sum(steps)))
        if job.name in trace.dynamics:
            shares = [each / sum(steps) for each in steps]
            dynamics[job.name] = Regimes.of(jobs[-1], zip((part.batch_size for part in parts), shares))
    return Trace.of(jobs, trace.name, dynamics=dynamics)


def task_of(job: Job, parts: tuple[Part, ...], script: Path) -> dict[str, Any]:
    """As its owner would submit it."""
    told = [{"batch_size": part.batch_size, "steps": part.steps, "step_s": dict(part.step_s)} for part in parts]
    return {
        "name": job.name,
        "kind": job.kind,
        "workers": job.workers,
        "mode": job.mode,
        "steps": job.steps,
        "types": list(job.allowed_types),
        "run": [sys.executable, str(script), json.dumps(told)],
        "env": {"PYTHONPATH": os.pathsep.join(sys.path)},
    }


def _step_s(table: ThroughputTable, kind: str, workers: int) -> dict[str, float]:
    rates = table.alone[table.row(kind, workers)].tolist()
    return {name: 1.0 / rate for name, rate in zip(table.types, rates) if rate > 0}
