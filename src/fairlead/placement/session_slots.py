"""Where sessions go: onto the accelerators of their routes, beside each other, before anybody else gets a place. Which these
are is the policy's decision; the others find them taken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.device_map import ragged
from fairlead.core.plan import Launches, Placed, Selection
from fairlead.core.reasons import Reason, Unplaced
from fairlead.core.snapshot import Snapshot


@dataclass(frozen=True)
class Serving:
    """Sessions that stay where they are, those that start, and those whose accelerators are not there."""

    kept: Ints
    launches: Launches
    unplaced: dict[int, Reason]

    def joined(self, rest: Placed) -> Placed:
        """With what came of everybody else."""
        both = joined(self.launches, rest.launches)
        return Placed(np.concatenate((self.kept, rest.kept)), both, rest.free, {**rest.unplaced, **self.unplaced})


def sessions_first(selection: Selection, view: Snapshot) -> tuple[Serving, Selection, Snapshot]:
    """The sessions, the rest of the selection, and the moment as the rest sees it: without the accelerators that serve."""
    serves = np.isin(selection.jobs, list(selection.routes))
    ours = selection.only(serves)
    routes = {job: np.array(selection.routes[job].accelerators, dtype=np.int64) for job in ours.jobs.tolist()}
    taken: Bools = np.zeros(view.cluster.size, dtype=np.bool_)
    starts, unplaced, kept = list[int](), dict[int, Reason](), list[int]()
    jobs = view.jobs.of(ours.jobs)
    for row, (job, place) in enumerate(routes.items()):
        if not view.up[place].all():
            unplaced[job] = Unplaced.not_placed("accelerators of its route are not up")
            continue
        taken[place] = True
        same = jobs.held[row] == len(place) and np.array_equal(view.device_map.of(job), place)
        if same and (ours.batch_sizes is None or ours.batch_sizes[row] in (0, jobs.batch_size[row])):
            kept.append(job)
        else:
            starts.append(row)
    some = ours.only(np.isin(np.arange(len(ours)), starts))
    offsets, places = ragged(routes[job] for job in some.jobs.tolist())
    launches = Launches(some.jobs, some.types, offsets, places, some.batch_sizes)
    serving = Serving(np.array(kept, dtype=np.int64), launches, unplaced)
    beside = view.with_changes(
        up=view.up & ~taken,
        drained=view.drained | taken,  # who stands there leaves
        any_drained=view.any_drained or bool(taken.any()),
        capacity=np.bincount(view.cluster.type_of[view.up & ~taken], minlength=len(view.capacity)),
    )
    return serving, selection.only(~serves), beside


def joined(one: Launches, other: Launches) -> Launches:
    """Both, the one's first; of hosts nothing is said yet."""
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
