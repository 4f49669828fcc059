"""Which type of accelerator each job is planned on, where there are several. An accelerator of a type has a price for a round;
at prices p a job wants the type and the number of rounds that leave it the most,

    max_{t, n} [w·log UTIL_t(n) − p_t·s·n],

and the price of each type is the least at which what is wanted of it fits. Jobs buy of one type each, so a higher price of
one type never lowers the demand for another, and prices that rise in turns settle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.policies.shockwave.planner import plan, relative_gap
from fairlead.policies.shockwave.window import Window

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
