"""One decision, as a pure function: a snapshot and a memo go in, a plan and a memo come out. No I/O, no clock, no randomness
that is not in the arguments; what it returns depends on nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlead.core.cluster import Bools, Cluster, Ints
from fairlead.core.errors import InvalidPlan
from fairlead.core.events import Memo
from fairlead.core.holdings import NONE
from fairlead.core.job import Job
from fairlead.core.plan import Placed, RoundPlan, Selection
from fairlead.core.reasons import Reason, Unplaced
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Stages


def decide(view: Snapshot, memo: Memo, stages: Stages) -> tuple[RoundPlan, Memo]:
    """The stages in their order: door, admission, estimation, termination, policy, placement."""
    # 1. Whoever can never run here is refused with the reason, so that it cannot hold up a queue or an optimum.
    refused = _refused(view, stages)
    if refused:
        gone = np.array([number for number, _ in refused], dtype=np.int64)
        view = view.but(queued=view.queued.only(~np.isin(view.queued.number, gone)))

    # 2. Who may enter. Policies see admitted jobs only.
    admitted = stages.admission.admit(view)
    view = view.admitting(admitted.jobs).but(estimate=stages.estimation.rates)

    # 3. Who is done before the last step frees accelerators for this very decision.
    ended = stages.termination.finished_early(view)
    leaving = view.without(ended)

    # 4. Who should run, with those that must be left alone in front.
    selection, memo = stages.policy.select(leaving, memo)
    selection = _keep_protected(selection, leaving)

    # 5. Where. What was running and is neither kept nor ended is suspended.
    placed = stages.placement.place(selection, leaving)
    suspended = _suspended(placed, leaving)
    plan = RoundPlan(
        time=view.time,
        refused=refused,
        admitted=admitted.jobs,
        ended=ended,
        suspended=suspended,
        launches=placed.launches,
        holds_until=selection.holds_until,
        free=placed.free,
        up=tuple(view.capacity.tolist()),
        head=selection.head,
        reasons={**selection.reasons, **placed.unplaced, **admitted.reasons},
        not_admitted=admitted.others,
    )
    return plan, memo


def why_waiting(plan: RoundPlan, number: int, job: Job, view: Snapshot) -> Reason:
    """Why a job that is alive does not run after this plan; every waiting job has an answer."""
    known = plan.reasons.get(number)
    if known is not None:
        return known
    if plan.not_admitted is not None and number in view.queued.number:
        return plan.not_admitted
    if number in view.queued.number:
        return Unplaced.next_decision()
    suits = [t for t, name in enumerate(view.cluster.type_names) if not job.allowed_types or name in job.allowed_types]
    up = max((plan.up[t] for t in suits), default=0)
    if up < job.workers:
        return Unplaced.nodes_down(job.workers, up=up)
    if plan.head is not None and plan.head != number:
        head = view.job_of[plan.head]
        return Unplaced.behind(head.name, needed=head.workers)
    return Unplaced.outranked(job.workers, free=max((plan.free[t] for t in suits), default=0))


def _refused(view: Snapshot, stages: Stages) -> tuple[tuple[int, Reason], ...]:
    queued = view.queued
    if not len(queued):
        return ()
    rates = stages.estimation.rates(view.but(jobs=queued))
    suits = queued.fits & rates.runs_on[rates.row]
    if np.count_nonzero(suits) == len(suits):
        return ()
    hopeless = suits == 0
    numbers = queued.number[hopeless].tolist()
    return tuple((number, _never(view.job_of[number], view.cluster)) for number in numbers)


def _never(job: Job, cluster: Cluster) -> Reason:
    suits = [t for t in cluster.types if not job.allowed_types or t.name in job.allowed_types]
    if not suits:
        return Unplaced.unsuitable(f"it asks for {', '.join(job.allowed_types)}; there are {', '.join(cluster.type_names)}")
    largest = max(int(cluster.size_of_type[cluster.type_code[t.name]]) for t in suits)
    if job.workers > largest:
        return Unplaced.needs(job.workers, "accelerators", of_at_most=largest)
    memory = max(t.memory_gb for t in suits)
    if job.memory_gb > memory:
        return Unplaced.needs(job.memory_gb, "GB of accelerator memory", of_at_most=memory)
    return Unplaced.unsuitable(f"no throughput above 0 for {job.kind!r} with {job.workers} workers")


def _keep_protected(selection: Selection, view: Snapshot) -> Selection:
    """Jobs inside their minimum run stay selected, whatever the policy thought; the last in its order give way."""
    protected = view.protected
    if protected is None:
        return selection
    missing: Bools = protected & ~np.isin(view.jobs.number, selection.jobs)
    if not missing.any():
        return replace(selection, holds_until=_sooner(selection.holds_until, view.protection_ends))
    if selection.combination is not None or selection.pinned:
        raise InvalidPlan("a policy that combines or pins jobs must itself keep those inside their minimum run")
    jobs = np.concatenate((view.jobs.number[missing], selection.jobs))
    types = np.concatenate((view.jobs.type[missing], selection.types))
    workers = np.concatenate((view.jobs.held[missing], selection.workers))
    free = view.capacity.tolist()
    stay = []
    for index, (kind, want) in enumerate(zip(types.tolist(), workers.tolist())):
        if free[kind] >= want:
            free[kind] -= want
            stay.append(index)
    return replace(selection, jobs=jobs[stay], types=types[stay], workers=workers[stay], holds_until=None)


def _sooner(holds_until: float | None, second: float) -> float | None:
    return None if holds_until is None else min(holds_until, second)


def _suspended(placed: Placed, view: Snapshot) -> Ints:
    running = view.jobs.runners.number
    if len(running) == len(placed.kept):
        return NONE
    if not len(placed.kept):
        return running
    stays = np.zeros(int(running[-1]) + 1, dtype=np.bool_)
    stays[placed.kept] = True
    return running[~stays[running]]
