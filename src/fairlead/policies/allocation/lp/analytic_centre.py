"""The analytic centre of the optima of a max-min program: the point at which an interior-point solver ends.

Optima are rarely unique, and the choice moves results by several percent. Gavel's published results come from an interior-point
solver, which follows the central path

    max  t/μ + Σ_m [ Σ_j log x_mj + log(1 − Σ_j x_mj) + log(Σ_j gain_mj·x_mj − w_m·t) ] + Σ_j log(N_j − Σ_m s_m·x_mj)

to μ = 0. The limit is unique and does not depend on the start. Members of a class have the same x. Newton's method finds it:
classes meet only in the capacities and in t, so a step is a small system for each class and one for the types."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import SolverError

LAST_MU = 1e-6
_SHRINK = 0.2
_STEPS = 200


def centre(count: Ints, workers: Ints, weight: Floats, capacity: Ints, gain: Floats) -> Floats:
    """x of a member of each class: classes × types. Columns by class; `gain` is 0 where it cannot run."""
    up = np.flatnonzero(capacity > 0)
    if len(up) < len(capacity):  # types that are down have no middle
        whole = np.zeros(gain.shape)
        some = np.flatnonzero((gain[:, up] > 0).any(axis=1))
        if len(up) and len(some):
            whole[np.ix_(some, up)] = centre(count[some], workers[some], weight[some], capacity[up], gain[np.ix_(some, up)])
        return whole
    # The same path, since log(w·y) = log w + log y, and t at most about 1, so that the last μ means the same in any unit.
    gain = gain / weight[:, None]
    gain = gain / gain.max(axis=1).min()
    usable = gain > 0
    room, many = capacity.astype(np.float64), count[:, None].astype(np.float64)
    load = usable * many * workers[:, None]  # how much of each type a unit of x takes
    types = gain.shape[1]
    diagonal = np.arange(types)

    part = 0.5 * min(1.0, float((room / np.maximum(load.sum(axis=0), 1e-300)).min())) / usable.sum(axis=1).max()
    x: Floats = usable * part
    t = 0.5 * float((gain * x).sum(axis=1).min())
    mu = 1.0
    for _ in range(_STEPS):
        # Slacks, gradient and Hessian of the barrier at (x, t): a block for each class, and what the capacities add.
        time, fair = 1.0 - x.sum(axis=1), (gain * x).sum(axis=1) - t
        left = room - (load * x).sum(axis=0)
        over = np.divide(1.0, x, out=np.zeros_like(x), where=usable)
        push = count / fair
        bend = push / fair
        gradient = usable * (many * over - many / time[:, None] + gain * push[:, None] - load / left)
        rise = 1.0 / mu - float(push.sum())
        block = usable[:, :, None] * usable[:, None, :] * (many / time[:, None] ** 2)[:, :, None]
        block += (gain * bend[:, None])[:, :, None] * gain[:, None, :]
        block[:, diagonal, diagonal] += np.where(usable, many * over**2, 1.0)
        cross, corner = -gain * bend[:, None], float(bend.sum())
        try:
            solved = _solved(block, load, left, np.stack((gradient, cross), axis=2))
        except np.linalg.LinAlgError as error:
            raise SolverError("centre of the optima", "a singular step") from error
        dt = (rise - float((cross * solved[:, :, 0]).sum())) / max(corner - float((cross * solved[:, :, 1]).sum()), 1e-300)
        dx = solved[:, :, 0] - solved[:, :, 1] * dt
        decrement = float((gradient * dx).sum()) + rise * dt
        # As far as all slacks stay above 0, and no further than Newton's step.
        far = 1.0
        dfair = (gain * dx).sum(axis=1) - dt
        for slack, change in ((x, dx), (time, -dx.sum(axis=1)), (fair, dfair), (left, -(load * dx).sum(axis=0))):
            falling = change < 0
            if falling.any():
                far = min(far, 0.95 * float((slack[falling] / -change[falling]).min()))
        x, t = x + far * dx, t + far * dt
        if decrement < 1e-2 * np.count_nonzero(usable):
            if mu <= LAST_MU:
                return x
            mu *= _SHRINK
    raise SolverError("centre of the optima", f"no convergence in {_STEPS} steps")


def _solved(block: Floats, load: Floats, left: Floats, right: Floats) -> Floats:
    """(blocks + Σ_j load_j·load_jᵀ / left_j²)⁻¹ · right; load_j has an entry at type j of each class (Woodbury)."""
    inverse = np.linalg.inv(block)
    plain = inverse @ right
    spread = inverse * load[:, None, :]  # blocks⁻¹ · load_j in column j
    between = np.diag(left**2) + np.einsum("gi,gij->ij", load, spread)
    taken = np.linalg.solve(between, np.einsum("gi,gik->ik", load, plain))
    solved: Floats = plain - spread @ taken
    return solved
