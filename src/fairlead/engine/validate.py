"""On wall time a scheduler that fails must not end the loop: what it answers is looked at before it is believed, and where
there is no answer the plan is that nothing changes. In a simulation a stage that fails is an error, and this is not asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.device_map import NONE
from fairlead.core.errors import InvalidPlan
from fairlead.core.events import Memo, MemoChanged, ObservationsRecorded, RoundPlanned
from fairlead.core.job import ELASTIC
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.reasons import Reason
from fairlead.core.routes import Routes
from fairlead.core.snapshot import Snapshot
from fairlead.engine.codec import decode, encode


def no_op_plan(view: Snapshot, why: Reason) -> RoundPlan:
    """Who runs goes on, whoever waits is told why, and the next round tries again."""
    waiting = view.jobs.number[~view.jobs.running]
    return RoundPlan(
        view.time,
        revisit=view.time,
        up=tuple(view.capacity.tolist()),
        reasons=dict.fromkeys([*waiting.tolist(), *view.queued.number.tolist()], why),
    )


def validate_plan(plan: RoundPlan, memo: Memo, view: Snapshot) -> None:
    """Raises where a plan cannot be carried out, or the journal could not keep it."""
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
        _apart(plan, np.setdiff1d(busy, plan.ended), view)
        _as_they_may(starts, view)
    if plan.routes:
        _where_they_stand(plan, np.setdiff1d(busy, plan.ended), view)
        decode(encode(RoundPlanned(plan)))
    for event in (RoundPlanned(plan), MemoChanged(plan.time, memo), ObservationsRecorded(plan.time, plan.observations)):
        encode(event)


def _as_they_may(starts: Launches, view: Snapshot) -> None:
    """A script that was not written for another number of workers or another batch size must not be started with one."""
    sizes = [0] * len(starts) if starts.batch_sizes is None else starts.batch_sizes.tolist()
    for number, workers, size in zip(starts.jobs.tolist(), starts.workers.tolist(), sizes):
        job = view.job_of[number]
        if job.mode != ELASTIC and (workers != job.workers or size):
            what = f"with batch size {size}" if workers == job.workers else f"with {workers} workers, not {job.workers}"
            raise InvalidPlan(f"job {job.name!r} was launched {what}, and is not elastic")


def _where_they_stand(plan: RoundPlan, staying: Ints, view: Snapshot) -> None:
    starts = plan.launches
    there = dict(zip(starts.jobs.tolist(), np.split(starts.accelerators, starts.offsets[1:-1])))
    there |= {number: view.device_map.of(number) for number in staying.tolist() if number in plan.routes}
    for number, route in plan.routes.items():
        if list(route.accelerators) != there.get(number, NONE).tolist():
            raise InvalidPlan(f"job {number} was routed to accelerators {list(route.accelerators)}, and does not stand there")


def _apart(plan: RoundPlan, staying: Ints, view: Snapshot) -> None:
    """Nobody is launched twice on one accelerator, nor beside anybody who is not of its combination; those with routes serve
    beside each other."""
    starts = plan.launches
    jobs, places = starts.jobs.repeat(starts.workers), starts.accelerators
    if len(np.unique(places)) < len(places) and np.unique((jobs, places), axis=1).shape[1] < len(places):
        raise InvalidPlan("a job was launched twice on one accelerator")
    others, held = view.device_map.places(staying)
    beside = np.isin(held, places)
    jobs, places = np.concatenate((jobs, others[beside])), np.concatenate((places, held[beside]))
    order = np.argsort(places, kind="stable")
    jobs, places = jobs[order], places[order]
    together = places[1:] == places[:-1]
    if not together.any():
        return
    group, serves = _groups(plan, jobs), np.isin(jobs, [*plan.routes, *view.routes])
    wrong = (together & (group[1:] != group[:-1]) & ~(serves[1:] & serves[:-1])).nonzero()[0]
    if len(wrong):
        one, other = jobs[wrong[0]], jobs[wrong[0] + 1]
        raise InvalidPlan(f"jobs {one} and {other} were to share accelerator {places[wrong[0]]}, and nobody selected them to")


def _groups(plan: RoundPlan, jobs: Ints) -> Ints:
    """Of each job, a number that it has in common with those that it may share accelerators with."""
    selected, combination = (NONE, NONE) if plan.combinations is None else plan.combinations
    _, group = np.unique(combination, return_inverse=True)
    known = dict(zip(selected.tolist(), group.tolist()))
    return np.array([known.get(job, -1 - job) for job in jobs.tolist()], dtype=np.int64)


def _among(what: str, numbers: Ints, known: Ints) -> None:
    strangers = numbers[~np.isin(numbers, known)]
    if len(strangers):
        raise InvalidPlan(f"job {strangers.item(0)} was {what}, and that cannot be")
    if len(np.unique(numbers)) < len(numbers):
        raise InvalidPlan(f"a job was {what} twice")


# What of a plan is still possible at a later moment than it was made for. Jobs may have ended and nodes gone since, and what
# has come since is for the next plan; accelerators are only ever taken by plans, so those that were free still are.


def revalidate_plan(plan: RoundPlan, view: Snapshot) -> RoundPlan:
    """The plan without what has been overtaken, at the moment of the view."""
    queued = view.queued.number
    admitted = _still_there(queued, plan.admitted)
    launches = _launches(plan.launches, np.concatenate((view.jobs.number, admitted)), view)
    ended = _still_there(view.jobs.number, plan.ended)
    return replace(
        plan,
        time=view.time,
        snapshot_s=plan.time if plan.snapshot_s is None else plan.snapshot_s,
        refused=tuple((number, reason) for number, reason in plan.refused if number in queued),
        admitted=admitted,
        ended=ended,
        suspended=_still_there(view.jobs.runners.number, plan.suspended),
        launches=launches,
        routes=_routes(plan, launches, view) if plan.routes else plan.routes,
    )


def _routes(plan: RoundPlan, launches: Launches, view: Snapshot) -> Routes:
    """Of who is launched after all, or was to go on and still does."""
    running = np.setdiff1d(view.jobs.runners.number, plan.suspended)
    there = {*launches.jobs.tolist(), *running.tolist()}
    return {number: route for number, route in plan.routes.items() if number in there}


def _launches(launches: Launches, alive: Ints, view: Snapshot) -> Launches:
    if not len(launches):
        return launches
    gone = np.logical_or.reduceat(~view.up[launches.accelerators], launches.offsets[:-1])
    return launches.only(np.isin(launches.jobs, alive) & ~gone)


def _still_there(present: Ints, wanted: Ints) -> Ints:
    return wanted[np.isin(wanted, present)]
