"""On wall time a scheduler that fails must not end the loop: what it answers is looked at before it is believed, and where
there is no answer the plan is that nothing changes. In a simulation a stage that fails is an error, and this is not asked."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.errors import InvalidPlan
from fairlead.core.events import FactsLearned, Memo, MemoChanged, RoundPlanned
from fairlead.core.plan import RoundPlan
from fairlead.core.reasons import Reason
from fairlead.core.snapshot import Snapshot
from fairlead.engine.codec import encode


def undecided(view: Snapshot, why: Reason) -> RoundPlan:
    """Who runs goes on, whoever waits is told why, and the next round tries again."""
    waiting = view.jobs.number[~view.jobs.running]
    return RoundPlan(
        view.time,
        revisit=view.time,
        up=tuple(view.capacity.tolist()),
        reasons=dict.fromkeys([*waiting.tolist(), *view.queued.number.tolist()], why),
    )


def sound(plan: RoundPlan, memo: Memo, view: Snapshot) -> None:
    """Raises where a plan cannot be carried out, or the journal could not keep it. Who shares accelerators is not judged."""
    queued, alive = view.queued.number, view.jobs.number
    starts = plan.launches
    inside = np.concatenate((alive, plan.admitted))
    _among("admitted", plan.admitted, queued)
    _among("refused", np.array([number for number, _ in plan.refused], dtype=np.int64), queued)
    _among("ended", plan.ended, inside)
    _among("suspended", plan.suspended, view.jobs.runners.number)
    busy = np.setdiff1d(view.jobs.runners.number, plan.suspended)
    _among("launched", starts.jobs, np.setdiff1d(inside, np.concatenate((plan.ended, busy))))
    if len(starts):
        places = starts.accelerators
        if (starts.workers < 1).any() or (places < 0).any() or (places >= view.cluster.size).any():
            raise InvalidPlan("a job was launched on accelerators that are not there")
        if not view.up[places].all():
            raise InvalidPlan("a job was launched on a node that is not up")
        if (view.cluster.type_of[places] != starts.types.repeat(starts.workers)).any():
            raise InvalidPlan("a job was launched on accelerators of another type than the plan says")
    for event in (RoundPlanned(plan), MemoChanged(plan.time, memo), FactsLearned(plan.time, plan.learned)):
        encode(event)


def _among(what: str, numbers: Ints, known: Ints) -> None:
    strangers = numbers[~np.isin(numbers, known)]
    if len(strangers):
        raise InvalidPlan(f"job {strangers.item(0)} was {what}, and that cannot be")
    if len(np.unique(numbers)) < len(numbers):
        raise InvalidPlan(f"a job was {what} twice")
