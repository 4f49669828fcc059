"""Observed slowdowns of co-located jobs: the exclusive rate, as estimated, divided by the reported one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairlead.core.snapshot import Snapshot

MAX_UNCERTAINTY = 0.5
"""Relative uncertainty of an exclusive rate from which on no slowdown can be derived from it."""

ROUNDING = 1e-9
MAX_FACTOR = 1e9  # a worker may report any rate, but a journal with an impossible event could not be read again


def observed_slowdowns(view: Snapshot, members: Sequence[int], places: Sequence[int], type_: int) -> list[float]:
    """The slowdown of jobs that share accelerators, relative to their exclusive rates; 0 before the first step of a job, where
    its exclusive rate on this number of nodes is unknown, and while its reported rate is from before a change."""
    jobs, rates, at = view.jobs.of(np.array(members)), view.rates, view.jobs.number.searchsorted(members)
    nodes = len({view.cluster.node_of_accelerator[place] for place in places})
    spread = nodes > -(-len(places) // int(view.cluster.largest_node_of_type[type_]))
    rows = rates.row[at]
    alone = (rates.spread if spread else rates.alone)[rows, type_]
    steady = (jobs.rate > 0) & (jobs.since_s <= view.time)
    uncertainty = rates.spread_uncertainty if spread and rates.spread_uncertainty is not None else rates.uncertainty
    if uncertainty is not None:
        steady &= uncertainty[rows, type_] < MAX_UNCERTAINTY
    if rates.current_since_s is not None:
        steady &= rates.current_since_s[at] <= view.time
    slowdowns: list[float] = np.where(steady, alone / np.where(steady, jobs.rate, 1.0), 0.0).tolist()
    return slowdowns


def too_slow(view: Snapshot) -> dict[int, float]:
    """The co-located jobs that are slower than they tolerate, and how many times slower than alone they are."""
    device_map, found = view.device_map, dict[int, float]()
    if not device_map.shared:
        return found
    jobs = view.jobs.runners
    for number, type_ in zip(jobs.number.tolist(), jobs.type.tolist()):
        limit, places = view.job_of[number].max_slowdown, device_map.of(number)
        if limit < np.inf and (device_map.occupancy[places] > 1).any():
            factor = observed_slowdowns(view, [number], places.tolist(), type_)[0]
            if factor > limit * (1 + ROUNDING):
                found[number] = min(factor, MAX_FACTOR)
    return found
