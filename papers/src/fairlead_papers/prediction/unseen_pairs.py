"""Pairs that no fit has seen, beside what is predicted of them: utilization and multiprocessors from graphs, by a learner to
whom each training's family is new, and slowdowns by a predictor. In the order in which Horus would advise them (its Equations 7
to 10, with equal weights)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.prediction.fit_predictor import Dataset, errors_by_family, kernel_durations
from fairlead.prediction.learners import Learner
from fairlead.prediction.measured_profiles import UNKNOWN, InterferenceModel, MultiprocessorUse, SoloProfile
from fairlead.prediction.predictor import Memory
from fairlead_papers.prediction.evaluation import r_squared


@dataclass(frozen=True)
class Belief:
    """Of a training alone."""

    utilization: float  # percent
    memory_mb: float
    hold: MultiprocessorUse = UNKNOWN


@dataclass(frozen=True)
class Pair:
    names: tuple[str, str]
    believed: tuple[Belief, Belief]
    predicted: tuple[float, float]
    measured: tuple[float, float]
    cost: float
    finer: bool  # by what the other holds


def believed(data: Dataset, counted: Mapping[str, float], memory: Memory, learner: Learner) -> dict[str, Belief]:
    """Of all trainings, each by what others' families tell. `counted` are the multiprocessors of those where they were."""
    busy = errors_by_family(data, learner).predicted.tolist()
    active, held = data.of(counted), dict[str, float]()
    if len(active) and len(set(active.families)) > 1:
        held = dict(zip(active.names, errors_by_family(active, learner).predicted.tolist()))
    long, memory_mb = kernel_durations(data), memory.mb(data.columns).tolist()
    return {
        name: Belief(percent, mb, MultiprocessorUse(held[name], long[name]) if name in held else UNKNOWN)
        for name, percent, mb in zip(data.names, busy, memory_mb)
    }


def seen(alone: Mapping[str, SoloProfile], held: Mapping[str, MultiprocessorUse]) -> dict[str, Belief]:
    """The same as it was measured: what is left of errors then is the slowdown's alone."""
    return {name: Belief(one.utilization, one.memory_mb, held.get(name, UNKNOWN)) for name, one in alone.items()}


def in_order(
    pairs: Mapping[tuple[str, str], tuple[float, float]],
    known: Mapping[str, Belief],
    fitted: InterferenceModel,
    device_mb: float,
) -> list[Pair]:
    """The cheapest first; each pair once."""
    found = list[Pair]()
    for one, other in sorted({(min(pair), max(pair)) for pair in pairs}):
        both = known[one], known[other]
        busy, held, long = (
            np.array(column) for column in zip(*((b.utilization, b.hold.multiprocessors, b.hold.kernel_s) for b in both))
        )
        slower, _, finer = fitted.slower(busy[:, None], held, long)
        predicted = float(slower[0, 1, 0]), float(slower[1, 0, 0])
        share = min(sum(each.memory_mb for each in both) / device_mb, 1.0)
        cost = 0.5 * share + 0.5 * (sum(predicted) / 2 - 1)
        found.append(Pair((one, other), both, predicted, pairs[one, other], cost, bool(finer[0, 1, 0])))
    return sorted(found, key=lambda pair: (pair.cost, pair.names))


def foremost(ranked: Sequence[Pair], many: int, most: int = 2) -> list[Pair]:
    """The first so many of two different trainings, none of which is in more than `most` of them."""
    chosen, met = list[Pair](), Counter[str]()
    for pair in ranked:
        if pair.names[0] != pair.names[1] and all(met[name] < most for name in pair.names) and len(chosen) < many:
            chosen.append(pair)
            met.update(pair.names)
    return chosen


def ends(ranked: Sequence[Pair], many: int) -> dict[str, list[Pair]]:
    """The foremost of both ends of the order, and apart from them those of two trainings alike: these would be first at either
    end, and say less of who suits whom."""
    advised = foremost(ranked, many)
    alike = [pair for pair in ranked if pair.names[0] == pair.names[1]]
    return {
        "advised": advised,
        "advised against": foremost([pair for pair in reversed(ranked) if pair not in advised], many),
        "advised alike": alike[:many],
        "against alike": alike[many:][::-1][:many],
    }


def errors(pairs: Sequence[Pair]) -> tuple[float, float]:
    """The mean of how far off predicted slowdowns are, and R²; both sides of each pair count."""
    predicted, measured = (np.array([value for pair in pairs for value in side(pair)]) for side in (_predicted, _measured))
    return float(np.abs(predicted - measured).mean()), r_squared(predicted, measured)


def _predicted(pair: Pair) -> tuple[float, ...]:
    return pair.predicted[:1] if pair.names[0] == pair.names[1] else pair.predicted


def _measured(pair: Pair) -> tuple[float, ...]:
    return (sum(pair.measured) / 2,) if pair.names[0] == pair.names[1] else pair.measured
