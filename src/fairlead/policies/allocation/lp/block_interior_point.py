"""Allocation programs with a block of columns for each job, and nearly optimal prices for them by an interior-point method:

    max  h·t + Σ_mj g_mj·x_mj      s.t.  Σ_j c_mj·x_mj ≥ r_m + d_m·t      (the demand of job m, dual u_m)
                                         Σ_j x_mj ≤ 1                     (its time, dual q_m)
                                         Σ_m a_mj·x_mj ≤ b_j + e_j·t      (type j, dual or price p_j),   x ≥ 0, t free

Mehrotra's predictor-corrector method. Each step eliminates every job as a 2 × 2 system, so what is left has a row for each type
and one for t. Arrays are types × jobs. With elementwise operations and ordered sums only, every machine takes the same path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.policies.allocation.lp.lower_hulls import filling

_STEPS = 60
_SHORT, _LONGER = 0.9, 0.3  # steps that are corrected, and by how much they are to be longer
_START = 0.05  # the least slack of the first point
_NOTHING = 1e-200  # x of columns that cannot be used

Linearized: TypeAlias = Callable[[float], tuple[Floats, Floats]]
"""A level t → r and d of demands that are not linear in t, such that r + d·t is right at that level."""


@dataclass(frozen=True)
class BlockProgram:
    """The program. Row 0 of arrays with types × jobs is idle time; the largest rate of a job is 1."""

    rate: Floats  # c
    load: Floats  # a
    usable: Bools
    base: Floats  # r
    room: Floats  # b, by type
    gain: Floats | None = None  # g
    growth: Floats | None = None  # e, by type
    level_gain: float = 0.0  # h
    slope: Floats | None = None  # d
    pay: Floats | None = None  # with it the objective is Σ g·x / Σ pay·x

    @property
    def has_level(self) -> bool:
        return self.growth is not None or self.slope is not None

    @property
    def jobs(self) -> int:
        return len(self.base)

    def only(self, jobs: Ints, taken: Floats | None = None) -> BlockProgram:
        """The program of some jobs, of which the others have taken a part of the types."""
        blocks = (self.rate, self.load, self.usable, self.gain, self.pay)
        rate, load, usable, gain, pay = (None if block is None else np.ascontiguousarray(block[:, jobs]) for block in blocks)
        assert rate is not None
        assert load is not None
        assert usable is not None
        room, slope = self.room if taken is None else self.room - taken, None if self.slope is None else self.slope[jobs]
        some: dict[str, Any] = {"rate": rate, "load": load, "usable": usable.astype(np.bool_), "gain": gain, "pay": pay}
        return replace(self, **some, base=self.base[jobs], slope=slope, room=room)


@dataclass(frozen=True)
class PathPoint:
    """Prices by type, the level, the ratio of an objective with `pay`, and how far they may be off."""

    prices: Floats
    level: float
    ratio: float
    gap: float


@dataclass
class _Point:
    """Variables (x and the slacks of demands, time and types), their duals in the same order, and the level."""

    primal: list[Floats]
    dual: list[Floats]
    level: float


def interior_path(program: BlockProgram, goals: Sequence[float], linearized: Linearized | None = None) -> Iterator[PathPoint]:
    """Points on the way to the optimum, one as each of the falling `goals` for the relative gap is reached."""
    usable, rate, load = program.usable[1:], program.rate[1:], program.load[1:]
    types, jobs = rate.shape
    gain, pay = (None if part is None else part[1:] for part in (program.gain, program.pay))
    unit = 1.0 if gain is None else max(float(np.abs(gain).max()) * 0.5 * jobs, abs(program.level_gain), 1e-300)
    worth, level_gain = None if gain is None else gain / unit, program.level_gain / unit
    room, growth = program.room, np.zeros(types) if program.growth is None else program.growth
    base, slope = program.base, np.zeros(jobs) if program.slope is None else program.slope
    if linearized is not None:
        base, slope = linearized(0.0)
    gain, ratio = worth, 0.0
    if worth is not None and pay is not None:
        pay, ratio = pay / unit, 0.9 * float(worth.sum()) / max(float(pay.sum()), 1e-300)
        gain = worth - ratio * pay
    at = _first_point(program, base, slope, growth, gain)
    mask = None if usable.all() else usable.astype(np.float64)
    size = int(usable.sum()) + 2 * jobs + types
    remaining = list(goals)
    for _ in range(_STEPS):
        if linearized is not None:
            base, slope = linearized(at.level)
        (x, v, y, z), (w, u, q, p), t = at.primal, at.dual, at.level
        short = [base + slope * t - (rate * x).sum(axis=0) + v, 1.0 - x.sum(axis=0) - y]
        short_types = room + growth * t - (load * x).sum(axis=1) - z
        if worth is not None and pay is not None and float(np.abs(short[0]).max()) < 0.1:
            ratio = float((worth * x).sum()) / float((pay * x).sum())
            gain = worth - ratio * pay
        dual_short = rate * u + w - load * p[:, None] - q
        if gain is not None:
            dual_short += gain
        if mask is not None:
            dual_short *= mask
        level_short = level_gain - float((slope * u).sum()) + float((growth * p).sum()) if program.has_level else 0.0
        products = float((x * w).sum()) + float((v * u).sum()) + float((y * q).sum()) + float((z * p).sum())
        value = level_gain * t + (0.0 if gain is None else float((gain * x).sum()))
        bound = float((room * p).sum()) + float(q.sum()) - float((base * u).sum())
        scale = abs(value) if worth is None or pay is None else abs(float((worth * x).sum()))
        gap = abs(bound - value) / (1e-12 + (scale if program.growth is None else max(scale, 1.0)))
        off = max(float(np.abs(part).max()) for part in (*short, short_types))
        dual_off = float(np.abs(dual_short).max()) * jobs
        while remaining and gap < remaining[0] and off < remaining[0] and dual_off < 10.0 * remaining[0]:
            remaining = remaining[1:]
            yield PathPoint(p * unit, t, ratio, gap)
        if not remaining or not np.isfinite(gap):
            return
        equations = _Equations(program, at, slope, growth, mask, (short, short_types, dual_short, level_short))
        ahead = equations.solve([-w if mask is None else -w * mask, -v, -y, -z])
        if ahead is None:
            return
        far, dual_far = _reach(at.primal, ahead.primal), _reach(at.dual, ahead.dual)
        mean = products / size
        after = sum(
            float(((s + far * ds) * (r + dual_far * dr)).sum())
            for s, ds, r, dr in zip(at.primal, ahead.primal, at.dual, ahead.dual)
        )
        part = max(after / size / mean, 0.0)
        aim = part * part * part * mean
        # By complementarity s·dr + r·ds = aim − s·r − (ds·dr of the prediction), divided by s for x and by r for the slacks.
        dx, dw = ahead.primal[0], ahead.dual[0]
        wanted = [(aim - dx * dw) / x - w]
        if mask is not None:
            wanted[0] *= mask
        rest = zip(at.primal[1:], ahead.primal[1:], at.dual[1:], ahead.dual[1:])
        wanted += [(aim - ds * dr) / r - s for s, ds, r, dr in rest]
        move = equations.solve(wanted)
        if move is None:
            return
        far, dual_far = _reach(at.primal, move.primal), _reach(at.dual, move.dual)
        if min(far, dual_far) < _SHORT:  # some products are far from the others: correct these (Gondzio)
            longer = equations.solve(_corrected(at, move, wanted, (far, dual_far), aim, mask))
            if longer is not None:
                reach = _reach(at.primal, longer.primal), _reach(at.dual, longer.dual)
                if sum(reach) > far + dual_far:
                    move, (far, dual_far) = longer, reach
        back = min(max(0.9, 1.0 - products), 0.9995)
        far, dual_far = min(1.0, back * far), min(1.0, back * dual_far)
        at = _Point(
            [s + far * ds for s, ds in zip(at.primal, move.primal)],
            [r + dual_far * dr for r, dr in zip(at.dual, move.dual)],
            t + far * move.level,
        )


def _first_point(program: BlockProgram, base: Floats, slope: Floats, growth: Floats, gain: Floats | None) -> _Point:
    """A point with positive slacks that need not meet the rows. Unusable columns never move from nearly 0."""
    usable, rate, load, room = program.usable[1:], program.rate[1:], program.load[1:], program.room
    types, jobs = rate.shape
    options = usable.sum(axis=0)
    rising = slope > 0
    if rising.any():
        fill = 0.5 * min(1.0, float((np.maximum(room, _START) / np.maximum(load.sum(axis=1), 1e-300)).min()))
        x = usable * (fill / options.max())
    else:
        x = usable * (0.5 / options)
    speed, used, t = (rate * x).sum(axis=0), (load * x).sum(axis=1), 0.0
    if rising.any():
        t = max(0.5 * float(((speed - base)[rising] / slope[rising]).min()), 0.0)
    elif (growth > 0).any():
        t = max(0.0, float(((1.5 * used - room)[growth > 0] / growth[growth > 0]).max()))
    slacks = [
        np.maximum(speed - base - slope * t, _START),
        1.0 - x.sum(axis=0),
        np.maximum(room + growth * t - used, _START),
    ]
    p = np.full(types, 1.0 / types)
    u = np.full(jobs, 1.0 / max(float(slope.sum()), _START * jobs))
    w = load * p[:, None] - rate * u
    if gain is not None:
        w -= gain
    q = np.maximum(-w.min(axis=0), 0.0) + 1.0 / jobs
    return _Point([np.where(usable, x, _NOTHING), *slacks], [np.where(usable, w + q, 1.0), u, q, p], t)


def _corrected(
    at: _Point, move: _Point, wanted: Sequence[Floats], reach: tuple[float, float], aim: float, mask: Floats | None
) -> list[Floats]:
    """What to want so that after a longer step than `reach` the products are near `aim`."""
    far, dual_far = (min(1.0, one + _LONGER) for one in reach)
    changed = list[Floats]()
    for place, (s, ds, r, dr) in enumerate(zip(at.primal, move.primal, at.dual, move.dual)):
        product = (s + far * ds) * (r + dual_far * dr)
        lacks = np.maximum(np.minimum(np.maximum(product, 0.1 * aim), 10.0 * aim) - product, -10.0 * aim)
        if place == 0 and mask is not None:
            lacks *= mask
        changed.append(wanted[place] + lacks / (r if place else s))
    return changed


def _reach(at: Sequence[Floats], move: Sequence[Floats]) -> float:
    """How much of a move, at most all of it, leaves every number at 0 or above."""
    least = min(float((step / here).min()) for here, step in zip(at, move))
    return min(1.0, -1.0 / least) if least < 0 else 1.0


class _Equations:
    """Newton's equations at a point, factored once for both steps."""

    def __init__(
        self,
        program: BlockProgram,
        at: _Point,
        slope: Floats,
        growth: Floats,
        mask: Floats | None,
        short: tuple[Sequence[Floats], Floats, Floats, float],
    ) -> None:
        self.rate, self.load, self.has_level = program.rate[1:], program.load[1:], program.has_level
        (x, v, y, z), (w, u, q, p) = at.primal, at.dual
        (self.demand, self.time), self.types, self.duals, self.level = short
        types = len(self.rate)
        self.ease, self.inverse = x / w, w / x
        if mask is not None:
            self.ease *= mask
            self.inverse *= mask
        self.slack = (v / u, y / q, z / p)
        fast = self.ease * self.rate
        # The Cholesky factor of each job's matrix (m11, m12; m12, m22).
        self.first = 1.0 / np.sqrt((fast * self.rate).sum(axis=0) + self.slack[0])
        self.below = fast.sum(axis=0) * self.first
        m22 = self.ease.sum(axis=0) + self.slack[1]
        self.second = 1.0 / np.sqrt(np.maximum(m22 - self.below * self.below, 1e-14 * m22))
        taken = self.ease * self.load
        # The effect of each price and of the level on jobs, through half of the factor. Lists: large temporaries are slow.
        one = [*(taken * self.rate * self.first), slope * self.first]
        two = [*((taken - self.below * np.array(one[:types])) * self.second), -self.below * one[types] * self.second]
        self.half = list(zip(one, two))
        matrix = np.empty((types + 1, types + 1))
        for row, (mine, other) in enumerate(self.half):
            for column in range(row, types + 1):
                product = mine * self.half[column][0] + other * self.half[column][1]
                matrix[row, column] = matrix[column, row] = product.sum()
        matrix[np.arange(types), np.arange(types)] -= (taken * self.load).sum(axis=1) + self.slack[2]
        matrix[:types, types] -= growth
        matrix[types, :types] -= growth
        if not self.has_level:
            matrix[types, :], matrix[:, types], matrix[types, types] = 0.0, 0.0, 1.0
        self.matrix = matrix.tolist()

    def solve(self, wanted: Sequence[Floats]) -> _Point | None:
        """The step to these changes of the products, each divided by x or by the dual of a slack."""
        want_x, want_v, want_y, want_z = wanted
        types = len(self.rate)
        pull = self.ease * (self.duals + want_x)
        one = (self.demand + want_v - (pull * self.rate).sum(axis=0)) * self.first
        two = (self.time - want_y - pull.sum(axis=0) - self.below * one) * self.second
        known = np.array([(mine * one + other * two).sum() for mine, other in self.half])
        beside = np.append(self.types - want_z - (self.load * pull).sum(axis=1), self.level) - known
        if not self.has_level:
            beside[types] = 0.0
        found = filling(self.matrix, beside.tolist(), range(types + 1))
        if found is None:
            return None
        move = np.array(found)
        for step, (mine, other) in zip(found, self.half):
            one += step * mine
            two += step * other
        dt = two * self.second
        du = (one - self.below * dt) * self.first
        dp, dq = move[:types], -dt
        dx = self.ease * (self.rate * du - self.load * dp[:, None] + dt) + pull
        dw = want_x - dx * self.inverse
        slacks = [want_v - du * self.slack[0], want_y - dq * self.slack[1], want_z - dp * self.slack[2]]
        return _Point([dx, *slacks], [dw, du, dq, dp], float(move[types]))
