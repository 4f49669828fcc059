"""Checks a plan before anything acts on it. In a simulation a wrong plan is an error; on a cluster it becomes a plan in which
nothing changes, with the reason, so that a scheduler that fails does not end the loop."""

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
from fairlead.core.stages import Allocated, Stages
from fairlead.engine.codec import decode, encode


def no_op_plan(view: Snapshot, why: Reason) -> RoundPlan:
    """Running jobs continue, waiting jobs get the reason, and the next round tries again."""
    waiting = view.jobs.number[~view.jobs.running]
    return RoundPlan(
        view.time,
        revisit=view.time,
        up=tuple(view.capacity.tolist()),
        reasons=dict.fromkeys([*waiting.tolist(), *view.queued.number.tolist()], why),
    )


def validate_plan(plan: RoundPlan, memo: Memo, view: Snapshot, stages: Stages | None = None) -> None:
    """Raise `InvalidPlan` if a plan cannot be carried out, or `JournalError` if the journal could not keep it."""
    queued, alive = view.queued.number, view.jobs.number
    inside = np.concatenate((alive, plan.admitted))
    _among("admitted", plan.admitted, queued)
    _among("refused", np.array([number for number, _ in plan.refused], dtype=np.int64), queued)
    _among("ended", plan.ended, inside)
    _among("suspended", plan.suspended, view.jobs.runners.number)
    busy = np.setdiff1d(view.jobs.runners.number, plan.suspended)
    _among("launched", plan.launches.jobs, np.setdiff1d(inside, np.concatenate((plan.ended, busy))))
    if len(plan.launches):
        validate_launches(plan, view, stages)
        _check_sizes(plan.launches, view)
    if plan.routes:
        _check_routes(plan, np.setdiff1d(busy, plan.ended), view)
        decode(encode(RoundPlanned(plan)))
    for event in (RoundPlanned(plan), MemoChanged(plan.time, memo), ObservationsRecorded(plan.time, plan.observations)):
        encode(event)


def validate_launches(plan: RoundPlan, view: Snapshot, stages: Stages | None = None) -> None:
    """Raise `InvalidPlan` unless every launch is on GPUs that exist, are up, have the planned type, and are shared only as
    planned. It looks at the launches alone, so that the loop can ask it in every simulation."""
    launches, cluster = plan.launches, view.cluster
    places, workers = launches.accelerators, launches.workers
    if workers.item(workers.argmin()) < 1 or places.item(places.argmin()) < 0 or places.item(places.argmax()) >= cluster.size:
        wrong = ((places < 0) | (places >= cluster.size)).nonzero()[0]
        where = f"GPU {places[wrong[0]]}, which does not exist" if len(wrong) else "no GPU"
        raise _invalid(stages, f"launched a job on {where}")
    if np.count_nonzero(view.up[places]) < len(places):
        at = int((~view.up[places]).argmax())
        raise _invalid(stages, f"launched {_job_at(launches, at, view)} on {_gpu(places[at], view)}, which is not up")
    types = launches.types if len(places) == len(workers) else launches.types.repeat(workers)
    if np.count_nonzero(cluster.type_of[places] != types):
        at = int((cluster.type_of[places] != types).argmax())
        job, gpu = _job_at(launches, at, view), _gpu(places[at], view)
        raise _invalid(stages, f"launched {job} on {gpu}, which is not of the planned type {cluster.type_names[types[at]]}")
    leaving = np.concatenate((plan.suspended, plan.ended)) if len(plan.ended) else plan.suspended
    staying = view.jobs.runners.number
    if len(leaving):
        staying = view.device_map.others(staying, leaving)
    taken = view.device_map.held_by(staying)
    before = np.count_nonzero(taken)
    taken[places] = True
    if np.count_nonzero(taken) < before + len(places):  # some are shared
        _check_sharing(plan, staying, view, stages)


def _invalid(stages: Stages | None, problem: str) -> InvalidPlan:
    if stages is None:
        return InvalidPlan(f"the plan {problem}")
    policy = stages.policy.allocator if isinstance(stages.policy, Allocated) else stages.policy
    return InvalidPlan(f"placement {type(stages.placement).__name__} (policy {type(policy).__name__}) {problem}")


def _job_at(launches: Launches, position: int, view: Snapshot) -> str:
    """The name of the job that the accelerator at this position of the column is for."""
    return _name(int(launches.jobs.repeat(launches.workers)[position]), view)


def _name(number: int, view: Snapshot) -> str:
    job = view.job_of.get(number)
    return f"job {number}" if job is None else f"job {job.name!r}"


def _gpu(place: int, view: Snapshot) -> str:
    return f"GPU {place} of node {view.cluster.nodes[view.cluster.node_of[place]].name}"


def _check_sizes(starts: Launches, view: Snapshot) -> None:
    """A script that was not written for another number of workers or another batch size must not be started with one."""
    sizes = [0] * len(starts) if starts.batch_sizes is None else starts.batch_sizes.tolist()
    for number, workers, size in zip(starts.jobs.tolist(), starts.workers.tolist(), sizes):
        job = view.job_of[number]
        if job.mode != ELASTIC and (workers != job.workers or size):
            what = f"with batch size {size}" if workers == job.workers else f"with {workers} workers, not {job.workers}"
            raise InvalidPlan(f"job {job.name!r} was launched {what}, and is not elastic")


def _check_routes(plan: RoundPlan, staying: Ints, view: Snapshot) -> None:
    starts = plan.launches
    there = dict(zip(starts.jobs.tolist(), np.split(starts.accelerators, starts.offsets[1:-1])))
    there |= {number: view.device_map.of(number) for number in staying.tolist() if number in plan.routes}
    for number, route in plan.routes.items():
        if list(route.accelerators) != there.get(number, NONE).tolist():
            raise InvalidPlan(f"job {number} was routed to GPUs {list(route.accelerators)}, but does not run there")


def _check_sharing(plan: RoundPlan, staying: Ints, view: Snapshot, stages: Stages | None = None) -> None:
    """A job has an accelerator once, and shares it only with jobs of its combination; sessions with routes share theirs."""
    starts = plan.launches
    jobs, places = starts.jobs.repeat(starts.workers), starts.accelerators
    if len(np.unique(places)) < len(places) and np.unique((jobs, places), axis=1).shape[1] < len(places):
        raise _invalid(stages, "launched a job twice on one GPU")
    others, held = view.device_map.places(staying)
    shared = np.isin(held, places)
    jobs, places = np.concatenate((jobs, others[shared])), np.concatenate((places, held[shared]))
    order = np.argsort(places, kind="stable")
    jobs, places = jobs[order], places[order]
    together = places[1:] == places[:-1]
    group, serves = _groups(plan, jobs), np.isin(jobs, [*plan.routes, *view.routes])
    wrong = (together & (group[1:] != group[:-1]) & ~(serves[1:] & serves[:-1])).nonzero()[0]
    if len(wrong):
        one, other = (_name(int(job), view) for job in jobs[wrong[0] : wrong[0] + 2])
        raise _invalid(stages, f"placed {one} and {other} on {_gpu(places[wrong[0]], view)}; the policy did not combine them")


def _groups(plan: RoundPlan, jobs: Ints) -> Ints:
    """A group number for each job; jobs of one group may share accelerators."""
    selected, combination = (NONE, NONE) if plan.combinations is None else plan.combinations
    _, group = np.unique(combination, return_inverse=True)
    known = dict(zip(selected.tolist(), group.tolist()))
    return np.array([known.get(job, -1 - job) for job in jobs.tolist()], dtype=np.int64)


def _among(what: str, numbers: Ints, known: Ints) -> None:
    unknown = numbers[~np.isin(numbers, known)]
    if len(unknown):
        raise InvalidPlan(f"job {unknown.item(0)} was {what}, which is not possible in its phase")
    if len(np.unique(numbers)) < len(numbers):
        raise InvalidPlan(f"a job was {what} twice")


# The part of a plan that is still possible at a later time. Jobs may have ended and nodes may be lost since; new jobs wait for
# the next plan. Only plans take accelerators, so those that were free still are.


def revalidate_plan(plan: RoundPlan, view: Snapshot) -> RoundPlan:
    """The plan at the time of the view, without the parts that are no longer possible."""
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
    """The routes of jobs that are still launched, or still run."""
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
