"""The planner: a window in, a schedule out, with a proof of how good it is. First how many rounds each job should have
(`relaxation.py`), which leaves out that gangs must fit beside each other, so that its bound holds for every schedule; then
who runs when (`packing.py`). Where gangs do not fit, on small clusters, a mixed-integer program decides both (`exact.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.policies.shockwave.planning.exact import exact
from fairlead.policies.shockwave.planning.relaxation import LEVELS, relax
from fairlead.policies.shockwave.planning.window import Window

# Rounds for jobs: who runs in which round of a window, when it is known in how many each should. The most urgent run
# first, as far as all others still find their rounds later; holes are filled longest first.


def pack(rounds: Ints, most: Ints, workers: Ints, accelerators: int, length: int, urgency: Floats, left_s: Floats) -> Bools:
    """Jobs × rounds: who runs when. Whoever has a place left over gets more rounds than asked for, up to `most`; some may get
    fewer, where gangs do not fit beside each other. No accelerator idles that somebody could use."""
    schedule = np.zeros((len(rounds), length), dtype=np.bool_)
    left = rounds.copy()
    order = np.lexsort((-left_s, -urgency))
    sizes = np.unique(workers[rounds > 0])[::-1]
    for now in range(length):
        going = order[left[order] > 0]
        if not len(going):
            break
        chosen = _round(going, left, workers, accelerators, length - now, sizes, left_s)
        schedule[chosen, now] = True
        left[chosen] -= 1
    fill(schedule, most, workers, accelerators, left_s, left)
    return schedule


def _round(going: Ints, left: Ints, workers: Ints, accelerators: int, to_go: int, sizes: Ints, left_s: Floats) -> Ints:
    """Who of those that still want rounds, most urgent first, runs in the first of the `to_go` rounds that are left.

    The longest head of the line is taken that leaves no more for later than fits, when what it leaves free is filled from
    wide to narrow. What fits later is counted for each size w: Σ over wider gangs of ⌊s/w⌋·rounds ≤ ⌊M/w⌋·(rounds left)."""
    must = left[going] >= to_go
    line = np.concatenate((going[must], going[~must]))
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


def _as_fits(line: Ints, workers: Ints, room: int) -> tuple[Ints, int]:
    """Of a line those that fit, each who does before those behind it; and what room is left."""
    chosen = []
    while len(line) and room:
        line = line[workers[line] <= room]
        taken = workers[line].cumsum()
        fitting = int(taken.searchsorted(room, side="right"))
        if not fitting:
            break
        chosen.append(line[:fitting])
        room -= int(taken[fitting - 1])
        line = line[fitting:]
    return (np.concatenate(chosen) if chosen else line[:0]), room


def fill(schedule: Bools, most: Ints, workers: Ints, accelerators: int, left_s: Floats, short: Ints) -> None:
    """Nobody idles: what is free goes first to whoever is `short` of rounds, then to the longest. Changes the schedule."""
    got = schedule.sum(axis=1)
    free = accelerators - workers @ schedule
    line = np.lexsort((-left_s, short <= 0))
    for now in free.argsort(kind="stable")[::-1]:
        if not free[now]:
            break
        waiting = line[(got < most)[line] & ~schedule[line, now]]
        more, _ = _as_fits(waiting, workers, int(free[now]))
        schedule[more, now] = True
        got[more] += 1


NODES = 200
"""Of the search of a mixed-integer program, at most."""

TOLERANCE = 1e-3
"""The search ends when a plan is so near to its bound, in nats per weight."""


@dataclass(frozen=True)
class Plan:
    """Who runs in which round, what that is worth, and what no schedule exceeds. `price` is of an accelerator in a round,
    in the units of `value`: what a job buys is paid for by its weight."""

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
        """How often a job begins to run in the window; those that run in its first round count."""
        return int(self.schedule[:, 0].sum() + (self.schedule[:, 1:] & ~self.schedule[:, :-1]).sum())


def relative_gap(value: float, bound: float) -> float:
    """|bound − value| / |value|, as solvers tell it. It is the same for an objective times any factor, but not for one with
    another zero. Here that is where all jobs are done; near it, as when few are left, the smallest gap is large."""
    return (bound - value) / max(abs(value), np.finfo(float).tiny)


def plan(window: Window, urgency: Floats, tolerance: float = TOLERANCE, nodes: int = NODES, levels: int = LEVELS) -> Plan:
    """The schedule of a window; the larger its urgency, the sooner a job runs. `levels` limits the search for numbers of
    rounds, and `nodes` the mixed-integer program, which is tried where the tolerance is not kept without it; 0: none of it.
    Both count steps and not seconds, so that a search cut short gives the same plan everywhere."""
    if not len(window):
        return Plan(np.zeros((0, window.rounds), dtype=np.bool_), 0.0, 0.0, 0.0, 0.0)
    found = relax(window, tolerance, levels)
    weight = float(window.weight.sum())
    schedule = _packed(window, found.rounds, urgency)
    value, bound = window.value(schedule.sum(axis=1)), found.bound
    if nodes and bound - value > tolerance * weight:
        better = exact(window, urgency, gap=0.5 * tolerance * weight, nodes=nodes)
        if better is not None:
            bound = min(bound, better.bound)
            # Packed anew the most urgent are first, and where that loses rounds the program's own schedule stands.
            tried = (schedule, _packed(window, better.schedule.sum(axis=1), urgency), _filled(window, better.schedule))
            values = [window.value(one.sum(axis=1)) for one in tried]
            enough = max(values) - 0.5 * tolerance * weight
            schedule, value = next(pair for pair in zip(tried, values) if pair[1] >= enough)
    bound = max(bound, value)
    return Plan(schedule, value, bound, (bound - value) / weight, found.price)


def _packed(window: Window, rounds: Ints, urgency: Floats) -> Bools:
    left_s = window.left_s[:, 0]
    return pack(rounds, window.most, window.workers, window.accelerators, window.rounds, urgency, left_s)


def _filled(window: Window, schedule: Bools) -> Bools:
    nobody = np.zeros(len(window), dtype=np.int64)
    fill(schedule, window.most, window.workers, window.accelerators, window.left_s[:, 0], nobody)
    return schedule


# Which type of accelerator each job is planned on, where there are several. An accelerator of a type has a price for a round;
# at prices p a job wants the type and the number of rounds that leave it the most,
#
# max_{t, n} [w·log UTIL_t(n) − p_t·s·n],
#
# and the price of each type is the least at which what is wanted of it fits. Jobs buy of one type each, so a higher price of
# one type never lowers the demand for another, and prices that rise in turns settle.

_TURNS = 12
_SETTLED = 1e-3  # prices that differ by such a part are the same: types are chosen by them, and nothing is paid


@dataclass(frozen=True)
class TypedPlan:
    """A plan with the type that each job is planned on, and what an accelerator costs it there in a round. The gaps are of
    the plans for types as they were chosen."""

    schedule: Bools  # jobs × rounds
    types: Ints
    price: Floats
    gap: float
    relative_gap: float


def on_types(
    fastest: Window,
    windows: Mapping[int, Window],
    urgency: Floats,
    home: Ints,
    stay: float,
    *,
    levels: int,
    nodes: int,
) -> TypedPlan:
    """The plans of all types, each for its own jobs. `windows` have all jobs on each type; none where nothing is up. Who runs
    has its type as `home` (others -1), and takes what it does there for worth `stay` more. `levels` and `nodes` limit the
    search for each plan."""
    count = len(fastest)
    if len(windows) <= 1:
        type_, only = next(iter(windows.items()), (0, fastest))
        found = plan(only, urgency, levels=levels, nodes=nodes)
        return TypedPlan(found.schedule, np.full(count, type_), np.full(count, found.price), found.gap, found.relative_gap)
    numbers = np.array([*windows])
    rounds = np.arange(fastest.rounds + 1)
    worth = [np.where(rounds <= each.most[:, None], each.worth, -np.inf) for each in windows.values()]
    able = np.array([each.most > 0 for each in windows.values()])
    head_start = np.where(home == numbers[:, None], fastest.weight * np.log1p(stay), 0.0)
    head_start = np.where(able, head_start, -np.inf)
    types = chosen_types(worth, fastest.workers, [each.room for each in windows.values()], head_start)
    schedule, price, value, bound = np.zeros((count, fastest.rounds), dtype=np.bool_), np.zeros(count), 0.0, 0.0
    for place, each in enumerate(windows.values()):
        mine = types == place
        found = plan(each.only(mine), urgency[mine], levels=levels, nodes=nodes)
        schedule[mine], price[mine] = found.schedule, found.price
        value, bound = value + found.value, bound + found.bound
    gap = (bound - value) / max(float(fastest.weight.sum()), np.finfo(float).tiny)
    return TypedPlan(schedule, numbers[types], price, gap, relative_gap(value, bound))


def chosen_types(worth: Sequence[Floats], workers: Ints, room: Sequence[int], head_start: Floats) -> Ints:
    """By place in `worth`, which has for each type jobs × (rounds + 1), −∞ where a job cannot run so. `room` are the
    accelerator-rounds; `head_start` is types × jobs: by how much more a type is worth to a job than its rounds there."""
    prices = np.zeros(len(worth))
    left = np.array([_best(each, workers, 0.0)[0] for each in worth]) + head_start
    for _ in range(_TURNS):
        before = prices.copy()
        for type_, each in enumerate(worth):
            others = np.delete(left, type_, axis=0).max(axis=0, initial=-np.inf)
            prices[type_] = _price(each, workers, others, head_start[type_], room[type_])
            left[type_] = _best(each, workers, prices[type_])[0] + head_start[type_]
        if (np.abs(prices - before) <= _SETTLED * prices).all():
            break
    types: Ints = left.argmax(axis=0)
    return types


def _best(worth: Floats, workers: Ints, price: float) -> tuple[Floats, Ints]:
    """What a job is left with at a price, and the accelerator-rounds that it then takes, the fewest of those as good."""
    wish = worth - (price * workers)[:, None] * np.arange(worth.shape[1])
    rounds = wish.argmax(axis=1)
    return wish[np.arange(len(wish)), rounds], rounds * workers


def _price(worth: Floats, workers: Ints, others: Floats, head_start: Floats, room: int) -> float:
    """The least at which what is wanted of a type fits, where jobs could have `others` elsewhere."""

    def fits(price: float) -> bool:
        left, taken = _best(worth, workers, price)
        return int(taken[left + head_start > others].sum()) <= room

    if fits(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2.0 * high
    while high - low > 0.1 * _SETTLED * high:
        middle = 0.5 * (low + high)
        if fits(middle):
            high = middle
        else:
            low = middle
    return high
