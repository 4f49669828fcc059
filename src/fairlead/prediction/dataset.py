"""Measurements and features side by side, as learners take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError
from fairlead.prediction.features import Features
from fairlead.prediction.utilization import Column


@dataclass(frozen=True)
class Dataset:
    """Row i of everything is the configuration `names[i]`."""

    names: tuple[str, ...]
    families: tuple[str, ...]
    columns: tuple[Column, ...]
    utilization: Floats
    tensors_mb: Floats
    reserved_mb: Floats
    device_mb: Floats

    def __len__(self) -> int:
        return len(self.names)

    def only(self, rows: Ints) -> Dataset:
        return Dataset(
            tuple(self.names[row] for row in rows),
            tuple(self.families[row] for row in rows),
            tuple(self.columns[row] for row in rows),
            self.utilization[rows],
            self.tensors_mb[rows],
            self.reserved_mb[rows],
            self.device_mb[rows],
        )

    def of(self, percent: Mapping[str, float]) -> Dataset:
        """Those that have a value there, with it in the place of their utilization."""
        rows: Ints = np.array([row for row, name in enumerate(self.names) if name in percent], dtype=np.int64)
        some = self.only(rows)
        return replace(some, utilization=np.array([percent[name] for name in some.names]))


def dataset(
    measured: Sequence[Mapping[str, Any]], features: Sequence[Mapping[str, Any]], source: object = "features"
) -> Dataset:
    """Of all that were measured and have features; those with a problem are left out."""
    known = {row["name"]: row for row in features if "problem" not in row}
    rows = [row for row in measured if "problem" not in row and row["name"] in known and "utilization" in row]
    if len(rows) < 2:
        raise InputError(source, "measurements and features of the same configurations", field="name", value=len(rows))
    return Dataset(
        tuple(row["name"] for row in rows),
        tuple(row["family"] for row in rows),
        tuple(stored_features(known[row["name"]], source).column() for row in rows),
        np.array([row["utilization"] for row in rows]),
        np.array([row["allocated_mb"] for row in rows]),
        np.array([row["reserved_mb"] for row in rows]),
        np.array([row["device_memory_mb"] for row in rows]),
    )


def stored_features(row: Mapping[str, Any], source: object = "features") -> Features:
    """As `fairlead profile features` wrote them."""
    try:
        found = Features(**{one.name: row[one.name] for one in fields(Features)})
        found.column()
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise InputError(source, f"features as `fairlead profile features` writes them: {problem}", field=row["name"]) from None
    return found
