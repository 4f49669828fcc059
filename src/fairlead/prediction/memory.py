"""How much memory a training will hold on its accelerator (Horus' Equation 2, with gradients and optimizer state of parameters).

    bytes = 4 · (activations · kept + transient · largest + copies · parameters + inputs) + δ

`kept` is what the way back needs of a forward pass, `largest` the largest tensor, of which gradients of a few live at once; a
parameter has itself, its gradient and its momentum. δ is what a framework and its libraries hold before they hold any tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.prediction.features import BYTES
from fairlead.prediction.utilization import Column

MB = 2.0**20
COPIES = 3.0  # weight, gradient, momentum


@dataclass(frozen=True)
class Memory:
    activations: float
    transient: float
    overhead_mb: float
    margin: float = 1.0  # on what tensors hold: the allocator rounds up, and too little is worse than too much

    def tensors_mb(self, columns: Sequence[Column]) -> Floats:
        """Without δ."""
        found: Floats = self.margin * (_terms(columns) @ (self.activations, self.transient, 1.0))
        return found

    def mb(self, columns: Sequence[Column]) -> Floats:
        found: Floats = self.tensors_mb(columns) + self.overhead_mb
        return found

    def kept(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restored(cls, data: Mapping[str, Any], source: object) -> Memory:
        try:
            found = cls(**{name: float(value) for name, value in data.items()})
        except (TypeError, ValueError, AttributeError):
            raise InputError(source, "activations, transient, overhead_mb and margin, as numbers", field="memory") from None
        return found


def fit(columns: Sequence[Column], tensors_mb: Floats, device_mb: Floats) -> Memory:
    """From what tensors held at most, and what the whole device showed then. Relative errors count, so that small jobs do too;
    the margin is the least with which 19 of 20 are told at least 95 % of what they took."""
    overhead = float(np.median(device_mb - tensors_mb * _rounded_up(device_mb, tensors_mb)))
    terms = _terms(columns)
    weight = 1.0 / tensors_mb[:, None]
    found = _least_squares(terms[:, :2] * weight, (tensors_mb - terms[:, 2]) / tensors_mb)
    plain = Memory(float(found[0]), float(found[1]), overhead)
    share = (device_mb - overhead) / np.maximum(plain.tensors_mb(columns), 1e-9)
    return Memory(plain.activations, plain.transient, overhead, max(float(np.quantile(share, 0.5)), 1.0))
