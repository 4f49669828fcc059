"""Rates in company for simulations from a running cluster's state, where nobody has measured any: as the scheduler's estimation
believes, and of those of whom it believes nothing and who share all the same, as they run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlead.config import SchedulerConfig
from fairlead.config.registry import Registry
from fairlead.config.schedulers import make, scheduler_of
from fairlead.core.cluster import Floats
from fairlead.core.snapshot import Snapshot
from fairlead.engine.state import State
from fairlead.estimators.colocated_rates import ColocationEstimator
from fairlead.workloads.throughput_tables import ThroughputTable


def believed(table: ThroughputTable, state: State, scheduler: SchedulerConfig) -> ThroughputTable:
    """With what an estimation believes of company, by all that was learned; what the table has of it stays."""
    estimator = make("estimator", scheduler.estimator, Registry.installed(), {"table": table})
    if not isinstance(estimator, ColocationEstimator):
        return table
    paired, _, _ = estimator.colocation_model().rates_of(state.snapshot(), [kind for kind, _ in table.keys], table.alone)
    return replace(table, paired=np.where(table.paired > 0, table.paired, paired))


def with_company(table: ThroughputTable, state: State) -> ThroughputTable:
    """The same, and so that whoever shares now can go on."""
    table = believed(table, state, scheduler_of(state.scheduler))
    return replace(table, paired=_as_they_run(table, state.snapshot()))


def _as_they_run(table: ThroughputTable, view: Snapshot) -> Floats:
    jobs, paired = view.jobs.runners, table.paired.copy()
    columns = (jobs.number, jobs.held, jobs.type, jobs.rate)
    stands = {number: (held, type_, rate) for number, held, type_, rate in zip(*(column.tolist() for column in columns))}
    row = {n: table.row_of.get((view.job_of[n].kind, stands[n][0]), 0) for n in stands}  # 0: of who counts in seconds
    together: dict[int, list[int]] = {}
    for number, place in zip(*(column.tolist() for column in view.device_map.places(jobs.number))):
        together.setdefault(place, []).append(number)
    for one, other in sorted({(one, other) for there in together.values() for one in there for other in there if one != other}):
        _, type_, rate = stands[one]
        if paired[row[one], row[other], type_] <= 0:
            paired[row[one], row[other], type_] = rate if rate > 0 else table.alone[row[one], type_] / 2
    return paired
