"""The most Nash welfare over a polytope of activities (Eisenberg and Gale's program in general form):

    max Σ_i B_i·log(Σ_k g_ik·y_k)   s.t.  Σ_k a_rk·y_k ≤ 1,   y ≥ 0

with the prices of the rows. By a primal-dual interior-point method on dense arrays, for small markets; large ones of few
types of accelerators are solved by `policies/nash.py`. What an activity stands for is said by who calls."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import SolverError

GAP = 1e-11
"""How far from the optimum the welfare may be, per budget."""

_OFF = 1e-9  # how far a price may be from what it buys, as a part of it
_STEPS = 200


def most_welfare(budgets: Floats, gains: Floats, uses: Floats) -> tuple[Floats, Floats]:
    """The level of each activity and the price of each row. `gains` is jobs × activities, `uses` rows × activities, neither
    negative; each job must gain by some activity, and each activity use something."""
    money = budgets / budgets.sum()
    y = np.full(gains.shape[1], 0.5 / uses.sum(axis=1).max())
    gain = gains / (gains @ y)[:, None]  # whose units a job counts in changes nothing
    room = 1.0 - uses @ y
    price, slack = np.full(len(uses), 1.0 / len(uses)), 1.0 / (len(y) * y)
    for _ in range(_STEPS):
        utility = gain @ y
        worth = (money / utility) @ gain
        cost = price @ uses
        off = np.abs(cost - slack - worth) / (cost + worth)
        gap = float(y @ slack + room @ price)
        if gap <= GAP and off.max() <= _OFF:
            return y, price * budgets.sum()
        aim = gap / (len(y) + len(price)) * (0.1 if off.max() <= 1.0 else 0.5)
        curve = (gain * (money / utility**2)[:, None]).T @ gain
        matrix = curve + np.diag(slack / y) + (uses * (price / room)[:, None]).T @ uses
        try:
            dy = np.linalg.solve(matrix, worth + aim / y - (aim / room) @ uses)
        except np.linalg.LinAlgError as error:
            raise SolverError("Nash welfare", "a singular step") from error
        droom = -(uses @ dy)
        dprice = (aim - price * droom) / room - price
        dslack = (aim - slack * dy) / y - slack
        ahead = 0.995 * min(1.0, _reach(y, dy), _reach(room, droom))
        y, room = y + ahead * dy, room + ahead * droom
        ahead = 0.995 * min(1.0, _reach(price, dprice), _reach(slack, dslack))
        price, slack = price + ahead * dprice, slack + ahead * dslack
    raise SolverError("Nash welfare", f"a gap of {gap:g} after {_STEPS} steps")


def _reach(values: Floats, steps: Floats) -> float:
    """How many such steps all values stay above 0."""
    falls = steps < 0
    return float((values[falls] / -steps[falls]).min()) if falls.any() else np.inf
