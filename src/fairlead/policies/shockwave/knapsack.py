"""An integer knapsack near its optimum: from what each job wants at a price, the few changes that fill what is left over.
What a change loses at the price, and what stays empty at the price, is all that is missing to the bound."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Floats, Ints

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
