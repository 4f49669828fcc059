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

from fairlead.core.allocation import Allocation as Allocation
from fairlead.core.cluster import AcceleratorType as AcceleratorType
from fairlead.core.cluster import Cluster as Cluster
from fairlead.core.cluster import Node as Node
from fairlead.core.device_map import ragged as ragged
from fairlead.core.errors import FairleadError as FairleadError
from fairlead.core.errors import InputError as InputError
from fairlead.core.errors import InvalidPlan as InvalidPlan
from fairlead.core.events import Event as Event
from fairlead.core.events import Memo as Memo
from fairlead.core.job import Job as Job
from fairlead.core.job import Phase as Phase
from fairlead.core.plan import Admitted as Admitted
from fairlead.core.plan import Launches as Launches
from fairlead.core.plan import Observations as Observations
from fairlead.core.plan import Placed as Placed
from fairlead.core.plan import Rates as Rates
from fairlead.core.plan import RoundPlan as RoundPlan
from fairlead.core.plan import Selection as Selection
from fairlead.core.reasons import Code as Code
from fairlead.core.reasons import Reason as Reason
from fairlead.core.reasons import Reasons as Reasons
from fairlead.core.reasons import Unplaced as Unplaced
from fairlead.core.rng import stream as stream
from fairlead.core.snapshot import Snapshot as Snapshot
from fairlead.core.stages import Admission as Admission
from fairlead.core.stages import Allocator as Allocator
from fairlead.core.stages import Backend as Backend
from fairlead.core.stages import Estimator as Estimator
from fairlead.core.stages import LearningEstimator as LearningEstimator
from fairlead.core.stages import Mechanism as Mechanism
from fairlead.core.stages import Placement as Placement
from fairlead.core.stages import Policy as Policy
from fairlead.core.stages import Termination as Termination
from fairlead.policies.ranking.base import in_order as in_order
from fairlead.workloads.trace import OnBad as OnBad
from fairlead.workloads.trace import Trace as Trace
from fairlead.workloads.trace import check_job as check_job

__all__ = sorted(name for name in globals() if name[0] != "_" and name != "annotations")
