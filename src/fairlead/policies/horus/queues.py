"""Who is looked at when (Horus §4.2.2): waiting jobs that are alike stand in one queue, and queues take turns by weight.

    w_x = max{Len_x, Med_x · Len_x},   Med_x the median wait of queue x in seconds

Queues come of k-means under the L1 distance, whose centres are medians. It draws nothing: the first centre is the least point,
each further one the point that is farthest from those there are. It knows neither accelerators nor cost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fairlead.core.cluster import Floats, Ints

MOST_ITERATIONS = 50


def clustered(features: Floats, k: int) -> Ints:
    """For each row its cluster, from 0 on; at most `k` of them, fewer where there are fewer different rows."""
    if k == 1 or len(features) < 2:
        return np.zeros(len(features), dtype=np.int64)
    low, high = features.min(axis=0), features.max(axis=0)
    scaled = (features - low) / np.where(high > low, high - low, 1.0)
    points, of, count = np.unique(scaled, axis=0, return_inverse=True, return_counts=True)
    of = of.reshape(-1)
    if len(points) <= k:
        return of
    centres = _first_centres(points, k)
    mine: Ints = np.full(len(points), -1)
    for _ in range(MOST_ITERATIONS):
        nearest = _distances(points, centres).argmin(axis=1)
        if np.array_equal(nearest, mine):
            break
        mine = nearest
        for cluster in np.unique(mine).tolist():
            there = mine == cluster
            centres[cluster] = np.median(points[there].repeat(count[there], axis=0), axis=0)
    return mine[of]


def _first_centres(points: Floats, k: int) -> Floats:
    chosen = [int(points.sum(axis=1).argmin())]
    while len(chosen) < k:
        chosen.append(int(_distances(points, points[chosen]).min(axis=1).argmax()))
    return points[chosen]


def _distances(points: Floats, centres: Floats) -> Floats:
    apart: Floats = np.abs(points[:, None, :] - centres[None, :, :]).sum(axis=2)
    return apart


def in_turns(queue: Ints, waited_s: Floats, number: Ints, beta: int) -> Iterator[list[int]]:
    """Positions of all that wait, in batches of `beta`; before each batch the queues are weighed anew. Inside a queue who has
    waited longest goes first, and within a batch queue x has w_x of every Σw places."""
    lines = {int(x): np.flatnonzero(queue == x) for x in np.unique(queue)}
    lines = {x: line[np.lexsort((number[line], -waited_s[line]))] for x, line in lines.items()}
    while len(lines) > 1:
        batch: list[tuple[float, int, int]] = []
        for x, line in lines.items():
            weight = len(line) * max(1.0, float(np.median(waited_s[line])))
            batch += [((place + 1) / weight, x, at) for place, at in enumerate(line[:beta].tolist())]
        batch = sorted(batch)[:beta]
        yield [at for _, _, at in batch]
        for x in {x for _, x, _ in batch}:
            lines[x] = lines[x][sum(1 for _, other, _ in batch if other == x) :]
        lines = {x: line for x, line in lines.items() if len(line)}
    for line in lines.values():  # with nobody to share turns with
        yield from (line[start : start + beta].tolist() for start in range(0, len(line), beta))
