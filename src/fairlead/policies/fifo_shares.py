"""First in, first out over types (Gavel §4.2): jobs 0, 1, …, M−1 in the order of their arrival,

    max_X Σ_m (M − m) · throughput(m, X) / throughput(m, X^fastest)

Every job has a weight of its own, but at given prices its answer is plain: the type with the highest (M − m)·rate − price, or
none. So columns are generated: each round adds, for every class, what its members answer at the present prices, summed up; the
program over convex combinations of these columns gives the next prices. When no new column pays, the optimum is exact.

`sticky` is FIFO as Gavel's simulator has it, without a program: a job takes the fastest type with room for it and stays there
until it ends, and the line stops at the first that finds none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.classes import Classes, classes_of
from fairlead.policies.in_line import beside, taken
from fairlead.policies.max_min import nothing
from fairlead.policies.program import Program

_GAP = 1e-9
_ROUNDS = 500


@dataclass(frozen=True)
class FifoPerf:
    """Whoever came first has its fastest type, as far as the sum of all, weighted by arrival, gains from it.

    `sticky`: as Gavel's simulator, one by one; a job keeps the type it got, and nobody overtakes the first that finds no room.
    `space_sharing` goes one by one too: who finds no room of its own goes beside whoever it does best with, if that pays.
    """

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"
    sticky: bool = False
    space_sharing: bool = False

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        if not len(classes):
            return nothing(view), memo
        if self.sticky or self.space_sharing:
            return _one_by_one(view, classes, memo, self.space_sharing)
        there = (classes.of >= 0).nonzero()[0]
        weight = (len(view.jobs) - there) / len(view.jobs)
        x = np.zeros((len(view.jobs), len(view.capacity)))
        x[there] = weighted_sum(classes, classes.of[there], weight, view.capacity)
        return Allocation.alone(view.jobs.number, x), memo


def _one_by_one(view: Snapshot, classes: Classes, memo: Memo, pairs: bool) -> tuple[Allocation, Memo]:
    number, line = view.jobs.number, np.arange(len(view.jobs))
    held: dict[int, int] = {}
    mates: dict[int, int] = {}
    if isinstance(memo, Mapping):
        place = {one: row for row, one in enumerate(number.tolist())}
        held = {place[one]: kind for one, kind in zip(memo["number"].tolist(), memo["type"].tolist()) if one in place}
        known = zip(memo["guest"].tolist(), memo["host"].tolist())
        mates = {place[guest]: place[host] for guest, host in known if guest in place and host in place}
        held = {row: kind for row, kind in held.items() if row not in mates}
    got = taken(view, classes, line, strict=True, held=held)
    mates = beside(view, got, line, mates) if pairs else {}
    guests, hosts = np.array([*mates], dtype=np.int64), np.array([*mates.values()], dtype=np.int64)
    row = (got >= 0).nonzero()[0]
    mate = np.full(len(view.jobs), -1, dtype=np.int64)
    mate[hosts] = number[guests]
    kept = {"number": number[row], "type": got[row], "guest": number[guests], "host": number[hosts]}
    first, second = number[row], mate[row]
    turned = (second >= 0) & (second < first)
    first, second = np.where(turned, second, first), np.where(turned, first, second)
    return Allocation(first, second, got[row], np.ones(len(row))), kept


def weighted_sum(classes: Classes, of: Ints, weight: Floats, capacity: Ints) -> Floats:
    """max Σ_m weight_m · throughput_m / fastest_m: jobs × types. `of` is the class of each job."""
    groups, types, jobs = len(classes), len(capacity), np.arange(len(of))
    speed = (classes.rates / classes.rates.max(axis=1, keepdims=True))[of]
    gain = np.where(speed > 0, weight[:, None] * speed, -np.inf)
    room = np.maximum(capacity, 1).astype(np.float64)
    load = classes.workers[of].astype(np.float64)
    g = np.arange(groups)
    ones = np.ones(groups)
    bounds = (np.concatenate((np.full(types, -np.inf), ones)), np.concatenate((np.ones(types), ones)))
    # Who gets nothing is the first column of every class.
    program = Program("FIFO", np.zeros(groups), np.zeros(groups), ones * np.inf, *bounds, (types + g, g, ones))
    columns, owners, choices = [g], [g], [np.full(len(of), types)]

    def answer(prices: Floats) -> tuple[Ints, Floats]:
        """By job the type of its answer (`types`: none), and what it gains from it beyond the prices."""
        net = np.column_stack((gain - load[:, None] * (prices / room), np.zeros(len(of))))
        best = net.argmax(axis=1)
        return best, net[jobs, best]

    def enter(best: Ints, pays: Ints) -> None:
        runs = best < types
        worth = np.bincount(of[runs], gain[runs, best[runs]], minlength=groups)[pays].astype(np.float64)
        flat = np.bincount(of[runs] * types + best[runs], load[runs], minlength=groups * types)
        use = flat.reshape(groups, types)[pays] / room
        new = np.arange(len(pays))
        rows = np.concatenate((np.tile(np.arange(types), len(pays)), types + pays))
        entries = (rows, np.concatenate((new.repeat(types), new)), np.concatenate((use.ravel(), np.ones(len(pays)))))
        empty = np.zeros(len(pays))
        columns.append(program.add_columns(worth, empty, empty + np.inf, entries))
        owners.append(pays)
        choices.append(best)

    # Prices for a start: the same per unit of speed on every type, at several heights.
    mean = speed.mean(axis=0) * room
    for height in np.linspace(0.0, 1.0, 6):
        enter(answer(height * mean)[0], g)
    for _ in range(_ROUNDS):
        found = program.solve(primal=True)
        prices, level = np.maximum(found.duals[:types], 0.0), found.duals[types:]
        best, net = answer(prices)
        short = np.bincount(of, net, minlength=groups) - level
        if short.clip(min=0.0).sum() <= _GAP * max(found.objective, 1e-300):
            break
        enter(best, (short > 0.01 * _GAP * found.objective / groups).nonzero()[0])
    else:
        raise SolverError("FIFO", f"no optimum in {_ROUNDS} rounds of columns")
    x = np.zeros((len(of), types + 1))
    for column, owner, choice in zip(columns, owners, choices):
        part = np.zeros(groups)
        part[owner] = found.values[column].clip(min=0.0)
        x[jobs, choice] += part[of]
    return x[:, :types]
