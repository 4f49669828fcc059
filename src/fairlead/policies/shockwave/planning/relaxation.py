"""The number of rounds of each job of a window, and a bound on the value of every plan.

The relaxation of a window is one knapsack of M·T accelerator-rounds; the makespan term becomes a level b that no job's run time
left may exceed: n_j ≥ ⌈(R_j − b)/D⌉. At a price p of an accelerator-round the jobs are independent,

    bound(p, b) = Σ_j max_n [w_j·log UTIL_j(n) − θ·c·s_j·R_j(n)/M − p·s_j·n] + p·M·T − (1 − θ)·c·b

which no plan of that level exceeds, for any p ≥ 0 and θ from 0 to 1. Utilities are not concave where a regime speeds up; the
price is found on their concave hulls. The rounds of a level are the jobs' demands at its price, repaired by a small dynamic
program until the knapsack is as full as possible. Levels are searched by intervals: no plan between two levels is worth more
than the bound of the looser one without its penalty, less the penalty of the stricter one."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError
from fairlead.policies.shockwave.planning.window import Window

_CORE = 96  # jobs that may change
_BELOW = 96  # accelerator-rounds that may be exchanged for others


def repaired(worth: Floats, workers: Ints, room: int, price: float, min_rounds: Ints, max_rounds: Ints) -> Ints:
    """The rounds of each job with Σ workers·rounds ≤ room: the demands at a price, and the few changes that use the rest.
    `worth` is rounds × jobs, −∞ where infeasible."""
    jobs, number = np.arange(len(workers)), np.arange(len(worth))[:, None]
    surplus = np.where((number >= min_rounds) & (number <= max_rounds), worth - price * number * workers, -np.inf)
    rounds = surplus.argmax(axis=0)  # the fewest among equals
    room -= int(rounds @ workers)
    if room < 0:  # the price is that of hulls: jobs between two vertices take the upper one
        rounds, room = _cut(surplus, rounds, workers, room, min_rounds)
    while True:  # jobs with equal values take turns
        next_up = np.minimum(rounds + 1, max_rounds)
        loss = surplus[rounds, jobs] - surplus[next_up, jobs]
        able = (rounds < max_rounds) & (workers <= room)
        line = np.flatnonzero(able)[np.argsort(loss[able] / workers[able], kind="stable")]
        line = line[loss[line] <= price * workers[line]]  # of positive value
        fits = int(workers[line].cumsum().searchsorted(room, side="right"))
        if not fits:
            break
        rounds[line[:fits]] += 1
        room -= int(workers[line[:fits]].sum())
    return _exchanged(surplus, rounds, workers, room, price, min_rounds, max_rounds)


def _cut(surplus: Floats, rounds: Ints, workers: Ints, room: int, min_rounds: Ints) -> tuple[Ints, int]:
    jobs = np.arange(len(workers))
    while room < 0:
        down = np.maximum(rounds - 1, min_rounds)
        loss = np.where(rounds > min_rounds, (surplus[rounds, jobs] - surplus[down, jobs]) / workers, np.inf)
        one = int(loss.argmin())
        rounds[one] -= 1
        room += int(workers[one])
    return rounds, room


def _exchanged(
    surplus: Floats, rounds: Ints, workers: Ints, room: int, price: float, min_rounds: Ints, max_rounds: Ints
) -> Ints:
    """The best set of changes by one round among the jobs with the least loss: a dynamic program over their total width."""
    jobs = np.arange(len(workers))
    here = surplus[rounds, jobs]
    up = here - np.where(rounds < max_rounds, surplus[np.minimum(rounds + 1, max_rounds), jobs], -np.inf)
    down = here - np.where(rounds > min_rounds, surplus[np.maximum(rounds - 1, min_rounds), jobs], -np.inf)
    core = np.argsort(np.minimum(up, down) / workers, kind="stable")[:_CORE]
    core = core[np.isfinite(np.minimum(up, down)[core])]
    span = min(room, _BELOW)
    size = _BELOW + span + 1
    loss = np.full(size, np.inf)
    loss[_BELOW] = 0.0
    choices = np.zeros((len(core), size), dtype=np.int8)
    for number, job in enumerate(core):
        width = int(workers[job])
        if width >= size:
            continue
        more, less = np.full(size, np.inf), np.full(size, np.inf)
        more[width:] = loss[:-width] + up[job]
        less[:-width] = loss[width:] + down[job]
        choices[number] = np.where(more < loss, np.where(less < more, -1, 1), np.where(less < loss, -1, 0))
        loss = np.minimum(loss, np.minimum(more, less))
    at = int((loss + price * (span - (np.arange(size) - _BELOW))).argmin())
    changed = rounds.copy()
    for number in range(len(core) - 1, -1, -1):
        step = int(choices[number, at])
        changed[core[number]] += step
        at -= step * int(workers[core[number]])
    return changed


LEVELS = 400
"""Limit of the search, which nearly always ends sooner."""

_HALVINGS = 50
_NEAR = 1e-6  # of a round: levels this close are the same
_FACES = (0.0, 1.0, 0.5, 0.75, 0.25)  # values of θ, in the order of use


@dataclass(frozen=True)
class Relaxation:
    """Numbers of rounds, their value if they can be scheduled, the bound, and the price of an accelerator-round."""

    rounds: Ints
    value: float
    bound: float
    price: float


@dataclass(frozen=True)
class PricedLevel:
    """The relaxation of a level: the bound without the penalty of the level, at its best price."""

    level: float
    bound: float
    price: float
    min_rounds: Ints


class LevelRelaxation:
    """The relaxations of a window by level, for one θ. Arrays are rounds × jobs, for fast sums over rounds."""

    def __init__(self, window: Window, theta: float) -> None:
        self.window, self.theta = window, theta
        rounds = np.arange(window.rounds + 1)[:, None]
        load = theta * window.penalty / window.accelerators
        worth = window.worth - load * window.workers[:, None] * window.left_s
        self.worth = np.where(rounds <= window.max_rounds, worth.T, -np.inf)
        self.width = (rounds * window.workers).astype(np.float64)
        self.density = hull_slopes(self.worth) / window.workers
        self.own = (1.0 - theta) * window.penalty  # penalty of a second of the level

    def min_rounds_at(self, level: float) -> Ints:
        """The fewest rounds with which no job's run time left exceeds the level."""
        window = self.window
        over = np.ceil((window.left_s[:, 0] - level) / window.round_s - 1e-9)
        return np.maximum(window.min_rounds, np.clip(over, 0, window.rounds).astype(np.int64))

    def at(self, level: float) -> PricedLevel | None:
        """The relaxation at a level; None where it is infeasible."""
        window = self.window
        min_rounds = self.min_rounds_at(level) if np.isfinite(level) else window.min_rounds
        if (min_rounds > window.max_rounds).any() or int(min_rounds @ window.workers) > window.room:
            return None
        price = self._price(min_rounds)
        surplus = self.surplus(price, min_rounds)
        return PricedLevel(level, float(surplus.max(axis=0).sum()) + price * window.room, price, min_rounds)

    def surplus(self, price: float, min_rounds: Ints) -> Floats:
        """The surplus of numbers of rounds for each job: their worth less their price."""
        possible = np.arange(self.window.rounds + 1)[:, None] >= min_rounds
        return np.where(possible, self.worth - price * self.width, -np.inf)

    def _price(self, min_rounds: Ints) -> float:
        """The least price at which the demand fits."""
        density = np.where(np.arange(self.window.rounds)[:, None] < min_rounds, np.inf, self.density)

        def demand(price: float) -> int:  # of whole numbers: for products of floats, BLAS starts threads that wait actively
            return int((density > price).sum(axis=0) @ self.window.workers)

        if demand(0.0) <= self.window.room:
            return 0.0
        finite = density[np.isfinite(density)]
        low, high = 0.0, float(finite.max())
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if demand(middle) <= self.window.room:
                high = middle
            else:
                low = middle
            if high - low <= 1e-9 * high:
                break
        return high

    def rounds(self, priced: PricedLevel) -> Ints:
        """The demands at the price, repaired until the knapsack is as full as possible."""
        return repaired(
            self.worth, self.window.workers, self.window.room, priced.price, priced.min_rounds, self.window.max_rounds
        )


def relax(window: Window, tolerance: float, levels: int = LEVELS) -> Relaxation:
    """Rounds within `tolerance` (a part of Σ w) of the bound, if `levels` suffice to find them, and the bound."""
    far = tolerance * float(window.weight.sum())
    best: Relaxation | None = None
    bound = np.inf
    if window.loads or not window.penalty:
        loaded = LevelRelaxation(window, 1.0 if window.loads else 0.0)
        free = loaded.at(np.inf)
        if free is None:
            raise _unfit(window)
        rounds = loaded.rounds(free)
        bound = free.bound
        best = Relaxation(rounds, window.value(rounds), bound, free.price)
        if bound - best.value <= far or not window.penalty or not levels:
            return best
    return _searched(window, best, bound, far, levels)


def _searched(window: Window, best: Relaxation | None, ceiling: float, far: float, levels: int) -> Relaxation:
    """Search the levels, where H may be the longest job."""
    faces = [LevelRelaxation(window, theta) for theta in (_FACES if window.loads else _FACES[:1])]
    loose = faces[0].at(np.inf)
    if loose is None:
        raise _unfit(window)
    top = window.longest_s(faces[0].rounds(loose))
    found = _better(window, faces[0].rounds(loose), loose.price, best)
    beyond = min(loose.bound - faces[0].own * top, ceiling)  # of plans with a longer job
    # A lower bound of H: the longest job runs in all rounds, or all accelerators are busy in all rounds.
    now = np.zeros(len(window), dtype=np.int64)
    bound_s = max(window.longest_s(now), window.load_s(now) if window.loads else 0.0)
    bottom = max(bound_s - window.rounds * window.round_s, 0.0)
    heap: list[tuple[float, float, float, _Level]] = []
    if top > bottom:
        level = _Level(faces, top)
        heappush(heap, (-level.bound(bottom, -np.inf), bottom, top, level))
    for _ in range(levels):
        if not heap or min(-heap[0][0], ceiling) - found.value <= far or heap[0][2] - heap[0][1] <= _NEAR * window.round_s:
            break
        _, low, high, over = heappop(heap)
        middle = 0.5 * (low + high)
        heappush(heap, (-over.bound(middle, found.value + far), middle, high, over))
        under = _Level(faces, middle)
        worth = under.bound(low, found.value + far)
        if worth > -np.inf:
            heappush(heap, (-worth, low, middle, under))
            if min(under.bound(middle, found.value), ceiling) > found.value + 0.5 * far:
                for face, priced in under.priced:
                    found = _better(window, face.rounds(priced), priced.price, found)
    bound = max(-heap[0][0] if heap else -np.inf, beyond)
    return Relaxation(found.rounds, found.value, max(min(bound, ceiling), found.value), found.price)


class _Level:
    """A level and its relaxations so far, one for each θ."""

    def __init__(self, faces: list[LevelRelaxation], level: float) -> None:
        self.level, self.priced = level, list[tuple[LevelRelaxation, PricedLevel]]()
        self._faces = iter(faces)

    def bound(self, low: float, enough: float) -> float:
        """The bound of plans whose longest job is between `low` and this level; more θ until it is `enough`."""
        found = min((priced.bound - face.own * low for face, priced in self.priced), default=np.inf)
        while found > enough and self._loaded(low) and (face := next(self._faces, None)) is not None:
            priced = face.at(self.level)
            if priced is None:
                return -np.inf
            self.priced.append((face, priced))
            found = min(found, priced.bound - face.own * low)
        return found

    def _loaded(self, low: float) -> bool:
        """Whether another θ than 0 may help: only where the load exceeds the longest job."""
        if len(self.priced) != 1:
            return True
        face, priced = self.priced[0]
        return face.window.load_s(face.surplus(priced.price, priced.min_rounds).argmax(axis=0)) > low

    def __lt__(self, other: _Level) -> bool:
        return self.level < other.level


def _unfit(window: Window) -> InputError:
    return InputError(
        "shockwave planner", "rounds that fit the window together", field="min_rounds", value=window.min_rounds.tolist()
    )


def _better(window: Window, rounds: Ints, price: float, best: Relaxation | None) -> Relaxation:
    value = window.value(rounds)
    return best if best is not None and best.value >= value else Relaxation(rounds, value, np.inf, price)


def hull_slopes(worth: Floats) -> Floats:
    """Rounds × jobs: the slopes of the concave hull of each column; −∞ behind its last finite entry."""
    with np.errstate(invalid="ignore"):
        slopes = np.diff(worth, axis=0)
    slopes[np.isnan(slopes)] = -np.inf
    bent = (slopes[1:] > slopes[:-1]).any(axis=0)
    if bent.any():
        slopes[:, bent] = _bent(worth[:, bent])
    return slopes


def _bent(worth: Floats) -> Floats:
    """From each vertex of a hull to the next, which has the steepest slope."""
    points, jobs = worth.shape
    number = np.arange(points)[:, None]
    slopes = np.full((points - 1, jobs), -np.inf)
    at, column = np.zeros(jobs, dtype=np.int64), np.arange(jobs)
    while True:
        later = number > at
        rise = np.where(later, (worth - worth[at, column]) / np.where(later, number - at, 1), -np.inf)
        steepest = rise.max(axis=0)
        if not np.isfinite(steepest).any():
            return slopes
        reached = points - 1 - (rise[::-1] == steepest).argmax(axis=0)  # the farthest of the steepest
        reached = np.where(np.isfinite(steepest), reached, at)
        between = (number[:-1] >= at) & (number[:-1] < reached)
        slopes = np.where(between, steepest, slopes)
        at = reached
