"""How much memory a training will hold on its accelerator (Horus' Equation 2, with what parameters need to be trained).

    bytes = 4 · margin · (activations · kept + loss · outputs + 3 · parameters) + δ

`kept` is what the way back needs of a forward pass; of the outputs the loss and its way back hold copies; a parameter has
itself, its gradient and its momentum. δ is what a framework and its libraries hold before they hold any tensor of the model,
and the margin what an allocator takes beyond what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.models.learned_models import sane
from fairlead.prediction.features import BYTES
from fairlead.prediction.utilization import Column

MB = 2.0**20
COPIES = 3.0  # weight, gradient, momentum
TOO_LITTLE = 0.9  # of what was measured: less is worse than more, since it ends in an error
ENOUGH_FOR = 0.98  # of the configurations that were measured


@dataclass(frozen=True)
class Memory:
    activations: float
    loss: float
    margin: float
    overhead_mb: float

    def tensors_mb(self, columns: Sequence[Column]) -> Floats:
        """Without δ."""
        found: Floats = self.margin * (_terms(columns) @ np.array([self.activations, self.loss, COPIES]))
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
            raise InputError(source, "activations, loss, margin and overhead_mb, as numbers", field="memory") from None
        if not sane(numbers := list(asdict(found).values())) or min(numbers) < 0:
            raise InputError(source, "finite numbers from 0 on", field="memory")
        return found


def fit_memory(columns: Sequence[Column], tensors_mb: Floats, device_mb: Floats, reserved_mb: Floats) -> Memory:
    """From what tensors held at most, what the allocator held for them, and what the whole device showed. Relative errors
    count, so that small jobs do too; the margin is the least with which nearly all are told nearly what they took."""
    terms = _terms(columns)
    rest = tensors_mb - COPIES * terms[:, 2]
    known = np.column_stack([terms[:, :2], np.ones(len(terms))]) / tensors_mb[:, None]
    kept, loss, libraries = np.maximum(np.linalg.lstsq(known, rest / tensors_mb, rcond=None)[0], 0.0).tolist()
    overhead = float(np.median(device_mb - reserved_mb)) + libraries
    plain = Memory(kept, loss, 1.0, overhead)
    margin = float(np.quantile((TOO_LITTLE * device_mb - overhead) / plain.tensors_mb(columns), ENOUGH_FOR))
    return Memory(kept, loss, max(margin, 1.0), overhead)


def _terms(columns: Sequence[Column]) -> Floats:
    """What is kept, the outputs, the parameters, in MB."""
    return np.array([[one["kept"], one["outputs"], one["parameters"]] for one in columns]) * BYTES / MB
