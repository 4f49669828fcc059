"""How busy a training will keep an accelerator alone, in percent, from its features (Horus §4.1.1). Learned on the logarithm,
since the error that counts is the root mean squared logarithmic one: 10 % taken for 20 % is as wrong as 40 % taken for 80 %."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.models.learned_models import Learned, restored
from fairlead.prediction.learners import Learner

Column = Mapping[str, float]  # features by name
BEYOND = 5.0  # as a logarithm, more than 100 %


@dataclass(frozen=True)
class Utilization:
    learner: str
    names: tuple[str, ...]
    learned: Learned

    def percent(self, columns: Sequence[Column]) -> Floats:
        told = self.learned.predict(inputs(columns, self.names))
        return np.clip(np.expm1(np.minimum(told, BEYOND)), 0.0, 100.0)

    def importance(self) -> dict[str, float]:
        """Of each feature, as a share; the most important first."""
        found = self.learned.importance()
        shares = found / max(float(found.sum()), 1e-12)
        return dict(sorted(zip(self.names, shares.tolist()), key=lambda item: (-item[1], item[0])))

    def kept(self) -> dict[str, Any]:
        return {"learner": self.learner, "names": list(self.names), "learned": self.learned.kept()}

    @classmethod
    def restored(cls, data: Mapping[str, Any], source: object) -> Utilization:
        try:
            names = tuple(str(name) for name in data["names"])
            learner, learned = str(data["learner"]), data["learned"]
        except (KeyError, TypeError):
            raise InputError(source, "learner, names and learned", field="utilization") from None
        return cls(learner, names, restored(learned, len(names), source))


def fit_utilization(name: str, learner: Learner, columns: Sequence[Column], percent: Floats) -> Utilization:
    names = tuple(columns[0])
    return Utilization(name, names, learner(inputs(columns, names), np.log1p(percent)))


def inputs(columns: Sequence[Column], names: Sequence[str]) -> Floats:
    """Orders of magnitude: counts, sizes and microseconds by their logarithm."""
    raw = np.array([[column[name] * (1e6 if name.endswith("_s") else 1.0) for name in names] for column in columns])
    found: Floats = np.log1p(np.maximum(raw, 0.0))
    return found


def kernel_s(column: Column) -> float:
    """How long a kernel takes on average, by the roofline: what one on the same device waits for before its own can begin."""
    return max(column["device_s"], 1e-9) / max(column["launches"], 1.0)


def rmsle(predicted: Floats, measured: Floats) -> float:
    """Root mean squared logarithmic error, of percents."""
    return float(np.sqrt(np.mean((np.log1p(predicted) - np.log1p(measured)) ** 2)))
