"""Pollux: workers and batch sizes co-adapted for goodput.

    maximise   (Σ_j s_j^p / n)^(1/p),   s_j = goodput_j(a_j) / goodput_j(fair share) · (1, or r_j where a_j is another than now)

over allocations a_j, at the best batch size for each. r_j = max(age − restarts·δ, 0) / (age + δ) is what a restart of δ seconds
leaves of a job's speed (§4.2.1). A job's goodput follows from its reports (`models.goodput`, by an estimator such as `fitted`).
It gets at most twice as many workers as it was profiled with, and one at first. A job that was submitted with predicted speeds
(`StepPrediction.speeds`) has these in place of its goodput until it has reported. A node holds at most one job that
spans several nodes.

Sizes are halves of a node down to one worker, and whole nodes. So the objective is a sum over jobs under one capacity, and a
dynamic program finds the best sizes exactly. They fit on nodes of one size, and a job that keeps its size stays. With more jobs
than accelerators no job is stopped, and the one that came first is next. A job that is not elastic has the size it requests.
Between decisions, jobs tune their batch sizes themselves (`TUNED`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import require
from fairlead.core.events import Memo
from fairlead.core.plan import TUNED, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.models.goodput import Goodputs
from fairlead.policies.elastic.base import Nodes, least_cost, sizes_on
from fairlead.prediction.step_prediction import StepPrediction, job_prediction

_STANDSTILL = 1e-3
"""The speedup of a job that does not run: small, and not nothing, so that its power is finite."""


@dataclass(frozen=True)
class Pollux:
    """Maximize goodput, fairer with lower `power`; elastic jobs change their workers and their batch size."""

    paper: ClassVar[str] = "Pollux §4 (Qiao et al., OSDI'21)"
    power: float = -1.0  # exponent of the mean over jobs; lower is fairer
    restart_s: float = 30.0  # seconds that a restart costs

    def __post_init__(self) -> None:
        require(-100 <= self.power <= 1, "policy pollux", "a number from -100 to 1", "power", self.power)
        require(0 <= self.restart_s < math.inf, "policy pollux", "seconds, at least 0", "restart_s", self.restart_s)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs = view.jobs
        if not len(jobs):
            return Selection.empty(), memo
        crowd = _JobTable.of(view)
        rows, types, places = list[int](), list[int](), list[list[int]]()
        for type_ in range(len(view.capacity)):
            for at, given in self._on(type_, crowd, view).items():
                rows.append(at)
                types.append(type_)
                places.append(given)
        numbers = jobs.number[rows]
        pinned = {number: np.array(given, dtype=np.int64) for number, given in zip(numbers.tolist(), places)}
        workers = np.array([len(given) for given in places], dtype=np.int64)
        tuned = np.where(crowd.elastic[rows], TUNED, 0)
        sizes = tuned if tuned.any() else None
        return Selection(numbers, np.array(types, dtype=np.int64), workers, batch_sizes=sizes, pinned=pinned), memo

    def _on(self, type_: int, crowd: _JobTable, view: Snapshot) -> dict[int, list[int]]:
        """The accelerators of a type that jobs get, by their row."""
        cluster = view.cluster
        mine = (crowd.type == type_).nonzero()[0]
        nodes = _nodes(view, type_, crowd.places, mine[crowd.fixed[mine]])
        capacity = sum(map(len, nodes.free.values()))
        for at in nodes.fixed:
            nodes.keep(at, crowd.places[at])
        rows = mine[~crowd.fixed[mine]]
        if len(rows) and capacity:
            # Of jobs with equal cost the last ones are served: running jobs, then the first that waits.
            rows = rows[np.lexsort((-rows, crowd.held[rows] > 0))]
            left = sum(map(len, nodes.free.values()))
            node = int(cluster.largest_node_of_type[type_])
            sizes, speedup = self._options(rows, crowd, capacity, node, len(mine))
            chosen = least_cost(sizes, self._cost(speedup), left)
            coming = dict[int, int]()
            for at, option, size in zip(rows.tolist(), chosen.tolist(), sizes[np.arange(len(rows)), chosen].tolist()):
                if option == 0 and size:
                    nodes.keep(at, crowd.places[at])
                elif size:
                    coming[at] = size
            nodes.place(coming)
        return nodes.places

    def _options(self, rows: Ints, crowd: _JobTable, capacity: int, node: int, jobs: int) -> tuple[Ints, Floats]:
        """Jobs × options, as sizes and as speedups (0: not an option): the present size, each of the sizes, and none."""
        known = crowd.modelled[rows].nonzero()[0]
        models = crowd.models.only(crowd.model_of[rows[known]])
        most = np.minimum(2 * models.profiled, models.most_workers)
        predicted = {at: crowd.predicted[row] for at, row in enumerate(rows.tolist()) if row in crowd.predicted}
        largest = max(int(most.max(initial=1)), *(max(one.speeds) for one in predicted.values()), 1)
        table = np.array(sizes_on(node, min(capacity, largest)))
        fair = max(1, math.ceil(capacity / jobs))
        held, elastic = crowd.held[rows], crowd.elastic[rows]
        sizes = np.concatenate(
            (held[:, None], np.repeat(table[None, :], len(rows), axis=0), np.zeros((len(rows), 1), np.int64)), 1
        )
        rigid = ~elastic & ~np.isin(crowd.asked[rows], table)  # a size of its own, in place of one that it cannot have anyway
        sizes[rigid, 1] = crowd.asked[rows][rigid]
        speedup = np.where(sizes == np.where(elastic, 1, crowd.asked[rows])[:, None], sizes / fair, 0.0)
        speedup[:, 0] = held / fair
        share = np.minimum(fair, models.most_workers)  # a job that cannot use a fair share is measured by the usable part
        own = np.stack((held[known], share), axis=1), np.stack((crowd.across[rows[known]], share > node), axis=1)
        now, fairly = models.here(*own).T
        there = models.best(table, table > node)
        usual = np.maximum(fairly, there[:, 0])  # one worker is the first of the sizes
        sound = usual > 0  # a model without progress counts as unknown
        known, usual = known[sound], usual[sound]
        speedup[known, 1:-1] = np.where(table <= most[:, None], there, 0.0)[sound] / usual[:, None]
        speedup[known, 0] = now[sound] / usual
        for at, one in predicted.items():
            *others, as_held, fairly, first = one.speeds_at([*table, held[at], min(fair, max(one.speeds)), min(one.speeds)])
            if as_held > 0 or not held[at]:
                speedup[at, :-1] = np.array([as_held, *others]) / max(fairly, first)
        age, spent = crowd.age[rows], crowd.restarts[rows] * self.restart_s
        kept = np.where(held > 0, np.maximum(age - spent, 0.0) / np.maximum(age + self.restart_s, 1e-9), 1.0)
        speedup[:, 1:-1] *= kept[:, None]
        speedup[sizes > capacity] = 0.0
        return sizes, speedup

    def _cost(self, speedup: Floats) -> Floats:
        """The cost of each option in the sum that is minimised."""
        s = speedup + _STANDSTILL
        cost = -np.log(s) if self.power == 0 else -np.sign(self.power) * s**self.power
        cost[:, :-1][speedup[:, :-1] <= 0] = np.inf
        return cost


def _nodes(view: Snapshot, type_: int, places: list[list[int]], fixed: Ints) -> Nodes:
    cluster, free = view.cluster, dict[int, list[int]]()
    mine = cluster.accelerators_of_type[type_]
    for place in mine[view.up[mine]].tolist():
        free.setdefault(cluster.node_of_accelerator[place], []).append(place)
    for at in fixed.tolist():  # protected jobs stay, also on nodes being drained
        for place in places[at]:
            here = free.setdefault(cluster.node_of_accelerator[place], [])
            if place not in here:
                here.append(place)
    return Nodes(cluster.node_of_accelerator, free, frozenset(fixed.tolist()))


@dataclass(frozen=True)
class _JobTable:
    """The jobs of a decision, one row each."""

    type: Ints  # on which each is to run
    asked: Ints
    elastic: Bools
    fixed: Bools  # runs, and must be left alone
    held: Ints  # accelerators that it can keep; 0 if it must leave
    across: Bools  # it spans several nodes
    places: list[list[int]]
    age: Floats
    restarts: Ints
    modelled: Bools
    model_of: Ints  # row in `models`
    models: Goodputs
    predicted: Mapping[int, StepPrediction] = field(default_factory=dict)  # speeds of elastic jobs without a model, by row

    @classmethod
    def of(cls, view: Snapshot) -> _JobTable:
        jobs = view.jobs
        numbers, running = jobs.number.tolist(), jobs.running
        elastic = view.elastic
        places = [view.device_map.of(n).tolist() if runs else [] for n, runs in zip(numbers, running.tolist())]
        stays: Bools = np.array([bool(view.up[held].all()) for held in places], dtype=np.bool_)
        node_of = view.cluster.node_of_accelerator
        across: Bools = np.array([len({node_of[place] for place in held}) > 1 for held in places], dtype=np.bool_)
        modelled, models = Goodputs.of(jobs, view.observations)
        modelled &= elastic
        texts = {at: view.job_of[numbers[at]].prediction for at in (elastic & ~modelled).nonzero()[0].tolist()}
        predicted = {at: job_prediction(text) for at, text in texts.items() if text}
        fixed = np.zeros(len(jobs), dtype=np.bool_) if view.protected is None else view.protected
        return cls(
            type=_types(view, elastic),
            asked=jobs.workers,
            elastic=elastic,
            fixed=fixed,
            held=np.where(stays, jobs.held, 0),
            across=across,
            places=places,
            age=view.time - jobs.submitted_s,
            restarts=np.maximum(jobs.starts - 1, 0),
            modelled=modelled,
            model_of=np.cumsum(modelled) - 1,
            models=models,
            predicted={at: one for at, one in predicted.items() if one.speeds},
        )


def _types(view: Snapshot, elastic: Bools) -> Ints:
    """The present type, or for a waiting job that of the highest speed times the share that demand leaves."""
    jobs, capacity = view.jobs, view.capacity
    if len(capacity) == 1:
        return np.zeros(len(jobs), dtype=np.int64)
    demand = np.bincount(jobs.type[jobs.running], jobs.held[jobs.running], len(capacity))
    types = np.where(jobs.running, jobs.type, -1)
    speed = view.rates.of_jobs * ((jobs.fits[:, None] >> np.arange(len(capacity))) & 1)
    for at in (~jobs.running).nonzero()[0].tolist():
        size = 1 if elastic[at] else int(jobs.workers[at])
        share = np.where(capacity >= size, np.minimum(capacity / (demand + size), 1.0), 0.0) * speed[at]
        if share.any():
            types[at] = share.argmax()
            demand[types[at]] += size
    return types
