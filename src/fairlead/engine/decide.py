"""One decision, as a pure function: a snapshot and a memo go in, a plan and a memo come out. No I/O, no clock, no randomness
that is not in the arguments; what it returns depends on nothing else."""

from __future__ import annotations

import math
from collections import ChainMap
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.columns import JobColumns, without
from fairlead.core.device_map import NONE
from fairlead.core.errors import InvalidPlan
from fairlead.core.events import Memo
from fairlead.core.job import Job, Phase
from fairlead.core.observed_slowdowns import too_slow
from fairlead.core.plan import NO_OBSERVATIONS, Placed, RoundPlan, Selection, unchecked
from fairlead.core.reasons import Reason, Reasons
from fairlead.core.routes import NO_ROUTES, Routes
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import LearningEstimator, Policy, Stages
from fairlead.engine.feasibility import infeasible_reason
from fairlead.engine.interference_monitor import kept_apart, pairs_of, slowdown_event


def ask_policy(policy: Policy, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
    """What a policy answers. Raises InvalidPlan where that is no selection with a memo."""
    answer: Any = policy.select(view, memo)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Selection)):
        where, got = f"{type(policy).__name__}.select", type(answer).__name__
        raise InvalidPlan(f"{where}: expected to return (Selection, memo), not a value of type {got}")
    return answer


def decide(view: Snapshot, memo: Memo, stages: Stages) -> tuple[RoundPlan, Memo]:
    """The stages in their order: observation, feasibility, admission, termination, policy, placement."""
    if stages.await_nodes and not view.cluster.number_of_node:
        refused, none_yet = _with_dependents(view, ()), Reasons.no_nodes()
        return RoundPlan(view.time, refused, valid_until=math.inf, not_admitted=none_yet), memo
    if not view.cluster.types:  # stages have nothing to choose from
        refused = tuple((n, infeasible_reason(view.job_of[n], view.cluster)) for n in view.queued.number.tolist())
        return RoundPlan(view.time, _with_dependents(view, refused), valid_until=math.inf), memo

    # 0. New observations, of submitted and running jobs. They come before any stage reads rates.
    estimator = stages.estimator
    observed = cast(LearningEstimator, estimator).observe(view) if _learns(type(estimator)) else None
    if observed is not None and observed.values:
        known, count = {**view.observations, **observed.values}, view.observation_count + 1
        view = view.with_changes(observations=known, observation_count=count)

    slow = too_slow(view.with_changes(estimate=estimator.rates)) if view.device_map.shared else {}
    slowdowns = slowdown_event(view, slow) if slow or view.slow else None
    if still_slow := [number for number in slow if number in view.slow]:
        view = view.with_changes(separated=view.separated | pairs_of(view.device_map, still_slow))

    # 1. A job that can never run here, or depends on one that will never finish, is refused with the reason, so that it cannot
    #    hold up a queue or an optimum; a job that waits for others stays queued.
    refused = _refused(view, stages)
    if view.blocked:
        refused = _with_dependents(view, refused)
    if refused:
        gone = np.array([number for number, _ in refused], dtype=np.int64)
        view = view.with_changes(queued=view.queued.only(~np.isin(view.queued.number, gone)))

    if view.blocked:
        view = view.with_changes(queued=view.queued.only(~np.isin(view.queued.number, list(view.blocked))))
    unsuited: dict[int, Reason] = {}
    if stages.await_nodes and not view.queued.fits.all():  # they came when the cluster had other nodes, or none
        unsuited = {n: _none_suits(view, n) for n in view.queued.number[view.queued.fits == 0].tolist()}
        view = view.with_changes(queued=view.queued.only(view.queued.fits != 0))

    # 2. Admission. Policies see admitted jobs only.
    admitted = stages.admission.admit(view)
    if admitted.jobs is not view.queued.number and np.count_nonzero(admitted.jobs[1:] < admitted.jobs[:-1]):
        admitted = replace(admitted, jobs=np.sort(admitted.jobs))
    view = view.admitting(admitted.jobs, estimate=stages.estimator.rates)

    # 3. Jobs that are done before their last step; this decision can use their accelerators.
    ended = stages.termination.finished_early(view)
    leaving = view.without(ended)

    # 4. The jobs that should run, protected ones first.
    selection, memo = ask_policy(stages.policy, leaving, memo)
    selection = _keep_protected(selection, leaving)

    # 5. Placement. Running jobs that are neither kept nor ended are suspended.
    placed = stages.placement.place(selection, leaving)
    valid_until, revisit = selection.valid_until, selection.revisit
    if view.any_drained and len(stuck := np.intersect1d(placed.kept, view.device_map.on(view.drained))):
        # The placement ignores drains: these jobs leave now, and are placed again in the next decision.
        placed = replace(placed, kept=without(np.sort(placed.kept), stuck))
        valid_until, revisit = None if valid_until is None else min(valid_until, view.time), min(revisit, view.time)
    if leaving.separated:
        placed = kept_apart(placed, leaving)
    if slow:  # the next decision separates jobs that are still too slow
        valid_until, revisit = None if valid_until is None else min(valid_until, view.time), min(revisit, view.time)
    suspended = _suspended(placed, leaving)
    if observed is not None:
        # A job that starts, or whose neighbours change, runs at a speed that can be observed from the next round on; without
        # rounds, at the next event.
        moves = len(placed.launches) or len(suspended) or len(ended)
        again = view.time if moves and stages.round_s > 0 else observed.valid_until
        valid_until = None if valid_until is None else min(valid_until, again)
        revisit = min(revisit, again)
    if len(ended) and (view.blocked or len(view.queued)):  # jobs that waited for them may enter in the next decision
        valid_until, revisit = None if valid_until is None else min(valid_until, view.time), min(revisit, view.time)
    routes = _new_routes(selection, placed, view) if selection.routes else NO_ROUTES
    reasons = {**unsuited, **selection.reasons, **placed.unplaced}
    plan = unchecked(
        RoundPlan,
        time=view.time,
        snapshot_s=None,
        refused=refused,
        admitted=admitted.jobs,
        ended=ended,
        suspended=suspended,
        launches=placed.launches,
        routes=routes,
        valid_until=valid_until,
        revisit=revisit,
        free=placed.free,
        up=tuple(view.capacity.tolist()),
        head=next(iter(placed.unplaced), selection.head) if selection.strict else selection.head,
        reasons=reasons if not admitted.reasons else ChainMap(admitted.reasons, reasons),  # type: ignore[arg-type]
        not_admitted=admitted.others,
        observations=NO_OBSERVATIONS if observed is None else observed.values,
        combinations=None if selection.combination is None else (selection.jobs, selection.combination),
        order=selection.order,
        slowdowns=slowdowns,
    )
    return plan, memo


@cache
def _learns(estimator: type) -> bool:
    """Whether estimators of a type are learning ones; decided once for each type, as checking a Protocol is slow."""
    return issubclass(estimator, LearningEstimator)


def why_waiting(plan: RoundPlan | None, number: int, job: Job, view: Snapshot) -> Reason:
    """Why a job that is alive does not run after this plan, or before the first; every waiting job has an answer."""
    if (waits := view.blocked.get(number)) is not None:
        return Reasons.after(", ".join(_name(view, other) for other in waits.unfinished or (waits.lost,)))
    if not view.cluster.number_of_node:
        return Reasons.no_nodes()
    if plan is None or _not_yet_seen(plan, number, view):
        return Reasons.next_decision()
    known = plan.reasons.get(number)
    if known is not None:
        return known
    if plan.not_admitted is not None and number in view.queued.number:
        return plan.not_admitted
    if number in view.queued.number:
        return Reasons.next_decision()
    suits = _suits(plan, number, view)
    up = max((plan.up[t] for t in suits), default=0)
    if up < job.workers:
        return Reasons.nodes_down(job.workers, up=up)
    if plan.head is not None and plan.head != number:
        head = view.job_of[plan.head]
        here = plan.head in view.jobs.number  # it may have gone since
        for_it = max((plan.up[t] for t in _suits(plan, plan.head, view)), default=0) if here else head.workers
        return Reasons.behind(head.name, needed=head.workers, up=for_it if for_it < head.workers else None)
    free, eligible = sum(plan.free[t] for t in suits), sum(plan.up[t] for t in suits)
    one_type = max((plan.free[t] for t in suits), default=0)
    if one_type >= job.workers:
        return Reasons.not_selected(job.workers, free=free, eligible=eligible)
    return Reasons.waiting(job.workers, free=free, eligible=eligible, one_type=one_type if free >= job.workers else "")


def _suits(plan: RoundPlan, number: int, view: Snapshot) -> list[int]:
    """The types that a job may run on."""
    fits = int(view.jobs.of(np.array([number])).fits[0])
    return [t for t in range(len(plan.up)) if fits >> t & 1]


def _not_yet_seen(plan: RoundPlan, number: int, view: Snapshot) -> bool:
    """Whether a job was submitted, or waits again, since the plan was made; a job that it launched waits again."""
    if number in plan.launches.jobs:
        return True
    if number in plan.suspended:
        return False
    snapshot_s = plan.time if plan.snapshot_s is None else plan.snapshot_s
    since_s = (jobs.only(jobs.number == number).waiting_since_s for jobs in (view.jobs, view.queued))
    return any(bool((column > snapshot_s).any()) for column in since_s)


def _refused(view: Snapshot, stages: Stages) -> tuple[tuple[int, Reason], ...]:
    queued = view.queued
    if not len(queued):
        return ()
    rates = stages.estimator.rates(view.with_changes(jobs=queued))
    suits = queued.fits & rates.runs_on[rates.row]
    if np.count_nonzero(suits) == len(suits):
        return ()
    hopeless = (suits == 0) & (queued.fits != 0) if stages.await_nodes else suits == 0
    numbers = queued.number[hopeless].tolist()
    return tuple((number, infeasible_reason(view.job_of[number], view.cluster)) for number in numbers)


def _none_suits(view: Snapshot, number: int) -> Reason:
    return Reasons.no_nodes(f"none suits yet ({infeasible_reason(view.job_of[number], view.cluster).text})")


def _with_dependents(view: Snapshot, refused: tuple[tuple[int, Reason], ...]) -> tuple[tuple[int, Reason], ...]:
    """The jobs that leave now, with all that depend on one of them, or on one that has left before."""
    gone = dict(refused)
    how = dict.fromkeys(gone, Phase.REFUSED)
    for number, waits in sorted(view.blocked.items()):  # a dependency has a lower number
        lost = waits.lost if waits.lost >= 0 else next((other for other in waits.unfinished if other in gone), -1)
        if lost >= 0 and number not in gone:
            gone[number] = Reasons.dependency_failed(_name(view, lost), _HOW[how.get(lost, waits.how)])
            how[number] = Phase.CANCELLED
    return tuple(sorted(gone.items()))


_HOW = {Phase.FAILED: "has failed", Phase.CANCELLED: "was cancelled", Phase.REFUSED: "was refused"}


def _name(view: Snapshot, number: int) -> str:
    """The job's name, or its number: a detached snapshot does not have the names of ended jobs."""
    job = view.job_of.get(number)
    return str(number) if job is None else job.name


def _new_routes(selection: Selection, placed: Placed, view: Snapshot) -> Routes:
    """The routes of launched jobs, and changed routes of jobs that stay."""
    launched, kept = set(placed.launches.jobs.tolist()), set(placed.kept.tolist())
    return {
        number: route
        for number, route in sorted(selection.routes.items())
        if number in launched or (number in kept and view.routes.get(number) != route)
    }


def _keep_protected(selection: Selection, view: Snapshot) -> Selection:
    """Jobs inside their minimum run stay as they are, whatever the policy selected; the last of its order are dropped. Jobs
    with a route are left to the policy that routes them, which knows the protected jobs."""
    protected = view.protected
    if protected is None or not protected.any():
        return selection
    jobs = view.jobs.only(protected)
    if selection.routes:
        jobs = jobs.only(~np.isin(jobs.number, list(selection.routes)))
    places = view.device_map.last[jobs.number]
    apart = selection.combination is None
    colocated = not apart or len(np.unique(places)) < len(places)
    if _unchanged(selection, jobs).all() and not (apart and colocated):
        return selection.until(view.protection_ends)
    rest = ~np.isin(selection.jobs, jobs.number)
    numbers = np.concatenate((jobs.number, selection.jobs[rest]))
    types = np.concatenate((jobs.type, selection.types[rest]))
    workers = np.concatenate((jobs.held, selection.workers[rest]))
    chosen = np.arange(len(selection)) if selection.combination is None else selection.combination
    combination = np.concatenate((-1 - places, chosen[rest]))  # co-located jobs stay co-located
    serving = np.isin(numbers, list(selection.routes))
    stay = _that_fit(types, workers, combination, serving, view.capacity - _serving(selection.routes, view))
    sizes = selection.batch_sizes
    return replace(
        selection,
        jobs=numbers[stay],
        types=types[stay],
        workers=workers[stay],
        combination=combination[stay] if colocated else None,
        batch_sizes=None if sizes is None else np.concatenate((np.zeros(len(jobs), np.int64), sizes[rest]))[stay],
        pinned={job: place for job, place in selection.pinned.items() if job not in jobs.number},
        valid_until=None,
    )


def _unchanged(selection: Selection, jobs: JobColumns) -> Bools:
    """Which of these running jobs a selection leaves as they are."""
    if not len(selection):
        return np.zeros(len(jobs), dtype=np.bool_)
    order = selection.jobs.argsort()
    at = order[np.minimum(selection.jobs[order].searchsorted(jobs.number), len(order) - 1)]
    same: Bools = selection.jobs[at] == jobs.number
    same &= (selection.types[at] == jobs.type) & (selection.workers[at] == jobs.held)
    if selection.batch_sizes is not None:
        same &= (selection.batch_sizes[at] == 0) | (selection.batch_sizes[at] == jobs.batch_size)
    return same


def _serving(routes: Routes, view: Snapshot) -> Ints:
    """How many accelerators of each type serve requests."""
    places = np.unique(np.array([place for route in routes.values() for place in route.accelerators], dtype=np.int64))
    return np.bincount(view.cluster.type_of[places], minlength=len(view.capacity))


def _that_fit(types: Ints, workers: Ints, combination: Ints, serving: Bools, capacity: Ints) -> list[int]:
    """The entries, in their order, for which there are accelerators; a combination takes them once, and serving jobs
    have them already."""
    free = capacity.tolist()
    seen: set[int] = set(combination[serving].tolist())
    stay = []
    for index, (type_, want, group) in enumerate(zip(types.tolist(), workers.tolist(), combination.tolist())):
        if group in seen:
            stay.append(index)
        elif free[type_] >= want:
            free[type_] -= want
            seen.add(group)
            stay.append(index)
    return stay


def _suspended(placed: Placed, view: Snapshot) -> Ints:
    running = view.jobs.runners.number
    if len(running) == len(placed.kept):
        return NONE
    return view.device_map.others(running, placed.kept)
