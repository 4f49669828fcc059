"""The polytope of allocations over classes, with a level t that rises for all at once:

    max t   s.t.  Σ_j gain_gj·y_gj ≥ base_g + want_g·t      for every class g
                  Σ_j y_gj ≤ n_g,   Σ_g s_g·y_gj ≤ N_j,   y ≥ 0

y_gj is the time that all members of class g together spend on type j. Company is one more column for a pair of classes on a
type. The model is kept from call to call: an arrival changes a coefficient and a bound, and the optimum is a few pivots away. A
class that has no members for the moment stays in the model with n_g = 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.policies.classes import Classes
from fairlead.policies.program import Program, Solution


@dataclass(frozen=True)
class Filled:
    """An optimum: the level, each class's time by type, each class's price (the dual of its row), and pairs of classes."""

    level: float
    totals: Floats  # classes × types, alone
    price: Floats
    pair_classes: Ints  # pairs × 2, positions among the classes given
    pair_types: Ints
    pair_time: Floats


class FairShares:
    """Keep one per policy and ask it again and again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._program: Program | None = None
        self._begin(np.zeros(0, dtype=np.int64))

    def solve(
        self,
        classes: Classes,
        capacity: Ints,
        gain: Floats,
        want: Floats,
        base: Floats | None = None,
        paired: Floats | None = None,
        then: Floats | None = None,
        *,
        primal: bool = False,
    ) -> Filled:
        """`paired[g, h, j]` is the gain of g beside h on type j. `then` are worths of y_gj to be maximised in the second
        place: among the optima, which one."""
        slots = self._fit(classes, capacity, gain, paired)
        self._members(slots, classes.count, want, base)
        program = self._program
        assert program is not None
        first = program.solve(primal=primal)
        level = float(first.values[0])
        found = first if then is None else self._among_optima(first, slots, then, level)
        return self._read(slots, found, first, level)

    # The model.

    def _begin(self, capacity: Ints) -> None:
        self._capacity = capacity.copy()
        self._slot: dict[tuple[int, ...], int] = {}
        types = len(capacity)
        self._gain = np.zeros((0, types))
        self._row = np.zeros((0,), dtype=np.int64)  # the fairness row of each slot; the next is its time row
        self._column = np.zeros((0,), dtype=np.int64)  # the first of its columns by type
        self._count = np.zeros(0)
        self._want, self._base = np.zeros(0), np.zeros(0)
        self._pairs: list[tuple[int, int, int]] = []  # slot, slot, type of each pair's column
        self._pair_column = np.zeros(0, dtype=np.int64)
        none = np.zeros(0, dtype=np.int64)
        self._program = None
        if types:
            one = np.ones(1)
            free = np.full(types, -np.inf)
            bounds = (one, -np.inf * one, np.inf * one, free, capacity.astype(np.float64))
            self._program = Program(self.name, *bounds, (none, none, np.zeros(0)))

    def _fit(self, classes: Classes, capacity: Ints, gain: Floats, paired: Floats | None) -> Ints:
        """Where each class stands in the model; new ones come in, and a model that no longer fits is begun anew."""
        slots = [self._slot.get(key, -1) for key in classes.keys]
        known = np.array(slots, dtype=np.int64)
        here = known >= 0
        fits = np.array_equal(capacity, self._capacity) and np.array_equal(self._gain[known[here]], gain[here])
        if not fits or len(self._slot) + np.count_nonzero(~here) > 4 * len(classes) + 64:
            self._begin(capacity)
            here[:] = False
        new = (~here).nonzero()[0]
        if len(new):
            known[new] = self._enter(classes, new, gain, paired, slots=known)
        return known

    def _enter(self, classes: Classes, new: Ints, gain: Floats, paired: Floats | None, slots: Ints) -> Ints:
        program, types = self._program, len(self._capacity)
        assert program is not None
        begin, count = len(self._slot), len(new)
        mine = np.arange(begin, begin + count)
        for slot, position in zip(mine.tolist(), new.tolist()):
            self._slot[classes.keys[position]] = slot
        rows = program.add_rows(np.tile([0.0, -np.inf], count), np.tile([np.inf, 0.0], count))
        fair, time = rows[0::2], rows[1::2]
        speed = gain[new]
        width = count * types
        column = np.arange(width)
        at = np.concatenate((fair.repeat(types), time.repeat(types), np.tile(np.arange(types), count)))
        value = np.concatenate((speed.ravel(), np.ones(width), classes.workers[new].repeat(types).astype(np.float64)))
        upper = np.where(speed.ravel() > 0, np.inf, 0.0)
        columns = program.add_columns(np.zeros(width), np.zeros(width), upper, (at, np.tile(column, 3), value))
        self._gain = np.concatenate((self._gain, speed))
        self._row = np.concatenate((self._row, fair))
        self._column = np.concatenate((self._column, columns[::types]))
        nothing = np.zeros(count)
        self._count, self._want, self._base = (np.concatenate((c, nothing)) for c in (self._count, self._want, self._base))
        if paired is not None:
            slots = slots.copy()
            slots[new] = mine
            self._enter_pairs(classes, new, slots, gain, paired)
        return mine

    def _enter_pairs(self, classes: Classes, new: Ints, slots: Ints, gain: Floats, paired: Floats) -> None:
        """Columns for the new classes with all that are present. A pair that does no better than taking turns is left out."""
        program = self._program
        assert program is not None
        fresh = np.zeros(len(classes), dtype=np.bool_)
        fresh[new] = True
        together = np.divide(paired, gain[:, None, :], out=np.zeros_like(paired), where=gain[:, None, :] > 0)
        pays = (together > 0) & (together.transpose(1, 0, 2) > 0) & (together + together.transpose(1, 0, 2) > 1.0 + 1e-9)
        pays &= (classes.workers[:, None] == classes.workers[None, :])[:, :, None]
        pays &= (fresh[:, None] | fresh[None, :])[:, :, None]
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
        nothing = np.zeros(len(g))
        made = program.add_columns(nothing, nothing, np.full(len(g), np.inf), (at, column, value))
        self._pairs += list(zip(slots[g].tolist(), slots[h].tolist(), j.tolist()))
        self._pair_column = np.concatenate((self._pair_column, made))

    def _members(self, slots: Ints, count: Ints, want: Floats, base: Floats | None) -> None:
        """How many there are of each class now; only what changed is told to the solver."""
        program = self._program
        assert program is not None
        counts, wants, bases = np.zeros(len(self._count)), np.zeros(len(self._count)), np.zeros(len(self._count))
        counts[slots], wants[slots] = count, want
        if base is not None:
            bases[slots] = base
        rise = (wants != self._want).nonzero()[0]
        for slot in rise.tolist():
            program.coefficient(int(self._row[slot]), 0, -float(wants[slot]))
        other = (counts != self._count).nonzero()[0]
        if len(other):
            program.row_bounds(self._row[other] + 1, np.full(len(other), -np.inf), counts[other])
            if len(self._pair_column):  # two of a class need two of it
                own = [(c, s) for c, (s, h, _) in zip(self._pair_column.tolist(), self._pairs) if s == h]
                columns, mine = np.array([c for c, _ in own], dtype=np.int64), np.array([s for _, s in own], dtype=np.int64)
                if len(columns):
                    upper = np.where(counts[mine] >= 2, np.inf, 0.0)
                    program.column_bounds(columns, np.zeros(len(columns)), upper)
        floor = (bases != self._base).nonzero()[0]
        if len(floor):
            program.row_bounds(self._row[floor], bases[floor], np.full(len(floor), np.inf))
        self._count, self._want, self._base = counts, wants, bases

    # The answer.

    def _among_optima(self, first: Solution, slots: Ints, then: Floats, level: float) -> Solution:
        """Hold the level and maximise something else; the model is left as it was."""
        program, types = self._program, len(self._capacity)
        assert program is not None
        held = np.array([level - 1e-9 * max(1.0, abs(level))])
        columns = (self._column[slots][:, None] + np.arange(types)).ravel()
        zero = np.zeros(1, dtype=np.int64)
        program.costs(zero, np.zeros(1))
        program.column_bounds(zero, held, held)
        program.costs(columns, then.ravel())
        try:
            return program.solve(primal=True)
        finally:
            program.costs(columns, np.zeros(len(columns)))
            program.costs(zero, np.ones(1))
            program.column_bounds(zero, np.full(1, -np.inf), np.full(1, np.inf))

    def _read(self, slots: Ints, found: Solution, first: Solution, level: float) -> Filled:
        types = len(self._capacity)
        totals = found.values[self._column[slots][:, None] + np.arange(types)].clip(min=0.0)
        pairs, kinds, time = np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        if len(self._pair_column):
            amount = found.values[self._pair_column]
            some = (amount > 1e-9).nonzero()[0]
            position = {slot: at for at, slot in enumerate(slots.tolist())}
            chosen: Sequence[tuple[int, int, int]] = [self._pairs[i] for i in some.tolist()]
            pairs = np.array([(position[g], position[h]) for g, h, _ in chosen], dtype=np.int64).reshape(-1, 2)
            kinds = np.array([j for _, _, j in chosen], dtype=np.int64)
            time = amount[some]
        return Filled(level, totals, -first.duals[self._row[slots]], pairs, kinds, time)
