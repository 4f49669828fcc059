"""Fit a predictor to measurements: the best learner for utilization, memory, and slowdowns by sharing mode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.rng import stream
from fairlead.models import interference
from fairlead.models.interference import Slowdown
from fairlead.prediction.features import Features
from fairlead.prediction.learners import Learner
from fairlead.prediction.predictor import Column, Predictor, Utilization, fit_memory, fit_utilization, kernel_s, rmsle


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
            *(column[rows] for column in (self.utilization, self.tensors_mb, self.reserved_mb, self.device_mb)),
        )

    def of(self, percent: Mapping[str, float]) -> Dataset:
        """The rows with a value in `percent`, which replaces their utilization."""
        rows: Ints = np.array([row for row, name in enumerate(self.names) if name in percent], dtype=np.int64)
        some = self.only(rows)
        return replace(some, utilization=np.array([percent[name] for name in some.names]))


def dataset(measured: Sequence[Mapping[str, Any]], features: Sequence[Mapping[str, Any]]) -> Dataset:
    """The configurations with measurements and features; measurements with a problem are left out."""
    known = {row["name"]: row for row in features if "problem" not in row}
    rows = [row for row in measured if "problem" not in row and row["name"] in known and "utilization" in row]
    if len(rows) < 2:
        raise InputError("features", "measurements and features of the same configurations", field="name", value=len(rows))
    return Dataset(
        tuple(row["name"] for row in rows),
        tuple(row["family"] for row in rows),
        tuple(stored_features(known[row["name"]]).column() for row in rows),
        *(np.array([row[name] for row in rows]) for name in ("utilization", "allocated_mb", "reserved_mb", "device_memory_mb")),
    )


def stored_features(row: Mapping[str, Any]) -> Features:
    """Features as `fairlead profile features` wrote them."""
    try:
        found = Features(**{one.name: row[one.name] for one in fields(Features)})
        found.column()
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        wanted = f"features as `fairlead profile features` writes them: {problem}"
        raise InputError("features", wanted, field=row["name"]) from None
    return found


Pairs = Mapping[tuple[str, str], tuple[float, float]]
ENOUGH = 50  # the least number of configurations with counted multiprocessors to fit to
FOLDS = 5


@dataclass(frozen=True)
class KernelProfiles:
    """The multiprocessors that each training keeps busy, in percent, and the mean duration of its kernels."""

    multiprocessors: Mapping[str, float]
    kernel_s: Mapping[str, float]

    def columns(self, pairs: Sequence[tuple[str, str]]) -> tuple[Floats, Floats]:
        """For each pair, the share that the second job holds, and log₁₀ of the kernel length ratio, second to first."""
        own, other = (np.array([self.kernel_s[pair[side]] for pair in pairs]) for side in (0, 1))
        held: Floats = np.array([self.multiprocessors[pair[1]] for pair in pairs])
        return held, np.log10(other / own)


def fit_predictor(
    data: Dataset,
    busy: Mapping[str, float],
    pairs: Mapping[str, Pairs],
    learners: Mapping[str, Learner],
    about: Mapping[str, str],
    multiprocessors: Mapping[str, float] | None = None,
    at_once: Mapping[str, Pairs] | None = None,
) -> Predictor:
    """Fit a predictor.

    Args:
        busy: measured utilization by name.
        multiprocessors: busy multiprocessors by name, where they were counted.
        at_once: pairs by sharing mode in which multiprocessors matter.
    """
    about, active = dict(about), data.of(multiprocessors or {})
    model, about["rmsle"] = _best(data, learners)
    held, finer = None, {}
    if len(active) >= ENOUGH:
        held, about["multiprocessors_rmsle"] = _best(active, learners)
        known = KernelProfiles(multiprocessors or {}, kernel_durations(data))
        for mode, found in (at_once or {}).items():
            counted = {pair: both for pair, both in found.items() if all(name in known.multiprocessors for name in pair)}
            finer[mode] = _slowdown_at_once(counted, busy, known)
    return Predictor(
        about,
        model,
        fit_memory(data.columns, data.tensors_mb, data.device_mb, data.reserved_mb),
        {mode: _slowdown(found, busy) for mode, found in pairs.items() if found},
        held,
        finer,
    )


def _best(data: Dataset, learners: Mapping[str, Learner]) -> tuple[Utilization, str]:
    """The model of the learner with the least error on families and rows that were left out, and that error."""
    errors = {
        name: (errors_by_family(data, one).rmsle + errors_at_random(data, one).rmsle) / 2 for name, one in learners.items()
    }
    best = min(errors, key=lambda name: (errors[name], name))
    return fit_utilization(best, learners[best], data.columns, data.utilization), f"{errors[best]:.3f}"


def kernel_durations(data: Dataset) -> dict[str, float]:
    """Mean kernel duration by name, from graphs."""
    return {name: kernel_s(column) for name, column in zip(data.names, data.columns)}


def without_families(
    data: Dataset, pairs: Mapping[str, Pairs], families: Collection[str], of: Mapping[str, str]
) -> tuple[Dataset, Mapping[str, Pairs]]:
    """The data without some families; `of` is the family by name."""
    rest = np.array([row for row, family in enumerate(data.families) if family not in families], dtype=np.int64)
    known = {
        mode: {names: both for names, both in found.items() if not any(of[name] in families for name in names)}
        for mode, found in pairs.items()
    }
    return data.only(rest), known


def _slowdown(pairs: Pairs, busy: Mapping[str, float]) -> Slowdown:
    return interference.fit(*_columns_of_pairs(list(pairs), pairs, busy))


def _slowdown_at_once(pairs: Pairs, busy: Mapping[str, float], held: KernelProfiles) -> Slowdown:
    own, _, slower = _columns_of_pairs(list(pairs), pairs, busy)
    holds, kernel_length_ratio = held.columns(list(pairs))
    return interference.fit(own, holds, slower, kernel_length_ratio)


def _columns_of_pairs(
    which: Sequence[tuple[str, str]], pairs: Pairs, busy: Mapping[str, float]
) -> tuple[Floats, Floats, Floats]:
    """Own utilization, the other's, and the slowdown, of the first of each."""
    own: Any = np.array([busy[one] for one, _ in which])
    others: Any = np.array([busy[other] for _, other in which])
    return own, others, np.array([pairs[each][0] for each in which])


@dataclass(frozen=True)
class HeldOutErrors:
    """Predictions and measurements of rows that were left out of the fit."""

    predicted: Floats
    measured: Floats
    families: tuple[str, ...]

    @property
    def rmsle(self) -> float:
        return rmsle(self.predicted, self.measured)

    def of_families(self) -> dict[str, float]:
        names = np.array(self.families)
        return {
            name: rmsle(self.predicted[names == name], self.measured[names == name]) for name in dict.fromkeys(self.families)
        }


def errors_by_family(data: Dataset, learner: Learner, on_fit: Callable[[], None] | None = None) -> HeldOutErrors:
    """Predict each family from all others."""
    families = np.array(data.families)
    folds = [np.flatnonzero(families == name) for name in dict.fromkeys(data.families)]
    return _held_out(data, learner, folds, on_fit)


def errors_at_random(data: Dataset, learner: Learner, on_fit: Callable[[], None] | None = None) -> HeldOutErrors:
    """Predict each random fold of rows from the others."""
    return _held_out(data, learner, random_folds(len(data), 0), on_fit)


def _held_out(data: Dataset, learner: Learner, folds: list[Ints], on_fit: Callable[[], None] | None) -> HeldOutErrors:
    predicted = np.zeros(len(data))
    for fold in folds:
        rest = np.setdiff1d(np.arange(len(data)), fold)
        known = data.only(rest)
        model = fit_utilization("", learner, known.columns, known.utilization)
        predicted[fold] = model.percent([data.columns[row] for row in fold])
        if on_fit is not None:
            on_fit()
    return HeldOutErrors(predicted, data.utilization, data.families)


def random_folds(rows: int, seed: int) -> list[Ints]:
    """Rows in random folds of equal size."""
    order = stream(seed, "folds").permutation(rows)
    return [np.sort(part) for part in np.array_split(order, FOLDS)]
