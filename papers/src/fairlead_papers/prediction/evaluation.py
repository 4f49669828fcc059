"""Errors of predictions on what was left out of the fit: memory by family, and slowdowns by pair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.models import interference
from fairlead.models.interference import FULL, terms
from fairlead.prediction.fit_predictor import FOLDS, Dataset, KernelProfiles, random_folds
from fairlead.prediction.predictor import MIN_MEMORY_SHARE, fit_memory


def fits(data: Dataset) -> int:
    """How often a learner is fitted for errors by family and at random."""
    return len(set(data.families)) + FOLDS


@dataclass(frozen=True)
class MemoryErrors:
    """Of configurations of families that were not fitted to. Shares are predicted over measured."""

    with_overhead: Floats
    without_overhead: Floats

    @staticmethod
    def enough(shares: Floats) -> float:
        return float((shares >= MIN_MEMORY_SHARE).mean())

    @staticmethod
    def median_error(shares: Floats) -> float:
        return float(np.median(np.abs(shares - 1.0)))


def of_memory(data: Dataset) -> MemoryErrors:
    families = np.array(data.families)
    whole, tensors = np.zeros(len(data)), np.zeros(len(data))
    for name in dict.fromkeys(data.families):
        fold, rest = np.flatnonzero(families == name), np.flatnonzero(families != name)
        seen, left = data.only(rest), data.only(fold)
        found = fit_memory(seen.columns, seen.tensors_mb, seen.device_mb, seen.reserved_mb)
        whole[fold] = found.mb(left.columns) / left.device_mb
        tensors[fold] = found.tensors_mb(left.columns) / left.reserved_mb
    return MemoryErrors(whole, tensors)


@dataclass(frozen=True)
class SlowdownErrors:
    """R² on pairs that were not fitted to: 1 is perfect, 0 is the mean of those that were."""

    piecewise: float
    of_sum: float  # piecewise in the sum of utilizations, as in the paper
    linear: float
    constant: float
    finer: float | None  # with multiprocessors and the length of kernels
    spread: float  # standard deviation of what the piecewise one missed, the finer one where there is one
    predicted: Floats
    measured: Floats


def of_slowdown(
    pairs: Mapping[tuple[str, str], tuple[float, float]],
    busy: Mapping[str, float],
    believed: Mapping[str, float],
    held: KernelProfiles | None = None,
    believed_held: KernelProfiles | None = None,
    seed: int = 0,
) -> SlowdownErrors:
    """Both orders of a pair are left out together. Fitted to what was measured, predicted from what is believed."""
    which = sorted({(min(pair), max(pair)) for pair in pairs})
    rows = [
        (place, order) for place, pair in enumerate(which) for order in ((pair, pair[::-1]) if pair[0] != pair[1] else (pair,))
    ]
    place, orders = np.array([row[0] for row in rows]), [order for _, order in rows]
    own, others = (np.array([busy[order[side]] for order in orders]) for side in (0, 1))
    believed_own, believed_others = (np.array([believed[order[side]] for order in orders]) for side in (0, 1))
    wanted = np.array([pairs[order][0] for order in orders])
    found = {name: np.zeros(len(rows)) for name in ("piecewise", "of_sum", "linear", "constant", "finer")}
    for fold in random_folds(len(which), seed):
        left = np.isin(place, fold)
        seen = own[~left], others[~left], wanted[~left]
        asked = believed_own[left], believed_others[left]
        found["piecewise"][left] = interference.fit(*seen).of(*asked)
        found["of_sum"][left] = _of_sum(*seen, *asked)
        line = np.linalg.lstsq(terms(seen[0] + seen[1], np.zeros(len(seen[0])), 1)[:, :2], seen[2], rcond=None)[0]
        found["linear"][left] = terms(asked[0] + asked[1], np.zeros(len(asked[0])), 1)[:, :2] @ line
        found["constant"][left] = seen[2].mean()
        if held is not None:
            (holds, grain), (asked_holds, asked_grain) = held.columns(orders), (believed_held or held).columns(orders)
            finer = interference.fit(own[~left], holds[~left], wanted[~left], grain[~left])
            found["finer"][left] = finer.of(believed_own[left], asked_holds[left], asked_grain[left])
    scores: dict[str, float | None] = {name: r_squared(predicted, wanted) for name, predicted in found.items()}
    best = found["piecewise" if held is None else "finer"]
    if held is None:
        scores["finer"] = None
    return SlowdownErrors(**scores, spread=float((best - wanted).std()), predicted=best, measured=wanted)  # type: ignore[arg-type]


def ceiling(
    each: Mapping[tuple[str, str], Sequence[tuple[float, float]]],
) -> tuple[int, float] | None:
    """How many pairs were measured twice, and what R² is left to the best of predictions: what differs between two measurements
    of the same is noise."""
    twice = [np.subtract(seen[0], seen[1]) for seen in each.values() if len(seen) > 1]
    if not twice:
        return None
    all_ = np.array([slower for seen in each.values() for slower in seen[0]])
    return len(twice), float(1 - np.mean(np.square(twice)) / 2 / all_.var())


def _of_sum(own: Floats, others: Floats, wanted: Floats, asked_own: Floats, asked_others: Floats) -> Floats:
    total, asked = (own + others) / FULL, (asked_own + asked_others) / FULL
    made = np.zeros(len(asked))
    for inside, of_asked, degree in ((total <= 1, asked <= 1, 1), (total > 1, asked > 1, 2)):
        made[of_asked] = np.polyval(np.polyfit(total[inside], wanted[inside], degree), asked[of_asked])
    return made


def r_squared(predicted: Floats, measured: Floats) -> float:
    """NaN where nothing varies."""
    varies = float(((measured - measured.mean()) ** 2).sum())
    return 1 - float(((predicted - measured) ** 2).sum()) / varies if varies else math.nan
