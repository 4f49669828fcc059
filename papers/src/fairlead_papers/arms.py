"""Arms × loads × seeds: the cases of a sweep, and their figures averaged over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from fairlead.experiments.cases import Answer, Answers, Case, CaseFailed
from fairlead.reporting.pictures import Distribution, Lines, PlotLine

HOUR = 3600.0


class Labelled(Protocol):
    """One side of a comparison."""

    @property
    def label(self) -> str: ...


A = TypeVar("A", bound=Labelled)


@dataclass(frozen=True)
class Sweep(Generic[A]):
    """`make` gives the case of an arm at a load (in the paper's jobs per hour, for its cluster) with a seed."""

    arms: tuple[A, ...]
    loads: tuple[float, ...]
    seeds: tuple[int, ...]
    make: Callable[[A, float, int], Case]
    loads_are: str = "jobs per hour (for 36 GPUs of each type)"

    def cases(self) -> Iterable[Case]:
        return (self.make(arm, load, seed) for load in self.loads for arm in self.arms for seed in self.seeds)

    @property
    def high(self) -> float:
        """The load that the claims are about: the highest that is not beyond the paper's."""
        return self.loads[-1]

    def answers(self, answers: Answers, label: str, load: float) -> list[Answer]:
        arm = next(arm for arm in self.arms if arm.label == label)
        return [answers.of(self.make(arm, load, seed)) for seed in self.seeds]

    def mean(self, answers: Answers, label: str, load: float, pick: Callable[[Answer], float]) -> float:
        return float(np.mean([pick(answer) for answer in self.answers(answers, label, load)]))

    def gain(self, answers: Answers, worse: str, better: str, load: float, pick: Callable[[Answer], float]) -> float:
        """By which factor a figure is smaller under `better`."""
        return self.mean(answers, worse, load, pick) / self.mean(answers, better, load, pick)

    def gains(self, answers: Answers, worse: str, better: str, load: float, pick: Callable[[Answer], float]) -> list[float]:
        """The same seed by seed: both sides had the same jobs."""
        sides = (self.answers(answers, worse, load), self.answers(answers, better, load))
        return [pick(old) / pick(new) for old, new in zip(*sides)]

    def against_load(
        self, answers: Answers, name: str, title: str, y: str, pick: Callable[[Answer], float], unit: float = HOUR
    ) -> Lines:
        """A figure against the load, a line for each arm; points that failed are left out."""
        lines = []
        for arm in self.arms:
            points = []
            for load in self.loads:
                try:
                    got = np.array([pick(answer) for answer in self.answers(answers, arm.label, load)]) / unit
                except CaseFailed:
                    continue
                points.append((load, float(got.mean()), float(got.std())))
            if points:
                x, mean, spread = zip(*points)
                lines.append(PlotLine(arm.label, x, mean, spread if len(self.seeds) > 1 else ()))
        return Lines(name, title, self.loads_are, y, lines)

    def distribution(
        self, answers: Answers, name: str, title: str, x: str, field: str, load: float, unit: float = HOUR
    ) -> Distribution:
        """How the values of single jobs are distributed at a load, the seeds together."""
        found: list[tuple[str, Sequence[float]]] = []
        for arm in self.arms:
            try:
                values = [value / unit for answer in self.answers(answers, arm.label, load) for value in known(answer[field])]
            except CaseFailed:
                continue
            found.append((arm.label, values))
        return Distribution(name, title, x, found)

    def notes(self, answers: Answers) -> list[str]:
        """What the reader should know of single points."""
        told = []
        for load in self.loads:
            for arm in self.arms:
                try:
                    early = any(answer["load_ended_early"] for answer in self.answers(answers, arm.label, load))
                except CaseFailed as problem:
                    told.append(f"{arm.label} at {load:g} jobs/hr: {problem}")
                    continue
                if early:
                    told.append(f"{arm.label} at {load:g} jobs/hr: arrivals ended before the measured jobs did")
        return told


def known(values: Sequence[Any]) -> list[float]:
    """Without what is not a number."""
    return [float(value) for value in values if value is not None and np.isfinite(value)]


def average_jct(answer: Answer) -> float:
    return figure(answer, "average_jct_s")


def average_of(field: str) -> Callable[[Answer], float]:
    """The mean over the measured jobs of a list in the answer."""

    def mean(answer: Answer) -> float:
        values = known(answer[field])
        if not values:
            raise CaseFailed("no measured job finished")
        return float(np.mean(values))

    return mean


def figure(answer: Answer, name: str) -> float:
    value = answer["figures"].get(name)
    if value is None:
        raise CaseFailed(f"the run has no {name}")
    return float(value)
