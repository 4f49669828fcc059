"""A real run and a simulation of the same jobs under the same scheduler, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.config.schedulers import scheduler_of
from fairlead.core import events as ev
from fairlead.core.cluster import Floats
from fairlead.core.errors import FairleadError
from fairlead.core.job import Phase
from fairlead.engine.apply import replay_events
from fairlead.experiments.inputs import rates_with_dynamics, used_rates
from fairlead.experiments.metrics import DEFAULTS, completion_times
from fairlead.experiments.run_record import RunRecord, record_of
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.trace import Trace
from fairlead_papers.fidelity.measuring import Measured


class NotFinished(FairleadError):
    """Some jobs of a real run did not come to their end, so that there is nothing to compare."""


@dataclass(frozen=True)
class Beside:
    """Jobs are in the same order on both sides, and what each would take alone is the same number."""

    real: RunRecord
    simulated: RunRecord

    @property
    def jct_s(self) -> tuple[Floats, Floats]:
        return completion_times(self.real.jobs, DEFAULTS), completion_times(self.simulated.jobs, DEFAULTS)

    @property
    def by_job(self) -> Floats:
        """Of each job, |simulated − real| / real completion time."""
        real, simulated = self.jct_s
        return np.asarray(np.abs(simulated - real) / real, dtype=np.float64)


def beside(trace: Trace, scheduler: Mapping[str, Any], told: Measured, events: Sequence[ev.Event]) -> Beside:
    """`events` are those of the real run; the simulation learns nothing of them but on which cluster they were."""
    state, config = replay_events(events), scheduler_of(scheduler)
    rates = {**used_rates(trace.jobs, told.table), **rates_with_dynamics(trace, told.table, state.cluster)}
    real = record_of(state, config.label, trace.name, rates, {})
    left = [name for name, phase in zip(real.jobs.names, real.jobs.phase.tolist()) if phase != Phase.FINISHED]
    if left or real.jobs.names != tuple(job.name for job in trace.jobs):
        raise NotFinished(f"not all jobs finished on the real cluster: {', '.join(left) or 'some were never submitted'}")
    run = run_simulation(Simulation(trace, state.cluster, config, told.table, told.costs))
    return Beside(real, run.record)
