"""Rounds for jobs: who runs in which round of a window, when it is known in how many each should. The most urgent run
first, as far as all others still find their rounds later; holes are filled longest first."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints


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
