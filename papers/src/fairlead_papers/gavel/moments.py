"""Made-up moments: so many jobs that all are there and wait, as a policy sees them. No time passes in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError
from fairlead.core.job import Job
from fairlead.core.plan import RoundPlan
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocated, Allocator, Stages
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.workloads.throughput_tables import ThroughputTable


def stages_of(policy: str, table: ThroughputTable, cluster: Cluster) -> Stages:
    return SchedulerConfig(policy=parse_part(policy)).build(table.for_types(cluster.type_names), Registry.installed())


def allocator_of(stages: Stages) -> Allocator:
    if not isinstance(stages.policy, Allocated):
        raise FairleadError("this policy computes no time fractions")
    return stages.policy.allocator


def moment(cluster: Cluster, jobs: Sequence[Job], stages: Stages) -> Snapshot:
    state = State(cluster)
    apply_event(state, ev.JournalOpened(0.0, cluster, {}, "moment", None))
    for number, job in enumerate(jobs):
        apply_event(state, ev.JobSubmitted(0.0, number, job))
    apply_event(state, ev.RoundPlanned(RoundPlan(0.0, admitted=np.arange(len(jobs), dtype=np.int64))))
    return state.snapshot(0.0).with_changes(estimate=stages.estimator.rates)
