"""Which reference job a new job is most like, from a few measurements (Gavel §6, Figure 8).

The fingerprint of job i is the row p_i(q, t) = (rate of i beside reference job q on type t) / (rate of i alone on t), in 0..1.
The references' rows are known in full. Of the new row a random part is measured, low-rank matrix completion over all rows fills
the rest, and the closest reference by cosine distance is the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.estimation.completion import completed, cosine_distances


@dataclass(frozen=True)
class Match:
    """The closest reference (by position), how far it is, and how far off its row is where the new one was measured."""

    like: int
    distance: float
    deviation: float


def closest(known: Floats, measured: Floats, rank: int, penalty: float, rng: np.random.Generator) -> Match:
    """`known`: references × columns; `measured`: the new row, NaN where it was not measured."""
    there = ~np.isnan(measured)
    row = np.where(there, measured, 0.0)
    if not there.all():
        matrix = np.vstack((known, row))
        mask: Bools = np.ones(matrix.shape, dtype=np.bool_)
        mask[-1] = there
        row = completed(matrix, mask, rank=rank, penalty=penalty, rng=rng)[-1].clip(0.0, 1.0)
    distances = cosine_distances(known, row).round(12)
    like = int(distances.argmin())
    theirs = known[like][there]
    relative = (row[there] - theirs) / np.maximum(theirs, 0.05)
    return Match(like, float(distances[like]), float(np.sqrt((relative**2).mean())) if there.any() else 1.0)


def parts(alone: Floats, paired: Floats) -> Floats:
    """What company leaves of rates: rows × rows × types, in 0..1."""
    runs = alone[:, None, :] > 0
    return np.divide(paired, alone[:, None, :], out=np.zeros_like(paired), where=runs).clip(0.0, 1.0)


def drawn(columns: int, share: float, rng: np.random.Generator) -> Ints:
    """The columns to measure: each with probability `share`, and at least one."""
    chance = rng.random(columns)
    chosen: Ints = (chance < share).nonzero()[0]
    return chosen if len(chosen) or not columns else np.array([int(chance.argmin())])
