"""The planner: a window in, a schedule with a bound on its optimality out. `relaxation.py` finds the number of rounds of each
job; it ignores whether gangs fit side by side, so its bound holds for every schedule. The schedule of rounds follows from these
numbers. Where gangs do not fit, on small clusters, a mixed-integer program decides both (`exact.py`). The planner knows nothing
of snapshots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.policies.shockwave.planning.exact import solve_exact
from fairlead.policies.shockwave.planning.relaxation import LEVELS, hull_slopes, relax
from fairlead.policies.shockwave.planning.window import Window


def schedule_rounds(window: Window, rounds: Ints, urgency: Floats) -> Bools:
    """Jobs × rounds: when each job runs, given how many rounds it should have. Urgent jobs run first, as long as all others
    still find their rounds later, and of equally urgent ones those with the least work; idle accelerators go to the longest."""
    schedule = np.zeros((len(window), window.rounds), dtype=np.bool_)
    workers, left_s, left = window.workers, window.left_s[:, 0], rounds.copy()
    order = np.lexsort((left_s * workers, -urgency))
    sizes = np.unique(workers[rounds > 0])[::-1]
    for now in range(window.rounds):
        unfinished = order[left[order] > 0]
        if not len(unfinished):
            break
        chosen = _round(unfinished, left, workers, window.accelerators, window.rounds - now, sizes, left_s)
        schedule[chosen, now] = True
        left[chosen] -= 1
    fill_idle(window, schedule, left)
    return schedule


def _round(queue: Ints, left: Ints, workers: Ints, accelerators: int, to_go: int, sizes: Ints, left_s: Floats) -> Ints:
    """The jobs of `queue` that run in the first of the `to_go` remaining rounds: the longest head that leaves no more for later
    than fits, for each size w: Σ over wider gangs of ⌊s/w⌋·rounds ≤ ⌊M/w⌋·(rounds left)."""
    must = left[queue] >= to_go
    line = np.concatenate((queue[must], queue[~must]))
    size, wanted = workers[line], left[line]
    taken = size.cumsum()
    heads = int(taken.searchsorted(accelerators, side="right"))
    used = np.concatenate(([0], taken[:heads]))
    free = accelerators - used
    inside, more = (np.zeros((len(sizes), heads + 1), dtype=np.int64) for _ in range(2))  # of each size, by how long a head is
    for number, width in enumerate(sizes):
        mine = size == width
        inside[number, 1:] = mine[:heads].cumsum()
        more[number] = np.minimum(mine.sum() - inside[number], free // width)
        free = free - more[number] * width
    short = np.zeros(heads + 1, dtype=np.int64)
    for width in sizes:
        asked = int((size // width) @ wanted) - accelerators // width * (to_go - 1)
        short += width * np.maximum(asked - sizes // width @ (inside + more), 0)
    head = heads - int(short[::-1].argmin())
    rest = line[head:]
    chosen = [line[:head]]
    for width, count in zip(sizes, more[:, head]):
        if count:
            mine = rest[workers[rest] == width]
            chosen.append(mine[(-left_s[mine]).argsort(kind="stable")[:count]])
    return np.concatenate(chosen)


def _as_fits(queue: Ints, workers: Ints, room: int) -> Ints:
    """The jobs of a queue that fit; earlier jobs take precedence."""
    chosen = []
    while len(queue) and room:
        queue = queue[workers[queue] <= room]
        taken = workers[queue].cumsum()
        fitting = int(taken.searchsorted(room, side="right"))
        if not fitting:
            break
        chosen.append(queue[:fitting])
        room -= int(taken[fitting - 1])
        queue = queue[fitting:]
    return np.concatenate(chosen) if chosen else queue[:0]


def fill_idle(window: Window, schedule: Bools, short: Ints) -> None:
    """Give idle accelerators first to jobs that are `short` of rounds, then to the longest. Changes the schedule."""
    workers, given = window.workers, schedule.sum(axis=1)
    free = window.accelerators - workers @ schedule
    line = np.lexsort((-window.left_s[:, 0], short <= 0))
    for now in free.argsort(kind="stable")[::-1]:
        if not free[now]:
            break
        waiting = line[(given < window.max_rounds)[line] & ~schedule[line, now]]
        more = _as_fits(waiting, workers, int(free[now]))
        schedule[more, now] = True
        given[more] += 1


NODES = 200
"""Limit on the search nodes of the mixed-integer program."""

TOLERANCE = 1e-3
"""The search ends when a plan is this near to its bound, in nats per weight."""


@dataclass(frozen=True)
class WindowPlan:
    """A schedule, its value and an upper bound; `price` is that of an accelerator-round, in units of `value`."""

    schedule: Bools  # jobs × rounds
    value: float
    bound: float
    gap: float  # (bound − value) / Σ w
    price: float

    @property
    def relative_gap(self) -> float:
        return relative_gap(self.value, self.bound)

    @property
    def rounds(self) -> Ints:
        count: Ints = self.schedule.sum(axis=1)
        return count

    @property
    def starts(self) -> int:
        """The number of starts in the window, including those in its first round."""
        return int(self.schedule[:, 0].sum() + (self.schedule[:, 1:] & ~self.schedule[:, :-1]).sum())


def relative_gap(value: float, bound: float) -> float:
    """|bound − value| / |value|, as solvers report it; near 0, when few jobs are left, small gaps look large."""
    return (bound - value) / max(abs(value), np.finfo(float).tiny)


def plan_window(
    window: Window, urgency: Floats, tolerance: float = TOLERANCE, nodes: int = NODES, levels: int = LEVELS
) -> WindowPlan:
    """Plan a window; jobs of high urgency run first. `levels` limits the search for numbers of rounds, and `nodes` the
    mixed-integer program, which runs where the tolerance is not met without it (0: never)."""
    if not len(window):
        return WindowPlan(np.zeros((0, window.rounds), dtype=np.bool_), 0.0, 0.0, 0.0, 0.0)
    found = relax(window, tolerance, levels)
    weight = float(window.weight.sum())
    schedule = schedule_rounds(window, found.rounds, urgency)
    value, bound = window.value(schedule.sum(axis=1)), found.bound
    if nodes and bound - value > tolerance * weight:
        better = solve_exact(window, urgency, gap=0.5 * tolerance * weight, nodes=nodes)
        if better is not None:
            bound = min(bound, better.bound)
            # Scheduled again, urgent jobs run first; where that loses rounds, the program's own schedule is used.
            again = schedule_rounds(window, better.schedule.sum(axis=1), urgency)
            fill_idle(window, better.schedule, np.zeros(len(window), dtype=np.int64))
            tried = (schedule, again, better.schedule)
            values = [window.value(one.sum(axis=1)) for one in tried]
            enough = max(values) - 0.5 * tolerance * weight
            schedule, value = next(pair for pair in zip(tried, values) if pair[1] >= enough)
    bound = max(bound, value)
    return WindowPlan(schedule, value, bound, (bound - value) / weight, found.price)


# The accelerator type of each job, where there are several. An accelerator-round of a type has a price; at prices p a job takes
# the type and the number of rounds with the largest surplus,
#
# max_{t, n} [w·log UTIL_t(n) − p_t·s·n],
#
# and the price of each type is the least at which its demand fits. Each job buys one type, so a higher price of one type never
# lowers the demand for another, and prices that rise in turns converge.

_ITERATIONS = 12
_CONVERGED = 1e-3  # relative change of prices; these only choose types, so no more precision is needed


@dataclass(frozen=True)
class TypedPlan:
    """A plan with the type of each job and the price there; gaps are those of the plans for the chosen types."""

    schedule: Bools  # jobs × rounds
    types: Ints
    price: Floats
    gap: float
    relative_gap: float


def plan_on_types(
    fastest: Window,
    windows: Mapping[int, Window],
    urgency: Floats,
    home: Ints,
    stay: float,
    due_s: Floats | None = None,
    *,
    levels: int,
    nodes: int,
) -> TypedPlan:
    """Plan every type with its own jobs, which should end in `due_s`. A running job values its type, `home` (others -1), by
    `stay` more."""
    due_s = np.full(len(fastest), np.inf) if due_s is None else due_s
    count = len(fastest)
    if len(windows) <= 1:
        type_, only = next(iter(windows.items()), (0, fastest))
        found = plan_window(only.in_time(due_s), urgency, levels=levels, nodes=nodes)
        return TypedPlan(found.schedule, np.full(count, type_), np.full(count, found.price), found.gap, found.relative_gap)
    numbers = np.array([*windows])
    rounds = np.arange(fastest.rounds + 1)
    worth = [np.where(rounds <= each.max_rounds[:, None], each.worth, -np.inf) for each in windows.values()]
    able = np.array([each.max_rounds > 0 for each in windows.values()])
    bonus = np.where(home == numbers[:, None], fastest.weight * np.log1p(stay), 0.0)
    bonus = np.where(able, bonus, -np.inf)
    types = choose_types(worth, fastest.workers, [each.room for each in windows.values()], bonus)
    schedule, price, value, bound = np.zeros((count, fastest.rounds), dtype=np.bool_), np.zeros(count), 0.0, 0.0
    for place, each in enumerate(windows.values()):
        mine = types == place
        found = plan_window(each.only(mine).in_time(due_s[mine]), urgency[mine], levels=levels, nodes=nodes)
        schedule[mine], price[mine] = found.schedule, found.price
        value, bound = value + found.value, bound + found.bound
    gap = (bound - value) / max(float(fastest.weight.sum()), np.finfo(float).tiny)
    return TypedPlan(schedule, numbers[types], price, gap, relative_gap(value, bound))


def choose_types(worth: Sequence[Floats], workers: Ints, room: Sequence[int], bonus: Floats) -> Ints:
    """The type of each job, by position in `worth`: for each type jobs × (rounds + 1), −∞ where infeasible. `room` has the
    accelerator-rounds of each type; `bonus` is types × jobs, the extra value of a type to a job."""
    prices, offers = np.zeros(len(worth)), [_Offer.of(each, workers) for each in worth]
    surplus = np.array([each.best(0.0)[0] for each in offers]) + bonus
    for _ in range(_ITERATIONS):
        before = prices.copy()
        for type_, each in enumerate(offers):
            others = np.delete(surplus, type_, axis=0).max(axis=0, initial=-np.inf)
            prices[type_] = _price(each, others, bonus[type_], room[type_], float(prices[type_]))
            surplus[type_] = each.best(prices[type_])[0] + bonus[type_]
        if (np.abs(prices - before) <= _CONVERGED * prices).all():
            break
    types: Ints = surplus.argmax(axis=0)
    return types


@dataclass(frozen=True)
class _Offer:
    """What a type is worth to jobs: `worth` is rounds × jobs, and `density` has the slopes of its concave hulls per
    accelerator-round. At a price, the best number of rounds is that of the slopes above the price."""

    worth: Floats
    density: Floats
    workers: Ints

    @classmethod
    def of(cls, worth: Floats, workers: Ints) -> _Offer:
        by_round = np.ascontiguousarray(worth.T)
        return cls(by_round, hull_slopes(by_round) / workers, workers)

    def only(self, jobs: Ints) -> _Offer:
        return _Offer(self.worth[:, jobs], self.density[:, jobs], self.workers[jobs])

    def best(self, price: float) -> tuple[Floats, Ints]:
        """The surplus of each job at a price, and the accelerator-rounds that it then takes, the fewest among equals."""
        rounds = (self.density > price).sum(axis=0, dtype=np.int32).astype(np.int64)
        taken = rounds * self.workers
        return self.worth[rounds, np.arange(len(rounds))] - price * taken, taken


def _price(offer: _Offer, others: Floats, bonus: Floats, room: int, near: float) -> float:
    """The least price at which the demand for a type fits, where jobs have a surplus of `others` on other types.

    A job's demand falls with the price. So between two prices only jobs are open whose demand differs at these; the rest is
    counted once. The search begins at the price `near` (0: not known), with an interval that bisection from 0 would reach."""

    def demand(price: float) -> Ints:
        surplus, taken = offer.best(price)
        return np.where(surplus + bonus > others, taken, 0)

    width = math.ldexp(1.0, math.frexp(near)[1] - 3) if near else 1.0  # up to a quarter of the price
    low = near // width * width
    at_low = demand(low)
    if at_low.sum() <= room:
        return _price(offer, others, bonus, room, 0.0) if low else 0.0
    high = low + width
    while (at_high := demand(high)).sum() > room:
        if near and high > 2 * near:  # the price has risen too far for steps of this width
            return _price(offer, others, bonus, room, 0.0)
        low, high, at_low = high, high + (width if near else high), at_high
    while high - low > 0.1 * _CONVERGED * high:
        differs = at_low != at_high
        if 2 * np.count_nonzero(differs) < len(differs):
            room -= int(at_high[~differs].sum())
            offer, others, bonus = offer.only(differs.nonzero()[0]), others[differs], bonus[differs]
            at_low, at_high = at_low[differs], at_high[differs]
        middle = 0.5 * (low + high)
        at_middle = demand(middle)
        if at_middle.sum() <= room:
            high, at_high = middle, at_middle
        else:
            low, at_low = middle, at_middle
    return high
