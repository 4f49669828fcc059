"""The prior of a job: before any observation it is like the mean reference job.

With r_it the rates of reference jobs of the same gang size, a job's rate on type t is its level times

    s_t = exp(mean_i log(r_it / level_i)),   level_i = the geometric mean of r_i over types,

and co-location leaves the mean fraction of the rate that it leaves the references on that type. Estimates are priors with
observations in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.job import TIMED
from fairlead.estimators.base import ALONE, PAIRED, SPREAD, ObservedRates, Profiler, rate_columns

DEFAULT_FRACTION = 0.6
"""The fraction of a rate under co-location without a reference: a little more than time slicing, so that it is tried."""

UNKNOWN_LEVEL = 2.0
"""The relative uncertainty of a rate of unknown order of magnitude."""


@dataclass(frozen=True)
class Prior:
    """The prior of each row of the table. Names with `_off` are relative standard deviations."""

    level: Floats
    level_off: Floats
    speed: Floats  # rows × types, relative to the level
    speed_off: Floats
    spread: Floats  # rows × types: the fraction of a rate where the gang is spread
    colocated: Floats  # rows × types: the fraction of a rate under co-location
    colocated_off: Floats

    def with_guesses(self, types: tuple[str, ...], speeds: Mapping[str, float] | None, colocated: float | None) -> Prior:
        """The same with guesses instead of references, where given."""
        changes: dict[str, Floats] = {}
        if speeds is not None:
            guess = np.array([speeds.get(name, 1.0) for name in types])
            relative = np.tile(guess / np.exp(np.log(guess).mean()), (len(self.level), 1))
            timed = self.level_off[:, None] <= 0  # as fast on all types
            changes["speed"] = np.where(timed, self.speed, relative)
        if colocated is not None:
            changes["colocated"] = np.full(self.colocated.shape, colocated)
        return replace(self, **changes) if changes else self


def prior_of(profiler: Profiler, references: Ints, *, leave_out: bool) -> Prior:
    """The prior of every row from references of its gang size; `leave_out` excludes those of its own kind."""
    keys, types = profiler.keys, profiler.types
    alone, spread, paired = profiler.reference_rates(references)
    gang = np.array([keys[row][1] for row in references.tolist()], dtype=np.int64)
    kinds = np.array([keys[row][0] for row in references.tolist()], dtype=object)
    shape = (len(keys), types)
    level, level_off = np.ones(len(keys)), np.full(len(keys), UNKNOWN_LEVEL)
    speed, off = np.ones(shape), np.full(shape, 1.0)
    part, colocated, colocated_off = np.ones(shape), np.full(shape, DEFAULT_FRACTION), np.full(shape, 0.5)
    cache: dict[tuple[str, int], tuple[Floats, ...]] = {}
    for row, (kind, workers) in enumerate(keys):
        if kind == TIMED:  # exact by definition
            level_off[row], off[row] = 0.0, 0.0
            continue
        key = (kind if leave_out else "", workers)
        if key not in cache:
            mine = np.ones(len(references), dtype=np.bool_) if not leave_out else kinds != kind
            same = mine & (gang == workers)
            cache[key] = _means(alone, spread, paired, same if same.any() else mine)
        found = cache[key]
        if len(found):
            level[row], speed[row], off[row] = float(found[0][0]), found[1], found[2]
            part[row], colocated[row], colocated_off[row] = found[3], found[4], found[5]
    return Prior(level, level_off, speed, off, part, colocated, colocated_off)


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
    colocated, colocated_off = _columns(flat, flat > 0, otherwise=DEFAULT_FRACTION)
    colocated_off = np.where(colocated_off > 0, colocated_off / colocated, 0.5)
    return np.exp(levels.mean(keepdims=True)), np.exp(relative), relative_off, left, colocated, colocated_off


def _columns(values: Floats, there: Bools, otherwise: float = 0.0) -> tuple[Floats, Floats]:
    """The mean and the standard deviation of the present values of each column."""
    count = there.sum(axis=0)
    mean = np.where(count > 0, (values * there).sum(axis=0) / np.maximum(count, 1), otherwise)
    off = np.sqrt((((values - mean) * there) ** 2).sum(axis=0) / np.maximum(count, 1))
    return mean, off


def from_speeds(measured: Floats, speed: Floats, level: Floats) -> tuple[Floats, Bools]:
    """Rates from measurements on some types (NaN elsewhere) and relative speeds; and which rows have measurements."""
    there = ~np.isnan(measured)
    logs = np.where(there, np.log(np.where(there, measured, 1.0) / speed), 0.0)
    count = there.sum(axis=1)
    measured_rows = count > 0
    found = np.where(measured_rows, np.exp(logs.sum(axis=1) / np.maximum(count, 1)), level)
    return np.where(there, measured, found[:, None] * speed), measured_rows


@dataclass(frozen=True)
class PriorEstimate:
    """Rates and relative uncertainties before observations; fractions are of the exclusive rate."""

    alone: Floats
    off: Floats
    spread_part: Floats
    spread_off: Floats
    paired_part: Floats  # rows × rows × types
    paired_off: Floats

    def with_observations(self, observed: ObservedRates, noise: float, profiler: Profiler) -> dict[str, Any]:
        """The arguments of `Rates`, with observed rates instead of the prior's. The arrays are read-only and new only where an
        observation was added, so that policies recognize unchanged ones."""
        fits = profiler.fits()
        alone, off = _replaced(observed, ALONE, self.alone, self.off, noise)
        alone = alone * fits
        spread, spread_off = _replaced(observed, SPREAD, alone * self.spread_part, self.spread_off, noise)
        paired, paired_off = _replaced(observed, PAIRED, alone[:, None, :] * self.paired_part, self.paired_off, noise)
        columns = rate_columns(alone, spread * fits, paired * profiler.fits_colocated())
        uncertainty = {"uncertainty": off, "spread_uncertainty": spread_off, "paired_uncertainty": paired_off}
        for array in (*(columns[name] for name in ("alone", "spread", "paired")), *uncertainty.values()):
            array.setflags(write=False)
        return {**columns, **uncertainty}


def _replaced(observed: ObservedRates, what: str, prior: Floats, off: Floats, noise: float) -> tuple[Floats, Floats]:
    count = observed.count[what]
    there = count > 0
    return np.where(there, observed.mean[what], prior), np.where(there, noise / np.sqrt(np.maximum(count, 1)), off)
