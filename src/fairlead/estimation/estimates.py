"""Estimated throughputs as read-only arrays, with all that follows from them computed once. They are made anew only when
something was learned: whoever keeps a model of them can tell by the arrays that nothing has changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.plan import Rates
from fairlead.estimation.observed import ALONE, PAIRED, SPREAD, Observed


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
            "ranked": plain.wishes,
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
