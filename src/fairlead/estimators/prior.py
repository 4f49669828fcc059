"""What is thought of a job before anything is known about it: it is like the reference jobs in the mean.

With r_it the rates of reference jobs of the same gang size, a job's speed on type t is its level times

    s_t = exp(mean_i log(r_it / level_i)),   level_i = the geometric mean of r_i over types,

and company leaves it the mean part that it leaves of the references' rates on that type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.job import TIMED
from fairlead.core.plan import Rates
from fairlead.estimators.base import ALONE, PAIRED, SPREAD, Observed, Profiler

FLAT_COMPANY = 0.6
"""What company leaves of a rate where there is no reference to tell: a little more than taking turns, so that it is tried."""

UNKNOWN_LEVEL = 2.0
"""The relative uncertainty of a rate of which not even the order of magnitude is known."""


@dataclass(frozen=True)
class Prior:
    """By row of the table."""

    level: Floats
    level_off: Floats  # the relative standard deviation of a rate of which only this is known
    speed: Floats  # rows × types, relative to the level
    speed_off: Floats  # its relative standard deviation
    spread: Floats  # rows × types: what is left of a rate where the gang is spread
    company: Floats  # rows × types: what is left of it in company
    company_off: Floats

    def guessed(self, types: tuple[str, ...], speeds: Mapping[str, float] | None, company: float | None) -> Prior:
        """The same with guesses in the references' place, where there are some."""
        changes: dict[str, Floats] = {}
        if speeds is not None:
            guess = np.array([speeds.get(name, 1.0) for name in types])
            relative = np.tile(guess / np.exp(np.log(guess).mean()), (len(self.level), 1))
            changes["speed"] = np.where(self.level_off[:, None] > 0, relative, self.speed)  # seconds pass alike everywhere
        if company is not None:
            changes["company"] = np.full(self.company.shape, company)
        return replace(self, **changes) if changes else self


def prior_of(profiler: Profiler, references: Ints, *, leave_out: bool) -> Prior:
    """For every row, from the references of its gang size (from all, where there are none); without its own kind where it is
    to be left out."""
    keys, types = profiler.keys, profiler.types
    alone, spread, paired = profiler.in_full(references)
    told = np.array([keys[row][1] for row in references.tolist()], dtype=np.int64)
    kinds = np.array([keys[row][0] for row in references.tolist()], dtype=object)
    shape = (len(keys), types)
    level, level_off = np.ones(len(keys)), np.full(len(keys), UNKNOWN_LEVEL)
    speed, off = np.ones(shape), np.full(shape, 1.0)
    part, beside, beside_off = np.ones(shape), np.full(shape, FLAT_COMPANY), np.full(shape, 0.5)
    cache: dict[tuple[str, int], tuple[Floats, ...]] = {}
    for row, (kind, workers) in enumerate(keys):
        if kind == TIMED:  # known by definition
            level_off[row], off[row] = 0.0, 0.0
            continue
        key = (kind if leave_out else "", workers)
        if key not in cache:
            mine = np.ones(len(references), dtype=np.bool_) if not leave_out else kinds != kind
            same = mine & (told == workers)
            cache[key] = _means(alone, spread, paired, same if same.any() else mine)
        found = cache[key]
        if len(found):
            level[row], speed[row], off[row] = float(found[0][0]), found[1], found[2]
            part[row], beside[row], beside_off[row] = found[3], found[4], found[5]
    return Prior(level, level_off, speed, off, part, beside, beside_off)


def _means(alone: Floats, spread: Floats, paired: Floats, mine: Bools) -> tuple[Floats, ...]:
    if not mine.any():
        return ()
    alone, spread, paired = alone[mine], spread[mine], paired[np.ix_(mine, mine)]
    runs = alone > 0
    logs = np.log(np.where(runs, alone, 1.0))
    levels = logs.sum(axis=1) / np.maximum(runs.sum(axis=1), 1)
    relative, relative_off = _columns(logs - levels[:, None], runs)
    left, _ = _columns(spread / np.where(runs, alone, 1.0), runs & (spread > 0), otherwise=1.0)
    ratio = paired / np.where(runs, alone, 1.0)[:, None, :]
    count = ratio.shape[0] * ratio.shape[1]
    flat = ratio.reshape(count, -1)
    company, company_off = _columns(flat, flat > 0, otherwise=FLAT_COMPANY)
    company_off = np.where(company_off > 0, company_off / company, 0.5)
    return np.exp(levels.mean(keepdims=True)), np.exp(relative), relative_off, left, company, company_off


def _columns(values: Floats, there: Bools, otherwise: float = 0.0) -> tuple[Floats, Floats]:
    """The mean and the standard deviation of each column, over what is there."""
    count = there.sum(axis=0)
    mean = np.where(count > 0, (values * there).sum(axis=0) / np.maximum(count, 1), otherwise)
    off = np.sqrt((((values - mean) * there) ** 2).sum(axis=0) / np.maximum(count, 1))
    return mean, off


def from_speeds(measured: Floats, speed: Floats, level: Floats) -> tuple[Floats, Bools]:
    """Rates from measurements on some types (NaN elsewhere) and relative speeds: the level that the measurements tell, or the
    given one where there are none; and for which rows it was told."""
    there = ~np.isnan(measured)
    logs = np.where(there, np.log(np.where(there, measured, 1.0) / speed), 0.0)
    count = there.sum(axis=1)
    told = count > 0
    found = np.where(told, np.exp(logs.sum(axis=1) / np.maximum(count, 1)), level)
    return np.where(there, measured, found[:, None] * speed), told


# Estimated throughputs as read-only arrays, with all that follows from them computed once. They are made anew only when
# something was learned: whoever keeps a model of them can tell by the arrays that nothing has changed.


class Estimates:
    """By row of the table; `rates(row)` are those of some jobs."""

    def __init__(
        self, alone: Floats, spread: Floats, paired: Floats, off: Floats, spread_off: Floats, paired_off: Floats
    ) -> None:
        self._arrays = (alone, spread, paired)
        for array in (*self._arrays, off, spread_off, paired_off):
            array.setflags(write=False)
        plain = Rates(np.zeros(0, dtype=np.int64), *self._arrays)
        self._others: dict[str, Any] = {
            "uncertainty": off,
            "spread_uncertainty": spread_off,
            "paired_uncertainty": paired_off,
            "best": alone.max(axis=1),
            "mask": plain.runs_on,
            "ranked": plain.preferred_types,
        }

    def rates(self, row: Ints) -> Rates:
        return Rates(row, *self._arrays, **self._others)


class Guess:
    """What is thought before anybody was seen to run, with relative uncertainties; what was seen takes its place."""

    def __init__(
        self, alone: Floats, off: Floats, spread_part: Floats, spread_off: Floats, paired_part: Floats, paired_off: Floats
    ) -> None:
        self.alone, self.off, self.spread_part, self.spread_off = alone, off, spread_part, spread_off
        self.paired_part, self.paired_off = paired_part, paired_off  # part of the rate alone: rows × rows × types

    def sharpened(self, observed: Observed, noise: float, fits: Bools, fit_together: Bools) -> Estimates:
        alone, off = _seen(observed, ALONE, self.alone, self.off, noise)
        alone = alone * fits
        # Who was seen on as few nodes as it needs was not seen on more.
        spread, spread_off = _seen(observed, SPREAD, alone * self.spread_part, self.spread_off, noise)
        paired, paired_off = _seen(observed, PAIRED, alone[:, None, :] * self.paired_part, self.paired_off, noise)
        return Estimates(alone, spread * fits, paired * fit_together, off, spread_off, paired_off)


def _seen(observed: Observed, what: str, guess: Floats, off: Floats, noise: float) -> tuple[Floats, Floats]:
    count = observed.count[what]
    there = count > 0
    return np.where(there, observed.mean[what], guess), np.where(there, noise / np.sqrt(np.maximum(count, 1)), off)


def check_measuring(where: str, noise: float, measurements: int) -> None:
    if not 0 <= noise < 1:
        raise InputError(where, "a relative error from 0 to less than 1", field="noise", value=noise)
    if measurements < 1:
        raise InputError(where, "at least 1", field="measurements", value=measurements)
