"""Which reference job a new job is most like, from a few measurements (Gavel §6, Figure 8).

The fingerprint of job i is the row p_i(q, t) = (rate of i beside reference job q on type t) / (rate of i alone on t), in 0..1.
The references' rows are known in full. Of the new row a random part is measured, low-rank matrix completion over all rows fills
the rest, and the closest reference by cosine distance is the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints

# Low-rank matrix completion, and the distance of two fingerprints (Gavel §6, after Quasar).
#
# Given M where known (W_ij = 1), factors U and V of rank k minimise
#
# Σ_ij W_ij (M_ij − u_i·v_j)² + μ (Σ_i |u_i|² + Σ_j |v_j|²)
#
# by alternating least squares: with V fixed each u_i is a small ridge regression, and the other way round. What is not known
# is
# then u_i·v_j. The problem is not convex: with μ far below 1e-2 (for entries in 0..1) a start may end in a poor local
# optimum.
# It knows nothing of jobs.

ITERATIONS = 100
TOLERANCE = 1e-7
"""Sweeps end when the objective falls by less than this part of itself."""


def completed(values: Floats, known: Bools, *, rank: int, penalty: float, rng: np.random.Generator) -> Floats:
    """`values` where known, the low-rank guess elsewhere."""
    rows, columns = values.shape
    rank = min(rank, rows, columns)
    weight = known.astype(np.float64)
    given = np.where(known, values, 0.0)
    u: Floats = np.zeros((rows, rank))  # found first, from v
    v: Floats = rng.standard_normal((columns, rank)) / np.sqrt(rank)
    last = np.inf
    for _ in range(ITERATIONS):
        u = _regressed(given, weight, v, penalty)
        v = _regressed(given.T, weight.T, u, penalty)
        objective = float((weight * (given - u @ v.T) ** 2).sum() + penalty * ((u**2).sum() + (v**2).sum()))
        if last - objective <= TOLERANCE * objective:
            break
        last = objective
    return np.where(known, values, u @ v.T)


def _regressed(given: Floats, weight: Floats, factor: Floats, penalty: float) -> Floats:
    """For each row, the coefficients of the other side's factors that explain its known entries best."""
    squares: Floats = factor[:, :, None] * factor[:, None, :]
    left = np.tensordot(weight, squares, axes=1) + penalty * np.eye(factor.shape[1])
    right: Floats = given @ factor
    found: Floats = np.linalg.solve(left, right[:, :, None])[:, :, 0].astype(np.float64, copy=False)
    return found


def cosine_distances(rows: Floats, one: Floats) -> Floats:
    """1 − the cosine of the angle to each row; 1 for a row of zeros."""
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(one)
    cosines = np.divide(rows @ one, lengths, out=np.zeros(len(rows)), where=lengths > 0)
    distances: Floats = 1.0 - cosines
    return distances


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
