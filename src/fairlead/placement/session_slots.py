"""The placement of sessions: on the accelerators of their routes, possibly co-located, before all other jobs. The policy
chooses these accelerators; the other jobs find them taken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.device_map import ragged
from fairlead.core.plan import Launches, Placed, Selection
from fairlead.core.reasons import Reason, Reasons
from fairlead.core.snapshot import Snapshot


def place_sessions_first(selection: Selection, view: Snapshot, place_rest: Callable[[Selection, Snapshot], Placed]) -> Placed:
    """Place the sessions of a selection by their routes, and the rest with `place_rest` on what is left."""
    serves = np.isin(selection.jobs, list(selection.routes))
    sessions = selection.only(serves)
    routes = {job: np.array(selection.routes[job].accelerators, dtype=np.int64) for job in sessions.jobs.tolist()}
    taken: Bools = np.zeros(view.cluster.size, dtype=np.bool_)
    starts, unplaced, kept = list[int](), dict[int, Reason](), list[int]()
    jobs = view.jobs.of(sessions.jobs)
    for row, (job, place) in enumerate(routes.items()):
        if not view.up[place].all():
            unplaced[job] = Reasons.not_placed("GPUs of its route are down")
            continue
        taken[place] = True
        same = jobs.held[row] == len(place) and np.array_equal(view.device_map.of(job), place)
        if same and (sessions.batch_sizes is None or sessions.batch_sizes[row] in (0, jobs.batch_size[row])):
            kept.append(job)
        else:
            starts.append(row)
    some = sessions.only(np.isin(np.arange(len(sessions)), starts))
    offsets, places = ragged(routes[job] for job in some.jobs.tolist())
    launches = Launches(some.jobs, some.types, offsets, places, some.batch_sizes)
    without_sessions = view.with_changes(
        up=view.up & ~taken,
        drained=view.drained | taken,  # other jobs leave these accelerators
        any_drained=view.any_drained or bool(taken.any()),
        capacity=np.bincount(view.cluster.type_of[view.up & ~taken], minlength=len(view.capacity)),
    )
    rest = place_rest(selection.only(~serves), without_sessions)
    all_kept = np.concatenate((np.array(kept, dtype=np.int64), rest.kept))
    return Placed(all_kept, _joined(launches, rest.launches), rest.free, {**rest.unplaced, **unplaced})


def _joined(one: Launches, other: Launches) -> Launches:
    """Both, without CPUs and memory of hosts, which are set later."""
    if not len(one):
        return other
    if not len(other):
        return one
    sizes: Ints | None = None
    if one.batch_sizes is not None or other.batch_sizes is not None:
        columns = ((each.batch_sizes, len(each)) for each in (one, other))
        sizes = np.concatenate([np.zeros(many, np.int64) if column is None else column for column, many in columns])
    return Launches(
        np.concatenate((one.jobs, other.jobs)),
        np.concatenate((one.types, other.types)),
        np.concatenate((one.offsets, one.offsets[-1] + other.offsets[1:])),
        np.concatenate((one.accelerators, other.accelerators)),
        sizes,
    )
