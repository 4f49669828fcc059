"""The max-min program over classes, with a level t common to all classes:

    max t   s.t.  Σ_j gain_gj·y_gj ≥ weight_total_g·t      for every class g
                  Σ_j y_gj ≤ n_g,   Σ_g s_g·y_gj ≤ N_j,   y ≥ 0

y_gj is the time that all members of class g together spend on type j. Co-location is one more column for a pair of classes on a
type. The model is kept from call to call: an arrival changes a coefficient and a bound, and the optimum is a few pivots away. A
class without members stays in the model with n_g = 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.allocation import NEGLIGIBLE, Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import GangSpread, worthwhile_pairs
from fairlead.policies.allocation.lp.job_classes import JobClasses, hash_fractions
from fairlead.policies.allocation.lp.program import Model, Program, Solution

SECONDARY_WEIGHT = 0.01
PRECEDENCE = 1e5
"""The secondary objective has weight SECONDARY_WEIGHT; the level has PRECEDENCE times that weight for each job, so that no gain
in the secondary objective outweighs it where rates differ by less than this factor."""

_TOLERANCE = 1e-9
"""Of the solver: with its default it could stop next to the optimum where only the secondary objective differs."""


@dataclass(frozen=True)
class ClassTimes:
    """An optimum: the level, each class's time by type, and the time of pairs of classes."""

    level: float
    totals: Floats  # classes × types, alone
    pair_classes: Ints  # pairs × 2, positions among the classes given
    pair_types: Ints
    pair_time: Floats


class MaxMinProgram:
    """A model that is kept between solves; one per policy."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._program: Program | None = None
        self._spread: Floats | None = None
        self._begin(np.zeros(0, dtype=np.int64))

    def solve(
        self,
        classes: JobClasses,
        capacity: Ints,
        gain: Floats,
        weight_total: Floats,
        paired: Floats | None = None,
        secondary_objective: Callable[[], Floats] | None = None,
        spread: GangSpread | None = None,
    ) -> ClassTimes:
        """Solve for these classes. `paired[g, h, j]` is the gain of g co-located with h on type j. Among the
        optima, the one with the highest Σ value_gj·y_gj is chosen; `secondary_objective` returns these values, which must not
        change for a class."""
        if spread is not None:
            gain = np.concatenate((gain, spread.gain), axis=1)
        self._spread = None if spread is None else spread.use
        coefficients = gain if spread is None else np.concatenate((gain, spread.use), axis=1)
        slots = self._fit(classes, capacity, gain, coefficients, paired, secondary_objective)
        self._update_counts(slots, classes.count, weight_total)
        program = self._program
        assert program is not None
        if secondary_objective is not None:
            program.costs(np.zeros(1, dtype=np.int64), np.array([PRECEDENCE * SECONDARY_WEIGHT * float(weight_total.sum())]))
        return self._read(slots, program.solve(prices=False))

    # The model.

    def _begin(self, capacity: Ints) -> None:
        self._capacity = capacity.copy()
        self._slot: dict[tuple[float, ...], int] = {}
        self._keys: Sequence[tuple[float, ...]] | None = None  # of the last classes, which have these slots
        self._slots = capacity[:0]
        types = len(capacity)
        apart = self._spread is not None
        self._width = 2 * types if apart else types
        self._coefficients = np.zeros((0, self._width + types if apart else self._width))  # by slot
        self._row = np.zeros((0,), dtype=np.int64)  # the fairness row of each slot; the next is its time row
        self._column = np.zeros((0,), dtype=np.int64)  # the first of its columns by type
        self._count, self._weight_total = np.zeros(0), np.zeros(0)
        self._pairs: list[tuple[int, int, int]] = []  # slot, slot, type of each pair's column
        self._pair_column = np.zeros(0, dtype=np.int64)
        self._known_pairs = np.zeros((0, 0), dtype=np.bool_)  # slots × slots: pairs whose columns were considered
        self._paired = np.zeros((0, 0, types))  # the gains of these pairs
        none = np.zeros(0, dtype=np.int64)
        self._program = None
        if types:
            one = np.ones(1)
            room = capacity.astype(np.float64)
            if apart:
                room = np.concatenate((room, np.ones(types)))
            bounds = (one, -np.inf * one, np.inf * one, np.full(len(room), -np.inf), room)
            self._program = Program(self.name, Model(*bounds, (none, none, np.zeros(0))), tolerance=_TOLERANCE)

    def _fit(
        self,
        classes: JobClasses,
        capacity: Ints,
        gain: Floats,
        coefficients: Floats,
        paired: Floats | None,
        secondary_objective: Callable[[], Floats] | None,
    ) -> Ints:
        """The slot of each class in the model; new classes enter, and a model that no longer fits is built again."""
        known = self._slots
        if classes.keys is not self._keys:
            known = np.array([self._slot.get(key, -1) for key in classes.keys], dtype=np.int64)
        here = known >= 0
        fits = np.array_equal(capacity, self._capacity) and self._width == gain.shape[1]
        fits = fits and np.array_equal(self._coefficients[known[here]], coefficients[here])
        if not fits or len(self._slot) + np.count_nonzero(~here) > 4 * len(classes) + 64:
            self._begin(capacity)
            known, here = known.copy(), np.zeros(len(known), dtype=np.bool_)
        new = (~here).nonzero()[0]
        if len(new):
            known[new] = self._enter(classes, new, gain, secondary_objective)
            self._coefficients = np.concatenate((self._coefficients, coefficients[new]))
        if paired is not None:
            if not self._as_before(known, paired):  # the estimated gains of pairs have changed
                self._begin(capacity)
                known = self._enter(classes, np.arange(len(classes)), gain, secondary_objective)
                self._coefficients = coefficients
            self._enter_pairs(classes, known, gain, paired, secondary_objective)
        self._keys, self._slots = classes.keys, known
        return known

    def _as_before(self, slots: Ints, paired: Floats) -> bool:
        """Whether the gains of known pairs are unchanged."""
        old = (slots < len(self._known_pairs)).nonzero()[0]
        here, given = np.ix_(slots[old], slots[old]), paired[np.ix_(old, old)]
        return bool(np.array_equal(self._paired[here][self._known_pairs[here]], given[self._known_pairs[here]]))

    def _enter(self, classes: JobClasses, new: Ints, gain: Floats, secondary_objective: Callable[[], Floats] | None) -> Ints:
        program, per_class = self._program, self._width
        assert program is not None
        begin, count = len(self._slot), len(new)
        mine = np.arange(begin, begin + count)
        for slot, position in zip(mine.tolist(), new.tolist()):
            self._slot[classes.keys[position]] = slot
        rows = program.add_rows(np.tile([0.0, -np.inf], count), np.tile([np.inf, 0.0], count))
        fair, time = rows[0::2], rows[1::2]
        speed = gain[new]
        width = count * per_class
        column = np.arange(width)
        type_of_column = np.tile(np.arange(per_class) % len(self._capacity), count)
        at = [fair.repeat(per_class), time.repeat(per_class), type_of_column]
        value = [speed.ravel(), np.ones(width), classes.workers[new].repeat(per_class).astype(np.float64)]
        cols = [column, column, column]
        if self._spread is not None:
            together = (np.tile(np.arange(per_class), count) < len(self._capacity)).nonzero()[0]
            at.append(type_of_column[together] + len(self._capacity))
            value.append(self._spread[new].ravel())
            cols.append(together)
        upper = np.where(speed.ravel() > 0, np.inf, 0.0)
        cost = np.zeros(width) if secondary_objective is None else SECONDARY_WEIGHT * secondary_objective()[new].ravel()
        entries = (np.concatenate(at), np.concatenate(cols), np.concatenate(value))
        columns = program.add_columns(cost, np.zeros(width), upper, entries)
        self._row = np.concatenate((self._row, fair))
        self._column = np.concatenate((self._column, columns[::per_class]))
        nothing = np.zeros(count)
        self._count, self._weight_total = np.concatenate((self._count, nothing)), np.concatenate((self._weight_total, nothing))
        return mine

    def _enter_pairs(
        self, classes: JobClasses, slots: Ints, gain: Floats, paired: Floats, secondary_objective: Callable[[], Floats] | None
    ) -> None:
        """Add columns for pairs of classes that are new. Pairs that do no better than time slicing are left out."""
        program = self._program
        assert program is not None
        if len(self._known_pairs) < len(self._slot):
            larger = np.zeros((2 * len(self._slot), 2 * len(self._slot)), dtype=np.bool_)
            larger[: len(self._known_pairs), : len(self._known_pairs)] = self._known_pairs
            gains = np.zeros((*larger.shape, len(self._capacity)))
            gains[: len(self._known_pairs), : len(self._known_pairs)] = self._paired
            self._known_pairs, self._paired = larger, gains
        here = np.ix_(slots, slots)
        fresh = ~self._known_pairs[here]
        if not fresh.any():
            return
        self._known_pairs[here] = True
        self._paired[here] = paired
        gain = gain[:, : len(self._capacity)]  # of consolidated gangs
        pays = worthwhile_pairs(paired, gain, classes.workers) & fresh[:, :, None]
        j, g, h = np.triu(pays.transpose(2, 0, 1)).nonzero()
        if not len(g):
            return
        columns = np.arange(len(g))
        same = g == h
        rows = (self._row[slots[g]], self._row[slots[h]], self._row[slots[g]] + 1, self._row[slots[h]] + 1, j)
        values = (paired[g, h, j], paired[h, g, j], np.ones(len(g)), np.ones(len(g)), classes.workers[g].astype(np.float64))
        at, column, value = np.concatenate(rows), np.tile(columns, 5), np.concatenate(values)
        if same.any():  # both are of one class: its rows take the sum of the two
            double = np.tile(same, 5)
            double[len(g) : 2 * len(g)] = double[3 * len(g) : 4 * len(g)] = False
            double[4 * len(g) :] = False
            value = np.where(double, 2 * value, value)
            drop = np.zeros(len(at), dtype=np.bool_)
            drop[len(g) : 2 * len(g)] = drop[3 * len(g) : 4 * len(g)] = same
            at, column, value = at[~drop], column[~drop], value[~drop]
        if self._spread is not None:  # two gangs on the same accelerators are consolidated as one
            at, column = np.concatenate((at, j + len(self._capacity))), np.concatenate((column, columns))
            value = np.concatenate((value, self._spread[g, j]))
        nothing = np.zeros(len(g))
        cost = nothing
        if secondary_objective is not None:  # the value of a co-located member is in proportion to its progress
            worth = np.divide(secondary_objective()[:, : len(self._capacity)], gain, out=np.zeros_like(gain), where=gain > 0)
            keys, places = classes.keys, zip(g.tolist(), h.tolist(), j.tolist())
            place = hash_fractions((keys[one], keys[two], type_) for one, two, type_ in places)
            cost = SECONDARY_WEIGHT * (paired[g, h, j] * worth[g, j] + paired[h, g, j] * worth[h, j]) * (1.0 - 1e-3 * place)
        made = program.add_columns(cost, nothing, np.full(len(g), np.inf), (at, column, value))
        self._pairs += list(zip(slots[g].tolist(), slots[h].tolist(), j.tolist()))
        self._pair_column = np.concatenate((self._pair_column, made))

    def _update_counts(self, slots: Ints, count: Ints, weight_total: Floats) -> None:
        """Update the number of members of each class; only changes go to the solver."""
        program = self._program
        assert program is not None
        counts, weight_totals = np.zeros(len(self._count)), np.zeros(len(self._count))
        counts[slots], weight_totals[slots] = count, weight_total
        rise = (weight_totals != self._weight_total).nonzero()[0]
        for slot in rise.tolist():
            program.coefficient(int(self._row[slot]), 0, -float(weight_totals[slot]))
        other = (counts != self._count).nonzero()[0]
        if len(other):
            program.row_bounds(self._row[other] + 1, np.full(len(other), -np.inf), counts[other])
            if len(self._pair_column):  # a pair within a class needs two members
                own = [(c, s) for c, (s, h, _) in zip(self._pair_column.tolist(), self._pairs) if s == h]
                columns, mine = np.array([c for c, _ in own], dtype=np.int64), np.array([s for _, s in own], dtype=np.int64)
                if len(columns):
                    upper = np.where(counts[mine] >= 2, np.inf, 0.0)
                    program.column_bounds(columns, np.zeros(len(columns)), upper)
        self._count, self._weight_total = counts, weight_totals

    # The answer.

    def _read(self, slots: Ints, found: Solution) -> ClassTimes:
        totals = found.values[self._column[slots][:, None] + np.arange(self._width)].clip(min=0.0)
        if self._spread is not None:  # consolidated or spread: the time counts
            totals = totals[:, : len(self._capacity)] + totals[:, len(self._capacity) :]
        pairs, types, time = np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        if len(self._pair_column):
            amount = found.values[self._pair_column]
            # Only classes that are present: the time of other classes is below tolerance.
            position = {slot: at for at, slot in enumerate(slots.tolist())}
            here = np.array([g in position and h in position for g, h, _ in self._pairs], dtype=np.bool_)
            some = (here & (amount > 1e-9)).nonzero()[0]
            chosen: Sequence[tuple[int, int, int]] = [self._pairs[i] for i in some.tolist()]
            pairs = np.array([(position[g], position[h]) for g, h, _ in chosen], dtype=np.int64).reshape(-1, 2)
            types = np.array([j for _, _, j in chosen], dtype=np.int64)
            time = amount[some]
        return ClassTimes(float(found.values[0]), totals, pairs, types, time)


def divide_among_members(classes: JobClasses, view: Snapshot, filled: ClassTimes) -> Allocation:
    """Divide the time of classes and of pairs of classes equally among the members, with as few pairs of jobs as possible."""
    alone = classes.divide(view, filled.totals)
    if not len(filled.pair_time):
        return alone
    members = _members_by_class(classes, view.jobs.number)
    first, second, types, share = [alone.first], [alone.second], [alone.types], [alone.share]
    columns = zip(filled.pair_classes.tolist(), filled.pair_types.tolist(), filled.pair_time.tolist())
    for (g, h), type_, time in columns:
        one, two, part = _pairs_within(members[g], time) if g == h else _pairs_between(members[g], members[h], time)
        first.append(np.minimum(one, two))
        second.append(np.maximum(one, two))
        types.append(np.full(len(one), type_, dtype=np.int64))
        share.append(part)
    shares = Allocation.tidy(np.concatenate(share))
    one, two, on = np.concatenate(first), np.concatenate(second), np.concatenate(types)
    order = np.lexsort((on, two, one))
    order = order[shares[order] > NEGLIGIBLE]
    return Allocation(one[order], two[order], on[order], shares[order])


def _members_by_class(classes: JobClasses, numbers: Ints) -> list[Ints]:
    order = classes.class_of.argsort(kind="stable")
    order = order[np.count_nonzero(classes.class_of < 0) :]
    return np.split(numbers[order], np.cumsum(classes.count)[:-1])


def _pairs_within(members: Ints, time: float) -> tuple[Ints, Ints, Floats]:
    """Pairs inside a class: each job with the next, and the last with the first."""
    count = len(members)
    if count == 2:
        return members[:1], members[1:], np.array([time])
    return members, np.roll(members, -1), np.full(count, time / count)


def _pairs_between(one: Ints, two: Ints, time: float) -> tuple[Ints, Ints, Floats]:
    """Equal time for all members of both classes, with as few pairs as possible: jobs at the same place are a pair."""
    cuts = np.union1d(np.arange(1, len(one) + 1) / len(one), np.arange(1, len(two) + 1) / len(two))
    cuts = cuts[np.concatenate((np.diff(cuts) > 1e-12, [True]))]
    begins = np.concatenate(([0.0], cuts[:-1]))
    middle = (begins + cuts) / 2
    left = np.minimum((middle * len(one)).astype(np.int64), len(one) - 1)
    right = np.minimum((middle * len(two)).astype(np.int64), len(two) - 1)
    return one[left], two[right], (cuts - begins) * time
