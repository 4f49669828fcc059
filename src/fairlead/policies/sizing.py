"""The best size for each of many jobs under one capacity, exactly: what every job costs at every size it can have is a
number, and the sum is to be least. A dynamic program over the capacity; it knows neither jobs nor nodes."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Floats, Ints

_ROUNDING = 1e-12


def least_cost(sizes: Ints, costs: Floats, capacity: int) -> Ints:
    """`sizes` and `costs` are jobs × options (an infinite cost: not an option). The option of each job, such that their sizes
    fit into `capacity` and the costs add up to the least. Every job needs an option of size 0. Sums that differ by rounding
    alone are equals: of those, the last job has its first option that is among them, then the one before it, and so on."""
    count = len(sizes)
    room = np.arange(capacity + 1)
    least: Floats = np.zeros(capacity + 1)
    choice = np.zeros((count, capacity + 1), dtype=np.int64)
    for job in range(count):
        useful = np.isfinite(costs[job]).nonzero()[0]
        before = room[None, :] - sizes[job, useful][:, None]
        sums = np.where(before >= 0, least[np.maximum(before, 0)], np.inf) + costs[job, useful][:, None]
        lowest = sums.min(axis=0)
        best = (sums <= lowest + _ROUNDING * np.abs(lowest)).argmax(axis=0)
        choice[job], least = useful[best], sums[best, room]
    chosen = np.zeros(count, dtype=np.int64)
    left = capacity
    for job in range(count - 1, -1, -1):
        chosen[job] = choice[job, left]
        left -= int(sizes[job, chosen[job]])
    return chosen
