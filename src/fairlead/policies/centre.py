"""The middle of the optima of a max-min program: where an interior-point solver ends.

Optima are rarely unique, and which one is taken moves results by several percent. The published results of Gavel come from an
interior-point solver, which goes along the central path

    max  t/μ + Σ_m [ Σ_j log x_mj + log(1 − Σ_j x_mj) + log(Σ_j gain_mj·x_mj − w_m·t) ] + Σ_j log(N_j − Σ_m s_m·x_mj)

to μ = 0. The limit is unique and independent of where the search began. Members of a class have the same x, so it is found by
Newton's method in classes × types unknowns."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.policies.classes import Classes

LAST_MU = 1e-6
_SHRINK = 0.2
_STEPS = 200


def centre(classes: Classes, capacity: Ints, gain: Floats) -> Floats:
    """x of a member of each class: classes × types."""
    up = np.flatnonzero(capacity > 0)
    if len(up) < len(capacity):  # types that are down have no middle
        whole = np.zeros(gain.shape)
        some = np.flatnonzero((gain[:, up] > 0).any(axis=1))
        if len(up) and len(some):
            whole[np.ix_(some, up)] = centre(classes.only(some), capacity[up], gain[np.ix_(some, up)])
        return whole
    usable = gain > 0
    count, workers, weight = classes.count.astype(np.float64), classes.workers.astype(np.float64), classes.weight
    room = capacity.astype(np.float64)
    where = usable.nonzero()
    size = len(where[0])
    owner = where[0]  # the class of each unknown
    slope = gain[where]
    load = np.zeros((len(room), size))  # how much of each type a unit of each unknown takes
    load[where[1], np.arange(size)] = count[owner] * workers[owner]
    member = np.zeros((len(count), size))
    member[owner, np.arange(size)] = 1.0

    part = 0.5 * min(1.0, float((room / np.maximum(load.sum(axis=1), 1e-300)).min())) / usable.sum(axis=1).max()
    x = np.full(size, part)
    t = 0.5 * float((np.bincount(owner, slope * x, minlength=len(count)) / weight).min())
    mu = 1.0
    for _ in range(_STEPS):
        # Slacks, gradient and Hessian of the barrier at (x, t).
        time, fair = 1.0 - member @ x, np.bincount(owner, slope * x, minlength=len(count)) - weight * t
        left = room - load @ x
        push = count / fair
        gradient = count[owner] / x - (count / time)[owner] + slope * push[owner] - load.T @ (1.0 / left)
        rise = 1.0 / mu - float(weight @ push)
        bend = push / fair
        hessian = (member.T * (count / time**2)) @ member + (load.T / left**2) @ load
        hessian += (member.T * bend) @ member * np.outer(slope, slope)
        hessian[np.diag_indices(size)] += count[owner] / x**2
        cross, corner = -slope * (bend * weight)[owner], float(bend @ weight**2)
        try:
            solved = np.linalg.solve(hessian, np.column_stack((gradient, cross)))
        except np.linalg.LinAlgError as error:
            raise SolverError("centre of the optima", "a singular step") from error
        dt = (rise - float(cross @ solved[:, 0])) / max(corner - float(cross @ solved[:, 1]), 1e-300)
        dx = solved[:, 0] - solved[:, 1] * dt
        decrement = float(gradient @ dx) + rise * dt
        # As far as all slacks stay above 0, and no further than Newton's step.
        far = 1.0
        dfair = np.bincount(owner, slope * dx, minlength=len(count)) - weight * dt
        for slack, change in ((x, dx), (time, -(member @ dx)), (fair, dfair), (left, -(load @ dx))):
            falling = change < 0
            if falling.any():
                far = min(far, 0.95 * float((slack[falling] / -change[falling]).min()))
        x, t = x + far * dx, t + far * dt
        if decrement < 1e-2 * size:
            if mu <= LAST_MU:
                full = np.zeros(gain.shape)
                full[where] = x
                return full
            mu *= _SHRINK
    raise SolverError("centre of the optima", f"no convergence in {_STEPS} steps")
