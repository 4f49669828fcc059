"""What of a plan is still possible at a later moment than it was made for. Jobs may have ended and nodes gone since, and what
has come since is for the next plan; accelerators are only ever taken by plans, so those that were free still are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.inference import Routes
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.snapshot import Snapshot


def still_possible(plan: RoundPlan, view: Snapshot) -> RoundPlan:
    """The plan without what has been overtaken, at the moment of the view."""
    queued = view.queued.number
    admitted = _among(queued, plan.admitted)
    launches = _launches(plan.launches, np.concatenate((view.jobs.number, admitted)), view)
    ended = _among(view.jobs.number, plan.ended)
    return replace(
        plan,
        time=view.time,
        seen_s=plan.time if plan.seen_s is None else plan.seen_s,
        refused=tuple((number, reason) for number, reason in plan.refused if number in queued),
        admitted=admitted,
        ended=ended,
        suspended=_among(view.jobs.runners.number, plan.suspended),
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


def _among(present: Ints, wanted: Ints) -> Ints:
    return wanted[np.isin(wanted, present)]
