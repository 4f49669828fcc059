"""The reference job that a new job is most like, from a few measurements (Gavel §6, Figure 8, after Quasar).

The fingerprint of job i is the row p_i(q, t) = (rate of i co-located with reference q on type t) / (rate of i alone on t), in
0..1. The rows of references are complete. A random part of the new row is measured, low-rank matrix completion fills the rest,
and the closest reference by cosine distance is the match. This module knows nothing of jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints

MAX_ITERATIONS = 100
TOLERANCE = 1e-7
"""Iterations end when the objective falls by less than this fraction."""


def complete_matrix(values: Floats, known: Bools, *, rank: int, penalty: float, rng: np.random.Generator) -> Floats:
    """`values` where known, a low-rank completion elsewhere. With W_ij = 1 where M_ij is known, factors U and V minimise

        Σ_ij W_ij (M_ij − u_i·v_j)² + μ (Σ_i |u_i|² + Σ_j |v_j|²)

    by alternating least squares: with V fixed each u_i is a small ridge regression, and vice versa. The problem is not convex:
    with μ far below 1e-2 (for entries in 0..1) it may end in a poor local optimum."""
    rows, columns = values.shape
    rank = min(rank, rows, columns)
    weight = known.astype(np.float64)
    given = np.where(known, values, 0.0)
    u: Floats = np.zeros((rows, rank))  # computed first, from v
    v: Floats = rng.standard_normal((columns, rank)) / np.sqrt(rank)
    last = np.inf
    for _ in range(MAX_ITERATIONS):
        u = _regressed(given, weight, v, penalty)
        v = _regressed(given.T, weight.T, u, penalty)
        objective = float((weight * (given - u @ v.T) ** 2).sum() + penalty * ((u**2).sum() + (v**2).sum()))
        if last - objective <= TOLERANCE * objective:
            break
        last = objective
    return np.where(known, values, u @ v.T)


def _regressed(given: Floats, weight: Floats, factor: Floats, penalty: float) -> Floats:
    """For each row, the coefficients of the other factors that explain its known entries best."""
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
class ReferenceMatch:
    """The position of the closest reference, its distance, and its relative deviation from the measured entries."""

    like: int
    distance: float
    deviation: float


def closest_reference(known: Floats, measured: Floats, rank: int, penalty: float, rng: np.random.Generator) -> ReferenceMatch:
    """Match a new row (NaN where not measured) with the references × columns of `known`."""
    there = ~np.isnan(measured)
    row = np.where(there, measured, 0.0)
    if not there.all():
        matrix = np.vstack((known, row))
        mask: Bools = np.ones(matrix.shape, dtype=np.bool_)
        mask[-1] = there
        row = complete_matrix(matrix, mask, rank=rank, penalty=penalty, rng=rng)[-1].clip(0.0, 1.0)
    distances = cosine_distances(known, row).round(12)
    like = int(distances.argmin())
    theirs = known[like][there]
    relative = (row[there] - theirs) / np.maximum(theirs, 0.05)
    return ReferenceMatch(like, float(distances[like]), float(np.sqrt((relative**2).mean())) if there.any() else 1.0)


def colocated_fractions(alone: Floats, paired: Floats) -> Floats:
    """The fraction of exclusive rates under co-location: rows × rows × types, in 0..1."""
    runs = alone[:, None, :] > 0
    return np.divide(paired, alone[:, None, :], out=np.zeros_like(paired), where=runs).clip(0.0, 1.0)


def draw_columns(columns: int, share: float, rng: np.random.Generator) -> Ints:
    """The columns to measure: each with probability `share`, and at least one."""
    chance = rng.random(columns)
    chosen: Ints = (chance < share).nonzero()[0]
    return chosen if len(chosen) or not columns else np.array([int(chance.argmin())])
