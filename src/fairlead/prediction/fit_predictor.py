"""A predictor from measurements: the best of the learners for utilization, the fit of memory, and slowdowns by sharing mode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.models import interference
from fairlead.models.interference import Slowdown
from fairlead.prediction import memory, utilization
from fairlead.prediction.dataset import Dataset
from fairlead.prediction.evaluation import Held, at_random, by_family
from fairlead.prediction.learners import Learner
from fairlead.prediction.predictor import Predictor
from fairlead.prediction.utilization import Utilization, kernel_s

Pairs = Mapping[tuple[str, str], tuple[float, float]]
ENOUGH = 50  # configurations whose multiprocessors were counted, to learn from


def train(
    data: Dataset,
    busy: Mapping[str, float],
    pairs: Mapping[str, Pairs],
    learners: Mapping[str, Learner],
    about: Mapping[str, str],
    multiprocessors: Mapping[str, float] | None = None,
    at_once: Mapping[str, Pairs] | None = None,
) -> Predictor:
    """`busy` is the measured utilization by name, `multiprocessors` how many of them were busy, of those where that was asked.
    `at_once` has the pairs, by sharing mode, in which that counts."""
    about, active = dict(about), data.of(multiprocessors or {})
    model, about["rmsle"] = _best(data, learners)
    held, finer = None, {}
    if len(active) >= ENOUGH:
        held, about["multiprocessors_rmsle"] = _best(active, learners)
        known = Held(multiprocessors or {}, kernels(data))
        for mode, found in (at_once or {}).items():
            counted = {pair: both for pair, both in found.items() if all(name in known.multiprocessors for name in pair)}
            finer[mode] = slowdown_at_once(counted, busy, known)
    return Predictor(
        about,
        model,
        memory.fit(data.columns, data.tensors_mb, data.device_mb, data.reserved_mb),
        {mode: slowdown(found, busy) for mode, found in pairs.items() if found},
        held,
        finer,
    )


def _best(data: Dataset, learners: Mapping[str, Learner]) -> tuple[Utilization, str]:
    """By the learner that errs least, on families and on rows that it has not seen, which count alike; and how far it errs."""
    errors = {name: (by_family(data, one).rmsle + at_random(data, one).rmsle) / 2 for name, one in learners.items()}
    best = min(errors, key=lambda name: (errors[name], name))
    return utilization.fit(best, learners[best], data.columns, data.utilization), f"{errors[best]:.3f}"


def kernels(data: Dataset) -> dict[str, float]:
    """How long a kernel takes on average, by name, as far as graphs say."""
    return {name: kernel_s(column) for name, column in zip(data.names, data.columns)}


def leaving_out(
    data: Dataset, pairs: Mapping[str, Pairs], families: Collection[str], of: Mapping[str, str]
) -> tuple[Dataset, Mapping[str, Pairs]]:
    """What is left to learn from without some families; `of` is the family by name."""
    rest = np.array([row for row, family in enumerate(data.families) if family not in families], dtype=np.int64)
    known = {
        mode: {names: both for names, both in found.items() if not any(of[name] in families for name in names)}
        for mode, found in pairs.items()
    }
    return data.only(rest), known


def slowdown(pairs: Pairs, busy: Mapping[str, float]) -> Slowdown:
    return interference.fit(*columns_of_pairs(list(pairs), pairs, busy))


def slowdown_at_once(pairs: Pairs, busy: Mapping[str, float], held: Held) -> Slowdown:
    own, _, slower = columns_of_pairs(list(pairs), pairs, busy)
    holds, grain = held.columns(list(pairs))
    return interference.fit(own, holds, slower, grain)


def columns_of_pairs(
    which: Sequence[tuple[str, str]], pairs: Pairs, busy: Mapping[str, float]
) -> tuple[Floats, Floats, Floats]:
    """Own utilization, the other's, and the slowdown, of the first of each."""
    own: Any = np.array([busy[one] for one, _ in which])
    others: Any = np.array([busy[other] for _, other in which])
    return own, others, np.array([pairs[each][0] for each in which])
