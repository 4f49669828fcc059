"""A sweep: schedulers × the values of each axis × seeds. Its points, the run of each with each seed, and what they come to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from fairlead.backends.costs import Costs
from fairlead.core.cluster import Cluster
from fairlead.registry import Registry
from fairlead.study.compare import averaged
from fairlead.study.reproduce.case import CaseFailed
from fairlead.study.reproduce.store import Store
from fairlead.study.reproduce.working import answer_all
from fairlead.study.sweep.axes import Axis, put
from fairlead.study.sweep.case import JobsAndRates, SweepRun


@dataclass(frozen=True)
class Arm:
    """A scheduler of a sweep: what it is called, and its data."""

    label: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    title: str
    world: JobsAndRates
    arms: tuple[Arm, ...]
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    clusters: Mapping[str, Cluster]  # by what the file calls them
    cluster: str
    load: float | None
    jobs: int = 0
    workers: str = "multiple"
    costs: Costs = field(default_factory=Costs)
    measure: tuple[int, int] | None = None
    fill_workers: bool = False
    metrics: tuple[str, ...] = ("average_jct_s", "average_responsiveness_s", "utilization", "average_ftf")
    against: str = ""  # the axis that pictures go along

    def points(self) -> list[Point]:
        """Every scheduler at every combination of values; one that has no such parameter is there once."""
        every = itertools.product(*(range(len(axis.values)) for axis in self.axes))
        return list(dict.fromkeys(self._settled(Point(arm, at))[0] for at in every for arm in range(len(self.arms))))

    def value(self, point: Point, axis: int) -> Any:
        """What a point has on an axis; None where the axis is not for its scheduler."""
        at = point.at[axis]
        return None if at is None else self.axes[axis].values[at].data

    def scheduler(self, point: Point) -> dict[str, Any]:
        """The arm's data with the point's values, and without a name."""
        return self._settled(point)[1]

    def _settled(self, point: Point) -> tuple[Point, dict[str, Any]]:
        data: dict[str, Any] = dict(self.arms[point.arm].data)
        at = list(point.at)
        for axis in sorted(range(len(self.axes)), key=lambda axis: bool(self.axes[axis].part)):  # parts, then parameters
            if self.axes[axis].of_scheduler and at[axis] is not None:
                changed = put(self.axes[axis], self.value(point, axis), data, Registry.installed())
                at[axis] = None if changed is None else at[axis]
                data = changed or data
        return Point(point.arm, tuple(at)), {name: data[name] for name in sorted(data) if name != "name"}

    def run(self, point: Point, seed: int) -> SweepRun:
        given = {axis.name: self.value(point, index) for index, axis in enumerate(self.axes)}
        costs: dict[str, Any] = {
            name.removeprefix("costs."): float(value) for name, value in given.items() if name.startswith("costs.")
        }
        load = given.get("load", self.load)
        return SweepRun(
            yaml.safe_dump(self.scheduler(point)),
            self.clusters[given.get("cluster", self.cluster)],
            None if load is None else float(load),
            seed,
            given.get("jobs", self.jobs),
            self.workers,
            replace(self.costs, **costs),
            self.measure,
            self.fill_workers,
        )


@dataclass(frozen=True)
class Point:
    """A scheduler by its position, and on each axis the position of the value, where the axis is for this scheduler."""

    arm: int
    at: tuple[int | None, ...]


@dataclass(frozen=True)
class Result:
    """A point over all seeds; `failed` says why there are no figures."""

    point: Point
    mean: dict[str, float | None]
    half_width: dict[str, float | None]
    failed: str = ""


@dataclass(frozen=True)
class Swept:
    """A sweep that has run."""

    sweep: Sweep
    results: list[Result]
    ran: int  # runs that were not kept from before
    kept: int


def run_sweep(
    given: Sweep, folder: Path, *, processes: int | None = None, on_done: Callable[[bool], None] | None = None
) -> Swept:
    """Run what is not in the folder yet; `on_done` is told of each run whether it had to be."""
    done = {True: 0, False: 0}

    def note(new: bool) -> None:
        done[new] += 1
        if on_done:
            on_done(new)

    runs = {point: [given.run(point, seed) for seed in given.seeds] for point in given.points()}
    every = (run for of_point in runs.values() for run in of_point)
    answers = answer_all(every, Store(folder / "cases", given.world), processes=processes, on_done=note)
    results = []
    for point, of_point in runs.items():
        try:
            results.append(Result(point, *averaged([answers.of(run)["figures"] for run in of_point])))
        except CaseFailed as problem:
            results.append(Result(point, {}, {}, str(problem)))
    return Swept(given, results, done[True], done[False])
