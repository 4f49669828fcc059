"""The value of a class's time where each member has its own weight, and linear bounds on it (see weighted_sum.py). All classes
are handled together: their columns are concatenated, and pieces of layouts, block ends and speeds are identified by integers,
so that comparisons need no rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.policies.allocation.lp.colocation_columns import ColumnSides

USED = 1e-10
_BLOCKS = 6  # of a class's speeds, at most, and each for at least as many members
_NOTHING = 1e-12  # differences below this are rounding


@dataclass(frozen=True)
class SpeedLayouts:
    """Time of classes by speed, each from the fastest on: by piece its speed, and the cumulative time at its end."""

    group: Ints  # by layout
    size: Ints  # by layout: its pieces
    speed: Floats
    until: Floats

    def only(self, which: Ints) -> SpeedLayouts:
        size = self.size[which]
        at = ranges(self.size.cumsum()[which] - size, size)
        return SpeedLayouts(self.group[which], size, self.speed[at], self.until[at])

    def of(self, group: Ints) -> SpeedLayouts:
        """The layouts with other class numbers."""
        return SpeedLayouts(group, self.size, self.speed, self.until)

    @staticmethod
    def joined(*some: SpeedLayouts) -> SpeedLayouts:
        columns = zip(*((one.group, one.size, one.speed, one.until) for one in some))
        group, size, speed, until = (np.concatenate(column) for column in columns)
        return SpeedLayouts(group, size, speed, until)

    @staticmethod
    def none() -> SpeedLayouts:
        whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
        return SpeedLayouts(whole, whole, real, real)


@dataclass(frozen=True)
class SpeedIntervals:
    """Intervals of speed without a layout's speed or a block end inside; the last of each layout has no width."""

    key: Ints  # of the upper end: ascends by layout, and inside as speeds fall
    layout: Ints
    low: Floats
    width: Floats
    time: Floats  # spent at higher speeds
    row: Ints  # the block, counted over all layouts


class RankWeights:
    """The weights of classes' members, heaviest first, and their speeds in a few blocks, whose `ends` fall to 0."""

    def __init__(self, weights: Floats, count: Ints, sides: ColumnSides, foreign: Floats) -> None:
        """`weights` is by class and falling. `foreign` are speeds of layouts that may belong to no side."""
        self.count, self._sides, classes = count, sides, np.arange(len(count))
        self._from = count.cumsum() - count + classes  # by class: where its members begin, each class with one more at the end
        shifted = np.arange(len(weights)) + classes.repeat(count)
        self._at, self._sum = np.zeros(len(weights) + len(count)), np.zeros(len(weights) + len(count))
        self._at[shifted] = weights
        total = weights.cumsum()
        before = np.concatenate(([0.0], total))[count.cumsum() - count]
        self._sum[shifted + 1] = total - before.repeat(count)
        self.total: Floats = self._sum[self._from + count]

        speed, owner = sides.speed, sides.owner
        new = np.ones(len(speed), dtype=np.bool_)
        new[1:] = (speed[1:] != speed[:-1]) | (owner[1:] != owner[:-1])
        distinct = np.bincount(owner[new], minlength=len(count))
        begin = distinct.cumsum() - distinct
        self.blocks: Ints = np.minimum(np.minimum(distinct, _BLOCKS), 1 + count // _BLOCKS)
        self.first: Ints = np.concatenate(([0], self.blocks.cumsum()))  # by class: where its blocks begin among all
        place = new.cumsum() - 1 - begin[owner]
        self.block: Ints = ((place + 1) * self.blocks[owner] - 1) // distinct[owner]  # of each side, inside its class
        group, block = classes.repeat(self.blocks), ranges(0 * self.blocks, self.blocks)
        tops = speed[new][begin[group] + block * distinct[group] // self.blocks[group]]
        self._ends_from = self.first[:-1] + classes
        self.ends = np.zeros(len(tops) + len(count))
        self.ends[np.arange(len(tops)) + group] = tops
        self.width: Floats = (self.ends[:-1] - self.ends[1:])[np.arange(len(tops)) + group]  # by block
        self.by_block: Ints = group
        self._all = np.unique(np.concatenate((speed, foreign, [0.0])))  # all speeds there are
        self._code = len(self._all) - 1 - self._all.searchsorted(speed)
        self._end_code = len(self._all) - 1 - self._all.searchsorted(self.ends)

    def even(self, group: Ints, part: float) -> SpeedLayouts:
        """Layouts in which a part of the members runs at full speed."""
        top = self.ends[self._ends_from[group]]
        return SpeedLayouts(group, np.ones(len(group), dtype=np.int64), top, np.rint(part * self.count[group]))

    def laid(self, time: Floats) -> SpeedLayouts:
        """The layout of each class that has columns, for the time on each column."""
        sides = self._sides
        amount = time[sides.col] * sides.weight
        used = (amount > USED).nonzero()[0]
        owner, amount = sides.owner[used], amount[used]
        size = np.bincount(owner, minlength=len(self.count))
        total = np.concatenate(([0.0], amount.cumsum()))
        until = total[1:] - total[size.cumsum() - size][owner]
        some = self.blocks.nonzero()[0]
        return SpeedLayouts(some, size[some], sides.speed[used], until)

    def stretches(self, laid: SpeedLayouts) -> SpeedIntervals:
        group, layouts = laid.group, np.arange(len(laid.group))
        size, pieces, speeds = self.blocks[group] + 1, len(laid.speed), len(self._all)
        ends = ranges(self._ends_from[group], size)
        layout = np.concatenate((layouts.repeat(laid.size), layouts.repeat(size)))
        code = np.concatenate((speeds - 1 - self._all.searchsorted(laid.speed), self._end_code[ends]))
        key = layout * speeds + code
        order = key.argsort(kind="stable")
        key, layout = key[order], layout[order]
        value = np.concatenate((laid.speed, self.ends[ends]))[order]
        low = np.append(value[1:], 0.0)
        last = np.append(layout[1:] != layout[:-1], True)
        low[last] = 0.0
        top = self.ends[self._ends_from[group]][layout]
        width = np.minimum(value, top) - np.minimum(low, top)
        width[last] = 0.0
        is_piece = order < pieces
        done = is_piece.cumsum()  # pieces down to here
        before = laid.size.cumsum() - laid.size
        mine = done - before[layout]
        until = np.concatenate(([0.0], laid.until))
        time = np.where(mine > 0, until[done], 0.0)
        passed = np.arange(1, len(order) + 1) - done - (size.cumsum() - size)[layout]  # ends of blocks down to here
        base = (size - 1).cumsum() - (size - 1)
        row = base[layout] + np.minimum(np.maximum(passed - 1, 0), size[layout] - 2)
        return SpeedIntervals(key, layout, low, width, time, row)

    def worth(self, laid: SpeedLayouts) -> Floats:
        """The value by block, over all layouts."""
        on = self.stretches(laid)
        group = laid.group[on.layout]
        many = np.minimum(on.time, self.count[group]).astype(np.int64)
        at = self._from[group] + many
        return _summed(on.row, on.width * (self._sum[at] + (on.time - many) * self._at[at]), int(self.blocks[laid.group].sum()))

    def bounds(self, laid: SpeedLayouts) -> tuple[Ints, Ints, Floats, Floats, Floats]:
        """Rows (blocks over all layouts), sides, and the most that a unit of time on the side adds to the value of its block;
        and by row, what a unit at a higher speed adds, and the constant."""
        on = self.stretches(laid)
        group = laid.group[on.layout]
        end = np.minimum(on.time + USED, self.count[group]).astype(np.int64)
        at = self._from[group] + end
        slope = self._at[at]
        blocks = self.blocks[laid.group]
        rows = int(blocks.sum())
        rise = on.width * slope
        higher, without = _summed(on.row, rise, rows), _summed(on.row, on.width * (self._sum[at] - end * slope), rows)

        sides = self._sides
        first, size = sides.first[laid.group], sides.first[laid.group + 1] - sides.first[laid.group]
        side, layout = ranges(first, size), np.arange(len(size)).repeat(size)
        above = on.key.searchsorted(layout * len(self._all) + self._code[side], side="right") - 1  # the stretch it ends in
        row = (blocks.cumsum() - blocks)[layout] + self.block[side]
        beneath = np.concatenate((rise[::-1].cumsum()[::-1], [0.0]))  # of all stretches from one on
        under = beneath[on.row.searchsorted(row, side="right")]  # of the stretches in later blocks
        mine = beneath[above + 1] - under + (sides.speed[side] - on.low[above]) * slope[above]
        some = (mine > _NOTHING).nonzero()[0]
        return row[some], side[some], mine[some], higher, without

    def member_speeds(self, laid: SpeedLayouts) -> Floats:
        """The speed of each member, in the order of the weights, under these layouts; one layout for each class."""
        begin = self.count.cumsum() - self.count
        owner = laid.group.repeat(laid.size)
        until = np.minimum(laid.until, self.count[owner])
        first = np.ones(len(owner), dtype=np.bool_)
        first[1:] = owner[1:] != owner[:-1]
        length = until - np.where(first, 0.0, np.append(0.0, until[:-1]))
        work = np.append(0.0, (length * laid.speed).cumsum())
        starts = laid.size.cumsum() - laid.size
        time = np.insert(begin[owner] + until, starts, begin[laid.group])
        done = np.insert(work[1:], starts, work[starts])
        each: Floats = np.diff(np.interp(np.arange(int(self.count.sum()) + 1), time, done))
        return each


def ranges(first: Ints, size: Ints) -> Ints:
    """first, first + 1, …, `size` numbers each, concatenated."""
    begin = size.cumsum() - size
    every: Ints = np.arange(int(size.sum())) + (first - begin).repeat(size)
    return every


def _summed(row: Ints, column: Floats, rows: int) -> Floats:
    total: Floats = np.bincount(row, column, minlength=rows).astype(np.float64, copy=False)
    return total
