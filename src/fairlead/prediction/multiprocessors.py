"""The multiprocessors that a training holds while its kernels run, and for how long. Under MPS co-located jobs wait for these
(docs/adr/0050-what-mps-divides.md); under time slicing they do not matter. It knows no scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.models.interference import SHORTEST_S, Slowdown
from fairlead.prediction.dataset import dataset
from fairlead.prediction.measured_profiles import shipped_profiles
from fairlead.prediction.predictor import Predictor, shipped_predictor
from fairlead.prediction.utilization import kernel_s
from fairlead.profiling.results import measured_set


@dataclass(frozen=True)
class MultiprocessorUse:
    """What a training holds alone."""

    multiprocessors: float  # busy, in percent, alone
    kernel_s: float  # how long a kernel takes on average, by the roofline
    counted: bool = False  # by the device itself; else predicted from the graph


UNKNOWN = MultiprocessorUse(math.nan, math.nan)


@cache
def multiprocessor_use(device: str = "h200") -> Mapping[str, MultiprocessorUse]:
    """Of all configurations that were measured on a device and whose graphs were read."""
    known = dataset(measured_set(device)[1], measured_set(f"{device}_features")[1])
    model, alone = shipped_predictor(device).multiprocessors, shipped_profiles(device).alone
    if model is None:
        return {}
    found: dict[str, MultiprocessorUse] = {}
    for name, column, believed in zip(known.names, known.columns, model.percent(known.columns).tolist()):
        counted = alone[name].multiprocessors
        found[name] = MultiprocessorUse(believed if counted is None else counted, kernel_s(column), counted is not None)
    return found


@dataclass(frozen=True)
class InterferenceModel:
    """Slowdowns in one sharing mode: `finer` by the multiprocessors that the other holds, `plain` by utilizations alone."""

    plain: Slowdown
    finer: Slowdown | None = None

    @classmethod
    def fitted(cls, predictor: Predictor, sharing: str) -> InterferenceModel:
        return cls(predictor.slowdown[sharing], predictor.at_once.get(sharing))

    def slower(self, busy: Floats, held: Floats, kernel_s: Floats) -> tuple[Floats, Floats, Bools]:
        """Of each beside each, by what they do alone: how many times slower, how far off that is to be expected (as a standard
        deviation), and whether it is by what the other holds. `busy` in percent, jobs × types; `held` in percent and `kernel_s`
        by job, NaN where nobody knows."""
        own, other = np.broadcast_arrays(busy[:, None], busy[None, :])
        slower, off = self.plain.of(own, other), self.plain.spread(own, other)
        known = np.isfinite(held) & np.isfinite(kernel_s)
        both = (known[:, None] & known[None, :])[:, :, None]
        if self.finer is None or not both.any():
            return slower, off, np.zeros_like(both)
        long = np.log10(np.maximum(np.where(known, kernel_s, 1.0), SHORTEST_S))
        grain = np.broadcast_to((long[None, :] - long[:, None])[:, :, None], own.shape)
        holds = np.broadcast_to(np.where(known, held, 0.0)[None, :, None], own.shape)
        finer = self.finer.of(own, holds, grain), self.finer.spread(own, holds)
        return np.where(both, finer[0], slower), np.where(both, finer[1], off), both
