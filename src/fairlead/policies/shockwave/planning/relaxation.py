"""How many rounds each job of a window should have, and a proof of how much better it could be.

Relaxed, a window is one knapsack of M·T accelerator-rounds, and the makespan term a level b that nobody's run time left may
exceed: n_j ≥ ⌈(R_j − b)/D⌉. At a price p for an accelerator-round jobs come apart,

    bound(p, b) = Σ_j max_n [w_j·log UTIL_j(n) − θ·c·s_j·R_j(n)/M − p·s_j·n] + p·M·T − (1 − θ)·c·b

which no plan of that level exceeds, for any p ≥ 0 and θ from 0 to 1. Utilities are not concave where a regime speeds up;
the price is found on their concave hulls. Rounds of a level are what jobs want at its price, mended by a small dynamic
program until the knapsack is as full as it can be. Levels are searched by intervals: no plan between two levels is worth
more than the looser one's bound without its penalty, less the stricter one's penalty."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError
from fairlead.policies.shockwave.planning.window import Window

# An integer knapsack near its optimum: from what each job wants at a price, the few changes that fill what is left over.
# What a change loses at the price, and what stays empty at the price, is all that is missing to the bound.

_CORE = 96  # jobs that may change
_BELOW = 96  # accelerator-rounds that may be given back for others


def mended(worth: Floats, workers: Ints, room: int, price: float, least: Ints, most: Ints) -> Ints:
    """Rounds of each job, Σ workers·rounds ≤ room. `worth` is rounds × jobs, −∞ where impossible."""
    jobs, number = np.arange(len(workers)), np.arange(len(worth))[:, None]
    wish = np.where((number >= least) & (number <= most), worth - price * number * workers, -np.inf)
    rounds = wish.argmax(axis=0)  # the fewest of those as good
    room -= int(rounds @ workers)
    if room < 0:  # the price was found on hulls: jobs between two of their vertices take the upper one
        rounds, room = _cut(wish, rounds, workers, room, least)
    while True:  # jobs that are as good as each other stand in line
        next_up = np.minimum(rounds + 1, most)
        loss = wish[rounds, jobs] - wish[next_up, jobs]
        able = (rounds < most) & (workers <= room)
        line = np.flatnonzero(able)[np.argsort(loss[able] / workers[able], kind="stable")]
        line = line[loss[line] <= price * workers[line]]  # worth something
        fits = int(workers[line].cumsum().searchsorted(room, side="right"))
        if not fits:
            break
        rounds[line[:fits]] += 1
        room -= int(workers[line[:fits]].sum())
    return _exchanged(wish, rounds, workers, room, price, least, most)


def _cut(wish: Floats, rounds: Ints, workers: Ints, room: int, least: Ints) -> tuple[Ints, int]:
    jobs = np.arange(len(workers))
    while room < 0:
        down = np.maximum(rounds - 1, least)
        loss = np.where(rounds > least, (wish[rounds, jobs] - wish[down, jobs]) / workers, np.inf)
        one = int(loss.argmin())
        rounds[one] -= 1
        room += int(workers[one])
    return rounds, room


def _exchanged(wish: Floats, rounds: Ints, workers: Ints, room: int, price: float, least: Ints, most: Ints) -> Ints:
    """The best set of changes by one round, among the jobs that lose least by one: a dynamic program over what they add up
    to."""
    jobs = np.arange(len(workers))
    here = wish[rounds, jobs]
    up = here - np.where(rounds < most, wish[np.minimum(rounds + 1, most), jobs], -np.inf)
    down = here - np.where(rounds > least, wish[np.maximum(rounds - 1, least), jobs], -np.inf)
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
"""Of the search, at most: it nearly always ends sooner."""

_HALVINGS = 50
_NEAR = 1e-6  # levels that differ by such a part of a round are one
_FACES = (0.0, 1.0, 0.5, 0.75, 0.25)  # values of θ, in the order in which they are tried


@dataclass(frozen=True)
class Relaxed:
    """Numbers of rounds, what they are worth where they can be packed, the bound, and the price of an accelerator-round."""

    rounds: Ints
    value: float
    bound: float
    price: float


@dataclass(frozen=True)
class Priced:
    """A level's relaxation: the bound without the level's own penalty, at its best price."""

    level: float
    bound: float
    price: float
    least: Ints


class Levels:
    """A window's relaxations by level, for one θ. Arrays are rounds × jobs: sums over rounds are then fast."""

    def __init__(self, window: Window, theta: float) -> None:
        self.window, self.theta = window, theta
        rounds = np.arange(window.rounds + 1)[:, None]
        load = theta * window.penalty / window.accelerators
        worth = window.worth - load * window.workers[:, None] * window.left_s
        self.worth = np.where(rounds <= window.most, worth.T, -np.inf)
        self.width = (rounds * window.workers).astype(np.float64)
        self.density = hull_slopes(self.worth) / window.workers
        self.own = (1.0 - theta) * window.penalty  # what a second of the level costs

    def least_at(self, level: float) -> Ints:
        """Rounds without which a job's run time left exceeds the level."""
        window = self.window
        over = np.ceil((window.left_s[:, 0] - level) / window.round_s - 1e-9)
        return np.maximum(window.least, np.clip(over, 0, window.rounds).astype(np.int64))

    def at(self, level: float) -> Priced | None:
        """None where it cannot be kept."""
        window = self.window
        least = self.least_at(level) if np.isfinite(level) else window.least
        if (least > window.most).any() or int(least @ window.workers) > window.room:
            return None
        price = self._price(least)
        wish = self.wishes(price, least)
        return Priced(level, float(wish.max(axis=0).sum()) + price * window.room, price, least)

    def wishes(self, price: float, least: Ints) -> Floats:
        """What numbers of rounds are worth to each job beyond their price."""
        possible = np.arange(self.window.rounds + 1)[:, None] >= least
        return np.where(possible, self.worth - price * self.width, -np.inf)

    def _price(self, least: Ints) -> float:
        """The least price at which what jobs want fits."""
        density = np.where(np.arange(self.window.rounds)[:, None] < least, np.inf, self.density)
        workers = self.window.workers.astype(np.float64)

        def demand(price: float) -> float:
            return float((density > price).sum(axis=0) @ workers)

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

    def rounds(self, priced: Priced) -> Ints:
        """What jobs want at the price, mended until the knapsack is as full as it can be."""
        return mended(self.worth, self.window.workers, self.window.room, priced.price, priced.least, self.window.most)


def relax(window: Window, tolerance: float, levels: int = LEVELS) -> Relaxed:
    """Rounds within `tolerance` of the bound, where so many `levels` suffice to find such, and the bound. `tolerance` is a part
    of Σ w. Without any level rounds are what they would be if the longest job were no part of H."""
    far = tolerance * float(window.weight.sum())
    best: Relaxed | None = None
    bound = np.inf
    if window.loads or not window.penalty:
        loaded = Levels(window, 1.0 if window.loads else 0.0)
        free = loaded.at(np.inf)
        if free is None:
            raise _unfit(window)
        rounds = loaded.rounds(free)
        bound = free.bound
        best = Relaxed(rounds, window.value(rounds), bound, free.price)
        if bound - best.value <= far or not window.penalty or not levels:
            return best
    return _searched(window, best, bound, far, levels)


def _searched(window: Window, best: Relaxed | None, ceiling: float, far: float, levels: int) -> Relaxed:
    """The search over levels, where the longest job may be what a plan is judged by."""
    faces = [Levels(window, theta) for theta in (_FACES if window.loads else _FACES[:1])]
    loose = faces[0].at(np.inf)
    if loose is None:
        raise _unfit(window)
    top = window.longest_s(faces[0].rounds(loose))
    found = _better(window, faces[0].rounds(loose), loose.price, best)
    beyond = min(loose.bound - faces[0].own * top, ceiling)  # of plans that leave somebody even longer
    bottom = _bottom(window)
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
    return Relaxed(found.rounds, found.value, max(min(bound, ceiling), found.value), found.price)


class _Level:
    """A level and the relaxations that were needed so far, one for each θ."""

    def __init__(self, faces: list[Levels], level: float) -> None:
        self.level, self.priced = level, list[tuple[Levels, Priced]]()
        self._faces = iter(faces)

    def bound(self, low: float, enough: float) -> float:
        """Of plans whose longest job has between `low` and this level left; more θ are tried until it is not above `enough`."""
        found = min((priced.bound - face.own * low for face, priced in self.priced), default=np.inf)
        while found > enough and self._loaded(low) and (face := next(self._faces, None)) is not None:
            priced = face.at(self.level)
            if priced is None:
                return -np.inf
            self.priced.append((face, priced))
            found = min(found, priced.bound - face.own * low)
        return found

    def _loaded(self, low: float) -> bool:
        """Whether another θ than 0 may help: only where the load is more than the longest job."""
        if len(self.priced) != 1:
            return True
        face, priced = self.priced[0]
        return face.window.load_s(face.wishes(priced.price, priced.least).argmax(axis=0)) > low

    def __lt__(self, other: _Level) -> bool:
        return self.level < other.level


def _unfit(window: Window) -> InputError:
    return InputError("shockwave planner", "rounds that fit the window together", field="least", value=window.least.tolist())


def _bottom(window: Window) -> float:
    """H is no less in any plan: the longest job in all rounds, or all accelerators at work in all rounds."""
    now = np.zeros(len(window), dtype=np.int64)
    least = max(window.longest_s(now), window.load_s(now) if window.loads else 0.0)
    return max(least - window.rounds * window.round_s, 0.0)


def _better(window: Window, rounds: Ints, price: float, best: Relaxed | None) -> Relaxed:
    value = window.value(rounds)
    return best if best is not None and best.value >= value else Relaxed(rounds, value, np.inf, price)


def hull_slopes(worth: Floats) -> Floats:
    """Rounds × jobs: by how much the concave hull of each column rises from round to round; −∞ behind its last finite entry."""
    with np.errstate(invalid="ignore"):
        slopes = np.diff(worth, axis=0)
    slopes[np.isnan(slopes)] = -np.inf
    bent = (slopes[1:] > slopes[:-1]).any(axis=0)
    if bent.any():
        slopes[:, bent] = _bent(worth[:, bent])
    return slopes


def _bent(worth: Floats) -> Floats:
    """From each vertex of a hull to the next, which is where the rise per round is steepest."""
    points, jobs = worth.shape
    number = np.arange(points)[:, None]
    slopes = np.full((points - 1, jobs), -np.inf)
    at, column = np.zeros(jobs, dtype=np.int64), np.arange(jobs)
    while True:
        ahead = number > at
        rise = np.where(ahead, (worth - worth[at, column]) / np.where(ahead, number - at, 1), -np.inf)
        steepest = rise.max(axis=0)
        if not np.isfinite(steepest).any():
            return slopes
        reached = points - 1 - (rise[::-1] == steepest).argmax(axis=0)  # the farthest of the steepest
        reached = np.where(np.isfinite(steepest), reached, at)
        between = (number[:-1] >= at) & (number[:-1] < reached)
        slopes = np.where(between, steepest, slopes)
        at = reached
