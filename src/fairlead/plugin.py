"""Everything that the author of a plug-in imports: the stage protocols, the values they exchange, and ranking helpers.

A policy is a class with one method:

    from fairlead.plugin import Memo, Selection, Snapshot, in_order

    class EarliestDeadlineFirst:
        # Rank jobs by submission time plus deadline, earliest first.
        def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
            return in_order(view, view.jobs.submitted_s + view.jobs.deadline_s), memo

Try it with `fairlead.simulate(trace, cluster, EarliestDeadlineFirst())`, check it with
`fairlead.testing.policy_contract(EarliestDeadlineFirst)`, and give it a name with an entry point in the group
`fairlead.policies`."""

from __future__ import annotations

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.device_map import ragged
from fairlead.core.errors import FairleadError, InputError, InvalidPlan
from fairlead.core.events import Event, Memo
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Admitted, Launches, Observations, Placed, Rates, RoundPlan, Selection
from fairlead.core.reasons import Code, Reason, Reasons, Unplaced
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import (
    Admission,
    Allocator,
    Backend,
    Estimator,
    LearningEstimator,
    Mechanism,
    Placement,
    Policy,
    Termination,
)
from fairlead.policies.ranking.base import in_order
from fairlead.workloads.trace import OnBad, Trace, check_job

__all__ = [
    "AcceleratorType",
    "Admission",
    "Admitted",
    "Allocation",
    "Allocator",
    "Backend",
    "Cluster",
    "Code",
    "Estimator",
    "Event",
    "FairleadError",
    "InputError",
    "InvalidPlan",
    "Job",
    "Launches",
    "LearningEstimator",
    "Mechanism",
    "Memo",
    "Node",
    "Observations",
    "OnBad",
    "Phase",
    "Placed",
    "Placement",
    "Policy",
    "Rates",
    "Reason",
    "Reasons",
    "RoundPlan",
    "Selection",
    "Snapshot",
    "Termination",
    "Trace",
    "Unplaced",
    "check_job",
    "in_order",
    "ragged",
    "stream",
]
