"""The analytic centre of the optima of a max-min program: the point at which an interior-point solver ends.

Optima are rarely unique, and the choice moves results by several percent. Gavel's published results come from an interior-point
solver, which follows the central path

    max  t/μ + Σ_m [ Σ_j log x_mj + log(1 − Σ_j x_mj) + log(Σ_j gain_mj·x_mj − w_m·t) ] + Σ_j log(N_j − Σ_m s_m·x_mj)

to μ = 0. The limit is unique and does not depend on the start. The result here is the point at μ = `LAST_MU`.

A primal-dual method follows the path with Mehrotra's predictions and ends with Newton's steps, so that the point is exact.
Members of a class have the same x. Each class is eliminated as a 2 × 2 system, so what is left has a row for each type and one
for t. With elementwise operations and ordered sums only, every machine takes the same steps. Arrays are types × classes."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import significant
from fairlead.core.errors import SolverError
from fairlead.policies.allocation.lp.lower_hulls import filling

LAST_MU = 5e-7
_NAME = "centre of the optima"
_STEPS = 100
_NOTHING = 1e-150  # the slack of columns that cannot be used
_BELOW = 0.3  # how far below the slowest job the first level is
_BACK = 0.9995  # how much of the way to a bound a step goes at most
_NEAR = 4.0  # multiples of the last μ from which there are no predictions
_CLOSE = 1e-5  # deviation of products from the last μ: the next step leaves about its square


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
    gain = significant(gain / gain.max(axis=1).min())
    program = _Program(gain.T.copy(), count.astype(np.float64), workers.astype(np.float64), capacity.astype(np.float64))
    return _end_of_path(program).T.copy()


class _Program:
    """The columns of the program, and how it arranges numbers: the slacks of x by type and class, then those of time and
    fairness by class; in one more column on the right, the slacks of the types. Nothing else changes: columns that cannot be
    used, and the rest of the last column."""

    def __init__(self, gain: Floats, members: Floats, workers: Floats, room: Floats) -> None:
        types, classes = gain.shape
        self.gain, self.members, self.room = gain, members, room
        usable = gain > 0
        self.taken = usable * workers  # of each type, by x of a member
        self.load = self.taken * members
        self.squares, self.classes = gain * gain, np.arange(classes)
        one, two = np.triu_indices(types, 1)
        self.pairs = (one, two, (gain[one] - gain[two]) ** 2)
        self.moves = np.zeros((types + 2, classes + 1))  # 1 where a slack can change
        self.moves[:types, :-1], self.moves[types:, :-1], self.moves[:types, -1] = usable, 1.0, 1.0
        self.often = self.moves * np.append(members, 1.0)
        self.often /= float(self.often.sum())

    def start(self) -> tuple[Floats, Floats]:
        """Slacks and duals of a feasible point."""
        types, usable = len(self.room), self.moves[: len(self.room), :-1]
        fill = float((self.room / np.maximum(self.load.sum(axis=1), 1e-300)).min())
        x: Floats = usable * (0.9 * min(1.0, fill) / float(usable.sum(axis=0).max()))
        speed = (self.gain * x).sum(axis=0)
        level = float(speed.min()) - _BELOW
        slacks = np.ones(self.moves.shape)
        slacks[:types, :-1] = np.where(usable > 0, x, _NOTHING)
        slacks[types, :-1], slacks[types + 1, :-1] = 1.0 - x.sum(axis=0), speed - level
        slacks[:types, -1] = self.room - (self.load * x).sum(axis=1)
        mu = 1.0 / float((self.members / slacks[types + 1, :-1]).sum())
        duals = mu / slacks
        over = self.taken * duals[:types, -1:] - self.gain * duals[types + 1, :-1]
        duals[types, :-1] += np.maximum(-over.min(axis=0), 0.0)
        duals[:types, :-1] = np.where(usable > 0, over + duals[types, :-1], 1.0 / _NOTHING)
        return slacks, duals


def _end_of_path(program: _Program) -> Floats:
    """x at the last μ. All points are feasible."""
    slacks, duals = program.start()
    for _ in range(_STEPS):
        products, off = slacks * duals, 1.0
        mean = float((program.often * products).sum())
        system = _NewtonSystem(program, slacks, duals)
        if mean > _NEAR * LAST_MU:
            change, dual_change = system.solve(-products)
            far, dual_far = _reach(slacks, change, 1.0), _reach(duals, dual_change, 1.0)
            after = float((program.often * (slacks + far * change) * (duals + dual_far * dual_change)).sum())
            wanted = max(mean * (after / mean) ** 3, LAST_MU) - products - change * dual_change
        else:
            off = float(np.abs((products / LAST_MU - 1.0) * program.moves).max())
            wanted = LAST_MU - products
        change, dual_change = system.solve(wanted)
        slacks = slacks + _reach(slacks, change, _BACK) * change
        duals = duals + _reach(duals, dual_change, _BACK) * dual_change
        if off <= _CLOSE:
            return slacks[: len(program.room), :-1] * program.moves[: len(program.room), :-1]
    raise SolverError(_NAME, f"no convergence in {_STEPS} steps")


def _reach(at: Floats, change: Floats, part: float) -> float:
    """How much of a move to make: at most all of it, and this part of the way to where the first number is 0."""
    least = float((change / at).min())
    return min(1.0, -part / least) if least < 0 else 1.0


class _NewtonSystem:
    """Newton's equations at a point, factored once for several right sides.

    Instead of the dual of time, it uses that dual less the dual of fairness times the gain on the type that can change most:
    otherwise rounding would leave nothing of the changes of a class that uses one type only."""

    def __init__(self, program: _Program, slacks: Floats, duals: Floats) -> None:
        self.program, self.slacks, self.duals = program, slacks, duals
        gain, taken, types = program.gain, program.taken, len(program.room)
        time, fair, price = duals[types, :-1], duals[types + 1, :-1], duals[:types, -1:]
        self.short = gain * fair - time - taken * price + duals[:types, :-1]
        self.level_short = 1.0 - float((program.members * fair).sum())
        ease = slacks / duals
        self.ease = x_ease = ease[:types, :-1]
        time_ease, fair_ease, types_ease = ease[types, :-1], ease[types + 1, :-1], ease[:types, -1]
        self.base = base = gain[x_ease.argmax(axis=0), program.classes]
        self.beyond = beyond = gain - base
        far = beyond * x_ease
        one, two = time_ease + x_ease.sum(axis=0), far.sum(axis=0) - time_ease * base
        three = fair_ease + time_ease * (base * base) + (beyond * far).sum(axis=0)
        i, j, apart = program.pairs  # rather than one·three − two², of which rounding would leave nothing
        determinant = fair_ease * one + time_ease * (program.squares * x_ease).sum(axis=0)
        determinant += (x_ease[i] * x_ease[j] * apart).sum(axis=0)
        self.inverse = a, b, c = three / determinant, two / determinant, one / determinant
        # Changes of both duals by the price of each type and by t.
        used = x_ease * taken
        self.time_by, self.fair_by = np.empty((types + 1, len(one))), np.empty((types + 1, len(one)))
        self.time_by[:-1], self.fair_by[:-1] = used * (beyond * b - a), used * (beyond * c - b)
        self.time_by[-1], self.fair_by[-1] = b, c
        self.weight = weight = used * program.members
        rows = np.empty((types + 1, types + 1))
        rows[:-1] = (weight[:, None] * (self.time_by - beyond[:, None] * self.fair_by)).sum(axis=2)
        rows[-1] = (program.members * self.fair_by).sum(axis=1)
        rows.flat[: -1 : types + 2] += (weight * taken).sum(axis=1) + types_ease
        self.columns = rows.T.tolist()

    def solve(self, wanted: Floats) -> tuple[Floats, Floats]:
        """The changes of slacks and duals that change their products by this much, to first order."""
        program, beyond, types = self.program, self.beyond, len(self.program.room)
        wanted = wanted * program.moves
        over = wanted / self.duals
        pull = self.ease * self.short + over[:types, :-1]
        of_time, of_fair = over[types, :-1], over[types + 1, :-1]
        time, fair = of_time + pull.sum(axis=0), of_fair + self.base * of_time - (beyond * pull).sum(axis=0)
        a, b, c = self.inverse
        time, fair = a * time + b * fair, b * time + c * fair
        right = over[:types, -1] + (program.load * pull + self.weight * (beyond * fair - time)).sum(axis=1)
        level_right = self.level_short - float((program.members * fair).sum())
        found = filling(self.columns, [*right.tolist(), level_right], range(types + 1))
        if found is None:
            raise SolverError(_NAME, "a singular step")
        step = np.array(found)[:, None]
        time, fair = time + (step * self.time_by).sum(axis=0), fair + (step * self.fair_by).sum(axis=0)
        x = pull + self.ease * (beyond * fair - time - program.taken * step[:-1])
        change = np.zeros(wanted.shape)
        change[:types, :-1], change[types, :-1] = x, -x.sum(axis=0)
        change[types + 1, :-1] = (program.gain * x).sum(axis=0) - found[-1]
        change[:types, -1] = -(program.load * x).sum(axis=1)
        dual_change = (wanted - self.duals * change) / self.slacks
        dual_change[types, :-1], dual_change[types + 1, :-1] = time + self.base * fair, fair
        dual_change[:types, -1] = found[:-1]
        return change, dual_change
