"""Entities with weights (Gavel §7.3, Figures 12 and 13): on 3 + 3 + 3 accelerators a job comes every four rounds, six of
each of three entities of weights 1, 2 and 3. No job ends, so shares change only when one comes: each of these
moments is solved once.

A job's effective throughput counts in units of what an equal share of the cluster, the same time on every accelerator, would
give it: steps of different models cannot be added up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fairlead.core.cluster import Cluster, Floats
from fairlead.core.job import Job
from fairlead.core.rng import stream
from fairlead.experiments.cases import Answer, Answers, CaseFailed
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.reporting.pictures import Lines, Picture, PlotLine, Stack
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.gavel.moments import allocator_of, moment, stages_of
from fairlead_papers.gavel.scale import Scale, cluster_of
from fairlead_papers.study import Study

WEIGHTS = {"entity-0": 1.0, "entity-1": 2.0, "entity-2": 3.0}
SIZE = "3 + 3 + 3 GPUs"
EACH = 6
EVERY = 4
_GIVEN = "weights={" + ", ".join(f"{name}: {weight:g}" for name, weight in WEIGHTS.items()) + "}"
FAIR, FIFO = f"hierarchical-perf:{_GIVEN}", f"hierarchical-perf:{_GIVEN}:inside=fifo"
PARTITION = f"static-partition:{_GIVEN}"


@dataclass(frozen=True)
class Shares:
    """Normalised effective throughput of each job after each arrival. `order` draws the kinds of the jobs."""

    policy: str
    order: int
    per_type: int = 3

    def run(self, inputs: ExperimentInputs) -> Answer:
        cluster = Cluster.parse(cluster_of(self.per_type))
        stages = stages_of(self.policy, inputs.table, cluster)
        jobs = _jobs(inputs, self.order)
        memo, found = None, []
        for there in range(1, len(jobs) + 1):
            view = moment(cluster, jobs[:there], stages)
            allocation, memo = allocator_of(stages).allocate(view, memo)
            equal = view.rates.of_jobs @ (view.capacity / view.capacity.sum())
            got = allocation.throughputs(view.jobs, view.rates) / equal
            found.append([*got.round(6).tolist(), *[0.0] * (len(jobs) - there)])
        return {"throughput": found}


def _jobs(inputs: ExperimentInputs, order: int) -> list[Job]:
    table = inputs.table
    kinds = [kind for kind in table.kinds if (kind, 1) in table.row_of and (table.alone[table.row(kind, 1)] > 0).all()]
    drawn = (stream(order, "entities").random(EACH * len(WEIGHTS)) * len(kinds)).astype(int).tolist()
    names = [name for name in WEIGHTS for _ in range(EACH)]
    return [Job(f"job-{i}", steps=1e12, kind=kinds[kind], account=name) for i, (kind, name) in enumerate(zip(drawn, names))]


def totals(answers: Answers, policy: str, orders: int) -> Floats:
    """Total throughput after each arrival, averaged over orders."""
    found = [np.array(answers.of(Shares(policy, order))["throughput"]).sum(axis=1) for order in range(orders)]
    return np.asarray(np.mean(found, axis=0), dtype=np.float64)


def _stacked(answers: Answers, policy: str, name: str, title: str) -> Stack:
    got = np.array(answers.of(Shares(policy, 0))["throughput"])
    part = got / got.sum(axis=1, keepdims=True)
    edges = [float(EVERY * step) for step in range(len(part) + 1)]
    groups = [name for name in WEIGHTS for _ in range(EACH)]
    return Stack(name, title, "rounds", "fraction of total effective throughput", edges, part.T.tolist(), groups)


def _account_part(answers: Answers, policy: str, place: int) -> float:
    last = np.array(answers.of(Shares(policy, 0))["throughput"][-1]).reshape(len(WEIGHTS), EACH).sum(axis=1)
    return 100.0 * float(last[place] / last.sum())


def read_fair(scale: Scale, answers: Answers) -> Findings:
    def lower(since: int) -> float:
        ours, theirs = totals(answers, FAIR, scale.orders), totals(answers, PARTITION, scale.orders)
        return 100.0 * (1.0 - float(theirs[since:].sum() / ours[since:].sum()))

    draws = f"mean of {scale.orders} draws of kinds"
    rows = [
        row("total throughput of static partitions lower by, once all jobs are there", 17.0, lambda: lower(-1), "%", Wants.NEAR,
            note=draws),
        row("the same, over all the time", None, lambda: lower(0), "%", Wants.NOTHING,
            note=f"{draws}; a partition stands empty until its entity comes"),
        *_part_rows(answers, FAIR),
    ]  # fmt: skip
    try:
        time = [float(EVERY * step) for step in range(EACH * len(WEIGHTS))]
        lines = [
            PlotLine(label, time, totals(answers, policy, scale.orders).tolist())
            for label, policy in (("multi-level fairness (Gavel)", FAIR), ("static partitions", PARTITION))
        ]
        pictures: tuple[Picture, ...] = (
            _stacked(answers, FAIR, "fig12-shares", "Fairness among and inside entities"),
            Lines("fig12-total", "Total effective throughput", "rounds", "in units of equal shares", lines),
        )
    except CaseFailed as problem:
        return Findings(rows, (), [f"no pictures: {problem}"])
    return Findings(rows, pictures, [_NORMALISED])


def read_fifo(scale: Scale, answers: Answers) -> Findings:
    def unserved() -> float:
        last = np.array(answers.of(Shares(FIFO, 0))["throughput"][-1])[:EACH]
        return float(np.count_nonzero(last <= 1e-6))

    rows = [
        row("jobs of entity 0 that get nothing in the end", None, unserved, "jobs", Wants.NOTHING,
            note="the paper: later jobs of an entity get no time, first come, first served"),
        *_part_rows(answers, FIFO),
    ]  # fmt: skip
    if rows[0].ours is None:
        return Findings(rows)
    return Findings(rows, (_stacked(answers, FIFO, "fig13-shares", "Fairness among, FIFO inside entities"),), [_NORMALISED])


_NORMALISED = f"{SIZE} at every scale; throughput in units of an equal share of the cluster"


def _part_rows(answers: Answers, policy: str) -> list[Row]:
    """Of each entity, its part of what all get once all jobs are there, beside its part of the weights."""
    all_weights = sum(WEIGHTS.values())
    return [
        row(
            f"part of {name} in the end, by weight {weight:g}",
            None,
            partial(_account_part, answers, policy, place),
            "%",
            Wants.NOTHING,
            f"its part of the weights is {100.0 * weight / all_weights:.1f} %; the paper shows widths in a picture, no numbers",
        )
        for place, (name, weight) in enumerate(WEIGHTS.items())
    ]


STUDIES = (
    Study(
        "fig12",
        "Figure 12: fairness among and inside entities",
        lambda scale: [Shares(policy, order) for policy in (FAIR, PARTITION) for order in range(scale.orders)],
        read_fair,
        lambda _: SIZE,
    ),
    Study("fig13", "Figure 13: fairness among entities, FIFO inside", lambda _: [Shares(FIFO, 0)], read_fifo, lambda _: SIZE),
)
